r"""How the server makes one model of its clients' (``federation.aggregation``), where some of them may be wrong or lie.

theta_i is client i's model, theta the one that it was trained from, Delta_i = theta_i - theta, K how many have trained.

Median         each number by itself: the median of the K                                 Yin et al. (ICML 2018), option I
TrimmedMean    each number by itself: the mean without the b largest and b smallest, b = floor(beta K)          option II
ClippedMean    FedAvg of theta + Delta_i min(1, c m / ||Delta_i||), m the median of the norms     Sun et al. (2019), M = c m
MultiKrum      s_i = sum of ||theta_i - theta_j||^2 over the K - f - 2 nearest j; the mean of the m with the smallest s
                                                                                     Blanchard et al. (NeurIPS 2017)

In rows that a client has not trained it has no vote in a median or a mean; its distance counts them, since it sent them.
A client's own word for its number of samples weighs nothing in Median, TrimmedMean and MultiKrum: a liar would take all the
weight. Median of an even number is the mean of the two in the middle. Beside the model, the server then writes of each client
how long its update is and how it points (:func:`standing`): who stands apart is seen in ``metrics.csv`` and TensorBoard.

The server needs each client's own model for all of these: none can work on a secure sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fl_lightning.strategies.averaging import average_learnt, in_double

Model = Mapping[str, Tensor]
Models = Sequence[Model]
Rows = Sequence[Mapping[str, Sequence[int]]]


class Aggregation:
    """Base class.

    Attributes:
        needs: The smallest number of trained clients that it can work with.
    """

    needs: int = 1

    def __call__(
        self, models: Models, weights: Sequence[float], untrained: Rows, before: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """One model.

        Args:
            models: Of each client that has trained, the same floating entries; not modified.
            weights: What each weighs in FedAvg, positive.
            untrained: Of each model, by entry, the rows (of the first dimension) that it has not trained.
            before: The model that they were trained from, the same entries and perhaps more.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `__call__(models, weights, untrained, before)`.")


