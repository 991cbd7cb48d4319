"""Small tables of molecules with known answers."""

import numpy as np

from datamodules.molecules import MoleculeDataModule, MoleculeTable


class TableDataModule(MoleculeDataModule):
    """A table given in the test."""

    def __init__(self, smiles, y, task="regression", columns=None, **options):
        super().__init__(cache_dir=None, **options)
        y = np.asarray(y, dtype=np.float32).reshape(len(smiles), -1)
        self.table = MoleculeTable(smiles, y, [f"t{i}" for i in range(y.shape[1])], columns or {})
        self.task = task

    def load(self):
        return self.from_table(self.table)


RINGS = ["C1CC1", "C1CCC1", "C1CCCC1", "c1ccccc1", "c1ccncc1", "c1ccoc1", "c1ccsc1", "C1CCNCC1"]


def many(size=80):
    """Distinct molecules of eight scaffolds, about equally many of each."""
    return ["C" * (i // 8) + RINGS[i % 8] for i in range(size)]


def ready(data):
    data.setup()
    return data


def kinds(data):
    return {(found["kind"], found["client"]): found["count"] for found in data.report()["findings"]}
