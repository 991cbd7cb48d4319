"""Names of columns: what makes two of them the same, and how they are written in a message."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

UNNAMED = re.compile(r"column \d+|Unnamed: \d+")  # no name in the file: as a rule pandas' numbers of rows


def has_name(column: str) -> bool:
    """Whether a column has a name of its own, so that it may be taken for a feature or a label without being asked for."""
    return UNNAMED.fullmatch(column) is None


def is_number(text: str) -> bool:
    """Whether a label or a name is a finite number; ``nan`` is a name."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def sort_names(names: Iterable[str]) -> list[str]:
    """Names in order: by value if all of them are numbers."""
    found = list(names)
    return sorted(found, key=lambda name: (float(name), name)) if all(map(is_number, found)) else sorted(found)


def make_distinct(names: list[str], notices: list[str], path: Path) -> list[str]:
    """Column names that differ: blank ones are numbered, repeated ones marked."""
    result: list[str] = []
    for place, name in enumerate(names):
        shown = name or f"column {place}"
        if shown in result:
            shown = f"{shown} ({place})"
            notices.append(f"`{path}` has several columns called {name!r}: column {place} is {shown!r} here.")
        result.append(shown)
    return result


def fold(name: str) -> str:
    """A name without what people write differently: case, spaces, signs."""
    return re.sub(r"[\W_]+", "", name).lower() or name


def find_spelling(name: str, columns: Sequence[str]) -> str | None:
    """The column that is this name in another spelling (``logS`` and ``log_s``), if there is one."""
    return next((column for column in columns if column != name and fold(column) == fold(name)), None)


def suggest_columns(missing: Mapping[str, str], columns: Sequence[str], header: bool) -> str:
    """What to write for columns that are not there.

    Args:
        missing: Their names, by the option that asks for them.
        columns: Those that are there.
        header: Whether these names are from the first line, which may be a row already.
    """
    spellings = {option: find_spelling(name, columns) for option, name in missing.items()}
    if all(spellings.values()):
        return " Write " + ", ".join(f"`{option}: {spelling}`" for option, spelling in spellings.items()) + "."
    each = " and ".join(f"`{option}`" for option in missing)
    name = "edge_header" if next(iter(missing)).endswith(("source_column", "target_column")) else "header"
    other = f", or `data.init_args.{name}: false` if the first line is a row already" if header else ""
    return f" Set {each} to {'one' if len(missing) == 1 else 'two' if len(missing) == 2 else 'some'} of them{other}."


def quote(text: str) -> str:
    """A field for a message: quoted, and cut where it is long."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def quote_all(names: Sequence[str], most: int = 12) -> str:
    """Names for a message."""
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")