class Median(Aggregation):
    """Of each number the median of the clients': less than half of them move it only as far as the others' values reach."""

    def __call__(
        self, models: Models, weights: Sequence[float], untrained: Rows, before: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return average_learnt(models, [1.0] * len(models), untrained, before, mean=_median)


class TrimmedMean(Aggregation):
    """Of each number the mean of the clients', without the largest and the smallest ones.

    Args:
        share: Beta, the share of clients left out at each side, from 0 to below 0.5, rounded down to whole clients.
    """

    def __init__(self, share: float = 0.2) -> None:
        if not 0 <= share < 0.5:
            raise ValueError(
                f"`federation.aggregation: TrimmedMean`: `share` is cut off at both sides, so it must be from 0 to below 0.5, "
                f"got {share}."
            )
        self.share = share

    def __call__(
        self, models: Models, weights: Sequence[float], untrained: Rows, before: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        def trimmed(parts: Models, _: Sequence[float]) -> dict[str, Tensor]:
            cut = math.floor(self.share * len(parts) + 1e-9)  # 0.29 * 100 is just below 29
            return _ordered(parts, lambda values: values[cut : len(parts) - cut].mean(0))

        return average_learnt(models, [1.0] * len(models), untrained, before, mean=trimmed)


class ClippedMean(Aggregation):
    """FedAvg of updates none of which is longer than ``factor`` times the median length. Those that are not stay as they are.

    Args:
        factor: c, above 0.
    """

    def __init__(self, factor: float = 1.0) -> None:
        if not factor > 0:
            raise ValueError(f"`federation.aggregation: ClippedMean`: `factor` must be above 0, got {factor}.")
        self.factor = factor

    def __call__(
        self, models: Models, weights: Sequence[float], untrained: Rows, before: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        norms = torch.stack([_norm(update(model, before)) for model in models])
        longest = self.factor * float(norms.quantile(0.5))
        clipped = [
            model if norm <= longest else _moved(before, update(model, before), longest / norm)
            for model, norm in zip(models, norms.tolist(), strict=True)
        ]
        return average_learnt(clipped, weights, untrained, before)


class MultiKrum(Aggregation):
    """The mean of those clients whose models lie closest to their nearest ones; the others count for nothing in the round.

    Args:
        num_faulty: f, how many clients of a round may be wrong; at least 2 f + 3 must have trained.
        num_kept: m, how many are averaged; by default all but f.
    """

    def __init__(self, num_faulty: int = 1, num_kept: int | None = None) -> None:
        if num_faulty < 0 or (num_kept is not None and num_kept < 1):
            raise ValueError(
                "`federation.aggregation: MultiKrum` needs `num_faulty` of at least 0 and `num_kept` of at least 1, got "
                f"{num_faulty} and {num_kept}."
            )
        self.num_faulty, self.num_kept = num_faulty, num_kept
        self.needs = max(2 * num_faulty + 3, num_kept or 1)

    def __call__(
        self, models: Models, weights: Sequence[float], untrained: Rows, before: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        kept = self.chosen(models)
        return average_learnt([models[i] for i in kept], [1.0] * len(kept), [untrained[i] for i in kept], before)

    def chosen(self, models: Models) -> list[int]:
        """Positions of those that are averaged, in their order.

        Raises:
            ValueError: If there are too few.
        """
        if len(models) < self.needs:
            raise ValueError(
                f"`federation.aggregation: MultiKrum` with `num_faulty: {self.num_faulty}` needs {self.needs} trained clients "
                f"in every round, but {len(models)} have: set a smaller `num_faulty`."
            )
        flat = torch.stack([_flat(model) for model in models])
        # Not by cdist, whose product of matrices loses the small distances between models that are nearly the same.
        square = torch.stack([(flat - row).abs().square().sum(1) for row in flat])
        near = square.fill_diagonal_(math.inf).sort(1).values[:, : len(models) - self.num_faulty - 2]
        order = near.sum(1).sort(stable=True).indices
        return sorted(order[: self.num_kept or len(models) - self.num_faulty].tolist())


def standing(models: Models, result: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> list[dict[str, float]]:
    """Of each client the length of its update, and the cosine of its angle to the step that the server takes.

    Args:
        models: As for :class:`Aggregation`.
        result: What was made of them.
        before: The model that they were trained from.

    Returns:
        ``update_norm`` and, unless one of the two has no length, ``update_cosine``.
    """
    step = _flat(update(result, before))
    found = []
    for model in models:
        moved = _flat(update(model, before))
        lengths = moved.norm() * step.norm()
        cosine = {"update_cosine": float((moved @ step.conj()).real / lengths)} if 0 < lengths < math.inf else {}
        found.append({"update_norm": float(moved.norm()), **cosine})
    return found


def update(model: Mapping[str, Tensor], before: Model) -> dict[str, Tensor]:
    """Delta, in double precision."""
    return {name: in_double(tensor) - in_double(before[name]) for name, tensor in model.items()}


def _moved(before: Mapping[str, Tensor], delta: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
    return {name: (in_double(before[name]) + factor * d).to(before[name].dtype) for name, d in delta.items()}


def _flat(entries: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([in_double(tensor).flatten() for tensor in entries.values()])


def _norm(entries: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([tensor.abs().square().sum() for tensor in entries.values()]).sum().sqrt()


def _median(parts: Models, _: Sequence[float]) -> dict[str, Tensor]:
    low, high = (len(parts) - 1) // 2, len(parts) // 2
    return _ordered(parts, lambda values: (values[low] + values[high]) / 2)


def _ordered(parts: Models, middle: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """``middle`` of each entry's values, which it gets in order along the first dimension; of complex ones both parts."""
    result = {}
    for name, first in parts[0].items():
        values = torch.stack([torch.view_as_real(p[name]) if first.is_complex() else p[name] for p in parts]).double()
        found = middle(values.sort(0).values)
        result[name] = (torch.view_as_complex(found) if first.is_complex() else found).to(first.dtype)
    return result
