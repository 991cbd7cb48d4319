"""Federated learning on graphs and molecules: PyTorch Lightning modules with a federation wrapper."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_lightning.loading import load_model
    from fl_lightning.strategies import (
        AdaFGL,
        Aggregation,
        ClippedMean,
        Ditto,
        FedAdagrad,
        FedAdam,
        FedAux,
        FedAvg,
        FedAvgM,
        FedDF,
        FedGTA,
        FedNova,
        FedPer,
        FedPub,
        FedRep,
        FedSagePlus,
        FedSagePrototype,
        FedYogi,
        ForestEnsemble,
        LocalOnly,
        Median,
        MultiKrum,
        Scaffold,
        TrimmedMean,
    )
    from fl_lightning.trainer import FederatedTrainer

__version__ = "0.1.0"
__all__ = [
    "AdaFGL",
    "Aggregation",
    "ClippedMean",
    "Ditto",
    "FedAdagrad",
    "FedAdam",
    "FedAux",
    "FedAvg",
    "FedAvgM",
    "FedDF",
    "FedGTA",
    "FedNova",
    "FedPer",
    "FedPub",
    "FedRep",
    "FedSagePlus",
    "FedSagePrototype",
    "FedYogi",
    "FederatedTrainer",
    "ForestEnsemble",
    "LocalOnly",
    "Median",
    "MultiKrum",
    "Scaffold",
    "TrimmedMean",
    "load_model",
]


def __getattr__(name: str) -> Any:
    """Imported on first use: the commands of a site and of a server need no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'fl_lightning' has no attribute {name!r}")
    homes = {"FederatedTrainer": "fl_lightning.trainer", "load_model": "fl_lightning.loading"}
    return getattr(import_module(homes.get(name, "fl_lightning.strategies")), name)
