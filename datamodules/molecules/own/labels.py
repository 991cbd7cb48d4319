"""What the labels of people's own molecules are: their type, and their units."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from datamodules.findings import Finding, finding, name_first
from datamodules.tables.names import quote_all

ONE_IN = 20  # so few labels that are no class, or fewer, are mistakes and no measurements
SHOWN = 5
UNIT = re.compile(r"[\[(]\s*(?!\d+\s*[\])])([^\])]+?)\s*[\])]\s*$")  # not `y (2)`


def guess_task(y: np.ndarray, owner: Sequence[str], names: Sequence[str], where: Callable[[int], str]) -> tuple[str, str]:
    """``classification`` if all labels are 0 or 1, else ``regression``; and what to say of it.

    Args:
        y: Labels ``(R, T)``, ``nan`` where missing.
        owner: Client of each row.
        names: T names.
        where: What to call a row.

    Raises:
        ValueError: A client has other labels than 0 and 1 for a task for which most clients have nothing else; or a few
            rows have, of tasks that are classes otherwise.
    """
    known = np.isfinite(y)
    binary = ~known | (y == 0) | (y == 1)
    clients = sorted(set(owner))
    index = {client: number for number, client in enumerate(clients)}
    number = np.array([index[client] for client in owner], dtype=np.int64)
    for place, name in enumerate(names):
        has = np.bincount(number, known[:, place], minlength=len(clients)) > 0
        other = np.bincount(number, ~binary[:, place], minlength=len(clients)) > 0
        if other.any() and 2 * other.sum() < has.sum():
            odd = clients[int(other.argmax())]
            row = np.flatnonzero((number == index[odd]) & ~binary[:, place])[0]
            raise ValueError(
                f"Task `{name}` has the labels 0 and 1 at {int(has.sum() - other.sum())} of {int(has.sum())} clients, but "
                f"client {odd!r} has others ({where(int(row))}: {y[row, place]:g}). Correct them, or set "
                "`data.init_args.task: regression` (or `classification`) if you know better."
            )
    few = ONE_IN * (~binary).sum(0) <= known.sum(0)
    if few.all() and not binary.all():
        wrong = np.argwhere(~binary)
        told = "; ".join(f"{where(int(row))} has {y[row, place]:g} for `{names[place]}`" for row, place in wrong[:SHOWN])
        raise ValueError(
            f"{int(known.sum()) - len(wrong)} of {int(known.sum())} labels are 0 or 1, but {len(wrong)} are not: "
            f"{told}{'; ...' if len(wrong) > SHOWN else ''}. Correct them or leave them blank, or set "
            "`data.init_args.task: regression` if these are measurements."
        )
    task = "classification" if binary.all() else "regression"
    why = "all labels are 0 or 1" if task == "classification" else "there are labels other than 0 and 1"
    coded = [f"`{name}`" for name, column in zip(names, y.T, strict=True) if _few_whole_numbers(column)]
    if coded:
        why += f"; if those of {', '.join(coded[:5])} are classes, write a column of 0 and 1 for each class"
    return task, f"task {task}: {why} (`data.init_args.task` says otherwise)."


def class_findings(y: np.ndarray, names: Sequence[str], where: Callable[[int], str]) -> list[Finding]:
    """Tasks of a guessed regression that look like classes: their labels are 0 and 1 alone, or for the most part, or a few
    whole numbers.

    Args:
        y: Labels ``(M, T)``.
        names: T names.
        where: What to call a molecule's row.
    """
    found = []
    measured = "set `data.init_args.task: regression` if all of them are measurements."
    for name, column in zip(names, y.T, strict=True):
        known = column[np.isfinite(column)]
        classes = (known == 0) | (known == 1)
        if len(np.unique(known[classes])) == 2 and classes.all():
            found.append(
                finding(
                    "classes_as_numbers",
                    None,
                    len(known),
                    f"The labels of `{name}` are 0 and 1 alone, but are "
                    "learnt as numbers, since those of other tasks are measurements.",
                    f"Learn it apart, with `data.init_args.targets: [{name}]`; or {measured}",
                )
            )
        elif _few_whole_numbers(column):
            found.append(
                finding(
                    "coded_classes",
                    None,
                    len(known),
                    f"The labels of `{name}` are {len(np.unique(known))} "
                    "different whole numbers: are they codes of classes? They are learnt as numbers.",
                    f"Write a column of 0 and 1 for each class; or {measured}",
                )
            )
        elif len(np.unique(known[classes])) == 2 and 2 * classes.sum() > len(known):
            others = np.flatnonzero(np.isfinite(column) & (column != 0) & (column != 1))
            told = "; ".join(f"{where(int(row))} has {column[row]:g}" for row in others[:SHOWN])
            told += "; ..." if len(others) > SHOWN else ""
            found.append(
                finding(
                    "mostly_classes",
                    None,
                    len(others),
                    f"{int(classes.sum())} of {len(known)} labels of "
                    f"`{name}` are 0 or 1, and {len(others)} are not: {told}. "
                    "They are learnt as numbers.",
                    f"Correct these rows or leave them blank; or {measured}",
                )
            )
    return found


def _few_whole_numbers(column: np.ndarray, most: int = 10) -> bool:
    """Whether labels look like numbers of classes: three or more different whole numbers, but not many, that repeat."""
    known = column[np.isfinite(column)]
    values = np.unique(known)
    return 2 < len(values) <= min(most, len(known) - 1) and bool((values == np.round(values)).all() and values[0] >= 0)


def units_of(names: Sequence[str], given: Mapping[str, str] | None) -> tuple[list[str], list[str]]:
    """Unit of each task, and notices: as given, else what the name has in brackets at its end, else unknown (``""``).

    Raises:
        ValueError: A unit for no task.
    """
    strange = sorted(set(given or {}) - set(names))
    if strange:
        raise ValueError(
            f"`data.init_args.units` names {', '.join(map(repr, strange))}, but the tasks are {', '.join(map(repr, names))}."
        )
    units, notices = [], []
    for name in names:
        bracket = UNIT.search(name)
        if given and name in given:
            units.append(given[name])
        elif bracket:
            units.append(bracket[1])
            notices.append(f"unit of `{name}`: {bracket[1]} (`data.init_args.units` says otherwise).")
        else:
            units.append("")
    return units, notices


def apart_findings(y: np.ndarray, owner: np.ndarray, clients: Sequence[str], names: Sequence[str]) -> list[Finding]:
    """Tasks of which no row and no client has both: one measurement that clients call by two names, perhaps.

    Args:
        y: Labels ``(M, T)``.
        owner: Number of each row's client.
        clients: Their names.
        names: T names.
    """
    known = np.isfinite(y)
    classes = [bool(np.isin(column[has], (0, 1)).all()) for column, has in zip(y.T, known.T, strict=True)]
    holders = [set(owner[has].tolist()) for has in known.T]
    pairs = [
        (one, other)
        for one, other in itertools.combinations(range(len(names)), 2)
        if holders[one] and holders[other] and holders[one].isdisjoint(holders[other]) and classes[one] == classes[other]
    ]
    if not pairs:
        return []
    called = [
        f"`{name}` ({quote_all([clients[client] for client in sorted(own)], SHOWN)})"
        for name, own in zip(names, holders, strict=True)
    ]
    told = name_first([f"{called[one]} and {called[other]}" for one, other in pairs])
    return [
        finding(
            "tasks_apart",
            None,
            len(pairs),
            f"No row and no client has both {told}: is it one measurement under two names?",
            "If so, give it one name in all files; if not, name both in `data.init_args.targets`.",
        )
    ]
