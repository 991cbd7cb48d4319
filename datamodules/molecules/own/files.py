"""The rows of people's own molecule files, CSV, parquet and SDF alike: texts by column, before anything is interpreted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from datamodules.molecules.parallel import map_chunks
from datamodules.molecules.sdf import sdf_blocks, values_of
from datamodules.tables.names import has_name
from datamodules.tables.scan import scan
from datamodules.tables.strays import is_stray
from datamodules.tables.table import Table, TableFormat
from datamodules.tables.values import decimal_mark, parse_numbers

TABLES = (".csv", ".tsv", ".txt", ".smi", ".parquet")
GUESSED_FROM = 1000


@dataclass
class MoleculeFile:
    """One file of R rows.

    Attributes:
        path: The file.
        name: Name of its client, where each file is one.
        columns: Texts of the columns that were asked for, R each.
        size: R.
        all_columns: Names of all columns of the file.
        bad: Reason of rows that are no row of the table.
        blocks: Records, if it is an SDF file.
        notices: What was found out instead of given.
    """

    path: Path
    name: str
    columns: dict[str, list[str]]
    size: int
    all_columns: list[str]
    bad: dict[int, str] = field(default_factory=dict)
    blocks: list[str] | None = None
    notices: list[str] = field(default_factory=list)


def is_sdf(path: Path) -> bool:
    """Whether a file is SDF by its name."""
    return ".sdf" in path.suffixes[-2:]


def _is_data(path: Path) -> bool:
    return path.is_file() and (is_sdf(path) or any(suffix in TABLES for suffix in path.suffixes[-2:]))


def find_files(files: str | Sequence[str]) -> list[Path]:
    """The files meant: as named, or all tables and SDF files of a folder, sorted, without what programs leave there.

    Raises:
        ValueError: A folder without any.
    """
    found = []
    for name in [files] if isinstance(files, str) else files:
        path = Path(name)
        if not path.is_dir():
            found.append(path)
            continue
        inside = [p for p in sorted(path.iterdir()) if _is_data(p) and not is_stray(p.name)]
        if not inside:
            folders = [str(p) for p in sorted(path.iterdir()) if p.is_dir() and not is_stray(p.name)]
            raise ValueError(
                f"`data.init_args.files`: the folder `{path}` has no file *{', *'.join(TABLES)} or *.sdf "
                "(.gz, too)." + (f" It has folders: `files: [{', '.join(folders[:5])}]`." if folders else "")
            )
        found += inside
    if not found:
        raise ValueError("`data.init_args.files` is empty: name a file, a folder, or several files.")
    return found


def unread_files(files: str | Sequence[str]) -> list[str]:
    """Files in the named folders that are no site's by their names, hidden ones that are no tables apart: some are, perhaps."""
    read, named = set(find_files(files)), [Path(name) for name in ([files] if isinstance(files, str) else files)]
    return [
        str(p)
        for path in named
        if path.is_dir()
        for p in sorted(path.iterdir())
        if p.is_file() and (_is_data(p) or not p.name.startswith(".")) and p not in read
    ]


def name_clients(paths: Sequence[Path]) -> list[str]:
    """File names without endings; with the folder in front where two are the same.

    Raises:
        ValueError: A file is listed twice.
    """
    stems = [path.name.split(".")[0] for path in paths]
    names = [stem if stems.count(stem) == 1 else f"{path.parent.name}/{stem}" for path, stem in zip(paths, stems, strict=True)]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"`data.init_args.files` has several files called {', '.join(repeated)}; each is a client and "
            "needs a name of its own."
        )
    return names


def read_file(
    path: Path,
    name: str,
    form: TableFormat,
    needed: dict[str, str],
    optional: Sequence[str] | None,
    workers: int | None = None,
) -> MoleculeFile:
    """Read one file.

    Args:
        path: The file.
        name: Of its client.
        form: How CSV is written.
        needed: Columns that must be there, by the option that names them.
        optional: Columns to read if they are there; ``None`` = all.
        workers: Processes that read SDF, see ``map_chunks``.
    """
    if is_sdf(path):
        return _read_sdf(path, name, needed, optional, workers)
    table = Table(path, form, needed)
    names = [n for n in table.columns if optional is None or n in optional]
    chunk = table.read(list(dict.fromkeys([*needed.values(), *names])), needed.get("data.init_args.id_column"))
    return MoleculeFile(path, name, chunk.columns, chunk.size, table.columns, chunk.bad, None, list(table.notices))


def _read_sdf(
    path: Path, name: str, needed: dict[str, str], optional: Sequence[str] | None, workers: int | None
) -> MoleculeFile:
    scan(path, "latin-1")  # any byte is text there: only what is no text at all is refused
    blocks = list(sdf_blocks(path))
    records = [values for part in map_chunks(values_of, blocks, workers, "reading tags") for values in part]
    tags = list(dict.fromkeys(tag for record in records for tag in record))
    missing = [f"`{option}` is {column!r}" for option, column in needed.items() if column not in tags]
    if missing:
        raise ValueError(
            f"{' and '.join(missing)}, but no record of `{path}` has such a tag. The tags are: "
            f"{', '.join(map(repr, tags))} (`name` is a record's first line)."
        )
    names = [tag for tag in tags if (optional is None and tag != "name") or tag in (optional or ())]
    columns = {tag: [record.get(tag, "") for record in records] for tag in dict.fromkeys([*needed.values(), *names])}
    return MoleculeFile(path, name, columns, len(blocks), tags, {}, blocks)


def numeric_columns(file: MoleculeFile, besides: Sequence[str], decimal: str | None) -> dict[str, np.ndarray]:
    """Columns with a name in which there are numbers, and more than other texts, as far as the first rows tell; by name
    their numbers, ``nan`` where there is none."""
    found = {}
    for name, texts in file.columns.items():
        if name in besides or not has_name(name):
            continue
        head = [text for text in texts if text][:GUESSED_FROM]
        values, wrong = parse_numbers(head, decimal or decimal_mark(head))
        if np.isfinite(values).sum() > len(wrong):
            found[name] = parse_numbers(texts, decimal or decimal_mark(texts))[0]
    return found
