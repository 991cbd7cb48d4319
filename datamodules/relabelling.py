"""Permuting labels outside the training part, to show that none of them trains (``fl-lightning canary``)."""

from __future__ import annotations

import torch
from torch import Tensor


def permute_known(labels: Tensor, outside: Tensor, generator: torch.Generator) -> tuple[Tensor, int]:
    """Permute the known labels of some rows among themselves, each task for itself; what is unknown stays so.

    Args:
        labels: Classes, int64 ``(N,)``, -1 is unknown; or values, float ``(N,)`` or ``(N, T)``, ``nan`` is unknown.
        outside: Which rows, bool ``(N,)``.
        generator: Draws the permutations.

    Returns:
        New labels, and how many of them differ.
    """
    known = torch.isfinite(labels) if labels.is_floating_point() else labels >= 0
    columns = labels.clone().reshape(len(labels), -1)
    chosen = known.reshape(len(labels), -1) & outside.unsqueeze(1)
    for task in range(columns.shape[1]):
        rows = chosen[:, task].nonzero().squeeze(1)
        columns[rows, task] = columns[rows[torch.randperm(len(rows), generator=generator)], task]
    permuted = columns.reshape(labels.shape)
    return permuted, int(((permuted != labels) & known).sum())
