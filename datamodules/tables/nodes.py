"""A table of nodes: ids, features, labels, clients and splits of people's own graphs, with what could not be used."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from datamodules.findings import either
from datamodules.tables.guessing import counter_or_id, number_owners
from datamodules.tables.names import has_name, quote
from datamodules.tables.table import Chunk, Table, TableFormat
from datamodules.tables.values import (
    COMMA_NUMBER,
    MINUS,
    NUMBER,
    count_blank_words,
    decimal_mark,
    is_blank,
    parse_numbers,
    with_plain_minus,
)

SPLIT_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val", "test": "test"}


@dataclass(frozen=True)
class NodeColumns:
    """Which column is what; ``None`` = there is none.

    Attributes:
        id, label, client, split: Names of columns.
        features: Names of the feature columns, or ``None`` for all other columns that hold numbers.
        all_meant: Without ``features``: numbers that only count or name the rows are features, too, since the table was
            given for nothing else.
    """

    id: str
    label: str | None = None
    client: str | None = None
    split: str | None = None
    features: tuple[str, ...] | None = None
    all_meant: bool = False

    @property
    def named(self) -> list[str]:
        """The columns that are no features."""
        return [name for name in (self.id, self.label, self.client, self.split) if name is not None]


@dataclass
class NodeTable:
    """The nodes of one file, R rows of which N can be used.

    Attributes:
        path: The file.
        ids: All R ids as written, also of rows that cannot be used.
        kept: Rows that are nodes, ``(N,)``.
        x: Their features, CSR ``(N, F)``; F = 0 where features come from elsewhere.
        label, split: Their texts, N each; ``""`` where blank, split as ``train``, ``val``, ``test``.
        row_client: The client of each of the R rows; ``""`` where blank or without such a column.
        feature_names: F names.
        set_aside: Columns of numbers that only count or name the rows, and are no features, with the reason.
        dropped: ``{"row", "reason", "id"}`` of the other rows, and their ``client`` where there is such a column.
        notices: What was found out instead of given.
    """

    path: Path
    ids: list[str]
    kept: np.ndarray
    x: sp.csr_matrix
    label: list[str]
    row_client: list[str]
    split: list[str]
    feature_names: list[str]
    set_aside: dict[str, str] = field(default_factory=dict)
    dropped: list[dict[str, Any]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def client(self) -> list[str]:
        """The client of each node, N texts."""
        return [self.row_client[row] for row in self.kept]


def name_table(table: NodeTable, client: str) -> str:
    """Whose a table of nodes is, for a message: the client's name, or the file's where there is one table only."""
    return client or str(table.path)


def read_nodes(
    path: Path,
    columns: NodeColumns,
    form: TableFormat,
    decimal: str | None,
    label_optional: bool = False,
    classes: Sequence[str] = (),
) -> NodeTable:
    """Read a table of nodes.

    A row without an id, with an id that an earlier row has, with a feature that is blank or no number, or with another
    number of fields than the header, is no node; it is listed in ``dropped``.

    Args:
        path: CSV or parquet.
        columns: Which column is what.
        form: How CSV is written.
        decimal: ``.``, ``,`` or ``None`` to find out.
        label_optional: A file without the column of labels has nodes that are not labelled.
        classes: Names of classes, which are labels even where they read as blank (``none``).

    Raises:
        ValueError: No such column, no row, a label that is a measurement, a split of another name; the file is no table.
    """
    table = Table(path, form, _needed(columns, label_optional))
    notices = list(table.notices)
    if columns.label is not None and columns.label not in table.columns:
        notices.append(f"`{path}` has no column {columns.label!r}: its nodes are not labelled.")
        columns = replace(columns, label=None)
    candidates = [name for name in table.columns if name not in columns.named]
    names = list(columns.features) if columns.features is not None else None

    texts: dict[str, list[str]] = {name: [] for name in columns.named}
    parts: list[sp.csr_matrix] = []
    reasons: dict[int, str] = {}
    set_aside: dict[str, str] = {}
    marks: dict[str, str] = {}
    for chunk in table.chunks([*columns.named, *(candidates if names is None else names)], columns.id):
        if names is None:
            numeric = _numeric(chunk, candidates, decimal)
            set_aside = {} if columns.all_meant else _counters(chunk, numeric, decimal, columns.client)
            names = _others(numeric, set_aside)
            if left := _others(candidates, numeric):
                are = either(len(left), "holds text or nothing or has no name, and is no feature",
                             "hold text or nothing or have no name, and are no features")  # fmt: skip
                notices.append(f"`{path}`: {_few(left)} {are}.")
        marks = marks or _find_marks(chunk, names, decimal)
        for name in columns.named:
            texts[name] += [text.strip() for text in chunk.columns[name]]
        reasons |= chunk.bad
        parts.append(_features(chunk, names, marks, reasons))
    x = sp.vstack(parts, format="csr") if parts else sp.csr_matrix((0, 0), dtype=np.float32)

    notices += _tell_marks(marks, path) if decimal is None else []

    ids = texts[columns.id]
    if not ids:
        raise ValueError(f"`{path}` has no row below its first line, which names the columns. Needed is one row for each node.")
    _odd_ids(ids, reasons)
    kept = np.array([row for row in range(len(ids)) if row not in reasons], dtype=np.int64)
    owner = [""] * len(ids) if columns.client is None else texts[columns.client]
    dropped = [{"row": row, "reason": reasons[row], "id": ids[row],
                **({} if columns.client is None else {"client": owner[row]})} for row in sorted(reasons)]  # fmt: skip

    def column(name: str | None) -> list[str]:
        return [""] * len(kept) if name is None else [texts[name][row] for row in kept]

    labels, told = _without_blanks(column(columns.label), classes)
    splits, told_of_splits = _without_blanks(column(columns.split))
    remedy = "; list it in `data.init_args.classes` if it is a class"
    notices += [f"`{path}`: {each} in column {columns.label!r} is taken for a blank{remedy}." for each in told]
    notices += [f"`{path}`: {each} in column {columns.split!r} is taken for a blank." for each in told_of_splits]
    places = [(int(row), ids[row]) for row in kept]
    mark = decimal or decimal_mark(labels, "," if "," in marks.values() else ".")
    return NodeTable(path, ids, kept, x[kept], _class_names(labels, places, path, mark),
                     owner, _splits(splits, kept, path), names or [], set_aside, dropped, notices)  # fmt: skip


def _needed(columns: NodeColumns, label_optional: bool) -> dict[str, str]:
    """The columns that a file must have, by the option that names them."""
    options = {"data.init_args.id_column": columns.id, "data.init_args.label_column": columns.label,
               "data.init_args.client_column": columns.client, "data.init_args.split_column": columns.split}  # fmt: skip
    if label_optional:
        del options["data.init_args.label_column"]
    options |= {f"data.init_args.features[{place}]": name for place, name in enumerate(columns.features or ())}
    return {option: name for option, name in options.items() if name is not None}


def _odd_ids(ids: Sequence[str], reasons: dict[int, str]) -> None:
    """Add to ``reasons`` the rows, of those without one, that have no id or an earlier row's."""
    first: dict[str, int] = {}
    for row, name in enumerate(ids):
        if row in reasons:
            continue
        if not name:  # `NA` and `null` are names like others
            reasons[row] = "no id"
        elif name in first:
            reasons[row] = f"the id is that of row {first[name]}, too"
        else:
            first[name] = row


