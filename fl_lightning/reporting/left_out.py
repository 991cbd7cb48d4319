"""Rows of the data that cannot be used: counted where a fit ends, and a fit in which they are the most, of all or of one
client, does not begin."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FEWEST = 10  # rows of a client: of fewer, a slip or two are a large share


class RowsLeftOut(UserWarning):
    """A fit has ended without some rows of the data."""


@dataclass(frozen=True)
class LeftOut:
    """Rows that cannot be used.

    Args:
        rows: ``{"row", "reason", ...}`` each, as the data modules list them (``dropped_rows``); those with ``link`` are links.
            A list of very many may be cut.
        counts: How many of each kind (``rows``, or ``nodes`` and ``links``) were ``read`` (``None`` if a data module does not
            tell) and ``left_out``; of the latter, those ``leading_elsewhere`` are left out since the config says so.
        clients: Of the rows of each client, as far as the data say whose a row is, by what to call it (``client 'north'``).
        lost: Names of clients that the data name and that take no part, since none of their rows can be used.
    """

    rows: Sequence[Mapping[str, Any]]
    counts: Mapping[str, Mapping[str, int | None]]
    clients: Mapping[str, LeftOut] = field(default_factory=dict)
    lost: Sequence[str] = ()

    @classmethod
    def of(cls, data: Any) -> LeftOut:
        """Of one data module, or of one for each client (the rows then name their ``client``).

        A data module has ``dropped_rows`` and ``num_rows_read``, or in place of the number ``row_counts`` by kind; and
        ``row_clients``, the client of each row, and ``lost_clients``, where its rows say whose they are.
        """
        if not isinstance(data, Sequence):
            rows = list(getattr(data, "dropped_rows", None) or [])
            whole = {"rows": {"read": getattr(data, "num_rows_read", None), "left_out": len(rows)}}
            counts = getattr(data, "row_counts", None) or whole
            clients = _by_client(rows, getattr(data, "row_clients", None) or [], "nodes" if "nodes" in counts else "rows")
            return cls(rows, counts, clients, list(getattr(data, "lost_clients", None) or []))
        parts = [cls.of(client) for client in data]
        rows = [{"client": client, **row} for client, part in enumerate(parts) for row in part.rows]
        return cls(rows, _add([part.counts for part in parts]), {f"client {c}": part for c, part in enumerate(parts)})

    @classmethod
    def of_predictions(cls, data: Any) -> LeftOut:
        """Of what ``predict`` is asked for: the data module's ``predicted_rows``, or its own samples."""
        asked = getattr(data, "predicted_rows", None)
        dropped = (getattr(data, "dropped_rows", None) or []) if asked is None else asked.dropped
        ids = getattr(data, "original_ids", None) if asked is None else asked.ids
        rows = [row for row in dropped if "link" not in row]
        return cls(rows, {"rows": {"read": len(ids) if ids else None, "left_out": len(rows)}})

    @property
    def num_rows_read(self) -> int | None:
        """Of how many rows of all kinds; ``None`` if a data module does not tell."""
        read = [count["read"] for count in self.counts.values()]
        return sum(number or 0 for number in read) if read and None not in read else None

    @property
    def amount(self) -> str | None:
        """How many these are, with their verb: ``2 of 120 nodes and 1 of 9 links were``; ``None`` if there are none."""
        there = {kind: count for kind, count in self.counts.items() if count["left_out"]}
        if not there:
            return None
        alone = len(there) == 1 and next(iter(there.values()))["left_out"] == 1
        return f"{' and '.join(_told(kind, count) for kind, count in there.items())} {'was' if alone else 'were'}"

    @property
    def line(self) -> str | None:
        """One sentence on how many these are and where they are listed, and on the clients that are lost for it; ``None`` if
        there are none."""
        told = []
        if self.amount is not None:
            told.append(f"{self.amount} left out: see `dropped_rows` in results.json, or `fl-lightning inspect`")
        if self.lost:
            told.append(f"taking no part, for want of a usable row: client{'s' if len(self.lost) > 1 else ''} "
                        + ", ".join(map(repr, self.lost)))  # fmt: skip
        return "; ".join(told) or None

    def check(self, most: float) -> None:
        """Raise if of any kind more than the share ``most`` of the rows cannot be used: of all, or of a client with ``FEWEST``
        or more.

        Raises:
            ValueError: With the most frequent reasons, and how to go on.
        """
        self._check(most, "the data")
        for client, own in self.clients.items():
            if not any(0 < (count["read"] or 0) < FEWEST for count in own.counts.values()):
                own._check(most, client, " of any client")  # noqa: SLF001  one of our own kind

    def _check(self, most: float, whose: str, of_any: str = "") -> None:
        many = {kind: {**count, "left_out": _unusable(count)} for kind, count in self.counts.items()
                if _unusable(count) > most * (count["read"] or math.inf)}  # fmt: skip
        if not many:
            return
        by_reason: dict[str, list[Mapping[str, Any]]] = {}
        for row in self.rows:
            if ("links" if "link" in row else "nodes" if "nodes" in self.counts else "rows") in many:
                by_reason.setdefault(str(row.get("reason")), []).append(row)
        frequent = sorted(by_reason.items(), key=lambda item: -len(item[1]))
        lines = [f"  {len(rows)} x {reason} (the first: {_place(rows[0])})" for reason, rows in frequent[:3]]
        if len(frequent) > 3:
            lines.append(f"  and {len(frequent) - 3} more reasons")
        raise ValueError(
            f"{' and '.join(_told(kind, count) for kind, count in many.items())} of {whose} cannot be used, more than "
            f"`federation.max_dropped_share: {most:g}` allows{of_any}:\n"
            + "\n".join(lines)
            + "\n`fl-lightning inspect` lists them. Correct them, or go on without them: `federation.max_dropped_share: 1.0`."
        )

    def warn(self) -> None:
        """Say :attr:`line` as a warning, for who sees no terminal output of ``fit``."""
        if self.line is not None:
            warnings.warn(f"{self.line}.", RowsLeftOut, stacklevel=3)


