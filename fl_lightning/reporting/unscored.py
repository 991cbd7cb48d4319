"""A training whose validation gives nothing to choose its best model by is told so while there is time: once, before it or
after its first validation."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
from lightning.pytorch.utilities.model_helpers import is_overridden

LOG = logging.getLogger("fl_lightning")


class Unscored:
    """Says it once.

    Args:
        module: The module that is trained.
        unit: What is chosen: ``round``, or centrally ``epoch``.
        limit: ``trainer.limit_val_batches``.
    """

    def __init__(self, module: L.LightningModule, unit: str = "round", limit: float | None = None) -> None:
        self._module, self._unit, self._limit, self._told = module, unit, limit, False

    def tell(self, logged: Sequence[Mapping[str, Any] | None]) -> None:
        """Say it if nothing was logged.

        Args:
            logged: What a validation logged on each data set, by name; ``None`` where there was none. Without an entry nothing
                is known.
        """
        if self._told or not logged or any(logged):
            return
        self._told = True
        LOG.warning(
            "Nothing is logged in validation, so no %s can be called the best, and the last one is what is tested and kept: %s",
            self._unit,
            self._reason(logged),
        )

    def _reason(self, logged: Sequence[Mapping[str, Any] | None]) -> str:
        kind = type(self._module).__name__
        if self._limit is not None and self._limit == 0:
            limit = f"`trainer.limit_val_batches: {self._limit}`"
            return f"{limit} validates on no batch. Leave it out, or give a number of batches."
        if not is_overridden("validation_step", self._module):
            return f'`model: {kind}` has no `validation_step`. Write one that calls `self.log("val_loss", ...)`.'
        if all(metrics is None for metrics in logged):
            return "no data have a `val_dataloader`."
        return (
            f'`{kind}.validation_step` calls no `self.log("val_loss", ...)`, or the validation data are empty (a client\'s own '
            "model meets that client's alone)."
        )
