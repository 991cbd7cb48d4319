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

import torch
from torch import Tensor

from fl_lightning.engine.entries import check_layout, rows_by_learners
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.strategies.base import Strategy


def average(models: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    r"""Weighted mean :math:`\sum_i w_i \theta_i / \sum_i w_i` of floating entries, in float64 and cast back.

    Args:
        models: Same entries in each, of the same shapes and dtypes; not modified.
        weights: Non-negative, with a positive sum.

    Raises:
        ValueError: If the weights do not have a positive, finite sum.
    """
    total = float(sum(weights))
    if not 0 < total < float("inf") or min(weights) < 0:
        raise ValueError(f"The clients' weights must be non-negative with a positive sum, got {list(weights)}.")
    result = {}
    for name, first in models[0].items():
        wide = torch.complex128 if first.is_complex() else torch.float64
        mean = torch.zeros_like(first, dtype=wide)
        for model, weight in zip(models, weights, strict=True):
            mean.add_(model[name].to(wide), alpha=weight / total)
        result[name] = mean.to(first.dtype)
    return result


def average_learnt(
    models: Sequence[Mapping[str, Tensor]],
    weights: Sequence[float],
    untrained: Sequence[Mapping[str, Sequence[int]]],
    before: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    r""":func:`average`, in which a model weighs nothing in the rows that it has not trained.

    .. math:: \theta_r \leftarrow \sum_{i \in L_r} w_i \theta_{i,r} / \sum_{i \in L_r} w_i

    where :math:`L_r` are the models that have trained row r.

    Args:
        models: As for :func:`average`.
        weights: Positive.
        untrained: Of each model, by entry, the rows (of the first dimension) that it has not trained.
        before: What a row is that no model has trained; the same entries.
    """
    result = average(models, weights)
    for name in sorted({name for told in untrained for name in told}):
        for rows, learners in rows_by_learners(len(result[name]), [told.get(name, ()) for told in untrained]):
            parts = [{name: models[i][name][rows]} for i in learners] or [{name: before[name][rows]}]
            result[name][rows] = average(parts, [weights[i] for i in learners] or [1.0])[name]
    return result


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
        expected = {n: t for n, t in self.weights.items() if t.is_floating_point() or t.is_complex()}
        good = {}
        for client, reply in replies.items():
            wrong = check_layout(reply.tensors, expected)
            if wrong is None:
                good[client] = reply
            else:
                federation.reject(client, "fit", round, f"its update does not fit the model: {wrong}")
        if len(good) < min(federation.min_clients, len(replies)) or not good:
            federation.fail(
                "fit", round, len(good), federation.min_clients, [f for f in federation.failures if f["round"] == round]
            )
        weights = [1.0 if self.weighting == "uniform" else float(r.values["num_samples"]) for r in good.values()]
        untrained = [r.values.get("untrained_rows", {}) for r in good.values()]
        mean = average_learnt([r.tensors for r in good.values()], weights, untrained, self.weights)
        self.weights = {**self.weights, **mean}
