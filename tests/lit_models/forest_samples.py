"""Small tables of chains for the tests of forests: classes of several tasks, some unknown, or one value."""

from __future__ import annotations

import numpy as np

from datamodules.molecules import MoleculeDataModule, MoleculeTable

SIZES = {"fingerprint_size": 64, "cache_dir": None, "min_client_size": 1}


class Chains(MoleculeDataModule):
    """Task 0 is an oxygen, task 1 a length above 15 (unknown of odd lengths), task 2 is known of nobody."""

    task, metric = "classification", "auroc"

    def __init__(self, **options):
        super().__init__(**{"num_clients": 1, "partition": "iid", **SIZES, **options})

    def load(self):
        smiles = [a + "C" * n + b for n in range(1, 31) for a in ("", "N") for b in ("", "O")]
        y = [[float("O" in s), float(s.count("C") > 15) if s.count("C") % 2 == 0 else np.nan, np.nan] for s in smiles]
        return self.from_table(MoleculeTable(smiles, np.array(y), ["oxygen", "long", "nobody"]))


class Lengths(Chains):
    """How many heavy atoms a chain has."""

    task, metric = "regression", "rmse"

    def load(self):
        smiles = [a + "C" * n + b for n in range(1, 16) for a in ("", "N") for b in ("", "O")]
        return self.from_table(MoleculeTable(smiles, np.array([[float(len(s))] for s in smiles]), ["atoms"]))


class Assays(MoleculeDataModule):
    """Two sites; task `a` is known at both, task `b` at the second alone."""

    task, metric = "classification", "auroc"

    def __init__(self):
        super().__init__(partition="column", client_column="site", **SIZES)

    def load(self):
        smiles = [a + "C" * n + b for n in range(1, 16) for a in ("", "N") for b in ("", "O")]
        site = ["one" if i % 3 else "two" for i in range(len(smiles))]
        y = [[float("O" in s), float("N" in s) if w == "two" else np.nan] for s, w in zip(smiles, site, strict=True)]
        return self.from_table(MoleculeTable(smiles, np.array(y), ["a", "b"], {"site": site}))
