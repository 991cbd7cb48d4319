"""Anything as what JSON can hold, so that nothing which a run found is lost while it is written down."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """``None``, booleans, numbers, text, lists and dicts with text as keys.

    A number that is undefined or infinite is ``None``; numpy's and torch's numbers and arrays become Python's; what is
    nothing of all this becomes its text.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)
