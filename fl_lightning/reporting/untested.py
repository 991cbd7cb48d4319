"""A run whose tests give no score by the metric that chooses its best model is told so while there is time: once, before it if
a rehearsal can tell, else where it ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
from lightning.pytorch.utilities.model_helpers import is_overridden

LOG = logging.getLogger("fl_lightning")


class Untested:
    """Says it once.

    Args:
        module: The module that is trained.
        metric: Name of the metric without the stage.
        data: Those that the tests are on, as far as they are known.
    """

    def __init__(self, module: L.LightningModule, metric: str, data: Sequence[L.LightningDataModule]) -> None:
        self._module, self._metric, self._told = module, metric, False
        self._there = any(is_overridden("test_dataloader", one) for one in data)

    def tell(self, logged: Sequence[Mapping[str, Any] | None]) -> None:
        """Say it if the metric is not there, although something else is, or there is no ``test_step`` at all.

        Args:
            logged: What a test logged on each data set, by name without the stage; ``None`` where there was none. Without an
                entry nothing is known.
        """
        kind, names = type(self._module).__name__, sorted({name for metrics in logged for name in metrics or ()})
        if self._told or not logged or self._metric in names:
            return
        if names:
            self._say(f"`{kind}.test_step` does not log `{self._metric}`, which chooses the best model, but only: "
                      f'{", ".join(names)}. Write `self.log("test_{self._metric}", ...)` in it')  # fmt: skip
        elif self._there and not is_overridden("test_step", self._module):
            self._say(f"`model: {kind}` has no `test_step`, so that nothing is tested. Write one that calls "
                      f'`self.log("test_{self._metric}", ...)`')  # fmt: skip

    def _say(self, text: str) -> None:
        self._told = True
        LOG.warning("%s; else the test scores in results.json are null.", text)
