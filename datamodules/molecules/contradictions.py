"""Molecules that occur more than once with labels that cannot both hold: both classes, or measurements far apart.

Such rows pull the model both ways, and where one of them is evaluated the best model is marked down. Repeats whose labels
agree are found by :func:`~datamodules.molecules.repeats.duplicate_findings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from datamodules.findings import Finding, either, finding, name_first
from datamodules.molecules.table import MoleculeSet
from datamodules.tables.measured import NORMAL, robust_deviation

Where = tuple[str, int | None]  # kind and client of a finding
REMEDIES = {
    True: "Decide which label holds and correct the others, or leave these molecules out: the mean of 0 and 1 is no class.",
    False: "Is it another unit, sign or assay? Correct these rows or leave them out; average the others.",
}


def contradiction_findings(
    molecules: MoleculeSet, split: Mapping[str, np.ndarray], clients: Sequence[Mapping[str, np.ndarray]], classification: bool
) -> list[Finding]:
    """Within a client, between clients, and between the training part and the server's val or test part.

    Args:
        molecules: All of them, the same ones known by their canonical SMILES.
        split: Positions of the server's parts.
        clients: Positions of each client's parts.
        classification: Whether labels are 0 / 1; otherwise labels are far apart by :func:`limits`.
    """
    y = molecules.packed.y.numpy()
    apart = limits(y, classification)
    owner = np.full(len(molecules), -1)
    for client, parts in enumerate(clients):
        owner[np.concatenate(list(parts.values()))] = client
    stage = np.full(len(molecules), "train", dtype=object)
    for name in ("val", "test"):
        stage[split[name]] = name
    found: dict[Where, tuple[list[str], list[dict[str, Any]]]] = {}
    for rows in _suspects(molecules, y, apart):
        seen = set()
        for task in range(y.shape[1]):
            for where, pair, all_rows in _pairs(rows, y[:, task], float(apart[task]), owner, stage):
                told, listed = found.setdefault(where, ([], []))
                listed += [_list_label(molecules, task, place) for place in all_rows.tolist()]
                if where not in seen:  # a molecule counts once, however many of its tasks contradict
                    seen.add(where)
                    told.append(_told(molecules, task, pair))
    order = sorted(found, key=lambda where: (where[0], -1 if where[1] is None else where[1]))
    return [_finding(kind, client, *found[kind, client], classification) for kind, client in order]


def limits(y: np.ndarray, classification: bool) -> np.ndarray:
    """How much two labels of one molecule may differ, ``(T,)``: not at all where they are classes, otherwise by a robust
    standard deviation of the task, since two molecules drawn at random do not differ by much more.

    Args:
        y: Labels ``(M, T)``, ``nan`` where missing.
        classification: Whether they are 0 / 1.
    """
    if classification:
        return np.zeros(y.shape[1])
    return np.array([robust_deviation(column[np.isfinite(column)]) for column in y.T.astype(np.float64)])


def _suspects(molecules: MoleculeSet, y: np.ndarray, apart: np.ndarray) -> Iterator[np.ndarray]:
    """Positions of each molecule that has, anywhere, two labels of one task too far apart."""
    numbers: dict[str, int] = {}
    group = np.array([numbers.setdefault(text, len(numbers)) for text in molecules.canonical], dtype=np.int64)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    if not len(starts):
        return
    spread = np.fmax.reduceat(y[order], starts) - np.fmin.reduceat(y[order], starts)  # nan where there is no label
    ends = np.append(starts[1:], len(order))
    for number in np.flatnonzero((spread > apart).any(1)):
        yield order[starts[number] : ends[number]]


def _pairs(
    rows: np.ndarray, y: np.ndarray, apart: float, owner: np.ndarray, stage: np.ndarray
) -> Iterator[tuple[Where, tuple[int, int], np.ndarray]]:
    """Where one molecule contradicts itself in one task: kind and client of a finding, two rows that show it, and all of its
    rows there."""
    rows = rows[np.isfinite(y[rows])]
    held = rows[owner[rows] >= 0]
    holders = np.unique(owner[held])
    for client in holders:
        own = held[owner[held] == client]
        pair = _farthest(own, own, y, apart)
        if pair:
            yield ("contradicting_labels", int(client)), pair, own
    for client in holders:
        pair = _farthest(held[owner[held] == client], held[owner[held] != client], y, apart)
        if pair:
            yield ("contradicting_labels_across_clients", None), pair, held
            break
    for name in ("val", "test"):
        train, part = rows[stage[rows] == "train"], rows[stage[rows] == name]
        pair = _farthest(train, part, y, apart)
        if pair:
            yield (f"contradicting_labels_train_{name}", None), pair, np.concatenate([train, part])


def _farthest(some: np.ndarray, others: np.ndarray, y: np.ndarray, apart: float) -> tuple[int, int] | None:
    """A row of ``some`` and one of ``others`` whose labels differ most, if that is by more than ``apart``."""
    if not len(some) or not len(others):
        return None
    candidates = [(some[y[some].argmax()], others[y[others].argmin()]), (some[y[some].argmin()], others[y[others].argmax()])]
    first, second = max(candidates, key=lambda pair: abs(y[pair[0]] - y[pair[1]]))
    return (int(first), int(second)) if abs(y[first] - y[second]) > apart else None


def _told(molecules: MoleculeSet, task: int, pair: tuple[int, int]) -> str:
    labels = " and ".join(f"{molecules.packed.y[place, task]:g} ({molecules.where(place)})" for place in sorted(pair))
    return f"{molecules.canonical[pair[0]]}: `{molecules.task_names[task]}` is {labels}"


def _list_label(molecules: MoleculeSet, task: int, place: int) -> dict[str, Any]:
    return {
        **molecules.list_row(place),
        "molecule": molecules.canonical[place],
        "task": molecules.task_names[task],
        "label": float(molecules.packed.y[place, task]),
    }


def _finding(kind: str, client: int | None, told: list[str], rows: list[dict[str, Any]], classification: bool) -> Finding:
    place = {
        "contradicting_labels": f"at client {client}",
        "contradicting_labels_across_clients": "at different clients",
        "contradicting_labels_train_val": "in the training part and in the server's val part",
        "contradicting_labels_train_test": "in the training part and in the server's test part",
    }[kind]
    what = (
        "contradicting labels, 0 and 1,"
        if classification
        else f"contradicting labels, farther apart than one standard deviation of the task (quartile distance / {NORMAL}),"
    )
    number = f"{len(told)} {either(len(told), 'molecule has', 'molecules have')}"
    return finding(kind, client, len(told), f"{number} {what} {place}: {name_first(told)}.", REMEDIES[classification], rows)
