"""MoleculeNet (Wu et al. 2018) from the raw CSV files, in the columns that PyG's ``MoleculeNet`` reads.

The file lies at ``<root>/moleculenet/esol/raw/delaney-processed.csv`` or ``<root>/esol/raw/...`` (also as ``.csv.gz``),
and is downloaded from where PyG takes it if it is missing. Nothing is written beside it: the folder may be read-only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch_geometric.datasets import MoleculeNet

from datamodules.molecules.datamodule import MoleculeDataModule
from datamodules.molecules.table import MoleculeSet, MoleculeTable
from datamodules.rawfiles import find_raw
from datamodules.tables.origin import Origin
from datamodules.tables.values import MISSING, with_plain_minus

REGRESSION = ("esol", "freesolv", "lipo")
ALIASES = {"lipophilicity": "lipo", "delaney": "esol"}
# What the published files call their one label: in a file with other columns, the name counts and not the place.
LABELS = {
    "esol": "measured log solubility in mols per litre",
    "freesolv": "expt",
    "lipo": "exp",
    "hiv": "HIV_active",
    "bace": "Class",
    "bbbp": "p_np",
}
SMILES = ("smiles", "mol")
UNITS = {"esol": "log10(mol/L)", "freesolv": "kcal/mol", "lipo": "logD"}


class MoleculeNetDataModule(MoleculeDataModule):
    """One of MoleculeNet's sets.

    Args:
        root: Folder that holds ``moleculenet/`` or the folders of the sets themselves.
        name: ESOL, FreeSolv or Lipo (regression, RMSE); Tox21, SIDER, ClinTox, BBBP, BACE, HIV, MUV, PCBA or ToxCast
            (classification, ROC-AUC); in any case. What PyG adds works by its name, too.
        options: Everything that ``MoleculeDataModule`` takes.

    Raises:
        ValueError: An unknown name; a missing file (which, and where to put it).
    """

    def __init__(self, root: str = "data", name: str = "ESOL", **options: Any) -> None:
        super().__init__(**options)
        self.root = root
        self.name = ALIASES.get(name.lower(), name.lower())
        if self.name not in MoleculeNet.names:
            known = ", ".join(entry[0] for entry in MoleculeNet.names.values())
            raise ValueError(f"`data.init_args.name` must be one of {known}, got {name!r}.")
        self.task = "regression" if self.name in REGRESSION else "classification"
        self.metric = "rmse" if self.task == "regression" else "auroc"

    def prepare_data(self) -> None:
        """Downloads the file if it is missing."""
        self.raw_file()

    def raw_file(self) -> Path:
        """The CSV file, plain or gzipped.

        Raises:
            ValueError: It is missing and cannot be downloaded.
        """
        _, remote, stem, _, _ = MoleculeNet.names[self.name]
        folders = [f"moleculenet/{self.name}/raw", f"{self.name}/raw"]
        for folder in folders:
            for file in (f"{stem}.csv", f"{stem}.csv.gz"):
                if Path(self.root, folder, file).is_file():
                    return Path(self.root, folder, file)
        return find_raw(self.root, folders, [remote], MoleculeNet.url.format("")) / remote

    def load(self) -> MoleculeSet:
        path = self.raw_file()
        frame = read_csv(path)
        smiles, chosen = self._columns(path, list(frame.columns))
        columns = {name: frame[name].tolist() for name in frame.columns if name == self.client_column}
        y = np.stack([label_column(frame[name]) for name in chosen], axis=1)
        unit = UNITS.get(str(self.name))
        return self.from_table(
            MoleculeTable(
                frame[smiles].tolist(),
                y,
                chosen,
                columns,
                [unit] * len(chosen) if unit else [],
                origin=Origin([str(path)], [len(frame)]),
            )
        )

    def _columns(self, path: Path, names: list[str]) -> tuple[str, list[str]]:
        """The columns of SMILES and of labels. PyG has places only, which hold for the published order of columns.

        Raises:
            ValueError: The column of SMILES is elsewhere than published, so that the places of the labels mean nothing.
        """
        _, _, _, smiles_at, labels_at = MoleculeNet.names[self.name]
        places = (smiles_at, labels_at.stop - 1 if isinstance(labels_at, slice) else labels_at)
        found = [name for name in names if name.strip().lower() in SMILES]
        if not all(-len(names) <= place < len(names) for place in places) or (found and names[smiles_at] not in found):
            where = f"column {smiles_at} (from 0)" if smiles_at >= 0 else "the last column"
            raise ValueError(
                f"`{path}` is not the published table of {self.name}: there {where} has the SMILES, and each "
                f"label a place of its own, but here the columns are {', '.join(map(repr, names[:20]))}. Replace "
                "the file by the published one, or read it with `data: datamodules.MoleculeCSVDataModule`."
            )
        label = LABELS.get(str(self.name))
        if label in names:
            return names[smiles_at], [label]
        return names[smiles_at], names[labels_at] if isinstance(labels_at, slice) else [names[labels_at]]


def read_csv(path: Path) -> Any:
    """A data frame of texts (blanks are ``nan``), one row per line that is not empty.

    Raises:
        ValueError: The file is no table.
    """
    import pandas as pd

    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""], encoding="utf-8-sig")
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, OSError, EOFError) as error:
        raise ValueError(f"`{path}` is not a CSV file ({error}). Replace it by the published one.") from error


def label_column(column: Any) -> np.ndarray:
    """The numbers of one column, float32, ``nan`` where blank.

    Raises:
        ValueError: A text that is no number, with its row.
    """
    import pandas as pd

    numbers = pd.to_numeric(column.map(with_plain_minus, na_action="ignore"), errors="coerce")
    blank = column.isna() | column.str.strip().str.lower().isin(list(MISSING))
    wrong = np.flatnonzero((numbers.isna() & ~blank).to_numpy())
    if len(wrong):
        raise ValueError(
            f"column {column.name!r}, row {wrong[0]}: {column.iloc[wrong[0]]!r} is not a number "
            f"({len(wrong)} such rows). A missing label is an empty field."
        )
    values = numbers.to_numpy(dtype=np.float64)
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        raise ValueError(f"column {column.name!r}, row {infinite[0]}: the label is infinite ({len(infinite)} such rows).")
    return values.astype(np.float32)
