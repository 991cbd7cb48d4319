"""What a column of numbers is when nobody has said it: a measurement, or a number that only tells rows apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

# The last word of a name. Ids may repeat (a compound measured twice); the other words are those of measurements, too.
ID_WORDS = frozenset(("id", "ids", "cid", "sid", "uid", "guid", "uuid", "oid", "identifier", "regno"))
ROW_WORDS = frozenset(("rownum", "rowno"))
NUMBER_WORDS = frozenset(("no", "nr", "num", "number", "index", "idx", "row", "line", "key", "serial", "counter", "record",
                          "entry"))  # fmt: skip
COUNTED_WORDS = frozenset(("row", "line", "record", "entry", "serial"))  # one of them before one of the above: `row_number`
THING_WORDS = frozenset(("customer", "client", "patient", "subject", "person", "user", "member", "account", "compound",
                         "molecule", "substance", "structure", "ligand", "sample", "batch", "lot", "barcode"))  # fmt: skip
FEWEST = 10  # rows: of fewer, whole numbers in a row prove nothing
RUN = 50  # rows that go on by one each, wherever they start
NEARLY = 0.95  # of the rows have a number of their own: an id may be there twice; of a count, a damaged row may be missing
DIGITS, THING_DIGITS = 6, 3  # measurements seldom have so many, in whole numbers; with the name of a thing fewer do
SPAN = 100.0  # between most ids of one kind; counts (inhabitants, visits) differ by more
ROUND = 0.5  # of the numbers end with a zero: rounded, and so measured
DATE_WORDS = frozenset(("date", "datetime", "timestamp", "year", "batch", "lot", "plate"))
UNIT = re.compile(r"[\[(][^\])]*[\])]\s*$")
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def counter_or_id(name: str, values: Sequence[float] | np.ndarray, owners: np.ndarray | None = None) -> str | None:
    """Why a column is a counter or an id, and neither a feature nor a label, unless somebody says so.

    It is one if its numbers are whole, there are more than two of them, and

    - its name ends in ``id``, ``CID`` or the like (``customer_id``, ``PubChem CID``, ``row_number``), also where they repeat;
    - its name ends in ``no``, ``num``, ``index`` or the like, and (nearly) no number repeats;
    - its name ends in what is numbered (``customer``, ``compound``), and (nearly) no number of three digits or more repeats;
    - it counts: 0 to n - 1 or 1 to n in any order, or rows that go on by one each, where a few may be missing;
    - its numbers are dates (20240131);
    - numbers have six digits or more, (nearly) none repeats, and they are neither round nor as far apart as counts are.

    Args:
        name: Of the column.
        values: Its numbers in the order of the rows, ``nan`` where there is none.
        owners: Number of each row's client, -1 = nobody (``number_owners``), where a column says so: what counts or names the
            rows of each client alone (``1, 2, 3, 1, 2, 3``) is a counter, too.

    Returns:
        The reason, to be put behind the name: ``counts the rows``; ``None`` for a measurement, as far as one can tell.
    """
    numbers = np.asarray(values, dtype=np.float64)
    reason = _reason(name, numbers[np.isfinite(numbers)])
    if reason is None and owners is not None:
        order = np.argsort(owners, kind="stable")
        starts = np.flatnonzero(np.diff(owners[order], prepend=-1))  # of whom nobody has is before the first
        reason = reason_at_each(name, np.split(numbers[order], starts)[1:])
    return reason


def date_or_batch(name: str, values: Sequence[float] | np.ndarray) -> str | None:
    """Why a column says when or with what something was measured, and so is no label, unless somebody says so.

    Args:
        name: Of the column; a unit in brackets at its end (``half-life [year]``) does not count.
        values: Its numbers, ``nan`` where there is none.
    """
    words = [word.lower() for word in WORDS.findall(UNIT.sub("", name))]
    while len(words) > 1 and (words[-1] in NUMBER_WORDS or words[-1] in ID_WORDS or words[-1].isdigit()):
        words.pop()  # `batch_no`
    if words[:1] == ["date"] or (words and words[-1] in DATE_WORDS and words[-2:-1] != ["per"]):
        return "is a date or a batch by its name"
    numbers = np.asarray(values, dtype=np.float64)
    return "has dates" if _are_dates(numbers[np.isfinite(numbers)]) else None


def number_owners(clients: Sequence[str]) -> np.ndarray:
    """Number of each row's client, int64 ``(R,)``, -1 where its name is ``""``."""
    number = {"": -1}
    return np.array([number.setdefault(client, len(number) - 1) for client in clients], dtype=np.int64)


