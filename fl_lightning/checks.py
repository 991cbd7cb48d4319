"""What is checked before anything is trained, for federated and for central training."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.utilities.model_helpers import is_overridden

from fl_lightning.engine.trainer_args import check_package


def check_module(module: L.LightningModule) -> None:
    """Can it be trained at all?

    Raises:
        ValueError: If it is none of ``lightning``'s, or a method is missing.
    """
    check_package(module, "model", L.LightningModule)
    for method in ("training_step", "configure_optimizers"):
        if not is_overridden(method, module):
            raise ValueError(f"`model: {type(module).__name__}` has no `{method}`; a client cannot train it.")
