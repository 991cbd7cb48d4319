"""Molecules without labels: what a server may know beside the clients' data, for distillation or to be predicted."""

from __future__ import annotations

from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from datamodules.molecules.featuriser import NUM_ATOM_FEATURES, NUM_BOND_FEATURES
from datamodules.molecules.own.files import find_files
from datamodules.molecules.own.reader import read_predicted
from datamodules.molecules.own.spec import MoleculeSpec
from datamodules.molecules.packed import Part, make_loader
from datamodules.tables.table import TableFormat


class UnlabelledMolecules(LightningDataModule):
    """SMILES from files. Only their column is read: whatever else a file has, labels among it, is left where it is.

    Args:
        files: A file (CSV of any separator and line end, plain or gzip; parquet; SDF), several, or a folder of them.
        smiles_column: Column of SMILES; not for SDF.
        batch_size: Molecules per batch.
        separator, encoding, header: As for ``MoleculeCSVDataModule``.
        invalid: What is done with rows that are no molecule: ``drop`` or ``raise``.
        fragments: Of salts ``all`` parts or the ``largest``.

    Raises:
        ValueError: A value or a file that cannot work.
    """

    def __init__(
        self,
        files: str | list[str] = "molecules.csv",
        smiles_column: str = "smiles",
        batch_size: int = 512,
        separator: str | None = None,
        encoding: str = "utf-8",
        header: bool = True,
        invalid: Literal["drop", "raise"] = "drop",
        fragments: Literal["all", "largest"] = "all",
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be at least 1, got {batch_size}.")
        self.batch_size = batch_size
        self.spec = MoleculeSpec(
            tuple(find_files(files)), smiles_column, form=TableFormat(separator, encoding, header), invalid=invalid,
            fragments=fragments,
        )  # fmt: skip
        bonds = {"atom_features": NUM_ATOM_FEATURES, "bond_features": NUM_BOND_FEATURES}
        self.schema: dict[str, Any] = {**bonds, "positions": False}
        self._part: Part | None = None

    def setup(self, stage: str | None = None) -> None:
        """Read the files, once."""
        if self._part is None:
            molecules, _ = read_predicted(self.spec, self.spec.paths, ())
            self._part = Part(molecules.packed, torch.arange(len(molecules.packed)))

    def predict_dataloader(self) -> DataLoader | list:
        """All molecules that could be read, in the order of the rows; ``y`` has no column."""
        if self._part is None:
            raise ValueError("`UnlabelledMolecules` has no data yet: call `setup()` first.")
        return make_loader(self._part, self.batch_size, shuffle=False)