def reason_at_each(name: str, parts: Iterable[np.ndarray]) -> str | None:
    """Why a column is a counter or an id within the rows of each of several clients, if it is.

    Args:
        name: Of the column.
        parts: Each client's numbers, ``nan`` where there is none. One or two of them say nothing; of some more it is enough
            that they count.
    """
    reasons, told = [], 0
    for part in parts:
        numbers = part[np.isfinite(part)]
        if len(numbers) < 3:
            continue
        told += 1
        reason = _reason(name, numbers)
        if reason:
            reasons.append(reason)
        elif len(numbers) >= FEWEST or not _counts(numbers):
            return None
    return f"{reasons[0]}, at each client" if reasons and told > 1 else None


def _reason(name: str, numbers: np.ndarray) -> str | None:
    """Why these finite numbers are a counter or ids, as they are."""
    distinct = np.unique(numbers)
    if len(distinct) < 3 or (distinct != np.round(distinct)).any():
        return None
    return _reason_by_name(name, numbers, distinct) or _reason_by_numbers(numbers, distinct)


def _reason_by_name(name: str, numbers: np.ndarray, distinct: np.ndarray) -> str | None:
    words = [word.lower() for word in WORDS.findall(name)]
    last = words[-1] if words else ""
    if last in ID_WORDS:
        return "is an id by its name"
    if last in ROW_WORDS or (last in NUMBER_WORDS and not COUNTED_WORDS.isdisjoint(words[-2:-1])):
        return "is a number of rows by its name"
    if len(distinct) < NEARLY * len(numbers):
        return None
    repeats = "no number repeats" if len(distinct) == len(numbers) else "nearly no number repeats"
    if last in NUMBER_WORDS:
        return f"is a running number by its name, and {repeats}"
    if last in THING_WORDS and len(numbers) >= FEWEST and _has_digits(numbers, THING_DIGITS):
        return f"is an id by its name, and {repeats}"
    return None


def _reason_by_numbers(numbers: np.ndarray, distinct: np.ndarray) -> str | None:
    first, last, gaps = distinct[0], distinct[-1], np.ptp(distinct) + 1 > len(distinct)
    if len(numbers) >= FEWEST and _counts(numbers):
        return f"counts the rows ({first:.0f} to {last:.0f}, {'nearly ' * bool(gaps)}each once)"
    if len(numbers) >= RUN and (np.diff(numbers) > 0).all() and len(numbers) >= NEARLY * (last - first + 1):
        return f"goes on by 1 from row to row ({first:.0f} to {last:.0f}{', with gaps' * bool(gaps)})"
    if len(numbers) >= FEWEST and _are_dates(numbers):
        return "has dates"
    if len(numbers) < FEWEST or len(distinct) < NEARLY * len(numbers) or not _has_digits(numbers, DIGITS):
        return None
    low, high = np.quantile(numbers, (0.05, 0.95))
    if high > SPAN * low or (numbers % 10 == 0).mean() > ROUND:
        return None
    repeats = "each is there once" if len(distinct) == len(numbers) else "nearly each is there once"
    return f"has whole numbers of {len(f'{np.median(numbers):.0f}')} digits, and {repeats}, as ids are"


def _counts(numbers: np.ndarray) -> bool:
    """Whether these are 0 to n - 1 or 1 to n in any order, each once, but for a few that damaged rows have left out."""
    ordered = np.sort(numbers)
    if ordered[0] < 0 or (np.diff(ordered) < 1).any():
        return False
    whole = ordered[-1] - min(ordered[0], 1) + 1
    return bool(whole - len(ordered) <= 1 or len(ordered) >= NEARLY * whole)


def _are_dates(numbers: np.ndarray) -> bool:
    """Whether nearly all of these finite numbers are days of the years 1900 to 2100, as in 20240131; 00 = not known."""
    if not len(numbers) or (numbers != np.round(numbers)).any():
        return False
    year, month, day = numbers // 10_000, numbers // 100 % 100, numbers % 100
    return bool(((year >= 1900) & (year <= 2100) & (month <= 12) & (day <= 31)).mean() >= NEARLY)


def _has_digits(numbers: np.ndarray, digits: int) -> bool:
    """Whether no number is negative and most have so many digits at least."""
    return bool(numbers.min() >= 0 and np.median(numbers) >= 10 ** (digits - 1))
