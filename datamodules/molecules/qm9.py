"""QM9: DFT geometries and twelve properties (docs/papers/fedchem.md#data); the same numbers as PyG's ``QM9``.

The raw files are PyG's (``gdb9.sdf``, ``gdb9.sdf.csv``, ``uncharacterized.txt``) in ``<root>/qm9/raw`` or
``<root>/raw``. Energies are converted to eV; U0, U, H and G are those of atomisation.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import urllib.request
import zipfile
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
from torch_geometric.datasets.qm9 import HAR2EV, KCALMOL2EV, QM9

from datamodules.molecules.datamodule import MoleculeDataModule
from datamodules.molecules.moleculenet import label_column, read_csv
from datamodules.molecules.sdf import geometry_set, read_records, record_name, sdf_blocks
from datamodules.molecules.table import MoleculeSet, usable_rows
from datamodules.rawfiles import TIMEOUT_SECONDS
from datamodules.tables.origin import Origin

# (name, column of gdb9.sdf.csv, unit, factor to that unit); in PyG's numbering 0-6, 12-15, 11
TARGETS = (
    ("mu", "mu", "D", 1.0),
    ("alpha", "alpha", "a0^3", 1.0),
    ("homo", "homo", "eV", HAR2EV),
    ("lumo", "lumo", "eV", HAR2EV),
    ("gap", "gap", "eV", HAR2EV),
    ("r2", "r2", "a0^2", 1.0),
    ("zpve", "zpve", "eV", HAR2EV),
    ("U0", "u0_atom", "eV", KCALMOL2EV),
    ("U", "u298_atom", "eV", KCALMOL2EV),
    ("H", "h298_atom", "eV", KCALMOL2EV),
    ("G", "g298_atom", "eV", KCALMOL2EV),
    ("Cv", "cv", "cal/(mol K)", 1.0),
)
FILES = ("gdb9.sdf", "gdb9.sdf.csv", "uncharacterized.txt")
COMPLETE = 130_831


class QM9DataModule(MoleculeDataModule):
    """QM9 for models of geometry: a batch has ``z``, ``pos`` (angstrom), ``batch``, ``y`` ``(B, 12)``, ``sample_id``.

    The metric is the plain mean of the twelve mean absolute errors, in mixed units as in the paper. The complete set is
    split 110,000 / 10,000 / 10,831; any other number of molecules by ``fractions``.

    Args:
        root: Folder that holds ``qm9/raw`` or ``raw``.
        options: Everything that ``MoleculeDataModule`` takes, but ``fragments``, which is for bonds.
    """

    metric = "mae"

    def __init__(self, root: str = "data", **options: Any) -> None:
        super().__init__(**options)
        if self.fragments != "all":
            raise ValueError(
                "`data.init_args.fragments: largest` is for bonds, but QM9 has geometries, of one part each. Leave it out."
            )
        self.root = root

    def part_sizes(self, size: int) -> tuple[int, int, int]:
        if size == COMPLETE and self.fractions == (0.8, 0.1, 0.1):
            return 110_000, 10_000, size - 120_000
        return super().part_sizes(size)

    def prepare_data(self) -> None:
        """Downloads the files if they are missing."""
        self.raw_folder()

    def raw_folder(self) -> Path:
        """The folder with the three raw files.

        Raises:
            ValueError: They are missing and cannot be downloaded.
        """
        folders = [Path(self.root, "qm9", "raw"), Path(self.root, "raw")]
        for folder in folders:
            if all((folder / name).is_file() for name in FILES):
                return folder
        try:
            _download(folders[0])
        except (OSError, HTTPException, zipfile.BadZipFile, KeyError) as error:
            raise ValueError(
                f"`data.init_args.root` is {self.root!r}, but QM9's files are missing. Put {', '.join(FILES)} into "
                f"{folders[0]} (looked in: {', '.join(map(str, folders))}). They could not be downloaded from "
                f"{QM9.raw_url}: {error}."
            ) from error
        return folders[0]

    def load(self) -> MoleculeSet:
        folder = self.raw_folder()
        frame = read_csv(folder / "gdb9.sdf.csv")
        y = np.stack([label_column(frame[column]) * np.float32(factor) for _, column, _, factor in TARGETS], axis=1)
        blocks = list(sdf_blocks(folder / "gdb9.sdf"))
        names = [record_name(block) for block in blocks]
        _check_same_molecules(folder, names, frame)
        records = read_records(blocks, self.featurise_workers, self.cache_dir)
        origin = Origin([str(folder / "gdb9.sdf")], [len(names)])
        rows, dropped = usable_rows(records.reason, names, self.invalid, origin)
        listed = uncharacterised(folder / "uncharacterized.txt")
        left_out = {int(row) for row in rows if _number(names[row], int(row)) in listed}
        dropped += [
            {"row": row, "reason": "uncharacterised in QM9's own list", "smiles": names[row], **origin(row)} for row in left_out
        ]
        dropped.sort(key=lambda drop: drop["row"])
        rows = np.array([row for row in rows if row not in left_out], dtype=np.int64)
        return geometry_set(
            records,
            rows,
            y,
            [name for name, *_ in TARGETS],
            [unit for _, _, unit, _ in TARGETS],
            dropped,
            {"name": [names[row] for row in rows]},
            origin,
        )


def _check_same_molecules(folder: Path, names: Sequence[str], frame: Any) -> None:
    """Labels are joined to geometries by position, which is right only where the names on both sides agree.

    Raises:
        ValueError: With the first place at which they do not, or with two lengths.
    """
    labelled = frame["mol_id"].fillna("").str.strip().tolist() if "mol_id" in frame else [""] * len(frame)
    for row, (name, other) in enumerate(zip(names, labelled, strict=False)):
        if name and other and name != other:
            raise ValueError(
                f"`{folder}`: molecule {row} (from 0) of gdb9.sdf is {name!r}, but row {row} of gdb9.sdf.csv has "
                f"the labels of {other!r} (`mol_id`). Both must have the same molecules in the same order: "
                "replace them by the published files."
            )
    if len(names) != len(frame):
        raise ValueError(
            f"`{folder}`: gdb9.sdf has {len(names)} molecules and gdb9.sdf.csv {len(frame)} rows. "
            "Replace them by the published files."
        )


def _number(name: str, row: int) -> int:
    """QM9's number of a molecule: that in its name ``gdb_17``, so that it holds in a part of the set, too."""
    number = re.fullmatch(r"gdb_(\d+)", name)
    return int(number[1]) if number else row + 1


def uncharacterised(path: Path) -> set[int]:
    """Numbers (from 1, as in ``gdb_1``) in QM9's list of molecules whose geometry does not match their SMILES; nine lines
    of heading and two of ending, as PyG reads it.

    Raises:
        ValueError: A line in between that does not start with a number.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[9:-2]
    try:
        return {int(line.split()[0]) for line in lines if line.strip()}
    except ValueError as error:
        raise ValueError(
            f"`{path}` is not QM9's list of uncharacterised molecules ({error}). Replace it by the published one."
        ) from error


def _download(folder: Path) -> None:
    """PyG's two downloads; files appear under their names only when they are complete."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        archive = Path(temporary, "qm9.zip")
        for url, path in ((QM9.raw_url, archive), (QM9.raw_url2, Path(temporary, FILES[2]))):
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as reply, open(path, "wb") as file:
                shutil.copyfileobj(reply, file)
        with zipfile.ZipFile(archive) as zipped:
            for name in FILES[:2]:
                with zipped.open(name) as source, open(Path(temporary, name), "wb") as file:
                    shutil.copyfileobj(source, file)
        for name in FILES:
            os.replace(Path(temporary, name), folder / name)
