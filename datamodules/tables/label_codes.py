"""Columns of a table of nodes that say the class in other words: no features unless somebody names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from datamodules.tables.names import fold

ENOUGH = 5  # nodes of each value, on average: with fewer, chance alone may give each value one class
MANY = 50  # labelled nodes: with fewer, no slip is allowed for
SLIPS, OF_OTHERS = 0.05, 0.2  # of the nodes may be told wrongly, and of those that are not of the most frequent class


@dataclass(frozen=True)
class Telling:
    """How well one column tells the class.

    Attributes:
        values: Number of its values; 0 of a column of measurements.
        usual: Number of those with ``ENOUGH`` nodes or more: the others may be slips.
        right: Labelled nodes that have the most frequent class of their value.
        known: Labelled nodes.
    """

    values: int
    usual: int
    right: int
    known: int

    def __str__(self) -> str:
        exact = self.right == self.known and self.values
        return (
            "each value has nodes of one class only" if exact else f"it tells the class of {self.right} of {self.known} nodes"
        )


def determining_columns(x: sp.csr_matrix, names: Sequence[str], labels: Sequence[str]) -> dict[str, Telling]:
    """Columns that tell the class of (nearly) all labelled nodes by themselves: by their values, if these are few, or by where
    these lie.

    Args:
        x: Features, ``(N, F)``.
        names: F names.
        labels: N classes, ``""`` where not labelled.

    Returns:
        How well each such column does. Empty where chance may do the same: fewer than ``ENOUGH`` nodes of all classes but the
        most frequent one.
    """
    known = np.array([place for place, label in enumerate(labels) if label], dtype=np.int64)
    classes, y = np.unique([labels[place] for place in known], return_inverse=True)
    total = np.bincount(y, minlength=len(classes))
    others = len(known) - int(total.max(initial=0))
    if others < ENOUGH:
        return {}
    slips = int(min(SLIPS * len(known), OF_OTHERS * others)) if len(known) >= MANY else 0
    columns, found = x[known].tocsc(), {}
    for place, name in enumerate(names):
        rows = columns.indices[columns.indptr[place] : columns.indptr[place + 1]]
        zeros = total - np.bincount(y[rows], minlength=len(classes))
        if zeros.sum() - zeros.max() > slips:
            continue  # the nodes with a zero have several classes: as good as all columns of a bag of words end here
        column = np.zeros(len(known))
        column[rows] = columns.data[columns.indptr[place] : columns.indptr[place + 1]]
        told = _tell(column, y, len(classes))
        if told is not None and told.known - told.right <= slips:
            found[name] = told
    return found


def _tell(column: np.ndarray, y: np.ndarray, classes: int) -> Telling | None:
    """How well a column tells the classes ``y``, both ``(N,)``; ``None`` where too few nodes say so."""
    values, number, counts = np.unique(column, return_inverse=True, return_counts=True)
    few = len(values) <= len(y) / ENOUGH
    if len(values) < 2 or not (few or len(y) >= MANY):
        return None
    group = number if few else ((np.cumsum(counts) - counts) // ENOUGH)[number]  # values that are neighbours
    table = np.bincount(group * classes + y, minlength=(group.max() + 1) * classes).reshape(-1, classes)
    right = int(table.max(axis=1).sum())
    usual = int((counts >= ENOUGH).sum())
    return Telling(len(values), usual, right, len(y)) if few else Telling(0, 0, right, len(y))


def is_label_code(name: str, told: Telling, label: str, classes: int) -> bool:
    """Whether a determining column is the label itself: named after it, or one value for each of three or more classes.

    Two values for two classes prove less: a measurement may separate them.
    """
    return fold(label) in fold(name) or (classes > 2 and classes in (told.values, told.usual))
