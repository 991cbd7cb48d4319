"""Rows of the data that cannot be used: counted where a fit ends, and a fit in which they are the most does not begin."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class RowsLeftOut(UserWarning):
    """A fit has ended without some rows of the data."""


@dataclass(frozen=True)
class LeftOut:
    """Rows that cannot be used.

    Args:
        rows: ``{"row", "reason", ...}`` each, as the data modules list them (``dropped_rows``).
        num_rows_read: Of how many (``num_rows_read``); ``None`` if a data module does not tell.
    """

    rows: Sequence[Mapping[str, Any]]
    num_rows_read: int | None

    @classmethod
    def of(cls, data: Any) -> LeftOut:
        """Of one data module, or of one for each client (the rows then name their ``client``)."""
        if not isinstance(data, Sequence):
            return cls(list(getattr(data, "dropped_rows", None) or []), getattr(data, "num_rows_read", None))
        parts = [cls.of(client) for client in data]
        read = [part.num_rows_read for part in parts if part.num_rows_read is not None]
        rows = [{"client": client, **row} for client, part in enumerate(parts) for row in part.rows]
        return cls(rows, sum(read) if len(read) == len(parts) else None)

    @property
    def line(self) -> str | None:
        """One sentence on how many these are and where they are listed; ``None`` if there are none."""
        if not self.rows:
            return None
        were = "row was" if len(self.rows) == 1 and self.num_rows_read is None else "rows were"
        return f"{self._count} {were} left out: see `dropped_rows` in results.json, or `fl-lightning inspect`"

    def check(self, most: float) -> None:
        """Raise if more than the share ``most`` of the rows cannot be used.

        Raises:
            ValueError: With the most frequent reasons, and how to go on.
        """
        if not self.num_rows_read or len(self.rows) <= most * self.num_rows_read:
            return
        by_reason: dict[str, list[Mapping[str, Any]]] = {}
        for row in self.rows:
            by_reason.setdefault(str(row.get("reason")), []).append(row)
        frequent = sorted(by_reason.items(), key=lambda item: -len(item[1]))
        lines = [f"  {len(rows)} x {reason} (the first: {_place(rows[0])})" for reason, rows in frequent[:3]]
        if len(frequent) > 3:
            lines.append(f"  and {len(frequent) - 3} more reasons")
        raise ValueError(
            f"{self._count} rows of the data cannot be used, more than `federation.max_dropped_share: {most:g}` allows:\n"
            + "\n".join(lines)
            + "\n`fl-lightning inspect` lists them. Correct them, or go on without them: `federation.max_dropped_share: 1.0`."
        )

    def warn(self) -> None:
        """Say :attr:`line` as a warning, for who sees no terminal output of ``fit``."""
        if self.line is not None:
            warnings.warn(f"{self.line}.", RowsLeftOut, stacklevel=3)

    @property
    def _count(self) -> str:
        return str(len(self.rows)) if self.num_rows_read is None else f"{len(self.rows)} of {self.num_rows_read}"


def _place(row: Mapping[str, Any]) -> str:
    where = f"row {row['row']}" if "row" in row else str(dict(row))
    return where + (f" of {row['file']}" if "file" in row else "") + (f" of client {row['client']}" if "client" in row else "")
