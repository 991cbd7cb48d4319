"""Ends a run whose validation has stopped getting better (``federation.early_stopping``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass
class EarlyStopping:
    """When a run ends before its last round.

    Args:
        patience: It ends when so many validations in a row have not been better than the best before them.
        min_delta: By how much more than this (in the metric's unit) a value must be better to count.
        metric: What is watched, as the module logs it without the stage. Default: what chooses the best round
            (``federation.monitor``).
        mode: Whether more or less of it is better. Default: as for the best round, or by the metric's name.
    """

    patience: int = 3
    min_delta: float = 0.0
    metric: str | None = None
    mode: Literal["min", "max"] | None = None

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"`federation.early_stopping.patience` must be at least 1, got {self.patience}.")
        if not (self.min_delta >= 0 and math.isfinite(self.min_delta)):
            raise ValueError(f"`federation.early_stopping.min_delta` must be 0 or more, got {self.min_delta}.")

    def is_over(self, values: Sequence[float | None], mode: str) -> bool:
        """Whether the run ends after these validations, in order; an undefined value is not better.

        Args:
            values: One for each validation.
            mode: ``"max"`` or ``"min"``.
        """
        sign = 1.0 if mode == "max" else -1.0
        best, waited = -math.inf, 0
        for value in values:
            if value is not None and sign * value > best + self.min_delta:
                best, waited = sign * value, 0
            else:
                waited += 1
            if waited >= self.patience:
                return True
        return False
