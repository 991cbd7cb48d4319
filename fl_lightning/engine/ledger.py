"""The ledger: every message that crossed the border, counted and described. "What left my site?" has an exact answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from fl_lightning.engine.messages import Message


class Ledger:
    """Counts bytes by direction and kind and, once :meth:`open` was called, writes one JSON line for each message.

    A line holds ``round``, ``direction`` (``"down"`` to a client, ``"up"`` from it), ``client``, ``kind``, ``bytes``,
    ``tensors`` (name to ``[dtype, shape]``), ``values`` (names of the plain values) and ``error``.
    """

    def __init__(self) -> None:
        self.up = 0
        self.down = 0
        self.by_kind: dict[str, int] = {}
        self._file: TextIO | None = None

    def open(self, path: Path, resume_at: int | None = None) -> None:
        """Write to ``path`` from now on; with ``resume_at``, after cutting off what follows that byte."""
        if resume_at is not None and path.is_file():
            with path.open("r+b") as file:
                file.truncate(min(resume_at, path.stat().st_size))
        self._file = path.open("a" if resume_at is not None else "w", encoding="utf-8")

    def record(self, direction: str, message: Message) -> None:
        """Add one message; ``direction`` is ``"up"`` or ``"down"``."""
        size = message.nbytes
        setattr(self, direction, getattr(self, direction) + size)
        self.by_kind[message.kind] = self.by_kind.get(message.kind, 0) + size
        if self._file is not None:
            line = {
                "round": message.round,
                "direction": direction,
                "client": message.client,
                "kind": message.kind,
                "bytes": size,
                "tensors": {
                    k: [str(t.dtype).removeprefix("torch."), list(t.shape)] for k, t in message.payload.tensors.items()
                },
                "values": sorted(message.payload.values),
                "error": message.error,
            }
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def flush(self) -> int:
        """Make the file durable up to here; returns its length in bytes (0 without a file)."""
        if self._file is None:
            return 0
        self._file.flush()
        return self._file.tell()

    def totals(self) -> dict[str, Any]:
        """``{"up": bytes, "down": bytes, "by_kind": {kind: bytes}}``."""
        return {"up": self.up, "down": self.down, "by_kind": dict(self.by_kind)}

    def restore(self, totals: Mapping[str, Any]) -> None:
        """Continue counting from the totals of a checkpoint."""
        self.up, self.down, self.by_kind = totals["up"], totals["down"], dict(totals["by_kind"])

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def is_ledger(path: Path) -> bool:
    """Whether a file is there that :class:`Ledger` has begun."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        line = file.readline()
    try:
        return not line or {"direction", "client", "kind", "bytes"} <= json.loads(line).keys()
    except (ValueError, AttributeError):
        return False
