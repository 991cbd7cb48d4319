"""SDF: molecules with positions, and the values that each record carries.

A record is a name, a table of atoms with coordinates, bonds, and tags such as ``> <logP>`` with their value. RDKit parses
the molecule; this file takes the file apart, reads the tags (also where RDKit cannot read the molecule: the record keeps
its id, then) and packs the geometries.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rdkit import Chem, rdBase

from datamodules.molecules.cache import STRINGS, Arrays, cached, content_key, fault_of, pack_strings, unpack_strings
from datamodules.molecules.packed import PackedMolecules
from datamodules.molecules.parallel import map_chunks
from datamodules.molecules.scaffold import murcko_scaffold
from datamodules.molecules.table import MoleculeSet
from datamodules.tables.origin import Origin
from datamodules.tables.scan import open_bytes

MAX_RECORD = 1 << 26
TAG = re.compile(r"\s*>.*?<(.+)>")  # > <logP>, >  <logP>  (17), > 25 <logP>


def sdf_blocks(path: Path) -> Iterator[str]:
    """The records of an SDF file (plain or gzip), each without its ``$$$$`` line.

    Raises:
        ValueError: A record longer than ``MAX_RECORD`` characters: this is no SDF file.
    """
    lines: list[str] = []
    size = 0
    with io.TextIOWrapper(open_bytes(path), encoding="utf-8", errors="replace") as file:
        for line in file:
            size += len(line)
            if line.startswith("$$$$"):
                yield "".join(lines)
                lines, size = [], 0
            elif size > MAX_RECORD:
                raise ValueError(f"`{path}` has no `$$$$` line within {MAX_RECORD >> 20} MiB: it is no SDF file.")
            else:
                lines.append(line)
    if "".join(lines).strip():
        yield "".join(lines)


def encode_blocks(blocks: Sequence[str]) -> Arrays:
    """Elements, coordinates, SMILES and scaffold of a few SDF records; runs in a worker process.

    A record that RDKit can read but not sanitise keeps its geometry; only its SMILES and scaffold are made from the
    unsanitised bonds.
    """
    z: list[int] = []
    pos: list[np.ndarray] = []
    counts: list[tuple[int, int]] = []
    strings: list[tuple[str, str, str]] = []
    with rdBase.BlockLogs():
        for block in blocks:
            mol = Chem.MolFromMolBlock(block, sanitize=False, removeHs=False)
            reason = _cut(block)
            if not reason and (mol is None or mol.GetNumAtoms() == 0 or mol.GetNumConformers() == 0):
                reason = "no molecule with coordinates in this record"
            if reason:
                strings.append(("", "", reason))
                counts.append((0, 0))
                continue
            z += [mol.GetAtomWithIdx(i).GetAtomicNum() for i in range(mol.GetNumAtoms())]
            pos.append(mol.GetConformer().GetPositions().astype(np.float32))
            counts.append((mol.GetNumAtoms(), len(Chem.GetMolFrags(mol))))
            strings.append((*_names(mol), ""))
    table = np.array(counts, dtype=np.int64).reshape(-1, 2)
    canonical, scaffold, reasons = zip(*strings, strict=True) if strings else ((), (), ())
    return {
        "atom_count": table[:, 0],
        "num_fragments": table[:, 1],
        "z": np.array(z, dtype=np.uint8),
        "pos": np.concatenate([np.zeros((0, 3), np.float32), *pos]),
        "canonical": pack_strings(list(canonical)),
        "scaffold": pack_strings(list(scaffold)),
        "reason": pack_strings(list(reasons)),
    }


def _cut(block: str) -> str:
    """Why a record is not one whole record: RDKit reads the first molecule, and takes what is left for nothing."""
    lines = block.split("\n")
    molecules = sum(line.startswith("M  END") for line in lines)
    if molecules > 1:
        return f"{molecules} molecules in one record: a `$$$$` line between them is missing"
    if lines[-1] and not lines[-1].startswith("M  END"):
        return "the file ends within this record, which has no `$$$$` line: is it complete?"
    return ""


def _names(mol: Chem.Mol) -> tuple[str, str]:
    try:
        mol = Chem.RemoveHs(mol)
        return Chem.MolToSmiles(mol), murcko_scaffold(mol)
    except (ValueError, RuntimeError):
        mol.UpdatePropertyCache(strict=False)
        bare = Chem.RemoveHs(mol, sanitize=False)
        Chem.FastFindRings(bare)
        return Chem.MolToSmiles(bare), murcko_scaffold(bare)


@dataclass(frozen=True)
class Records:
    """R records of an SDF file; one that could not be read has no atoms and a ``reason``.

    Attributes:
        atom_count, num_fragments: int64 ``(R,)``.
        z: Atomic numbers of all atoms, uint8 ``(N,)``.
        pos: Their positions in angstrom, float32 ``(N, 3)``.
        canonical, scaffold: SMILES of each record, hydrogens removed.
        reason: ``""``, or why the record cannot be used.
    """

    atom_count: np.ndarray
    num_fragments: np.ndarray
    z: np.ndarray
    pos: np.ndarray
    canonical: list[str]
    scaffold: list[str]
    reason: list[str]


def read_records(blocks: Sequence[str], num_workers: int | None = None, cache_dir: str | Path | None = None) -> Records:
    """Parse the records of :func:`sdf_blocks`; arguments as for ``encode_table``."""
    arrays = cached(
        cache_dir,
        content_key("sdf", "", blocks),
        lambda: _concatenate(map_chunks(encode_blocks, blocks, num_workers, "reading SDF")),
        lambda stored: fault_of(stored, encode_blocks([]), len(blocks), {"z": "atom_count", "pos": "atom_count"}),
    )
    canonical, scaffold, reason = (unpack_strings(arrays[name]) for name in STRINGS)
    return Records(arrays["atom_count"], arrays["num_fragments"], arrays["z"], arrays["pos"], canonical, scaffold, reason)


def geometry_set(
    records: Records,
    rows: np.ndarray,
    y: np.ndarray,
    task_names: Sequence[str],
    units: Sequence[str],
    dropped: list[dict[str, Any]],
    columns: dict[str, list[Any]],
    origin: Origin | None = None,
) -> MoleculeSet:
    """Molecules with ``z`` and ``pos`` in place of bonds.

    Args:
        records: R records.
        rows: Which of them to keep, ascending, ``(M,)``.
        y: Labels of all records, ``(R, T)``.
        task_names: As in ``MoleculeSet``.
        units: As there.
        dropped: Its ``dropped_rows``.
        columns: As there, each of length M.
        origin: As there.
    """
    size = len(records.reason)
    everything = PackedMolecules(
        y=torch.as_tensor(y, dtype=torch.float32).reshape(size, -1),
        sample_id=torch.arange(size),
        node_ptr=torch.from_numpy(np.concatenate([[0], np.cumsum(records.atom_count)])),
        edge_ptr=torch.zeros(size + 1, dtype=torch.long),
        atom_table=torch.zeros(0, 0),
        nodes={"z": torch.from_numpy(records.z), "pos": torch.from_numpy(records.pos)},
    )
    return MoleculeSet(
        packed=everything.select(rows),
        canonical=[records.canonical[row] for row in rows],
        scaffold=[records.scaffold[row] for row in rows],
        num_fragments=records.num_fragments[rows],
        task_names=list(task_names),
        units=list(units),
        dropped_rows=dropped,
        columns=columns,
        origin=origin,
    )


def values_of(blocks: Sequence[str]) -> list[dict[str, str]]:
    """:func:`block_values` of a few records; runs in a worker process."""
    return [block_values(block) for block in blocks]


def block_values(block: str) -> dict[str, str]:
    """Name of a record (under ``name``) and its tags, as texts. A tag's value goes up to the next empty line."""
    lines = block.split("\n")
    values = {"name": record_name(block)}
    place = next((number + 1 for number, line in enumerate(lines) if line.startswith("M  END")), 4)
    while place < len(lines):
        tag = TAG.match(lines[place])
        place += 1
        if tag is not None:
            start = place
            while place < len(lines) and lines[place]:
                place += 1
            values[tag[1]] = "\n".join(lines[start:place]).strip()
    return values


def record_name(block: str) -> str:
    """A record's first line."""
    return block.split("\n", 1)[0].strip()


def _concatenate(chunks: Sequence[Arrays]) -> Arrays:
    chunks = list(chunks) or [encode_blocks([])]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
