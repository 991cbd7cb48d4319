"""Reads people's own molecules: SMILES in CSV or parquet, or SDF; what comes out depends on the files and on the spec alone.

Nothing is dropped silently, and nothing is guessed silently: rows that cannot be used are listed with their reason and id,
and what was found out instead of given is said.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from datamodules.molecules.own.files import MoleculeFile, is_sdf, name_clients, numeric_columns, read_file
from datamodules.molecules.own.labels import guess_task, units_of
from datamodules.molecules.own.spec import METRICS, MoleculeSpec
from datamodules.molecules.own.targets import GuessedTasks, guess_tasks
from datamodules.molecules.sdf import geometry_set, read_records, record_name
from datamodules.molecules.table import MoleculeSet, MoleculeTable, molecule_set, usable_rows
from datamodules.predicted import PredictedRows
from datamodules.tables.names import find_spelling, quote_all
from datamodules.tables.origin import Origin
from datamodules.tables.values import count_blank_words, decimal_mark, parse_numbers

OWNER = "client"  # column of a molecule set that names each molecule's client
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MoleculeTables:
    """Molecules as they are in R rows of files.

    Attributes:
        molecules: The usable ones; its column ``client`` names each one's client.
        ids: All R ids, also of rows that cannot be used.
        owner: Client of each row, ``""`` = none.
        clients: Names of all clients, also of those without a usable row.
        guessed: How the tasks were found; ``None`` where they are given.
        task: ``regression`` or ``classification``.
        metric: ``rmse``, ``mae`` or ``auroc``.
        notices: What was found out instead of given.
        wrong_labels: By task, the rows with a label that is no number, with the reason.
    """

    molecules: MoleculeSet
    ids: list[str]
    owner: list[str]
    clients: frozenset[str]
    guessed: GuessedTasks | None
    task: str
    metric: str
    notices: list[str]
    wrong_labels: dict[str, dict[int, str]] = field(default_factory=dict)

    @property
    def lost_clients(self) -> list[str]:
        """Clients without a usable row."""
        return sorted(self.clients - set(self.molecules.columns[OWNER]))


def read_molecules(spec: MoleculeSpec) -> MoleculeTables:
    """Read molecules with their labels. What is found out instead of given is logged as a warning.

    Raises:
        ValueError: A file or a value that cannot work, in the names of the YAML file.
    """
    files = _read_files(spec)
    notices = [f"not read, by their names: {quote_all(spec.unread)}."] if spec.unread else []
    notices += [note for file in files for note in file.notices]
    _require_rows(files)
    guessed = None if spec.targets is not None else _guess_targets(spec, files, notices)
    tasks = guessed.tasks if guessed is not None else _check_targets(spec.targets or (), files)
    reasons = _bad_rows(files)
    words: dict[str, dict[int, str]] = {task: {} for task in tasks}
    y = np.stack([_read_labels(spec, files, task, words[task], notices) for task in tasks], axis=1)
    for task, wrong in words.items():
        for row, reason in wrong.items():
            reasons[row] = reasons[row] or f"`{task}`: {reason}"
    ids = [name for file in files for name in _name_rows(spec, file, len(files))]
    owner = [name for file in files for name in _name_owners(spec, file)]
    for row, name in enumerate(owner):
        if not name and not reasons[row]:  # `NA` and `null` are names like others
            reasons[row] = "no client"
    units, more = units_of(tasks, spec.units)
    notices += more
    table = MoleculeTable([], y, tasks, {OWNER: owner}, units if any(units) else [], reasons, _origin(files, ids))
    molecules = _featurise(spec, files, table)
    task, metric = _decide_task(spec, molecules, notices)
    for note in notices:
        log.warning(note)
    if not bool(molecules.packed.y.isfinite().any()):
        raise ValueError(
            f"None of {len(molecules)} molecules has a label: {quote_all(tasks)} (`data.init_args.targets`) "
            "is blank. Needed is one label at least; molecules that are only to be predicted belong in "
            "`data.init_args.predict_files`."
        )
    clients = frozenset(filter(None, owner)) | frozenset(file.name for file in files if spec.by_file)
    return MoleculeTables(molecules, ids, owner, clients, guessed, task, metric, notices, words)


def read_predicted(spec: MoleculeSpec, paths: Sequence[Path], tasks: Sequence[str]) -> tuple[MoleculeSet, PredictedRows]:
    """Read other molecules in files of the same form, which need no labels and no clients.

    Args:
        spec: How the files are written.
        paths: The files.
        tasks: T names of what a model predicts.

    Returns:
        The usable molecules with blank labels ``(M, T)``, and all rows' ids.

    Raises:
        ValueError: A file that cannot work.
    """
    spec = replace(spec, paths=tuple(paths), targets=(), client_column=None)
    files = _read_files(spec)
    ids = [name for file in files for name in _name_rows(spec, file, len(files))]
    _require_rows(files)
    y = np.full((len(ids), len(tasks)), np.nan, dtype=np.float32)
    molecules = _featurise(spec, files, MoleculeTable([], y, list(tasks), {}, (), _bad_rows(files), _origin(files, ids)))
    return molecules, PredictedRows(ids, molecules.dropped_rows)


def _read_files(spec: MoleculeSpec) -> list[MoleculeFile]:
    files = []
    options = {"id_column": spec.id_column, "client_column": spec.client_column}
    for path, name in zip(spec.paths, name_clients(spec.paths), strict=True):
        needed = {} if is_sdf(path) else {"data.init_args.smiles_column": spec.smiles_column}
        needed |= {f"data.init_args.{option}": column for option, column in options.items() if column is not None}
        files.append(read_file(path, name, spec.form, needed, spec.targets, spec.workers))
    return files


def _require_rows(files: Sequence[MoleculeFile]) -> None:
    if not any(file.size for file in files):
        raise ValueError(
            f"{quote_all([str(file.path) for file in files])}: no row below the first line, which names the "
            "columns. Needed is one row for each molecule."
        )


def _bad_rows(files: Sequence[MoleculeFile]) -> list[str]:
    """Why each row is no row of its table, ``""`` where it is one."""
    return [file.bad.get(row, "") for file in files for row in range(file.size)]


def _check_targets(targets: Sequence[str], files: Sequence[MoleculeFile]) -> list[str]:
    """The tasks as given.

    Raises:
        ValueError: None or two of a name, one that no file has, or one that a file has in another spelling.
    """
    if not targets or len(set(targets)) != len(targets):
        raise ValueError(f"`data.init_args.targets` must name one or more different columns, got {list(targets)}.")
    for task in targets:
        if not any(task in file.columns for file in files):
            columns = list(dict.fromkeys(name for file in files for name in file.all_columns))
            spelling = find_spelling(task, columns)
            raise ValueError(
                f"`data.init_args.targets` names {task!r}, but no file has such a column: "
                f"{', '.join(str(file.path) for file in files[:5])}. "
                + (f"Write `{spelling}`." if spelling else f"The columns are: {quote_all(columns)}.")
            )
        for file in files:
            spelling = None if task in file.columns else find_spelling(task, file.all_columns)
            if spelling is not None:
                raise ValueError(
                    f"client {file.name!r} has no column {task!r} but {spelling!r}: rename it in "
                    f"`{file.path}`, or leave it out there."
                )
    return list(targets)


def _guess_targets(spec: MoleculeSpec, files: Sequence[MoleculeFile], notices: list[str]) -> GuessedTasks:
    """The columns of numbers that are learnt where nobody has named them; adds what to say of it to ``notices``.

    Raises:
        ValueError: There is none, or clients write one in two ways.
    """
    besides = [spec.smiles_column, *filter(None, (spec.id_column, spec.client_column))]
    owners = None if spec.client_column is None else {file.name: _name_owners(spec, file) for file in files}
    guessed = guess_tasks({file.name: numeric_columns(file, besides, spec.decimal) for file in files}, owners)
    if not guessed.tasks:
        raise ValueError(
            f"`{files[0].path}` has no column of numbers to learn: its columns are "
            f"{quote_all(files[0].all_columns)}{guessed.describe_left_out()}. Name those of labels in "
            "`data.init_args.targets`; labels are numbers, classes are 0 and 1."
        )
    notices.append(
        f"targets: {', '.join(f'`{task}`' for task in guessed.tasks)}, all other columns of numbers"
        f"{guessed.describe_left_out()} (`data.init_args.targets` says otherwise)."
    )
    return guessed


def _read_labels(
    spec: MoleculeSpec, files: Sequence[MoleculeFile], task: str, wrong_rows: dict[int, str], notices: list[str]
) -> np.ndarray:
    """Labels of one task in all files, ``nan`` where missing; what is no number is put into ``wrong_rows``."""
    parts, start = [], 0
    for file in files:
        texts = file.columns.get(task)
        if texts is None:
            parts.append(np.full(file.size, np.nan))
        else:
            decimal = spec.decimal or decimal_mark(texts)
            if decimal == "," and spec.decimal is None:
                notices.append(f"`{file.path}`: `,` is taken for the decimal mark of `{task}`.")
            notices += [f"`{file.path}`: {each} in column {task!r} is taken for a blank." for each in count_blank_words(texts)]
            values, wrong = parse_numbers(texts, decimal)
            parts.append(values)
            wrong_rows |= {start + row: reason for row, reason in wrong.items()}
        start += file.size
    return np.concatenate(parts).astype(np.float32)


def _name_rows(spec: MoleculeSpec, file: MoleculeFile, number_of_files: int) -> list[str]:
    """Ids of a file's rows: as given, else a record's first line, else ``row`` or ``file:row``."""
    if spec.id_column is not None:
        return [text.strip() for text in file.columns[spec.id_column]]
    prefix = f"{file.name}:" if number_of_files > 1 else ""
    names = [record_name(block) for block in file.blocks] if file.blocks else [""] * file.size
    return [name or f"{prefix}{row}" for row, name in enumerate(names)]


def _name_owners(spec: MoleculeSpec, file: MoleculeFile) -> list[str]:
    if spec.client_column is None:
        return [file.name] * file.size
    return [text.strip() for text in file.columns[spec.client_column]]


def _origin(files: Sequence[MoleculeFile], ids: Sequence[str]) -> Origin:
    return Origin([str(file.path) for file in files], [file.size for file in files], ids)


def _featurise(spec: MoleculeSpec, files: Sequence[MoleculeFile], table: MoleculeTable) -> MoleculeSet:
    if spec.geometry:
        return _read_geometries(spec, files, table)
    smiles, unread = [], []
    for file in files:
        if file.blocks is None:
            smiles += file.columns[spec.smiles_column]
            unread += [""] * file.size
        else:
            records = read_records(file.blocks, spec.workers, spec.cache_dir)
            smiles += records.canonical
            unread += records.reason
    reasons = [own or other for own, other in zip(table.reasons, unread, strict=True)]
    table = replace(table, smiles=smiles, reasons=reasons)
    return molecule_set(table, spec.invalid, spec.fragments, spec.workers, spec.cache_dir)


def _read_geometries(spec: MoleculeSpec, files: Sequence[MoleculeFile], table: MoleculeTable) -> MoleculeSet:
    blocks = [block for file in files for block in file.blocks or ()]
    records = read_records(blocks, spec.workers, spec.cache_dir)
    reasons = [own or other for own, other in zip(table.reasons, records.reason, strict=True)]
    rows, dropped = usable_rows(reasons, records.canonical, spec.invalid, table.origin)
    columns = {name: [column[row] for row in rows] for name, column in table.columns.items()}
    return geometry_set(records, rows, table.y, table.task_names, table.units, dropped, columns, table.origin)


def _decide_task(spec: MoleculeSpec, molecules: MoleculeSet, notices: list[str]) -> tuple[str, str]:
    """Task and metric, by the labels of usable rows alone where neither is given."""
    if spec.task is not None:
        task = spec.task
    elif spec.metric is not None:
        task = next(task for task, metrics in METRICS.items() if spec.metric in metrics)
    else:
        task, notice = guess_task(molecules.packed.y.numpy(), molecules.columns[OWNER], molecules.task_names, molecules.where)
        notices.append(notice)
    return task, spec.metric or METRICS[task][0]
