r"""FedAvg (McMahan et al., AISTATS 2017), and FedSage (Zhang et al., NeurIPS 2021), which is FedAvg of GraphSAGE classifiers.

FedSage (docs/papers/fedsage.md#rounds): the server broadcasts phi, every client takes E local epochs from it, and the server
averages

.. math:: \phi \leftarrow \sum_i w_i \phi_i, \qquad w_i = n_i / \sum_j n_j \quad\text{or}\quad 1/M \text{ (uniform)} .

FedAvg's paper has the first, FedSage's the second. A client without a label of a task has learnt nothing of it: in the rows of
that task (``untrained_rows`` of its reply) its weight is 0, and the sum is over the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.strategies.averaging import average_learnt
from fl_lightning.strategies.base import Strategy


class FedAvg(Strategy):
    """The server's model becomes the (weighted) mean of the participants' models; of each row, those that trained it.

    Args:
        weighting: ``num_samples`` weighs a participant by its number of training samples, as FedAvg's paper; ``uniform`` gives
            all the same weight, as FedSage's.
    """

    def __init__(self, weighting: Literal["uniform", "num_samples"] = "num_samples") -> None:
        if weighting not in ("uniform", "num_samples"):
            raise ValueError(
                f"`federation.strategy.init_args.weighting` must be `uniform` or `num_samples`, got `{weighting}`."
            )
        self.weighting = weighting

    def download(self, client: int) -> Payload:
        return Payload(self.weights)

    def aggregate(self, federation: Federation, round: int, replies: Mapping[int, Payload]) -> None:
        weights = [1.0 if self.weighting == "uniform" else float(r.values["num_samples"]) for r in replies.values()]
        untrained = [r.values.get("untrained_rows", {}) for r in replies.values()]
        mean = average_learnt([r.tensors for r in replies.values()], weights, untrained, self.weights)
        self.weights = {**self.weights, **self.server_step(mean)}
