"""Where people's own molecules are and how they are to be read: all that
:func:`~datamodules.molecules.own.reader.read_molecules` needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from datamodules.tables.table import TableFormat

METRICS = {"regression": ("rmse", "mae"), "classification": ("auroc",)}


@dataclass(frozen=True)
class MoleculeSpec:
    """Molecules in files.

    Attributes:
        paths: The files.
        smiles_column: Column of SMILES; not for SDF.
        targets: Columns of labels; ``None`` = those of numbers.
        id_column: Column of ids; ``None`` = rows are counted, and SDF has a first line.
        client_column: Column that names each row's client; ``None`` = each file is a client, where clients are asked for.
        by_file: Whether each file is a client.
        task, metric: As given; ``None`` = found out.
        units: Unit by task; ``None`` = what column names have in brackets.
        geometry: Positions in place of bonds.
        form: How CSV is written.
        decimal: ``.``, ``,`` or ``None`` to find out for each column.
        unread: Files of the named folders that are no molecules by their names.
        invalid, fragments: What is done with rows that cannot be used, and with salts.
        workers: Processes that featurise.
        cache_dir: Folder of featurised tables.
    """

    paths: tuple[Path, ...]
    smiles_column: str = "smiles"
    targets: tuple[str, ...] | None = None
    id_column: str | None = None
    client_column: str | None = None
    by_file: bool = False
    task: str | None = None
    metric: str | None = None
    units: Mapping[str, str] | None = None
    geometry: bool = False
    form: TableFormat = field(default_factory=TableFormat)
    decimal: str | None = None
    unread: tuple[str, ...] = ()
    invalid: str = "drop"
    fragments: str = "all"
    workers: int | None = None
    cache_dir: str | None = None

    @property
    def task_is_given(self) -> bool:
        """Whether nothing had to be found out: a metric tells the task, too."""
        return self.task is not None or self.metric is not None
