"""LightningDataModules for federated learning: each is central, and yields one data module per client."""

from datamodules.citation import SyntheticCitationDataModule
from datamodules.datasets import AmazonDataModule, CoauthorDataModule, PlanetoidDataModule
from datamodules.graph import ClientGraphDataModule, GraphDataModule
from datamodules.planted import PlantedDataModule
from datamodules.topology import lost_edges, subgraph_of

__all__ = [
    "AmazonDataModule",
    "ClientGraphDataModule",
    "CoauthorDataModule",
    "GraphDataModule",
    "PlanetoidDataModule",
    "PlantedDataModule",
    "SyntheticCitationDataModule",
    "lost_edges",
    "subgraph_of",
]
