"""Tables of people's own data: CSV with any separator and line end, plain or gzip, and parquet, row by row and exact.

CSV goes through Python's ``csv`` reader and not through ``pandas``, which fills a row that is too short, and takes the
first column for an index where rows have a field more than the header: either way values would silently move. Here
each row has as many fields as the header, or a reason why it cannot be used. Rows count from 0 without the header,
without empty lines and without leading comments, in a file of any kind.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from datamodules.tables.names import make_distinct, quote_all, suggest_columns
from datamodules.tables.scan import not_in_encoding, open_text, scan
from datamodules.tables.values import cell_text

SEPARATORS = (",", "\t", ";", "|", " ")
MAX_ROWS = 50_000_000
COMMENT = ("#", "%")  # how leading lines of SNAP's and Matrix Market's files begin
CHUNK_BYTES = 1 << 24
CHUNK_ROWS = 50_000


@dataclass(frozen=True)
class TableFormat:
    """How CSV files are written.

    Args:
        separator: One character; ``None`` = found out from the first lines.
        encoding: Of the text; a byte order mark is skipped.
        header: Whether the first line names the columns; otherwise they are called ``0``, ``1``, ...
    """

    separator: str | None = None
    encoding: str = "utf-8"
    header: bool = True


@dataclass
class Chunk:
    """Some consecutive rows.

    Attributes:
        first: Number of the first row.
        columns: Texts of each column, ``""`` where blank.
        bad: Rows (counted from 0) that are no row of the table, with the reason; their fields are ``""``, but for
            an id that was to be kept.
    """

    first: int
    columns: dict[str, list[str]]
    size: int
    bad: dict[int, str] = field(default_factory=dict)


class Table:
    """One file, opened and checked; nothing of it is in memory yet.

    Args:
        path: A CSV file (plain or gzip) or a parquet file.
        form: How it is written.
        needed: Columns that must be there, in the user's words: ``{"data.init_args.id_column": "id"}``.

    Attributes:
        columns: Names of all columns, in order.
        notices: What was found out instead of given, in words.

    Raises:
        ValueError: See :func:`~datamodules.tables.scan.scan`; a needed column is missing; no header.
    """

    def __init__(self, path: str | Path, form: TableFormat | None = None, needed: dict[str, str] | None = None) -> None:
        self.path, self.form = Path(path), form or TableFormat()
        self.notices: list[str] = []
        self.separator = self.form.separator
        if self.separator is not None and len(self.separator) != 1:
            raise ValueError(f"`data.init_args.separator` must be one character, got {self.separator!r}.")
        found = scan(self.path, self.form.encoding)
        self.is_parquet = found.kind == "parquet"
        rows = _parquet(self.path).metadata.num_rows if self.is_parquet else found.lines
        if rows > MAX_ROWS:
            raise ValueError(f"`{self.path}` has {rows} rows, and more than {MAX_ROWS} are refused. Split it by client.")
        if self.is_parquet:
            names = [str(name) for name in _parquet(self.path).schema_arrow.names]
        else:
            self._skipped, self._in_comment = 0, list[str]()
            names = self._read_head(found.head, found.lines, found.size, list((needed or {}).values()))
        self.columns = make_distinct(names, self.notices, self.path)
        self._check_needed(needed or {}, names)

    def _check_needed(self, needed: dict[str, str], written: Sequence[str]) -> None:
        missing = {option: name for option, name in needed.items() if name not in self.columns}
        if missing:
            asked = " and ".join(f"`{option}` is {name!r}" for option, name in missing.items())
            what = "column" if len(missing) == 1 else "columns"
            raise ValueError(
                f"{asked}, but `{self.path}` has no such {what}. Its columns are: {quote_all(self.columns)}"
                + ("." if self.separator is None else f" (separator {self.separator!r}).")
                + suggest_columns(missing, self.columns, self.form.header and not self.is_parquet)
            )
        for name in needed.values():
            if written.count(name) > 1:
                raise ValueError(f"`{self.path}` has {written.count(name)} columns called {name!r}: rename all but one.")

    def _read_head(self, head: str, lines: int, size: int, wanted: list[str]) -> list[str]:
        head = self._without_comments(head, wanted)
        if self.separator is None:
            self.separator = guess_separator(head, wanted)
            if self.separator != ",":
                self.notices.append(f"`{self.path}`: taken as separated by {self.separator!r}.")
        self._rows_per_chunk = min(CHUNK_ROWS, max(1, CHUNK_BYTES * max(lines, 1) // max(size, 1)))
        with open_text(self.path, self.form.encoding) as file:
            first = next((row for row in self._parse(file) if row), [])
        if self._in_comment:
            return self._in_comment
        if self.form.header:
            return [name.strip() for name in first]
        return [str(number) for number in range(len(first))]

    def _without_comments(self, head: str, wanted: Sequence[str]) -> str:
        """Skip the leading lines that start with ``#`` or ``%``; the last of them may name the columns, with the sign or not.

        Returns:
            The first lines from there.
        """
        lines = list(io.StringIO(head, newline=""))  # split as the file is
        size = next((place for place, line in enumerate(lines) if line.strip() and not line.startswith(COMMENT)), 0)
        comments = [place for place in range(size) if lines[place].startswith(COMMENT)]
        if not comments:
            return head
        last, rest = comments[-1], "".join(lines[size:])
        named = ""
        for text in (lines[last], lines[last].lstrip("".join(COMMENT) + " ")) if self.form.header and wanted else ():
            separator = self.separator or guess_separator(text + rest, wanted)
            names = [name.strip() for name in next(csv.reader([text], delimiter=separator), [])]
            if set(wanted) <= set(names):
                if text == lines[last]:  # the sign belongs to the name that was asked for
                    size, rest, comments = last, text + rest, comments[:-1]
                else:
                    self._in_comment, self.separator, named = names, separator, ", and the last of them names the columns"
                break
        self._skipped = size
        if comments:
            self.notices.append(f"`{self.path}`: {len(comments)} leading line(s) with `#` or `%` are skipped{named}.")
        return rest

    def _parse(self, file: Any) -> Iterator[list[str]]:
        file = itertools.islice(file, self._skipped, None)
        reader = csv.reader(file, delimiter=self.separator or ",", strict=True)
        try:
            yield from reader
        except csv.Error as error:
            raise ValueError(
                f"`{self.path}`, line {self._skipped + reader.line_num}: {error}. A field with quotes or separators in it must "
                'be quoted, and a quote in it doubled; is a closing `"` missing?'
            ) from error
        except UnicodeDecodeError as error:
            raise not_in_encoding(self.path, self.form.encoding, error) from error

    def chunks(self, wanted: Sequence[str] | None = None, kept: str | None = None) -> Iterator[Chunk]:
        """All rows, some at a time, with a progress bar on a terminal if it takes long.

        Args:
            wanted: Columns to keep; all by default.
            kept: One of them (of ids), whose field also a row of another length keeps, as far as it has one.
        """
        names = self.columns if wanted is None else list(dict.fromkeys(wanted))
        source = self._parquet_chunks(names) if self.is_parquet else self._csv_chunks(names, kept)
        with tqdm(desc=f"reading {self.path.name}", unit="row", disable=None, delay=1.0, leave=False) as bar:
            for chunk in source:
                yield chunk
                bar.update(chunk.size)

    def _csv_chunks(self, names: Sequence[str], kept_name: str | None) -> Iterator[Chunk]:
        places, width = [self.columns.index(name) for name in names], len(self.columns)
        spared = None if kept_name is None else self.columns.index(kept_name)
        with open_text(self.path, self.form.encoding) as file:
            rows = (row for row in self._parse(file) if row)
            if self.form.header and not self._in_comment:
                next(rows, None)
            number, first, bad, kept = 0, 0, {}, []
            for row in rows:
                if len(row) != width:
                    row, reason = _fitted(row, width, spared)
                    if reason:
                        bad[number] = reason
                kept.append(row)
                number += 1
                if len(kept) >= self._rows_per_chunk:
                    yield _chunk(first, names, places, kept, bad)
                    first, bad, kept = number, {}, []
            if kept:
                yield _chunk(first, names, places, kept, bad)

    def _parquet_chunks(self, names: Sequence[str]) -> Iterator[Chunk]:
        first = 0
        batches = _parquet(self.path).iter_batches(batch_size=min(CHUNK_ROWS, 10_000), columns=list(names))
        while True:
            try:
                batch = next(batches, None)
                columns = {} if batch is None else {n: list(map(cell_text, batch.column(n).to_pylist())) for n in names}
            except (ValueError, TypeError, OSError, NotImplementedError) as error:  # Arrow's errors are of these kinds
                raise ValueError(f"`{self.path}` is a damaged parquet file ({error}). Copy it again.") from error
            if batch is None:
                return
            yield Chunk(first, columns, batch.num_rows)
            first += batch.num_rows

    def read(self, wanted: Sequence[str], kept: str | None = None) -> Chunk:
        """All rows of some columns at once; ``kept`` as for ``chunks``."""
        whole = Chunk(0, {name: [] for name in wanted}, 0)
        for chunk in self.chunks(wanted, kept):
            for name, texts in chunk.columns.items():
                whole.columns[name] += texts
            whole.size += chunk.size
            whole.bad |= chunk.bad
        return whole


def _chunk(first: int, names: Sequence[str], places: Sequence[int], rows: list[list[str]], bad: dict[int, str]) -> Chunk:
    columns = {name: [row[place] for row in rows] for name, place in zip(names, places, strict=True)}
    return Chunk(first, columns, len(rows), bad)


def _fitted(row: list[str], width: int, spared: int | None) -> tuple[list[str], str]:
    """A row of another length than the header: blank fields at its end do no harm, all else is no row, and but for the field at
    ``spared`` blank."""
    if len(row) > width and not any(text.strip() for text in row[width:]):
        return row[:width], ""
    blank = [field if place == spared else "" for place, field in enumerate(row[:width])]
    return blank + [""] * (width - len(blank)), f"{len(row)} fields instead of {width}"


def _parquet(path: Path) -> Any:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ValueError(f"`{path}` is a parquet file: `pip install pyarrow` to read it, or save it as CSV.") from error
    try:
        return ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise ValueError(f"`{path}` is a damaged parquet file ({error}). Copy it again.") from error


def guess_separator(head: str, wanted: Sequence[str] = ()) -> str:
    """The separator under which the header has the wanted columns and the first rows as many fields as it.

    Args:
        head: The first lines of a file.
        wanted: Names of columns that have to be there.
    """
    lines = re.split(r"\r\n|\r|\n", head)
    lines = lines[: max(1, len(lines) - 1)][:100]  # the last one may be cut off

    def fitness(separator: str) -> tuple[int, float, int, int]:
        try:
            rows = [row for row in csv.reader(lines, delimiter=separator) if row]
        except csv.Error:
            return 0, 0.0, 0, 0
        if not rows:
            return 0, 0.0, 0, 0
        width = len(rows[0])
        same = sum(len(row) == width for row in rows) / len(rows) if width > 1 else 0.0
        names = {name.strip() for name in rows[0]}
        return sum(name in names for name in wanted), same, width, -SEPARATORS.index(separator)

    best = max(SEPARATORS, key=fitness)
    return best if fitness(best)[2] > 1 else ","
