"""People's own molecules: SMILES in CSV or parquet, or SDF with positions; one file, or one file per client.

Nothing is dropped silently, and nothing is guessed silently: rows that cannot be used are listed with their reason and id,
and what was found out instead of given is said at the start and by ``inspect``.
"""
from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from datamodules.findings import finding, with_remedies
from datamodules.molecules.datamodule import MoleculeDataModule
from datamodules.molecules.own_files import (
    MoleculeFile,
    client_names,
    find_files,
    is_sdf,
    numeric_columns,
    read_file,
    unread_files,
)
from datamodules.molecules.own_labels import class_findings, guess_task, scale_findings, units_of
from datamodules.molecules.own_targets import GuessedTasks, guess_tasks
from datamodules.molecules.sdf import geometry_set, read_records, record_name
from datamodules.molecules.table import MoleculeSet, MoleculeTable, Origin, usable_rows
from datamodules.predicted import PredictedRows
from datamodules.tables.names import find_spelling, quote_all
from datamodules.tables.table import TableFormat
from datamodules.tables.values import decimal_mark, parse_numbers

METRICS = {"regression": ("rmse", "mae"), "classification": ("auroc",)}
OWNER = "client"
# Where the sites are given.
REMEDIES = {
    "scaffold_skew": "The sites are given: FLIT and personalised strategies bear clients that differ.",
    "small_client": "A smaller `data.init_args.batch_size`, or nothing.",
    "empty": "More rows for this site, or nothing: it is served and does not teach.",
    "one_class": "The sites are given: the other sites teach the other class.",
}
log = logging.getLogger(__name__)


