"""Atom environments: which atoms of a set of molecules look alike from their surroundings, up to a few bonds away.

Colour refinement (Weisfeiler, Leman 1968): radius 0 is the atom's own features; two atoms share their environment of
radius r + 1 if they share that of radius r and have the same multiset of (bond, environment of radius r) on their edges.
A message passing network gives atoms with the same environment of radius t the same state after t steps, so that each
distinct one need be computed only once a batch (ESOL, 64 molecules, 949 atoms: 35, 272, 530, 670 distinct for t = 0..3).
"""

from __future__ import annotations

import numpy as np

RADIUS = 3


def atom_environments(atom: np.ndarray, ends: np.ndarray, code: np.ndarray, radius: int = RADIUS) -> np.ndarray:
    """Environment of each of N atoms at the radii 0 .. ``radius``.

    Args:
        atom: Equal where atoms have equal features, non-negative int ``(N,)``.
        ends: Source and target atom of each directed edge, int ``(2, E)``.
        code: Equal where edges have equal features, non-negative int ``(E,)``.
        radius: How many bonds away to look.

    Returns:
        int64 ``(N, radius + 1)``: column r holds numbers that are equal exactly for equal environments of radius r.
    """
    source, target = ends.astype(np.int64)
    own = _ranks(atom)
    columns = [own]
    degree = np.bincount(target, minlength=len(atom))
    by_target = np.argsort(target, kind="stable")
    start = np.concatenate([[0], np.cumsum(degree)])[:-1]
    place = np.arange(len(source)) - start[target[by_target]]  # of an edge among those of its target
    for _ in range(radius):
        edge = _ranks(code.astype(np.int64) * (int(own.max(initial=0)) + 1) + own[source])
        seen = np.full((len(atom), int(degree.max(initial=0)) + 1), -1, dtype=np.int64)
        seen[target[by_target], place] = edge[by_target]
        seen[:, :-1].sort(axis=1)
        seen[:, -1] = own
        own = _row_ranks(seen)
        columns.append(own)
    return np.stack(columns, axis=1)


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _row_ranks(rows: np.ndarray) -> np.ndarray:
    """A number for each row, equal exactly for equal rows: ranks of the first column, refined by one column at a time."""
    rank = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        if column.size and column.max() > -1:
            rank = _ranks(rank * (int(column.max()) + 2) + column + 1)
    return rank
