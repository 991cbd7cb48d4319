"""LightningDataModules for federated learning: each is central, and yields one data module per client."""

from datamodules.citation import SyntheticCitationDataModule
from datamodules.datasets import AmazonDataModule, CoauthorDataModule, PlanetoidDataModule
from datamodules.graph import ClientGraphDataModule, GraphDataModule
from datamodules.molecules import (
    ChEMBLDataModule,
    ClientMoleculeDataModule,
    MoleculeDataModule,
    MoleculeNetDataModule,
    QM9DataModule,
)
from datamodules.planted import PlantedDataModule
from datamodules.topology import lost_edges, subgraph_of

__all__ = [
    "AmazonDataModule",
    "ChEMBLDataModule",
    "ClientGraphDataModule",
    "ClientMoleculeDataModule",
    "CoauthorDataModule",
    "GraphDataModule",
    "MoleculeDataModule",
    "MoleculeNetDataModule",
    "PlanetoidDataModule",
    "PlantedDataModule",
    "QM9DataModule",
    "SyntheticCitationDataModule",
    "lost_edges",
    "subgraph_of",
]
