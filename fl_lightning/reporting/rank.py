"""Which of a run's processes writes and reports."""

from __future__ import annotations

from lightning.pytorch.utilities import rank_zero_only


def first_rank() -> bool:
    """Is this the first, or the only, process of the run? Lightning keeps its number as an attribute of a function."""
    return getattr(rank_zero_only, "rank", 0) == 0
