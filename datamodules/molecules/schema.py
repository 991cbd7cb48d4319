"""What a model needs to know of molecules, and what sites must have alike."""

from __future__ import annotations

from typing import Any

from datamodules.molecules.featuriser import FEATURISER, NUM_ATOM_FEATURES, NUM_BOND_FEATURES
from datamodules.molecules.table import MoleculeSet


def molecule_schema(molecules: MoleculeSet, task: str, metric: str) -> dict[str, Any]:
    """The schema of a federation, without statistics of labels; its keys are those of ``MoleculeDataModule.schema``."""
    packed, bonds = molecules.packed, "atom" in molecules.packed.nodes
    return {
        "task": task,
        "num_tasks": packed.y.size(1),
        "atom_features": NUM_ATOM_FEATURES if bonds else 0,
        "bond_features": NUM_BOND_FEATURES if bonds else 0,
        "positions": "pos" in packed.nodes,
        "metric": metric,
        "task_names": molecules.task_names,
        "units": molecules.units or None,
        "featuriser": FEATURISER if bonds else "atomic numbers",
    }
