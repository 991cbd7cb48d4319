"""Molecules as federated data: featuriser, scaffolds, partitions, packed batches and the MoleculeNet data modules."""

from datamodules.molecules.chembl import ChEMBLDataModule
from datamodules.molecules.datamodule import MoleculeDataModule
from datamodules.molecules.encode import EncodedTable, encode_table
from datamodules.molecules.featuriser import MoleculeGraph, decode_atoms, decode_bonds, featurise, parse_smiles
from datamodules.molecules.loaders import ClientMoleculeDataModule
from datamodules.molecules.moleculenet import MoleculeNetDataModule
from datamodules.molecules.own_molecules import MoleculeCSVDataModule
from datamodules.molecules.packed import BOND_FEATURES, PackedMolecules
from datamodules.molecules.partition import (
    column_partition,
    iid_partition,
    label_partition,
    official_partition,
    scaffold_lda,
    total_variation,
)
from datamodules.molecules.qm9 import QM9DataModule
from datamodules.molecules.scaffold import murcko_scaffold, scaffold_labels
from datamodules.molecules.split import official_split, random_split, scaffold_split, split_sizes
from datamodules.molecules.table import MoleculeSet, MoleculeTable, molecule_set
from datamodules.molecules.unlabelled import UnlabelledMolecules

__all__ = [
    "BOND_FEATURES",
    "ChEMBLDataModule",
    "ClientMoleculeDataModule",
    "EncodedTable",
    "MoleculeCSVDataModule",
    "MoleculeDataModule",
    "MoleculeGraph",
    "MoleculeNetDataModule",
    "MoleculeSet",
    "MoleculeTable",
    "PackedMolecules",
    "QM9DataModule",
    "UnlabelledMolecules",
    "column_partition",
    "decode_atoms",
    "decode_bonds",
    "encode_table",
    "featurise",
    "iid_partition",
    "label_partition",
    "molecule_set",
    "murcko_scaffold",
    "official_partition",
    "official_split",
    "parse_smiles",
    "random_split",
    "scaffold_labels",
    "scaffold_lda",
    "scaffold_split",
    "split_sizes",
    "total_variation",
]
