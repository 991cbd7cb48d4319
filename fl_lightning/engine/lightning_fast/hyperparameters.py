"""What Lightning knows of a module's hyperparameters and has no public name for."""

from __future__ import annotations

import lightning as L


def are_logged(module: L.LightningModule) -> bool:
    """Whether the module wants its hyperparameters in the loggers: not after ``save_hyperparameters(logger=False)``."""
    return bool(getattr(module, "_log_hyperparams", False))
