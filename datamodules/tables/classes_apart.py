"""Classes that clients name differently: spelled apart by case or blanks only, or shared with no other client."""

from __future__ import annotations

from collections.abc import Sequence

from datamodules.findings import Finding, finding
from datamodules.tables.alike import group_alike
from datamodules.tables.names import quote, quote_all


def find_classes_apart(clients: Sequence[str], classes: Sequence[str], labels: Sequence[Sequence[int]]) -> list[Finding]:
    """Classes that are likely one class under several names.

    Args:
        clients: K names.
        classes: C names.
        labels: Number of nodes of each class at each client, K lists of C.
    """
    if len(clients) < 2:
        return []
    return [*_find_spellings(clients, classes, labels), *_find_strangers(clients, classes, labels)]


def _find_spellings(clients: Sequence[str], classes: Sequence[str], labels: Sequence[Sequence[int]]) -> list[Finding]:
    found = []
    for group in group_alike(name for index, name in enumerate(classes) if any(own[index] for own in labels)):
        who = []
        for name in group:
            holders = [client for client, own in zip(clients, labels, strict=True) if own[classes.index(name)]]
            who.append(f"{quote(name)} at {quote_all(holders)}")
        message = f"{len(group)} classes differ in case or blanks only: {'; '.join(who)}."
        remedy = "Write them alike in the files, or nothing if they are meant to be different."
        found.append(finding("classes_alike", None, len(group), message, remedy))
    return found


def _find_strangers(clients: Sequence[str], classes: Sequence[str], labels: Sequence[Sequence[int]]) -> list[Finding]:
    have = [{c for c, count in enumerate(own) if count} for own in labels]
    found = []
    for client, own in enumerate(have):
        others: set[int] = set().union(*(h for k, h in enumerate(have) if k != client))
        if own and others and not own & others:
            mine, theirs = ([classes[c] for c in sorted(some)] for some in (own, others))
            found.append(finding("classes_apart", client, len(own), f"Client {clients[client]!r} shares no class with any "
                                 f"other: it has {quote_all(mine)}, the others have {quote_all(theirs)}.",
                                 "Name the classes as the other clients do, or nothing if they are meant."))  # fmt: skip
    return found