def _without_blanks(texts: Sequence[str], words: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """The texts, ``""`` where blank, and which words were taken for a blank."""
    return [text if text in words or not is_blank(text) else "" for text in texts], count_blank_words(texts, words)


def _others(names: Sequence[str], known: Container[str]) -> list[str]:
    return [name for name in names if name not in known]


def _numeric(chunk: Chunk, candidates: Sequence[str], decimal: str | None) -> list[str]:
    """Columns with a name that hold numbers, as far as the first rows tell: at least one, and more than texts."""
    names = []
    for name in candidates:
        head = chunk.columns[name][:1000]
        values, wrong = parse_numbers(head, decimal or decimal_mark(head))
        if has_name(name) and np.isfinite(values).sum() > len(wrong):
            names.append(name)
    return names


def _counters(chunk: Chunk, names: Sequence[str], decimal: str | None, client: str | None) -> dict[str, str]:
    """Columns that only count or name the rows, all of them or those of each client, as far as the first rows tell."""
    found: dict[str, str] = {}
    owners = None if client is None else number_owners([text.strip() for text in chunk.columns[client]])
    for name in names:
        texts = chunk.columns[name]
        head = np.unique(parse_numbers(texts[:100], decimal or decimal_mark(texts[:100]))[0])
        if (head == np.round(head)).sum() > 2:  # else there is nothing to ask of the many columns of a bag of words
            reason = counter_or_id(name, parse_numbers(texts, decimal or decimal_mark(texts))[0], owners)
            found |= {} if reason is None else {name: reason}
    return found


def _find_marks(chunk: Chunk, names: Sequence[str], decimal: str | None) -> dict[str, str]:
    """The decimal mark of each column, as far as the first rows tell: where one has none, that of the others."""
    if decimal is not None:
        return dict.fromkeys(names, decimal)
    heads = {name: chunk.columns[name][:1000] for name in names}
    most = decimal_mark([text for head in heads.values() for text in head])
    return {name: decimal_mark(head, most) for name, head in heads.items()}


def _tell_marks(marks: Mapping[str, str], path: Path) -> list[str]:
    commas = [name for name, mark in marks.items() if mark == ","]
    which = "features" if len(commas) == len(marks) else _few(commas)
    return [f"`{path}`: `,` is taken for the decimal mark of {which}."] if commas else []


def _features(chunk: Chunk, names: Sequence[str], marks: Mapping[str, str], reasons: dict[int, str]) -> sp.csr_matrix:
    values = np.zeros((chunk.size, len(names)), dtype=np.float32)
    for place, name in enumerate(names):
        column, wrong = parse_numbers(chunk.columns[name], marks[name])
        for row, reason in wrong.items():
            reasons.setdefault(chunk.first + row, f"feature {name!r}: {reason}")
        for row in np.flatnonzero(np.isnan(column)).tolist():
            reasons.setdefault(chunk.first + row, f"feature {name!r} is blank")
        values[:, place] = np.nan_to_num(column)
    return sp.csr_matrix(values)


def _class_names(texts: Sequence[str], rows: Sequence[tuple[int, str]], path: Path, decimal: str) -> list[str]:
    """Labels as names of classes; ``1.0`` is class ``1``, and so is ``1,0`` where ``,`` is the decimal mark.

    Args:
        texts: Labels, ``""`` where blank.
        rows: Number and id of the row of each.
        path: The file.
        decimal: ``.`` or ``,``.

    Raises:
        ValueError: Labels are measurements; names the first.
    """
    names, measured = list(texts), []
    for place, text in enumerate(map(with_plain_minus, texts)):
        if MINUS in texts[place] and NUMBER.fullmatch(text):  # one class with `-1` elsewhere
            names[place] = text
        if ("." in text and NUMBER.fullmatch(text)) or (decimal == "," and COMMA_NUMBER.fullmatch(text)):
            value = float(text.replace(",", "."))
            if value.is_integer():
                names[place] = str(int(value))
            else:
                measured.append(place)
    if measured:
        (row, name), known = rows[measured[0]], sum(map(bool, texts))
        remedy = ("Correct them, or leave them blank." if 10 * len(measured) <= known else
                  "Is `data.init_args.label_column` right? Put values into classes first.")  # fmt: skip
        raise ValueError(
            f"`{path}`, row {row} (id {name!r}): label {quote(texts[measured[0]])} is a measurement, as {len(measured)} of "
            f"{known} labels are, but nodes are classified here: labels are names or whole numbers. {remedy}"
        )
    return names


def _splits(texts: list[str], rows: np.ndarray, path: Path) -> list[str]:
    wrong = [place for place, text in enumerate(texts) if text and text.lower() not in SPLIT_NAMES]
    if wrong:
        raise ValueError(
            f"`{path}`, row {rows[wrong[0]]}: split {quote(texts[wrong[0]])} is none of train, val, test or blank "
            f"({len(wrong)} such rows). Correct it, or leave out `data.init_args.split_column`."
        )
    return [SPLIT_NAMES[text.lower()] if text else "" for text in texts]


def _few(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(f"`{name}`" for name in names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
