"""What a field of a table holds: a number, a blank or a text. Nothing is taken for a number that is none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np

from datamodules.tables.names import quote

MISSING = frozenset(("", "nan", "na", "n/a", "none", "null"))
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
COMMA_NUMBER = re.compile(r"[+-]?(\d+,\d*|,\d+)([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
PLAIN = set("0123456789+-.eE")
MINUS = "\u2212"  # the typographic minus, as typesetters, spreadsheets and copied tables have it


def with_plain_minus(text: str) -> str:
    """The text with ``-`` for each typographic minus (U+2212)."""
    return text.replace(MINUS, "-")


def cell_text(value: Any) -> str:
    """A parquet value as the text that a CSV file would hold; blank for null and NaN."""
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value)


def is_blank(text: str) -> bool:
    """Whether a field counts as missing."""
    return text.strip().lower() in MISSING


def count_blank_words(texts: Iterable[str], meant: Container[str] = ()) -> list[str]:
    """Each word that is taken for a blank, but for ``nan`` and those that are ``meant``: ``2 times 'none'``."""
    words = Counter(text.strip() for text in texts if text and is_blank(text))
    return [f"{count} {'time' if count == 1 else 'times'} {quote(word)}" for word, count in words.items()
            if word.lower() not in ("", "nan") and word not in meant]  # fmt: skip


def decimal_mark(texts: Sequence[str], default: str = ".") -> str:
    """The decimal mark of most numbers: ``,`` where more look like ``132,159`` than like ``132.159``, else ``.``.

    Beside points, commas that all may part thousands (``1,250``) are no decimal marks.

    Args:
        texts: Fields of one column, or of several of one file.
        default: What it is where no number has a mark.
    """
    together = "".join(texts)
    if "," not in together:
        return "." if "." in together else default
    fields = [with_plain_minus(text.strip()) for text in texts]
    commas = [text for text in fields if COMMA_NUMBER.fullmatch(text)]
    points = sum("." in text and NUMBER.fullmatch(text) is not None for text in fields)
    if not commas and not points:
        return default
    thousands = points > 0 and all(map(THOUSANDS.fullmatch, commas))
    return "," if len(commas) > points and not thousands else "."


def parse_numbers(texts: Sequence[str], decimal: str = ".") -> tuple[np.ndarray, dict[int, str]]:
    """Numbers of one column.

    Args:
        texts: Fields; ``true`` and ``false`` are 1 and 0, blanks are missing. A minus may be the typographic one (U+2212).
        decimal: ``.`` or ``,``.

    Returns:
        float64 of the same length, ``nan`` where missing or wrong; and the reason at each position that is no finite
        number of single precision.
    """
    if decimal == "." and set("".join(texts)) <= PLAIN and "" not in texts:
        try:
            quick = np.array(texts).astype(np.float64)
            if (np.abs(quick) <= np.finfo(np.float32).max).all():
                return quick, {}
        except ValueError:
            pass
    values = np.full(len(texts), np.nan)
    wrong: dict[int, str] = {}
    largest = float(np.finfo(np.float32).max)
    for place, text in enumerate(texts):
        text = text.strip()
        if not text or text.lower() in MISSING:
            continue
        plain = with_plain_minus(text)
        plain = plain if decimal == "." else plain.replace(",", ".") if "." not in plain else "?"
        if NUMBER.fullmatch(plain):
            value = float(plain)
            if abs(value) > largest:
                wrong[place] = f"{quote(text)} is too large"
            else:
                values[place] = value
        elif text.lower() in ("true", "false"):
            values[place] = float(text.lower() == "true")
        else:
            other = (NUMBER if decimal == "," else COMMA_NUMBER).fullmatch(with_plain_minus(text))
            more = f" with the decimal mark `{decimal}` (`data.init_args.decimal`)" if other else ""
            wrong[place] = f"{quote(text)} is not a number{more}"
    return values, wrong
