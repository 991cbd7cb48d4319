"""What Lightning puts in the place of an optimiser where ``configure_optimizers`` has returned None; it has no public name."""

from __future__ import annotations

import torch
from lightning.pytorch.core import optimizer as lightnings


def stands_for_none(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimiser is that one. With a Lightning that has no such class, nobody is."""
    kind = getattr(lightnings, "_MockOptimizer", None)
    return kind is not None and isinstance(optimizer, kind)
