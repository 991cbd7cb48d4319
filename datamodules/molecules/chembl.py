"""The 1,017 molecules with measured activity that RDKit's wheel carries: real data with nothing to download.

Ligands of the kinase c-Met's data set CHEMBL2321810 in RDKit's ``Contrib/FreeWilson``; activity in log units (pIC50).
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from rdkit import RDConfig

from datamodules.molecules.datamodule import MoleculeDataModule
from datamodules.molecules.table import MoleculeSet, MoleculeTable


class ChEMBLDataModule(MoleculeDataModule):
    """RDKit's CHEMBL2321810: regression of one activity, scored by RMSE. Options: those of ``MoleculeDataModule``."""

    def load(self) -> MoleculeSet:
        folder = Path(RDConfig.RDContribDir, "FreeWilson", "data")
        try:
            lines = (folder / "CHEMBL2321810.smi").read_text().split("\n")
            with open(folder / "CHEMBL2321810_act.csv", newline="") as file:
                activity = {row["Name"]: float(row["Act"]) for row in csv.DictReader(file)}
        except OSError as error:
            raise ValueError(
                f"this RDKit lacks the embedded data set ({error}): install RDKit's wheel from PyPI (`pip "
                "install rdkit`), which has `Contrib/FreeWilson/data`."
            ) from error
        smiles, names = zip(*(line.split()[:2] for line in lines if line.strip()), strict=True)
        y = np.array([[activity.get(name, np.nan)] for name in names], dtype=np.float32)
        return self.from_table(MoleculeTable(smiles, y, ["activity"], {"name": names}, ["log10(1/M)"]))
