r"""FedAvg (McMahan et al., AISTATS 2017), and FedSage (Zhang et al., NeurIPS 2021), which is FedAvg of GraphSAGE classifiers.

FedSage (docs/papers/fedsage.md#rounds): the server broadcasts phi, every client takes E local epochs from it, and the server
averages

.. math:: \phi \leftarrow \sum_i w_i \phi_i, \qquad w_i = n_i / \sum_j n_j \quad\text{or}\quad 1/M \text{ (uniform)} .

FedAvg's paper has the first, FedSage's the second. A client without a label of a task has learnt nothing of it: in the rows of
that task (``untrained_rows`` of its reply) its weight is 0, and the sum is over the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import lightning as L
from torch import Tensor

from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.strategies.aggregation import standing
from fl_lightning.strategies.averaging import average_learnt, rows_of_nobody
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

    takes_aggregation = True

    _buffers: frozenset[str] = frozenset()
    _still: Mapping[str, Sequence[int]] = {}

    def check(
        self,
        module: L.LightningModule,
        datamodules: Sequence[L.LightningDataModule],
        server_data: L.LightningDataModule | None,
    ) -> None:
        self._buffers = frozenset(name for name, _ in module.named_buffers(remove_duplicate=False))

    def download(self, client: int) -> Payload:
        return Payload(self.weights)

    def aggregate(self, federation: Federation, round: int, replies: Mapping[int, Payload]) -> None:
        self._still = rows_of_nobody(untrained_rows(replies))
        average = self.average(replies)
        stepped = self.server_step({name: tensor for name, tensor in average.items() if name not in self._buffers})
        for name, rows in self._still.items():  # a server's optimiser would move them by its memory
            if name in stepped:
                stepped[name] = stepped[name].clone()
                stepped[name][rows] = self.weights[name][rows]
        self.weights = {**self.weights, **average, **stepped}

    def average(self, replies: Mapping[int, Payload]) -> dict[str, Tensor]:
        """The clients' models as one: the floating entries, of each row the mean over those that have trained it."""
        models = [reply.tensors for reply in replies.values()]
        given = (models, self.shares(replies), untrained_rows(replies), self.weights)
        if self._aggregation is None:
            return average_learnt(*given)
        result = self._aggregation(*given)
        self.remarks = dict(zip(replies, standing(models, result, self.weights), strict=True))
        return result

    def shares(self, replies: Mapping[int, Payload]) -> list[float]:
        """What each client weighs, up to a factor that is the same for all."""
        return [1.0 if self.weighting == "uniform" else float(r.values["num_samples"]) for r in replies.values()]


def untrained_rows(replies: Mapping[int, Payload]) -> list[Mapping[str, Sequence[int]]]:
    """Of each client, by entry, the rows that it has not trained."""
    return [reply.values.get("untrained_rows", {}) for reply in replies.values()]
