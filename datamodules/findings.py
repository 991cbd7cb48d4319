"""Findings: what ``inspect`` tells about data that will hurt, each with what to do about it; remarks ask for nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

Finding = dict[str, Any]
NOTHING = "Nothing, if this is meant"


def finding(
    kind: str, client: int | None, count: int, message: str, remedy: str, rows: Sequence[Mapping[str, Any]] = ()
) -> Finding:
    """One line of the report.

    Args:
        kind: What it is, for programs.
        client: Whom it concerns; ``None`` for the whole data set.
        count: How many there are.
        message: The same in words.
        remedy: What to do about it.
        rows: All rows that it speaks of, as the user knows them; none where it does not speak of single rows.
    """
    return {"kind": kind, "level": "finding", "client": client, "count": count, "message": message, "remedy": remedy,
            "rows": list(rows)}  # fmt: skip


def remark(
    kind: str, client: int | None, count: int, message: str, more: str = ".", rows: Sequence[Mapping[str, Any]] = ()
) -> Finding:
    """A finding that good data have, too: there is nothing to be done if it is meant, and ``--strict`` does not fail. The
    advice is ``NOTHING`` and goes on with ``more``."""
    return {**finding(kind, client, count, message, f"{NOTHING}{more}", rows), "level": "remark"}


def tell_if(
    kind: str, count: int, message: str, remedy: str | None = None, rows: Sequence[Mapping[str, Any]] = ()
) -> list[Finding]:
    """A finding about the whole data set (a remark without ``remedy``), as a list: empty if there is nothing to count."""
    if not count:
        return []
    if remedy is None:
        return [remark(kind, None, count, message, rows=rows)]
    return [finding(kind, None, count, message, remedy, rows)]


def name_first(told: Sequence[str], number: int | None = None, most: int = 3) -> str:
    """The first of some things, in words, and how many more there are (of ``number``, if not all are told) and where."""
    more = (len(told) if number is None else number) - most
    return "; ".join(told[:most]) + (f"; and {more} more (`inspect --json` and `--html` list all)" if more > 0 else "")


def with_remedies(findings: list[Finding], remedies: dict[str, str]) -> list[Finding]:
    """The findings with other remedies for some kinds: where clients are given, no partitioner can be told to differ."""
    return [{**found, "remedy": remedies.get(found["kind"], found["remedy"])} for found in findings]


def either(count: int, one: str, many: str) -> str:
    """What goes with a number: ``row has`` with 1, else ``rows have``."""
    return one if count == 1 else many
