"""How sample weights are spread over groups of samples (scaffolds): counts for a histogram, no sample and no group named."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NUM_BINS = 20
"""Weights lie in (0, 1): bin k is from k / 20 to (k + 1) / 20."""


def mean_by_group(groups: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """Mean weight of each group over its labelled (sample, task) pairs, groups in order; those without any are left out.

    Args:
        groups: Group of each sample, int64 ``(S,)``.
        weights: ``(S, T)``.
        mask: Which pairs are labelled, ``(S, T)``.
    """
    names, index = torch.unique(groups, return_inverse=True)
    shape = (len(names),)
    total = weights.new_zeros(shape).index_add_(0, index, torch.where(mask, weights, 0.0).sum(1))
    number = weights.new_zeros(shape).index_add_(0, index, mask.sum(1).to(weights.dtype))
    return total[number > 0] / number[number > 0]


def counts(values: Tensor) -> list[int]:
    """How many values are in each bin; 0 and 1 themselves, and what rounding puts beyond, count in the outer ones."""
    return torch.bincount((values * NUM_BINS).long().clamp(0, NUM_BINS - 1), minlength=NUM_BINS).tolist()


def group_histogram(seen: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[int]:
    """Number of groups by mean weight, from the (groups, weights, mask) of all batches of a local fit."""
    return counts(mean_by_group(*(torch.cat(parts) for parts in zip(*seen, strict=True))))
