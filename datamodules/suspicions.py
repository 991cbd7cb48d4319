"""What a table of nodes may hold that nobody meant: columns that say the class in other words, labels unlike the others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp

from datamodules.report import Finding, finding
from datamodules.tables import folded, listed, shown

ENOUGH = 5  # nodes of each value, on average: with fewer, chance alone may give each value one class
THOUSANDS = 1000
FEW = 0.1


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
    return folded(label) in folded(name) or values == classes > 2


def odd_labels(labels: Sequence[str], where: Callable[[int], str], column: str) -> list[Finding]:
    """Labels unlike the others: a few numbers among names, a few names among numbers, a class with a single node.

    Args:
        labels: N classes, ``""`` where not labelled.
        where: Where a node, by its place among the N, is in the tables, in words.
        column: Name of the column of labels.
    """
    places = [place for place, label in enumerate(labels) if label]
    numbers = [place for place in places if is_number(labels[place])]
    names = [place for place in places if not is_number(labels[place])]
    few, kind = (numbers, "numbers") if len(numbers) < len(names) else (names, "names")
    found = []
    if 0 < len(few) <= FEW * len(places):
        others = "names" if kind == "numbers" else "numbers"
        found.append(finding("odd_labels", None, len(few), f"{len(few)} of {len(places)} labels in {column!r} are {kind}, the "
                             f"others {others}: {_examples(few, labels, where)}.", "Correct them, or nothing if they are "
                             "classes; `data.init_args.classes` lists what may occur."))  # fmt: skip
    count = Counter(labels[place] for place in places)
    told = set(few)
    single = [place for place in places if count[labels[place]] == 1 and place not in told]
    if single and len(places) >= THOUSANDS and len(single) <= FEW * len(count):
        found.append(finding("rare_classes", None, len(single), f"{len(single)} of {len(count)} classes have a single one of "
                             f"{len(places)} labelled nodes: {_examples(single, labels, where)}.", "Correct a slip of the "
                             "pen, or leave the label blank: a class of one node cannot be learnt and scored."))  # fmt: skip
    return found


def guessing_findings(
    set_aside: dict[str, str], codes: Sequence[str], determining: Sequence[str], label: str | None
) -> list[Finding]:
    """What guessing the features has left out, and what it has left in.

    Args:
        set_aside: Columns that count or name rows, with the reason.
        codes: Columns that are the label: left out.
        determining: Columns that determine the label: features all the same.
        label: Name of the column of labels.
    """
    found = []
    name_all = "Name the features in `data.init_args.features`: then nothing is guessed, and whatever is named is one."
    if set_aside:
        reasons = "; ".join(f"`{name}` {reason}" for name, reason in list(set_aside.items())[:5])
        found.append(finding("guessed_ids", None, len(set_aside), f"{listed(list(set_aside))}: no feature ({reasons}).",
                             name_all))  # fmt: skip
    each = "each value has nodes of one class only"
    if codes:
        found.append(finding("label_in_features", None, len(codes), f"{listed(list(codes))}: no feature, since it is {label!r} "
                             f"in other words ({each}).", name_all))  # fmt: skip
    if determining:
        found.append(finding("feature_determines_label", None, len(determining), f"{listed(list(determining))}: a feature that "
                             f"determines {label!r} by itself ({each}). Would a new node have it?", "Name the features in "
                             "`data.init_args.features`, without it if it is known only once the class is."))  # fmt: skip
    return found


def is_number(text: str) -> bool:
    """Whether a label or a name is a finite number; ``nan`` is a name."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _examples(places: Sequence[int], labels: Sequence[str], where: Callable[[int], str], most: int = 5) -> str:
    some = ", ".join(f"{shown(labels[place])} in {where(place)}" for place in places[:most])
    return some + (", ..." if len(places) > most else "")