def _by_client(rows: Sequence[Mapping[str, Any]], owners: Sequence[str], kind: str) -> dict[str, LeftOut]:
    """What each client has lost. Lines that are no links are nobody's.

    Args:
        rows: All rows that cannot be used.
        owners: The client of each row that was read, ``""`` = nobody.
        kind: What the rows are.
    """
    read = Counter(filter(None, owners))
    own: dict[str, list[Mapping[str, Any]]] = {name: [] for name in read}
    for row in rows:
        if "link" not in row and (name := owners[row["row"]] if row.get("row", math.inf) < len(owners) else ""):
            own[name].append(row)
    counts = {name: {kind: {"read": read[name], "left_out": len(lost)}} for name, lost in own.items()}
    return {f"client {name!r}": LeftOut(lost, counts[name]) for name, lost in own.items()}


def _add(parts: Sequence[Mapping[str, Mapping[str, int | None]]]) -> dict[str, dict[str, int | None]]:
    """The counts of all clients together; ``None`` where one does not tell."""
    total: dict[str, dict[str, int | None]] = {}
    for counts in parts:
        for kind, count in counts.items():
            known = total.setdefault(kind, dict.fromkeys(count, 0))
            for name, number in count.items():
                before = known.get(name, 0)
                known[name] = None if number is None or before is None else before + number
    return total


def _unusable(count: Mapping[str, int | None]) -> int:
    """How many rows of a kind were left out for no other reason than what is in them."""
    return (count["left_out"] or 0) - (count.get("leading_elsewhere") or 0)


def _told(kind: str, count: Mapping[str, int | None]) -> str:
    if count["read"] is not None:
        return f"{count['left_out']} of {count['read']} {kind}"
    return f"{count['left_out']} {kind[:-1] if count['left_out'] == 1 else kind}"


def _place(row: Mapping[str, Any]) -> str:
    where = f"row {row['row']}" if "row" in row else str(dict(row))
    return where + (f" of {row['file']}" if "file" in row else "") + (f" of client {row['client']}" if "client" in row else "")
