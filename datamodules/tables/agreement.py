"""What the clients' files must agree on, found out before round 1; a client that disagrees is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def agree_on_columns(found: Mapping[str, Sequence[str]], what: str, remedy: str) -> list[str]:
    """The columns that all clients have, whatever their order.

    Args:
        found: Columns of each client, by the client's name.
        what: What the columns are, in the plural: ``feature columns``.
        remedy: What to write instead.

    Returns:
        Them, in the order of the first client.

    Raises:
        ValueError: Some client has others than most have.
    """
    counts = Counter(frozenset(columns) for columns in found.values())
    most = max(counts, key=lambda columns: counts[columns])
    agreed = next(list(columns) for columns in found.values() if frozenset(columns) == most)
    others = []
    for name, columns in found.items():
        lacks, extra = most - set(columns), set(columns) - most
        if lacks or extra:
            parts = [f"lacks {_some(lacks)}"] * bool(lacks) + [f"has also {_some(extra)}"] * bool(extra)
            others.append(f"client {name!r} {' and '.join(parts)}")
    if others:
        raise ValueError(
            f"The clients' {what} differ: {counts[most]} of {len(found)} clients have {len(most)} of them, but "
            f"{'; '.join(others)}. {remedy}"
        )
    return agreed


def agree_on_width(found: Mapping[str, int], what: str) -> int:
    """The number that all clients have.

    Raises:
        ValueError: Some client has another than most have.
    """
    width, clients = Counter(found.values()).most_common(1)[0]
    others = [f"client {name!r} has {value}" for name, value in found.items() if value != width]
    if others:
        raise ValueError(f"The clients' numbers of {what} differ: {clients} of {len(found)} clients have {width}, but "
                         f"{'; '.join(others)}.")  # fmt: skip
    return width


def _some(names: set[str] | frozenset[str], most: int = 5) -> str:
    ordered = sorted(names)
    return ", ".join(map(repr, ordered[:most])) + (f" and {len(ordered) - most} more" if len(ordered) > most else "")
