"""Names that differ in case or blanks only: one thing under two names, most likely."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from datamodules.findings import Finding, finding
from datamodules.tables.names import quote_all


def group_alike(names: Iterable[str]) -> list[list[str]]:
    """Groups of two and more different names that differ in case or blanks only."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        groups[" ".join(name.split()).casefold()].append(name)
    return [group for group in groups.values() if len(group) > 1]


def find_clients_alike(clients: Iterable[str]) -> list[Finding]:
    """Clients whose names differ in case or blanks only, such as ``East`` and ``east``."""
    return [
        finding(
            "clients_alike",
            None,
            len(group),
            f"{len(group)} clients differ in case or blanks only: {quote_all(group)}. Is it one client?",
            "Write its name alike in the files, or nothing if they are meant to be different.",
        )
        for group in group_alike(clients)
    ]
