"""Federated learning on graphs and molecules: PyTorch Lightning modules with a federation wrapper."""

from fl_lightning.strategies import FedAvg, FedPub, FedSagePlus, LocalOnly
from fl_lightning.trainer import FederatedTrainer

__all__ = ["FedAvg", "FedPub", "FedSagePlus", "FederatedTrainer", "LocalOnly"]
