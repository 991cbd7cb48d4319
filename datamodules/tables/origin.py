"""Where a row of a table comes from, as the user knows it: file, row in it, id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Origin:
    """As what the user knows the rows of a table.

    Attributes:
        files: Names of the files in which the rows stand one after another.
        sizes: Rows of each.
        ids: Of all rows; or none.
    """

    files: Sequence[str]
    sizes: Sequence[int]
    ids: Sequence[str] = ()

    def __call__(self, row: int) -> dict[str, Any]:
        """``id`` if there are ids, ``file`` and ``file_row`` of a row of the whole table."""
        starts = np.cumsum([0, *self.sizes])
        number = int(np.searchsorted(starts, row, side="right")) - 1
        known = {"id": self.ids[row]} if self.ids else {}
        return {**known, "file": self.files[number], "file_row": row - int(starts[number])}


def name_row(record: Mapping[str, Any]) -> str:
    """A row in words, from ``row`` and what else is known of it: ``sites/a.csv row 3 (id 'A-17')``."""
    file = f"{record['file']} " if "file" in record else ""
    name = f" (id {record['id']!r})" if "id" in record else ""
    return f"{file}row {record.get('file_row', record['row'])}{name}"
