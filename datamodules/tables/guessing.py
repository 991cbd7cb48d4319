"""What a column of numbers is when nobody has said it: a measurement, or a number that only tells rows apart."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

# The last word of a name. Ids may repeat (a compound measured twice); the other words are those of measurements, too.
ID_WORDS = frozenset(("id", "ids", "cid", "sid", "uid", "guid", "uuid", "oid", "identifier", "regno"))
NUMBER_WORDS = frozenset(("no", "nr", "num", "number", "index", "idx", "row", "rownum", "rowno", "line", "key", "serial",
                          "counter", "record", "entry"))  # fmt: skip
FEWEST = 10  # rows: of fewer, whole numbers in a row prove nothing
RUN = 50  # rows that go on by one each, wherever they start
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def counter_or_id(name: str, values: Sequence[float] | np.ndarray) -> str | None:
    """Why a column is a counter or an id, and neither a feature nor a label, unless somebody says so.

    It is one if its numbers are whole, there are more than two of them, and

    - its name ends in ``id``, ``CID`` or the like (``customer_id``, ``PubChem CID``), also where numbers repeat;
    - no number repeats, and its name ends in ``no``, ``num``, ``index`` or the like;
    - it counts: 0 to n - 1 or 1 to n in any order, or rows that go on by one each.

    Args:
        name: Of the column.
        values: Its numbers in the order of the rows, ``nan`` where there is none.

    Returns:
        The reason, to be put behind the name: ``counts the rows``; ``None`` for a measurement, as far as one can tell.
    """
    numbers = np.asarray(values, dtype=np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if len(numbers) < 3 or (numbers != np.round(numbers)).any():
        return None
    distinct = np.unique(numbers)
    if len(distinct) < 3:
        return None
    words = WORDS.findall(name)
    last = words[-1].lower() if words else ""
    if last in ID_WORDS:
        return "is an id by its name"
    if len(distinct) < len(numbers):
        return None
    if last in NUMBER_WORDS:
        return "is a running number by its name, and no number repeats"
    through = distinct[-1] - distinct[0] == len(distinct) - 1
    if len(numbers) >= FEWEST and through and distinct[0] in (0, 1):
        return f"counts the rows ({distinct[0]:.0f} to {distinct[-1]:.0f}, each once)"
    if len(numbers) >= RUN and (np.diff(numbers) == 1).all():
        return f"goes on by 1 from row to row ({numbers[0]:.0f} to {numbers[-1]:.0f})"
    return None
