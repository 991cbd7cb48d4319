"""From a table (SMILES, labels, further columns) to a set of usable molecules and the list of rows that were left out.

Row numbers are those of the table, counted from 0 without the header; they are a molecule's ``sample_id`` for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from datamodules.molecules.encode import encode_table
from datamodules.molecules.packed import PackedMolecules, pack
from datamodules.tables.origin import Origin, name_row

POLICIES = ("raise", "drop")


@dataclass(frozen=True)
class MoleculeTable:
    """R rows as they are in a file.

    Attributes:
        smiles: One text per row; not a string = blank.
        y: Labels, ``nan`` where missing, ``(R, T)``.
        task_names: T names.
        columns: Further columns by name (for ``client_column``), each of length R.
        units: Unit of each task, or none.
        reasons: Why a row cannot be used whatever its SMILES is, ``""`` where nothing is known against it; or none.
        origin: As what the user knows the rows; or none.
    """

    smiles: Sequence[Any]
    y: np.ndarray
    task_names: Sequence[str]
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    units: Sequence[str] = ()
    reasons: Sequence[str] = ()
    origin: Origin | None = None


@dataclass(frozen=True)
class MoleculeSet:
    """M usable molecules.

    Attributes:
        packed: Graphs (or geometries), labels and sample ids.
        canonical: Canonical SMILES of each.
        scaffold: Bemis-Murcko scaffold of each.
        num_fragments: Disconnected parts of each as written, ``(M,)``.
        task_names: T names.
        units: Unit of each task, or none.
        dropped_rows: ``{"row", "reason", "smiles"}`` of each row that could not be used.
        columns: Further columns, each of length M.
        origin: As what the user knows the rows; or none.
    """

    packed: PackedMolecules
    canonical: list[str]
    scaffold: list[str]
    num_fragments: np.ndarray
    task_names: list[str]
    units: list[str]
    dropped_rows: list[dict[str, Any]]
    columns: dict[str, list[Any]]
    origin: Origin | None = None

    def __len__(self) -> int:
        return len(self.packed)

    def where(self, position: int) -> str:
        """The row of a molecule as the user knows it: ``sites/a.csv row 3 (id 'A-17')``."""
        return name_row(self.list_row(position))

    def list_row(self, position: int) -> dict[str, Any]:
        """The row of a molecule: ``row``, and what else is known of it (``id``, ``file``, ``file_row``)."""
        row = int(self.packed.sample_id[position])
        return {"row": row, **(self.origin(row) if self.origin else {})}


def molecule_set(
    table: MoleculeTable,
    invalid: str = "drop",
    fragments: str = "all",
    num_workers: int | None = None,
    cache_dir: str | Path | None = None,
) -> MoleculeSet:
    """Encodes the rows of a table, and drops or refuses those that are no molecule.

    Args:
        table: The rows.
        invalid: ``raise`` or ``drop``.
        fragments: As in ``encode_table``.
        num_workers: As there.
        cache_dir: As there.

    Raises:
        ValueError: Rows that are no molecule under ``invalid: raise``, or no usable row at all.
    """
    encoded = encode_table(table.smiles, fragments, num_workers, cache_dir)
    reasons = [own or other for own, other in zip(table.reasons or encoded.reason, encoded.reason, strict=True)]
    rows, dropped = usable_rows(reasons, table.smiles, invalid, table.origin)
    return MoleculeSet(
        packed=pack(encoded, rows, np.asarray(table.y)[rows], rows),
        canonical=[encoded.canonical[i] for i in rows],
        scaffold=[encoded.scaffold[i] for i in rows],
        num_fragments=encoded.num_fragments[rows],
        task_names=list(table.task_names),
        units=list(table.units),
        dropped_rows=dropped,
        columns={name: [column[i] for i in rows] for name, column in table.columns.items()},
        origin=table.origin,
    )


def usable_rows(
    reasons: Sequence[str], texts: Sequence[Any], invalid: str, origin: Origin | None = None
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Rows without a reason against them, and a record of each other row; ``origin`` adds what else is known of it.

    Raises:
        ValueError: As ``molecule_set``.
    """
    check_policy(invalid)
    dropped = [
        {
            "row": row,
            "reason": reason,
            "smiles": str(texts[row]) if isinstance(texts[row], str) else "",
            **(origin(row) if origin else {}),
        }
        for row, reason in enumerate(reasons)
        if reason
    ]
    shown = "; ".join(f"{name_row(drop)} {drop['smiles']!r}: {drop['reason']}" for drop in dropped[:5])
    more = f" (and {len(dropped) - 5} more)" if len(dropped) > 5 else ""
    if dropped and invalid == "raise":
        raise ValueError(
            f"{len(dropped)} of {len(reasons)} rows cannot be used: {shown}{more}. Rows count from 0 "
            "without the header. Correct them, or leave them out with `data.init_args.invalid: drop`."
        )
    rows = np.array([row for row, reason in enumerate(reasons) if not reason], dtype=np.int64)
    if not len(rows):
        raise ValueError(
            f"none of {len(reasons)} rows can be used: {shown}{more}. Are the columns of SMILES and labels right? "
            "Labels are numbers; classes are 0 and 1."
        )
    return rows, dropped


def check_policy(invalid: str) -> None:
    """Raises ``ValueError`` if ``invalid`` is not one of ``POLICIES``."""
    if invalid not in POLICIES:
        raise ValueError(f"`data.init_args.invalid` must be one of {', '.join(POLICIES)}, got {invalid!r}.")
