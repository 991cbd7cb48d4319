"""Objective: what a client minimises, exchangeable on every `LitGraphModule`.

A subclass implements ``__call__`` and, as needed, the hooks and its memory. The module is passed in, never stored:
objectives are deep-copied and pickled together with their module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lit_models.base import LitGraphModule


class Objective:
    """Base class. Hook order in one round: `on_round_start`, `on_train_start`, one call a batch, `on_train_end`."""

    def on_round_start(self, module: LitGraphModule, round: int, num_rounds: int) -> None:
        """A federated round begins (counted from 0). Never called by a stock Trainer: it must not be needed there."""

    def on_train_start(self, module: LitGraphModule) -> None:
        """Local training begins: ``module`` holds the weights as received, on its device; take ``snapshot(module)``."""

    def __call__(self, module: LitGraphModule, batch: Any) -> Tensor:
        """The loss of one batch, a scalar with a gradient."""
        raise NotImplementedError(f"{type(self).__name__} must implement `__call__(module, batch)`.")

    def on_train_end(self, module: LitGraphModule) -> None:
        """Local training ended: ``module`` holds the weights to be sent. Drop what is not needed in the next round."""

    def pictures(self) -> dict[str, list[int]]:
        """Histograms of the last local fit for TensorBoard, name -> counts of equal bins from 0 to 1; they are sent."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """What must survive until the client's next round (private to the client). Tensors only, cloned."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned; an empty dict means a fresh client.

        Raises:
            ValueError: ``state`` holds entries that this objective does not know.
        """
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state between rounds, but was given {sorted(state)}.")


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``values`` where ``mask`` is True; zero, still connected to the graph, where it is True nowhere.

    Args:
        values: Any shape, finite also where masked out.
        mask: Bool, same shape.
    """
    if mask.numel() and bool(mask.all()):  # the same sum and quotient, bit for bit, in one operation instead of five
        return values.mean()
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)
