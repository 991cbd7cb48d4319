"""Single measurements that are none: numbers that stand for a blank (-999), and slips far away from all others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from datamodules.findings import Finding, either, finding, name_first, tell_if
from datamodules.tables.measured import NORMAL, Measured, robust_deviation
from datamodules.tables.origin import name_row

NINES = re.compile(r"-?9+(\.9+)?")
SHORT, LONG = 99, 999  # numbers of nines stand for a blank from here on if they repeat, from there on in any case
FEWEST, FEWEST_DISTINCT = 10, 5
OUTSIDE = 5.0  # robust deviations between the other values and a number that stands for a blank
DOZENS = 30.0  # robust deviations from the median
# Times as far from the median as the next value; and robust deviations of logarithms, which incomes do not reach.
ISOLATED = 5.0
ONE_IN = 50  # values at most


def find_odd_values(
    columns: Iterable[Measured], owner: np.ndarray, list_row: Callable[[int], Mapping[str, Any]]
) -> list[Finding]:
    """Values that stand for a blank (``sentinels``) and values dozens of deviations away (``outliers``), by row.

    They are looked for among all values, and among those of each client, since another client's may be in another unit.

    Args:
        columns: Labels or features, M values each.
        owner: Number of each row's client, ``(M,)``, -1 = nobody or not known yet.
        list_row: The row of each of the M as the user knows it: ``row``, ``id``, ``file``, ``file_row``.
    """
    found = []
    for column in columns:
        known = np.flatnonzero(np.isfinite(column.values))
        owners = np.unique(owner[known])
        values = column.values.astype(np.float64)
        odd = np.zeros(len(values), dtype=bool)
        far = odd.copy()
        for places in (known, *(known[owner[known] == client] for client in owners if client >= 0 and len(owners) > 1)):
            _mark(values, places, odd, far)
        rest = values[known[~odd[known]]]
        for mark in np.unique(values[odd]).tolist():
            rows = [list_row(place) for place in np.flatnonzero(odd & (values == mark)).tolist()]
            message = (
                f"{len(rows)} of {len(known)} {column.what} {either(len(rows), 'is', 'are')} {mark:.7g}, but the others are "
                f"from {rest.min():.4g} to {rest.max():.4g}: {name_first([name_row(row) for row in rows[:4]], len(rows))}."
            )
            remedy = "If it means that nothing was measured, leave the field blank."
            found.append(finding("sentinels", None, len(rows), message, remedy, rows))
        found += _tell_outliers(column.what, values, np.flatnonzero(far & ~odd), len(known), list_row)
    return found


def _mark(values: np.ndarray, places: np.ndarray, odd: np.ndarray, far: np.ndarray) -> None:
    """Set ``odd`` at the places of values that stand for a blank, and ``far`` at those of outliers among the others."""
    own = values[places]
    if len(own) < FEWEST or len(np.unique(own)) < FEWEST_DISTINCT:
        return
    blank = np.isin(own, _find_sentinels(own))
    odd[places[blank]] = True
    far[places[~blank][_find_outliers(own[~blank])]] = True


def _tell_outliers(
    what: str, values: np.ndarray, far: np.ndarray, number: int, list_row: Callable[[int], Mapping[str, Any]]
) -> list[Finding]:
    rows = [list_row(place) for place in far.tolist()]
    told = [f"{values[place]:.7g} in {name_row(row)}" for place, row in zip(far[:4].tolist(), rows, strict=False)]
    return tell_if(
        "outliers",
        len(far),
        f"{len(far)} of {number} {what} {either(len(far), 'is', 'are')} more than {DOZENS:.0f} robust standard deviations from "
        f"the median and far from all others: {name_first(told, len(far))}.",
        "Correct or leave out, or nothing if this is meant.",
        rows,
    )


def _find_sentinels(values: np.ndarray) -> np.ndarray:
    """Numbers of nines, and -1 among positive numbers, where they are outside of all the others."""
    distinct, counts = np.unique(values, return_counts=True)
    edges = (*zip(distinct[:3], counts[:3], strict=True), *zip(distinct[-3:], counts[-3:], strict=True))
    asked = {float(value) for value, count in edges if _may_be_blank(float(value), int(count))}
    rest = values[~np.isin(values, list(asked))]
    if len(np.unique(rest)) < FEWEST_DISTINCT:
        return np.zeros(0)
    room = OUTSIDE * robust_deviation(rest)
    outside = [
        value
        for value in sorted(asked)
        if value < rest.min() - room or value > rest.max() + room or (value == -1 and rest.min() > 0)
    ]
    return np.array(outside)


def _may_be_blank(value: float, count: int) -> bool:
    if value == -1:
        return count > 1
    return abs(value) >= (SHORT if count > 1 else LONG) and NINES.fullmatch(f"{value:.7g}") is not None


def _find_outliers(values: np.ndarray) -> np.ndarray:
    """Places of the few values that are far from the median and from all the others.

    Of a column that is mostly zeros, those that are not are asked; one of positive numbers must be odd in its logarithms, too.
    """
    places = np.arange(len(values)) if 2 * (values == 0).sum() <= len(values) else np.flatnonzero(values)
    distance = _distances(values[places])
    order = np.argsort(-distance, kind="stable")
    ordered = np.append(distance[order], 0.0)
    few = max(1, len(places) // ONE_IN)
    cut = [
        size
        for size in range(1, few + 1)
        if len(places) >= FEWEST and ordered[size - 1] > DOZENS and ordered[size - 1] > ISOLATED * max(ordered[size], 1.0)
    ]
    far = order[: cut[-1]] if cut else order[:0]
    if len(far) and values[places].min() > 0:
        far = far[_distances(np.log(values[places]))[far] > ISOLATED]
    return np.sort(places[far])


def _distances(values: np.ndarray) -> np.ndarray:
    """Of each value to the median, in robust deviations; 0 where half of all values are equal."""
    if not len(values):
        return values
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return np.abs(values - middle) / ((high - low) / NORMAL) if high > low else np.zeros_like(values)
