"""What ``predict`` is asked for in place of the data's own rows: new molecules, another graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PredictedRows:
    """Rows that are predicted in place of the data's own: their ids, and those that could not be used."""

    ids: list[str]
    dropped: list[dict[str, Any]]
