"""EpochMeans: what is logged of a training epoch is the mean over all its batches, never the last batch's value."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class EpochMeans:
    """Collects values batch by batch. A batch weighs as many values as it gives: one for a scalar, else its labelled entries.

    Nothing is computed before :meth:`pop`, so that a training step does not wait for its logging.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[Tensor, Tensor | int]]] = {}

    def add(self, values: Mapping[str, Tensor], mask: Tensor | None = None) -> None:
        """Add a batch.

        Args:
            values: Tensors of any shape by name; they are detached.
            mask: Bool, of the values' shape: which entries count. Others may be anything, NaN too.
        """
        for name, value in values.items():
            value = value.detach()
            if mask is not None:
                part: tuple[Tensor, Tensor | int] = torch.where(mask, value, 0.0).sum(), mask.sum()
            else:
                part = value if value.ndim == 0 else value.sum(), value.numel()
            self._parts.setdefault(name, []).append(part)

    def pop(self) -> dict[str, Tensor]:
        """The means since the last call, by name; a name without a single counted entry is left out."""
        parts, self._parts = self._parts, {}
        totals = {name: (torch.stack([total for total, _ in own]).sum(), sum(number for _, number in own))
                  for name, own in parts.items()}  # fmt: skip
        return {name: total / number for name, (total, number) in totals.items() if number > 0}
