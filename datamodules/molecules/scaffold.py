"""Bemis-Murcko scaffolds and the groups they form (docs/papers/fedchem.md#data).

Molecules with the same ring systems and linkers share a scaffold; all molecules without a ring share the scaffold
``''``, which can be half of a small set. Chirality is ignored; exocyclic double bonds stay; salts keep all fragments.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem.Scaffolds import MurckoScaffold

from datamodules.molecules.featuriser import parse_smiles

ACYCLIC = ""


def murcko_scaffold(molecule: str | Chem.Mol) -> str:
    """Canonical SMILES of the Bemis-Murcko scaffold without chirality; ``''`` for a molecule without rings.

    A molecule for which RDKit finds no scaffold SMILES stands for itself.

    Raises:
        ValueError: As ``parse_smiles``, if ``molecule`` is a SMILES.
    """
    mol = parse_smiles(molecule) if isinstance(molecule, str) else molecule
    if mol.GetRingInfo().NumRings() == 0:
        return ACYCLIC
    with rdBase.BlockLogs():
        try:
            return MurckoScaffold.MurckoScaffoldSmiles(mol=mol, includeChirality=False)
        except (ValueError, RuntimeError):
            return Chem.MolToSmiles(mol, isomericSmiles=False)


def scaffold_labels(scaffolds: Sequence[str], spread_acyclic: bool = False) -> np.ndarray:
    """Group number of each molecule, counted in order of first appearance.

    Args:
        scaffolds: Scaffold SMILES of N molecules.
        spread_acyclic: Make each molecule without a ring a group of its own, instead of one large group ``''``.

    Returns:
        int64, shape ``(N,)``: ``0, 1, 2, ...`` without gaps.

    Example:
        >>> scaffold_labels(["c1ccccc1", "", "c1ccccc1", ""]).tolist()
        [0, 1, 0, 1]
        >>> scaffold_labels(["c1ccccc1", "", "c1ccccc1", ""], spread_acyclic=True).tolist()
        [0, 1, 0, 2]
    """
    numbers: dict[object, int] = {}
    keys = ((i if spread_acyclic and scaffold == ACYCLIC else scaffold) for i, scaffold in enumerate(scaffolds))
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
