"""``optimizer:`` and ``lr_scheduler:`` at the top of a config, as in LightningCLI: they replace the module's own method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning as L
from lightning.pytorch.cli import LightningCLI, instantiate_class
from lightning.pytorch.utilities.model_helpers import is_overridden


class FromConfig:
    """A module's ``configure_optimizers``, which makes them when it is called.

    LightningCLI makes the optimizer once, of the module that it has made itself. Clients train copies of that module, each with
    an optimizer of its own; so here a copy of the module takes a copy of this object along.

    Args:
        module: Whose parameters are optimized.
        optimizer: ``class_path`` and ``init_args``.
        lr_scheduler: The same, or ``None``.

    Raises:
        ValueError: If the module has a method of its own.
    """

    def __init__(self, module: L.LightningModule, optimizer: Mapping[str, Any], lr_scheduler: Mapping[str, Any] | None) -> None:
        if is_overridden("configure_optimizers", module):
            raise ValueError(
                f"`optimizer:` at the top of the config is for a module without `configure_optimizers`, but "
                f"`model: {type(module).__name__}` has it. Leave one of them out; an argument of the module goes to "
                "`model.init_args`."
            )
        self.module, self.optimizer = module, dict(optimizer)
        self.lr_scheduler = dict(lr_scheduler) if lr_scheduler else None

    def __call__(self) -> Any:
        optimizer = instantiate_class(self.module.parameters(), self.optimizer)
        scheduler = instantiate_class(optimizer, self.lr_scheduler) if self.lr_scheduler else None
        return LightningCLI.configure_optimizers(self.module, optimizer, scheduler)

    __wrapped__ = __call__  # Lightning asks it whether the method is another than LightningModule's
