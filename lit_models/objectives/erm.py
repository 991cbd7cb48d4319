r"""ERM: empirical risk minimisation, the plain local objective of FedAvg and FedSage.

.. math:: L = \frac{1}{\sum_{s,t} m_{st}} \sum_{s,t} m_{st}\, \ell(F(x_s)_t, y_{st})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from lit_models.objectives.base import Objective, masked_mean

if TYPE_CHECKING:
    from lit_models.base import LitGraphModule


class ERM(Objective):
    """Mean loss over the labelled (sample, task) pairs of a batch; a batch without any gives zero, gradients zero."""

    def __call__(self, module: LitGraphModule, batch: Any) -> Tensor:
        losses = module.losses(module(batch), batch)
        return masked_mean(losses.loss, losses.mask)
