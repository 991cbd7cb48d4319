"""Federated learning on graphs and molecules: PyTorch Lightning modules with a federation wrapper."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_lightning.strategies import FedAvg, FedPub, FedSagePlus, LocalOnly
    from fl_lightning.trainer import FederatedTrainer

__version__ = "0.1.0"
__all__ = ["FedAvg", "FedPub", "FedSagePlus", "FederatedTrainer", "LocalOnly"]


def __getattr__(name: str) -> Any:
    """Imported on first use: the commands of a site and of a server need no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'fl_lightning' has no attribute {name!r}")
    home = "fl_lightning.trainer" if name == "FederatedTrainer" else "fl_lightning.strategies"
    return getattr(import_module(home), name)
