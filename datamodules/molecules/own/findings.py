"""Findings about people's own molecules: ids, clients and labels, and what was guessed."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datamodules.findings import Finding, tell_if
from datamodules.molecules.own.labels import class_findings, scale_findings
from datamodules.molecules.own.reader import OWNER, MoleculeTables
from datamodules.molecules.own.spec import MoleculeSpec
from datamodules.molecules.table import MoleculeSet


def own_findings(spec: MoleculeSpec, tables: MoleculeTables, molecules: MoleculeSet, clients: Sequence[str]) -> list[Finding]:
    """What concerns the files as such.

    Args:
        spec: How they were read.
        tables: What was read.
        molecules: The usable molecules.
        clients: Names of the clients; none where a partitioner made them.
    """
    y, size = molecules.packed.y.numpy(), len(molecules)
    repeated = size - len({tables.ids[row] for row in molecules.packed.sample_id.tolist()})
    without = sorted(tables.clients - set(clients)) if clients else []
    unlabelled = int(np.isnan(y).all(1).sum())
    found = [
        *tell_if("repeated_ids", repeated, f"{repeated} rows have an id that an earlier row has.",
                 "Nothing, if this is meant: predictions come row by row."),
        *tell_if("client_without_molecules", len(without), f"{', '.join(map(repr, without[:10]))} have no usable row and "
                 "are no clients of the federation.", "Correct their rows, or add some: all that cannot be used are in "
                 "`dropped_rows`."),
        *tell_if("unlabelled_rows", unlabelled, f"{unlabelled} of {size} molecules have no label at all: they are "
                 "predicted, and teach nothing."),
    ]
    if spec.geometry:
        found += _flat_findings(molecules)
    if tables.guessed is not None:
        found += tables.guessed.findings()
    if tables.task == "regression" and not spec.task_is_given:
        found += class_findings(y, molecules.task_names, molecules.where)
    if tables.task == "regression" and clients:
        index = {name: number for number, name in enumerate(clients)}
        owner = np.array([index[name] for name in molecules.columns[OWNER]])
        found += scale_findings(y, owner, clients, molecules.task_names)
    return found


def _flat_findings(molecules: MoleculeSet) -> list[Finding]:
    packed, size = molecules.packed, len(molecules)
    depth = packed.nodes["pos"][:, 2].abs() > 1e-6
    inside = np.add.reduceat(depth.numpy(), packed.node_ptr[:-1].numpy(), dtype=np.int64) if size else np.zeros(0)
    flat = int(((inside == 0) & (packed.num_atoms.numpy() > 3)).sum())
    return tell_if("flat_geometry", flat, f"{flat} of {size} molecules lie in the plane of the paper: are these drawings "
                   "instead of geometries?", "Compute geometries, or use bonds (`geometry: false`).")
