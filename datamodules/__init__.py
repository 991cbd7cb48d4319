"""LightningDataModules for federated learning: each is central, and yields one data module per client."""

from datamodules.citation import SyntheticCitationDataModule
from datamodules.datasets import AmazonDataModule, CoauthorDataModule, PlanetoidDataModule
from datamodules.graph import GraphDataModule
from datamodules.graph_loaders import ClientGraphDataModule
from datamodules.impairing import ImpairedDataModule, impair
from datamodules.mending import constant_features, cross_neighbours, mend
from datamodules.molecules import (
    ChEMBLDataModule,
    ClientMoleculeDataModule,
    MoleculeCSVDataModule,
    MoleculeDataModule,
    MoleculeNetDataModule,
    QM9DataModule,
    UnlabelledMolecules,
)
from datamodules.own_graph import GraphCSVDataModule
from datamodules.planted import PlantedDataModule
from datamodules.topology import lost_edges, subgraph_of

__all__ = [
    "AmazonDataModule",
    "ChEMBLDataModule",
    "ClientGraphDataModule",
    "ClientMoleculeDataModule",
    "CoauthorDataModule",
    "GraphCSVDataModule",
    "GraphDataModule",
    "ImpairedDataModule",
    "MoleculeCSVDataModule",
    "MoleculeDataModule",
    "MoleculeNetDataModule",
    "PlanetoidDataModule",
    "PlantedDataModule",
    "QM9DataModule",
    "SyntheticCitationDataModule",
    "UnlabelledMolecules",
    "constant_features",
    "cross_neighbours",
    "impair",
    "lost_edges",
    "mend",
    "subgraph_of",
]
