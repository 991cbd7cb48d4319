"""Findings: what ``inspect`` tells about data that will hurt, each with what to do about it."""

from typing import Any

Finding = dict[str, Any]


def finding(kind: str, client: int | None, count: int, message: str, remedy: str) -> Finding:
    """One line of the report; ``client`` is ``None`` for what concerns the whole data set."""
    return {"kind": kind, "client": client, "count": count, "message": message, "remedy": remedy}


def tell_if(kind: str, count: int, message: str, remedy: str = "Nothing, if this is meant.") -> list[Finding]:
    """A finding about the whole data set, as a list: empty if there is nothing to count."""
    return [finding(kind, None, count, message, remedy)] if count else []


def with_remedies(findings: list[Finding], remedies: dict[str, str]) -> list[Finding]:
    """The findings with other remedies for some kinds: where clients are given, no partitioner can be told to differ."""
    return [{**found, "remedy": remedies.get(found["kind"], found["remedy"])} for found in findings]
