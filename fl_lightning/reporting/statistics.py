r"""Means with Student's intervals, and paired differences.

mean +- t_{n-1, (1 + c) / 2} s / sqrt(n),   s the sample standard deviation, c the confidence        estimate
the same of d_i = a_i - b_i over the keys that both have                                             paired

The intervals are for one comparison each; they are not corrected for how many there are.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit


@dataclass(frozen=True)
class Estimate:
    """Mean, sample standard deviation and interval of ``number`` values; ``None`` where there are too few for it."""

    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    number: int


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Mean and Student interval of independent values."""
    number = len(values)
    if number == 0:
        return Estimate(None, None, None, None, 0)
    mean = statistics.fmean(values)
    if number == 1:
        return Estimate(mean, None, None, None, 1)
    sd = statistics.stdev(values)
    half = float(stdtrit(number - 1, (1 + confidence) / 2)) * sd / math.sqrt(number)
    return Estimate(mean, sd, mean - half, mean + half, number)


def paired(a: Mapping[Any, float], b: Mapping[Any, float], confidence: float = 0.95) -> Estimate:
    """``a - b`` over the keys (seeds) that both have."""
    return estimate([a[key] - b[key] for key in sorted(a.keys() & b.keys())], confidence)
