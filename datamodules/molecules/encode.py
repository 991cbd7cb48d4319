"""A table of SMILES -> integer codes of all its molecules: parallel, cached, and never failing on a bad row.

The code arrays are compact (8 bytes an atom, 12 a bond) and are decoded to features when batched (``packed.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from rdkit import Chem

from datamodules.molecules.cache import Arrays, cached, content_key, fault_of, pack_strings, unpack_strings
from datamodules.molecules.featuriser import encode_molecule, parse_smiles
from datamodules.molecules.parallel import map_chunks
from datamodules.molecules.scaffold import murcko_scaffold

FRAGMENTS = ("all", "largest")


@dataclass(frozen=True)
class EncodedTable:
    """Codes of R rows; a row that could not be read has no atoms and a ``reason``.

    Attributes:
        atom_count, bond_count: int64 ``(R,)``.
        atom_code: Codes of all atoms (``featuriser.decode_atoms``), int64 ``(N,)``.
        bonds: Rows ``(u, v, code)`` with atom numbers within the molecule, int32 ``(B, 3)``.
        num_fragments: Disconnected parts of the row as written, int64 ``(R,)``.
        canonical: Canonical SMILES (with stereochemistry) of what is used of each row.
        scaffold: Bemis-Murcko scaffold of each row.
        reason: ``""``, or why the row cannot be used.
    """

    atom_count: np.ndarray
    bond_count: np.ndarray
    atom_code: np.ndarray
    bonds: np.ndarray
    num_fragments: np.ndarray
    canonical: list[str]
    scaffold: list[str]
    reason: list[str]


def encode_table(
    smiles: Sequence[str], fragments: str = "all", num_workers: int | None = None, cache_dir: str | Path | None = None
) -> EncodedTable:
    """Encodes the rows of a table.

    Args:
        smiles: R SMILES; anything that is not a string counts as empty.
        fragments: ``all`` keeps salts and mixtures as written; ``largest`` keeps the part with most heavy atoms.
        num_workers: See ``map_chunks``.
        cache_dir: Folder of cached results; None = no cache.

    Raises:
        ValueError: An unknown value of ``fragments``.
    """
    if fragments not in FRAGMENTS:
        raise ValueError(f"`data.init_args.fragments` must be one of {', '.join(FRAGMENTS)}, got {fragments!r}.")
    rows = [text if isinstance(text, str) else "" for text in smiles]
    arrays = cached(
        cache_dir,
        content_key("smiles", fragments, rows),
        lambda: concatenate(map_chunks(partial(encode_chunk, fragments=fragments), rows, num_workers, "featurising")),
        lambda stored: fault_of(stored, encode_chunk([]), len(rows), {"atom_code": "atom_count", "bonds": "bond_count"}),
    )
    return EncodedTable(
        atom_count=arrays["atom_count"],
        bond_count=arrays["bond_count"],
        atom_code=arrays["atom_code"],
        bonds=arrays["bonds"],
        num_fragments=arrays["num_fragments"],
        canonical=unpack_strings(arrays["canonical"]),
        scaffold=unpack_strings(arrays["scaffold"]),
        reason=unpack_strings(arrays["reason"]),
    )


def encode_chunk(smiles: Sequence[str], fragments: str = "all") -> Arrays:
    """The arrays of ``EncodedTable`` for a few rows, strings packed; runs in a worker process."""
    atoms: list[int] = []
    bonds: list[tuple[int, int, int]] = []
    counts: list[tuple[int, int, int]] = []
    strings: list[tuple[str, str, str]] = []
    for text in smiles:
        try:
            mol, parts = parse_row(text, fragments)
            codes, edges = encode_molecule(mol)
            strings.append((Chem.MolToSmiles(mol), murcko_scaffold(mol), ""))
            counts.append((len(codes), len(edges), parts))
            atoms += codes
            bonds += edges
        except (ValueError, RuntimeError) as error:
            strings.append(("", "", " ".join(str(error).split()) or type(error).__name__))
            counts.append((0, 0, 0))
    table = np.array(counts, dtype=np.int64).reshape(-1, 3)
    canonical, scaffold, reason = zip(*strings, strict=True) if strings else ((), (), ())
    return {
        "atom_count": table[:, 0],
        "bond_count": table[:, 1],
        "num_fragments": table[:, 2],
        "atom_code": np.array(atoms, dtype=np.int64),
        "bonds": np.array(bonds, dtype=np.int32).reshape(-1, 3),
        "canonical": pack_strings(list(canonical)),
        "scaffold": pack_strings(list(scaffold)),
        "reason": pack_strings(list(reason)),
    }


def parse_row(smiles: str, fragments: str) -> tuple[Chem.Mol, int]:
    """The molecule to use of one row, and the number of disconnected parts in the row.

    Raises:
        ValueError: As ``parse_smiles``.
    """
    mol = parse_smiles(smiles)
    parts = len(Chem.GetMolFrags(mol))
    if fragments == "largest" and parts > 1:
        mol = max(Chem.GetMolFrags(mol, asMols=True), key=lambda m: (m.GetNumHeavyAtoms(), Chem.MolToSmiles(m)))
    return mol, parts


def concatenate(chunks: Sequence[Arrays]) -> Arrays:
    """The arrays of several chunks joined row-wise."""
    chunks = list(chunks) or [encode_chunk([])]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