class MoleculeCSVDataModule(MoleculeDataModule):
    """Molecular property prediction on one's own files.

    Args:
        files: A file (CSV of any separator and line end, plain or gzip; parquet; SDF), several, or a folder of them.
        smiles_column: Column of SMILES; not for SDF.
        targets: Column of labels, or several; blank = missing, and a client may lack some. Null = all other columns of numbers,
            but for those that only count or name rows (``num``, ``PubChem CID``).
        id_column: Column of ids, which predictions keep; null = ``row`` or ``file:row``, and for SDF a record's first line.
        client_column: Column that names each row's client. Rows without a client cannot be used.
        task: ``regression`` or ``classification`` (labels 0 and 1); null = found out from the labels.
        metric: ``rmse`` or ``mae`` for regression, ``auroc`` for classification; null = the first.
        units: Unit by task; null = what column names have in brackets, as in ``solubility [g/L]``.
        geometry: For SDF: positions (``lit_models.SchNet``) in place of bonds.
        separator: Of fields; null = found out.
        decimal: ``.`` or ``,``; null = found out for each column.
        encoding: Of text.
        header: Whether the first line names the columns; otherwise they are ``"0"``, ``"1"``, ... (as ``.smi`` files have it).
        partition: ``file`` (one client per file), ``column`` (one per value of ``client_column``) or one of
            ``MoleculeDataModule``'s; null = ``column`` with a ``client_column``, ``file`` for several files, else
            ``scaffold_lda``.
        predict_files: Files for ``predict`` in place of ``files``, written in the same way; labels and clients are not
            needed. Training, splits and label statistics are those of ``files`` all the same.
        options: Everything else that ``MoleculeDataModule`` takes. Its ``invalid`` is for all rows that cannot be used: no
            molecule, a label that is no number, no client, another number of fields than the header.

    Raises:
        ValueError: A value or a file that cannot work, in the names of the YAML file.
    """

    def __init__(
        self,
        files: str | list[str] = "molecules.csv",
        smiles_column: str = "smiles",
        targets: str | list[str] | None = None,
        id_column: str | None = None,
        client_column: str | None = None,
        task: Literal["regression", "classification"] | None = None,
        metric: Literal["rmse", "mae", "auroc"] | None = None,
        units: dict[str, str] | None = None,
        geometry: bool = False,
        separator: str | None = None,
        decimal: Literal[".", ","] | None = None,
        encoding: str = "utf-8",
        header: bool = True,
        partition: Literal["file", "column", "scaffold_lda", "official", "iid", "random", "label"] | None = None,
        predict_files: str | list[str] | None = None,
        **options: Any,
    ) -> None:
        self.paths = find_files(files)
        if partition is None:
            partition = "column" if client_column else "file" if len(self.paths) > 1 else "scaffold_lda"
        if partition == "file" and client_column is not None:
            raise ValueError("`data.init_args.partition: file` makes each file a client: leave out "
                             "`data.init_args.client_column`.")
        own = partition in ("file", "column")
        super().__init__(partition="column" if own else partition,  # type: ignore[arg-type]  # `own` are the others
                         client_column=OWNER if partition == "file" else client_column, **options)
        self.by_file, self.named_client_column = partition == "file", client_column
        if own:
            self.client_column = OWNER
        if metric is not None and task is not None and metric not in METRICS[task]:
            raise ValueError(f"`data.init_args.metric` is {metric!r}, but for {task} it must be one of: "
                             f"{', '.join(METRICS[task])}.")
        self.predict_paths = [] if predict_files is None else find_files(predict_files)
        flat = [path.name for path in (*self.paths, *self.predict_paths) if not is_sdf(path)]
        if geometry and flat:
            raise ValueError("`data.init_args.geometry: true` needs positions, which only SDF files (*.sdf, *.sdf.gz) have, "
                             f"but there is {flat[0]!r}.")
        if geometry and self.fragments != "all":
            raise ValueError("`data.init_args.fragments: largest` is for bonds: with `data.init_args.geometry: true` all "
                             "parts of a record are kept. Leave it out.")
        self.smiles_column, self.id_column = smiles_column, id_column
        self.targets = [targets] if isinstance(targets, str) else targets
        self.given_task, self.given_metric, self.given_units = task, metric, units
        self.geometry, self.decimal = geometry, decimal
        self._form = TableFormat(separator, encoding, header)
        self.original_ids: list[str] = []
        self.row_clients: list[str] = []
        unread = unread_files(files)
        self.notices = [f"not read, by their names: {quote_all(unread)}."] if unread else []
        self._all_clients: set[str] = set()
        self._guessed: GuessedTasks | None = None
        self._task_is_given = task is not None or metric is not None
        self.predicted_rows: PredictedRows | None = None

    # Lightning

    def setup(self, stage: str | None = None) -> None:
        """Load, split and share out; then read ``predict_files``. Does nothing the second time."""
        first = self._molecules is None
        super().setup(stage)
        if first and self.predict_paths:
            asked = self._read_asked()
            for part in (self, *self.client_datamodules()):
                part.set_predicted(asked.packed)

    def _read_asked(self) -> MoleculeSet:
        files = [self._read(path, name, [], with_client=False)
                 for path, name in zip(self.predict_paths, client_names(self.predict_paths), strict=True)]
        ids = [name for file in files for name in self._ids(file, len(files))]
        self._need_rows(files)
        size = sum(file.size for file in files)
        reasons = [file.bad.get(row, "") for file in files for row in range(file.size)]
        y = np.full((size, len(self.task_names)), np.nan, dtype=np.float32)
        asked = self._featurise(files, MoleculeTable([], y, self.task_names, {}, (), reasons, _origin(files, ids)))
        self.predicted_rows = PredictedRows(ids, asked.dropped_rows)
        return asked

    # Reading

    def load(self) -> MoleculeSet:
        files = self._read_files()
        self._need_rows(files)
        tasks = self._tasks(files)
        reasons = [file.bad.get(row, "") for file in files for row in range(file.size)]
        y = np.stack([self._label(files, task, reasons) for task in tasks], axis=1)
        self.original_ids = [name for file in files for name in self._ids(file, len(files))]
        owner = [name for file in files for name in self._owners(file)]
        for row, name in enumerate(owner):
            if not name and not reasons[row]:  # `NA` and `null` are names like others
                reasons[row] = "no client"
        if self.partition == "column":
            self.row_clients = owner
        self._all_clients = set(filter(None, owner)) | {file.name for file in files if self.by_file}
        units, notices = units_of(tasks, self.given_units)
        self.notices += notices
        table = MoleculeTable([], y, tasks, {OWNER: owner}, units if any(units) else [], reasons,
                              _origin(files, self.original_ids))
        molecules = self._featurise(files, table)
        self._set_task(molecules)
        for note in self.notices:
            log.warning(note)
        if not bool(molecules.packed.y.isfinite().any()):
            raise ValueError(f"None of {len(molecules)} molecules has a label: {quote_all(tasks)} (`data.init_args.targets`) "
                             "is blank. Needed is one label at least; molecules that are only to be predicted belong in "
                             "`data.init_args.predict_files`.")
        return molecules

    def _featurise(self, files: Sequence[MoleculeFile], table: MoleculeTable) -> MoleculeSet:
        if self.geometry:
            return self._geometries(files, table)
        smiles, unread = [], []
        for file in files:
            if file.blocks is None:
                smiles += file.columns[self.smiles_column]
                unread += [""] * file.size
            else:
                records = read_records(file.blocks, self.featurise_workers, self.cache_dir)
                smiles += records.canonical
                unread += records.reason
        reasons = [own or other for own, other in zip(table.reasons, unread, strict=True)]
        return self.from_table(replace(table, smiles=smiles, reasons=reasons))

    def _read_files(self) -> list[MoleculeFile]:
        files = [self._read(path, name, self.targets)
                 for path, name in zip(self.paths, client_names(self.paths), strict=True)]
        self.notices += [note for file in files for note in file.notices]
        return files

    def _read(self, path: Path, name: str, optional: Sequence[str] | None, with_client: bool = True) -> MoleculeFile:
        needed = {} if is_sdf(path) else {"data.init_args.smiles_column": self.smiles_column}
        client = self.named_client_column if with_client else None
        for option, column in (("id_column", self.id_column), ("client_column", client)):
            if column is not None:
                needed[f"data.init_args.{option}"] = column
        return read_file(path, name, self._form, needed, optional, self.featurise_workers)

    @staticmethod
    def _need_rows(files: Sequence[MoleculeFile]) -> None:
        if not any(file.size for file in files):
            raise ValueError(f"{quote_all([str(file.path) for file in files])}: no row below the first line, which names the "
                             "columns. Needed is one row for each molecule.")

    def _tasks(self, files: Sequence[MoleculeFile]) -> list[str]:
        if self.targets is not None:
            if not self.targets or len(set(self.targets)) != len(self.targets):
                raise ValueError(f"`data.init_args.targets` must name one or more different columns, got {self.targets}.")
            for task in self.targets:
                if not any(task in file.columns for file in files):
                    columns = list(dict.fromkeys(name for file in files for name in file.all_columns))
                    spelling = find_spelling(task, columns)
                    raise ValueError(f"`data.init_args.targets` names {task!r}, but no file has such a column: "
                                     f"{', '.join(str(file.path) for file in files[:5])}. " +
                                     (f"Write `{spelling}`." if spelling else f"The columns are: {quote_all(columns)}."))
                for file in files:
                    spelling = None if task in file.columns else find_spelling(task, file.all_columns)
                    if spelling is not None:
                        raise ValueError(f"client {file.name!r} has no column {task!r} but {spelling!r}: rename it in "
                                         f"`{file.path}`, or leave it out there.")
            return list(self.targets)
        besides = [self.smiles_column, *filter(None, (self.id_column, self.named_client_column))]
        self._guessed = guess_tasks({file.name: numeric_columns(file, besides, self.decimal) for file in files})
        tasks = self._guessed.tasks
        if not tasks:
            raise ValueError(f"`{files[0].path}` has no column of numbers to learn: its columns are "
                             f"{quote_all(files[0].all_columns)}{self._guessed.told_left_out()}. Name those of labels in "
                             "`data.init_args.targets`; labels are numbers, classes are 0 and 1.")
        self.notices.append(f"targets: {', '.join(f'`{task}`' for task in tasks)}, all other columns of numbers"
                            f"{self._guessed.told_left_out()} (`data.init_args.targets` says otherwise).")
        return tasks

    def _label(self, files: Sequence[MoleculeFile], task: str, reasons: list[str]) -> np.ndarray:
        """Labels of one task in all files, ``nan`` where missing; what is no number is put into ``reasons``."""
        parts, start = [], 0
        for file in files:
            texts = file.columns.get(task)
            if texts is None:
                parts.append(np.full(file.size, np.nan))
            else:
                decimal = self.decimal or decimal_mark(texts)
                if decimal == "," and self.decimal is None:
                    self.notices.append(f"`{file.path}`: `,` is taken for the decimal mark of `{task}`.")
                values, wrong = parse_numbers(texts, decimal)
                parts.append(values)
                for row, reason in wrong.items():
                    reasons[start + row] = reasons[start + row] or f"`{task}`: {reason}"
            start += file.size
        return np.concatenate(parts).astype(np.float32)

    def _ids(self, file: MoleculeFile, number_of_files: int) -> list[str]:
        if self.id_column is not None:
            return [text.strip() for text in file.columns[self.id_column]]
        prefix = f"{file.name}:" if number_of_files > 1 else ""
        names = [record_name(block) for block in file.blocks] if file.blocks else [""] * file.size
        return [name or f"{prefix}{row}" for row, name in enumerate(names)]

    def _owners(self, file: MoleculeFile) -> list[str]:
        if self.named_client_column is None:
            return [file.name] * file.size
        return [text.strip() for text in file.columns[self.named_client_column]]

    def _set_task(self, molecules: MoleculeSet) -> None:
        """Sets ``task`` and ``metric``, by the labels of usable rows alone where neither is given."""
        if self.given_task is not None:
            self.task = self.given_task
        elif self.given_metric is not None:
            self.task = next(task for task, metrics in METRICS.items() if self.given_metric in metrics)
        else:
            self.task, notice = guess_task(molecules.packed.y.numpy(), molecules.columns[OWNER], molecules.task_names,
                                           molecules.where)
            self.notices.append(notice)
        self.metric = self.given_metric or METRICS[self.task][0]

    def _geometries(self, files: Sequence[MoleculeFile], table: MoleculeTable) -> MoleculeSet:
        blocks = [block for file in files for block in file.blocks or ()]
        records = read_records(blocks, self.featurise_workers, self.cache_dir)
        reasons = [own or other for own, other in zip(table.reasons, records.reason, strict=True)]
        rows, dropped = usable_rows(reasons, records.canonical, self.invalid, table.origin)
        columns = {name: [column[row] for row in rows] for name, column in table.columns.items()}
        return geometry_set(records, rows, table.y, table.task_names, table.units, dropped, columns, table.origin)

    # Reporting

    def partition_record(self) -> dict[str, Any]:
        return {**super().partition_record(), "method": "file" if self.by_file else self.partition}

    def report(self) -> dict[str, Any]:
        report = super().report()
        molecules = self.molecules
        found = []
        repeated = len(molecules) - len({self.original_ids[row] for row in molecules.packed.sample_id.tolist()})
        if repeated:
            found.append(finding("repeated_ids", None, repeated, f"{repeated} rows have an id that an earlier row has.",
                                 "Nothing, if this is meant: predictions come row by row."))
        without = sorted(self._all_clients - set(self._client_names)) if self.partition == "column" else []
        if without:
            found.append(finding("client_without_molecules", None, len(without), f"{', '.join(map(repr, without[:10]))} "
                                 "have no usable row and are no clients of the federation.", "Correct their rows, or add "
                                 "some: all that cannot be used are in `dropped_rows`."))
        unlabelled = int(np.isnan(molecules.packed.y.numpy()).all(1).sum())
        if unlabelled:
            found.append(finding("unlabelled_rows", None, unlabelled, f"{unlabelled} of {len(molecules)} molecules have no "
                                 "label at all: they are predicted, and teach nothing.", "Nothing, if this is meant."))
        if self.geometry:
            found += _flat(molecules)
        if self._guessed is not None:
            found += self._guessed.findings()
        if self.task == "regression" and not self._task_is_given:
            found += class_findings(molecules.packed.y.numpy(), molecules.task_names, molecules.where)
        if self.task == "regression" and self.partition == "column":
            index = {name: number for number, name in enumerate(self._client_names)}
            owner = np.array([index[name] for name in molecules.columns[OWNER]])
            found += scale_findings(molecules.packed.y.numpy(), owner, self._client_names, molecules.task_names)
        others = with_remedies(report["findings"], REMEDIES) if self.partition == "column" else report["findings"]
        return {**report, "partition": "file" if self.by_file else self.partition, "notices": self.notices,
                "files": [str(path) for path in self.paths], "findings": found + others}


def _origin(files: Sequence[MoleculeFile], ids: Sequence[str]) -> Origin:
    return Origin([str(file.path) for file in files], [file.size for file in files], ids)


def _flat(molecules: MoleculeSet) -> list[dict[str, Any]]:
    packed = molecules.packed
    depth = packed.nodes["pos"][:, 2].abs() > 1e-6
    inside = np.add.reduceat(depth.numpy(), packed.node_ptr[:-1].numpy(), dtype=np.int64) if len(packed) else np.zeros(0)
    flat = int(((inside == 0) & (packed.num_atoms.numpy() > 3)).sum())
    if not flat:
        return []
    return [finding("flat_geometry", None, flat, f"{flat} of {len(molecules)} molecules lie in the plane of the paper: are "
                    "these drawings instead of geometries?", "Compute geometries, or use bonds (`geometry: false`).")]
