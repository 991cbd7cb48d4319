r"""FedProx: stay near the weights as received (Li et al., MLSys 2020; one of FedChem's rivals).

.. math:: L + \frac{\mu}{2} \sum_p \lVert w_p - w^g_p \rVert_2^2 \quad\text{(variant paper)}, \qquad
          L + \mu \sum_p \lVert w_p - w^g_p \rVert_2^2 \quad\text{(variant official: FedChem's code, no 1/2)}

over the trainable parameters that are shared; ``w^g`` is constant. Gradient: mu (w - w^g), or twice that.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lit_models.objectives.base import Objective
from lit_models.objectives.support.added_term import AddedTerm
from lit_models.objectives.support.warm_up import VARIANTS

if TYPE_CHECKING:
    from lit_models.base import LitGraphModule


def squared_distance(weights: Mapping[str, Tensor], received: Mapping[str, Tensor]) -> Tensor:
    r""":math:`\sum_p \lVert w_p - w^g_p \rVert_2^2` over the names in ``received``; no gradient to ``received``."""
    return torch.stack([F.mse_loss(weights[name], w.detach(), reduction="sum") for name, w in received.items()]).sum()


class FedProx(AddedTerm):
    """A base loss plus the proximal term.

    Args:
        mu: Factor of the term; 0 switches it off (FedAvg). FedChem's grid: .001, .01, .1, 1, 10.
        base: The loss that the term is added to; `ERM` by default.
        warmup_rounds: First rounds with the base loss alone.
        variant: ``"paper"``: mu / 2; ``"official"``: mu.

    Logs ``train/proximal``, the term with its factor.
    """

    def __init__(
        self,
        mu: float = 0.01,
        base: Objective | None = None,
        warmup_rounds: int = 1,
        variant: Literal["paper", "official"] = "paper",
    ) -> None:
        super().__init__(base, warmup_rounds)
        self.check("mu", mu, mu >= 0, "at least 0")
        self.check("variant", variant, variant in VARIANTS, f"one of {VARIANTS}")
        self.mu, self.variant = mu, variant
        self._received: dict[str, Tensor] | None = None

    def on_train_start(self, module: LitGraphModule) -> None:
        super().on_train_start(module)
        self._received = None
        if self.mu and not self.warming_up:
            self._received = {name: weight.detach().clone() for name, weight in self.pulled(module).items()}

    def __call__(self, module: LitGraphModule, batch: Any) -> Tensor:
        loss = self.base(module, batch)
        if not self.mu or self.warming_up:
            return loss
        if self._received is None:
            raise ValueError(
                "`FedProx` needs the weights as received: call `on_train_start` before the first batch "
                "(`lightning.Trainer.fit` does)."
            )
        factor = self.mu / 2 if self.variant == "paper" else self.mu
        term = factor * squared_distance(self.pulled(module), self._received)
        module.observe({"proximal": term})
        return loss + term

    def on_train_end(self, module: LitGraphModule) -> None:
        super().on_train_end(module)
        self._received = None

    def pulled(self, module: LitGraphModule) -> dict[str, Tensor]:
        """The parameters that the term is over: trainable, and not private to the client (those are not received)."""
        private = getattr(module, "private_entries", ())
        return {
            name: weight
            for name, weight in module.named_parameters()
            if weight.requires_grad and not any(fnmatch.fnmatch(name, pattern) for pattern in private)
        }
