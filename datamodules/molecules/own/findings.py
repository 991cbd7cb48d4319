"""Findings about people's own molecules: ids, clients and labels, and what was guessed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datamodules.findings import Finding, either, finding, name_first, remark, tell_if
from datamodules.molecules.own.labels import apart_findings, class_findings
from datamodules.molecules.own.reader import OWNER, MoleculeTables
from datamodules.molecules.own.spec import MoleculeSpec
from datamodules.molecules.table import MoleculeSet
from datamodules.tables.alike import find_clients_alike
from datamodules.tables.measured import Measured
from datamodules.tables.odd_values import find_odd_values
from datamodules.tables.sites_apart import find_constants, find_sites_apart


def own_findings(spec: MoleculeSpec, tables: MoleculeTables, molecules: MoleculeSet, clients: Sequence[str]) -> list[Finding]:
    """What concerns the files as such.

    Args:
        spec: How they were read.
        tables: What was read.
        molecules: The usable molecules.
        clients: Names of the clients; none where a partitioner made them.
    """
    y = molecules.packed.y.numpy()
    without = tables.lost_clients if clients else []
    have = either(len(without), "has no usable row and is no client", "have no usable row and are no clients")
    found = [
        *_find_repeated_ids(tables.ids, molecules),
        *tell_if(
            "client_without_molecules",
            len(without),
            f"{', '.join(map(repr, without[:10]))} {have} of the federation.",
            "Correct their rows, or add some: all that cannot be used are in `dropped_rows`.",
        ),
        *_find_unlabelled(molecules),
    ]
    if spec.geometry:
        found += _flat_findings(molecules)
    if tables.guessed is not None:
        found += tables.guessed.findings()
    if tables.task == "regression" and not spec.task_is_given:
        found += class_findings(y, molecules.task_names, molecules.where)
    owner = _number_owners(molecules, clients)
    found += _find_in_labels(molecules, owner, clients, tables.task == "regression")
    if clients:
        found += find_clients_alike([*clients, *without]) + _find_words(tables, clients)
        found += apart_findings(y, owner, clients, molecules.task_names) if tables.guessed is not None else []
    return found


def _number_owners(molecules: MoleculeSet, clients: Sequence[str]) -> np.ndarray:
    """Number of each molecule's client, ``(M,)``, -1 where a partitioner makes them."""
    index = {name: number for number, name in enumerate(clients)}
    return np.array([index.get(name, -1) for name in molecules.columns[OWNER]], dtype=np.int64)


def _find_in_labels(molecules: MoleculeSet, owner: np.ndarray, clients: Sequence[str], regression: bool) -> list[Finding]:
    """Labels that are all the same; and measurements that are none, or that a client writes otherwise."""
    y = molecules.packed.y.numpy().T
    columns = [Measured(f"labels of `{name}`", own) for name, own in zip(molecules.task_names, y, strict=True)]
    if not regression:
        return find_constants(columns, owner, ())  # of one client alone it is `one_class`
    return [
        *find_constants(columns, owner, clients),
        *find_odd_values(columns, owner, molecules.list_row),
        *find_sites_apart(columns, owner, clients),
    ]


def _find_words(tables: MoleculeTables, clients: Sequence[str]) -> list[Finding]:
    """Clients that write all labels of a task in another way than as numbers, which the others have."""
    molecules, found = tables.molecules, []
    for task, column in zip(molecules.task_names, molecules.packed.y.numpy().T, strict=True):
        holders = {name for name, label in zip(molecules.columns[OWNER], column, strict=True) if np.isfinite(label)}
        wrong: dict[str, list[str]] = {}
        for row, reason in tables.wrong_labels.get(task, {}).items():
            wrong.setdefault(tables.owner[row], []).append(reason)
        for client, reasons in wrong.items():
            if client and len(reasons) > 1 and client not in holders:
                number = clients.index(client) if client in clients else None
                told = name_first(list(dict.fromkeys(reasons)))
                message = (
                    f"Not one of {len(reasons)} labels of `{task}` of client {client!r} can be read as those of the "
                    f"others are: {told}."
                )
                remedy = "Write them as the other clients do: labels are numbers, classes are 0 and 1."
                found.append(finding("classes_apart", number, len(reasons), message, remedy))
    return found


def _find_repeated_ids(ids: Sequence[str], molecules: MoleculeSet) -> list[Finding]:
    """Rows with an id that an earlier one has."""
    places: dict[str, list[int]] = {}
    for place, row in enumerate(molecules.packed.sample_id.tolist()):
        places.setdefault(ids[row], []).append(place)
    repeated = {name: own for name, own in places.items() if len(own) > 1}
    count = sum(map(len, repeated.values())) - len(repeated)
    if not count:
        return []
    told = name_first(
        [f"{molecules.where(own[1])} that of {molecules.where(own[0])}" for own in list(repeated.values())[:4]], len(repeated)
    )
    message = f"{count} {either(count, 'row has', 'rows have')} an id that an earlier row has: {told}."
    rows = [molecules.list_row(place) for own in repeated.values() for place in own]
    return [remark("repeated_ids", None, count, message, ": predictions come row by row.", rows)]


def _find_unlabelled(molecules: MoleculeSet) -> list[Finding]:
    blank = np.flatnonzero(np.isnan(molecules.packed.y.numpy()).all(1)).tolist()
    told = name_first([molecules.where(place) for place in blank[:4]], len(blank))
    have = either(
        len(blank),
        "has no label at all: it is predicted, and teaches nothing",
        "have no label at all: they are predicted, and teach nothing",
    )
    return tell_if(
        "unlabelled_rows",
        len(blank),
        f"{len(blank)} of {len(molecules)} molecules {have} ({told}).",
        rows=[molecules.list_row(place) for place in blank],
    )


def _flat_findings(molecules: MoleculeSet) -> list[Finding]:
    packed, size = molecules.packed, len(molecules)
    depth = packed.nodes["pos"][:, 2].abs() > 1e-6
    inside = np.add.reduceat(depth.numpy(), packed.node_ptr[:-1].numpy(), dtype=np.int64) if size else np.zeros(0)
    flat = int(((inside == 0) & (packed.num_atoms.numpy() > 3)).sum())
    lie = either(flat, "lies", "lie")
    return tell_if(
        "flat_geometry",
        flat,
        f"{flat} of {size} molecules {lie} in the plane of the paper: are these drawings instead of geometries?",
        "Compute geometries, or use bonds (`geometry: false`).",
    )
