"""Names of metrics."""

from __future__ import annotations


def without_stage(name: str, stage: str) -> str:
    """A metric's name without the stage it was logged in: ``val/accuracy`` and ``val_accuracy`` are both ``accuracy``."""
    return name.removeprefix(f"{stage}/").removeprefix(f"{stage}_")
