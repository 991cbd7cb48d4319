"""Columns of a table of nodes that say the class in other words: no features unless somebody names them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from datamodules.tables.names import fold

ENOUGH = 5  # nodes of each value, on average: with fewer, chance alone may give each value one class


def determining_columns(x: sp.csr_matrix, names: Sequence[str], labels: Sequence[str]) -> dict[str, int]:
    """Columns with few values in which all labelled nodes of a value have the same class.

    Args:
        x: Features, ``(N, F)``.
        names: F names.
        labels: N classes, ``""`` where not labelled.

    Returns:
        The number of values of each such column. Empty where chance may do the same: fewer than ``ENOUGH`` nodes of all
        classes but the most frequent one.
    """
    known = np.array([place for place, label in enumerate(labels) if label], dtype=np.int64)
    classes, y = np.unique([labels[place] for place in known], return_inverse=True)
    total = np.bincount(y, minlength=len(classes))
    if len(known) - total.max(initial=0) < ENOUGH:
        return {}
    columns, found = x[known].tocsc(), {}
    for place, name in enumerate(names):
        rows = columns.indices[columns.indptr[place] : columns.indptr[place + 1]]
        if np.count_nonzero(total - np.bincount(y[rows], minlength=len(classes))) > 1:
            continue  # the nodes with a zero have several classes: as good as all columns of a bag of words end here
        column = np.zeros(len(known))
        column[rows] = columns.data[columns.indptr[place] : columns.indptr[place + 1]]
        values, number = np.unique(column, return_inverse=True)
        pairs = len(np.unique(number * len(classes) + y))
        if pairs == len(values) and 1 < len(values) <= len(known) / ENOUGH:
            found[name] = len(values)
    return found


def is_label_code(name: str, values: int, label: str, classes: int) -> bool:
    """Whether a determining column is the label itself: named after it, or one value for each of three or more classes.

    Two values for two classes prove less: a measurement may separate them.
    """
    return fold(label) in fold(name) or values == classes > 2
