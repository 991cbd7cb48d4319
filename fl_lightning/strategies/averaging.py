"""Weighted means of clients' models, in float64 and cast back; of each row only over those who have trained it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fl_lightning.engine.entries import rows_by_learners

Mean = Callable[[Sequence[Mapping[str, Tensor]], Sequence[float]], dict[str, Tensor]]
"""Of models and their weights, like :func:`average`."""


def in_double(tensor: Tensor) -> Tensor:
    """A floating tensor in double precision, real or complex."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


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
        mean = torch.zeros_like(in_double(first))
        for model, weight in zip(models, weights, strict=True):
            mean.add_(in_double(model[name]), alpha=weight / total)
        result[name] = mean.to(first.dtype)
    return result


def average_learnt(
    models: Sequence[Mapping[str, Tensor]],
    weights: Sequence[float],
    untrained: Sequence[Mapping[str, Sequence[int]]],
    before: Mapping[str, Tensor],
    mean: Mean = average,
) -> dict[str, Tensor]:
    r""":func:`average`, in which a model weighs nothing in the rows that it has not trained.

    .. math:: \theta_r \leftarrow \sum_{i \in L_r} w_i \theta_{i,r} / \sum_{i \in L_r} w_i

    where :math:`L_r` are the models that have trained row r.

    Args:
        models: As for :func:`average`.
        weights: Positive.
        untrained: Of each model, by entry, the rows (of the first dimension) that it has not trained.
        before: What a row is that no model has trained; the same entries.
        mean: Another mean than the weighted one.
    """
    result = mean(models, weights)
    for name in sorted({name for told in untrained for name in told}):
        for rows, learners in rows_by_learners(len(result[name]), [told.get(name, ()) for told in untrained]):
            parts = [{name: models[i][name][rows]} for i in learners] or [{name: before[name][rows]}]
            result[name][rows] = mean(parts, [weights[i] for i in learners] or [1.0])[name]
    return result


def rows_of_nobody(untrained: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """By entry, the rows that no model has trained.

    Args:
        untrained: As for :func:`average_learnt`; at least one model.
    """
    in_all = [name for name in untrained[0] if all(name in told for told in untrained)]
    common = {name: sorted(set.intersection(*(set(told[name]) for told in untrained))) for name in in_all}
    return {name: rows for name, rows in common.items() if rows}
