"""What a random forest on Morgan fingerprints scores on the same split: how hard a classification set is, without a network.

    python -m benchmarks.forest --root DATA --data bace bbbp [--split official] [--seeds 0 1 2]

500 trees on 2,048 bits of radius 2, trained on the training molecules that have a label; validation data are not used. ROC-AUC
on the test molecules, mean over the tasks where it is defined.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score
from torch_geometric.datasets import MoleculeNet

from datamodules import MoleculeNetDataModule
from datamodules.molecules import parse_smiles
from datamodules.molecules.moleculenet import read_csv


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--split", default="random")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked = parser.parse_args(arguments)
    for name in asked.data:
        for seed in asked.seeds:
            sys.stdout.write(f"{name} {asked.split} {seed}: {score(asked.root, name, asked.split, seed):.4f}\n")


def rows_of_split(
    root: str, name: str, split: str, seed: int
) -> tuple[dict[str, list[int]], dict[int, str], dict[int, np.ndarray]]:
    """Rows of the table in each part of the split; SMILES and labels (one for each task) of a row."""
    data = MoleculeNetDataModule(root=root, name=name, num_clients=1, partition="iid", split=split, seed=seed)
    data.prepare_data()
    data.setup("fit")
    smiles = read_csv(data.raw_file()).iloc[:, MoleculeNet.names[data.name][3]]
    label = dict(zip(data.molecules.packed.sample_id.tolist(), data.molecules.packed.y.numpy(), strict=True))
    return data.partition_record()["server"], {row: smiles[row] for row in label}, label


def score(root: str, name: str, split: str, seed: int) -> float:
    """Test ROC-AUC of one forest for each task."""
    parts, smiles, label = rows_of_split(root, name, split, seed)
    generator = GetMorganGenerator(radius=2, fpSize=2048)
    bits = {row: generator.GetFingerprintAsNumPy(parse_smiles(text)) for row, text in smiles.items()}
    scores = []
    for task in range(len(next(iter(label.values())))):
        train, test = ([row for row in parts[part] if np.isfinite(label[row][task])] for part in ("train", "test"))
        y_train, y_test = ([label[row][task] for row in rows] for rows in (train, test))
        if len(set(y_train)) == len(set(y_test)) == 2:
            forest = RandomForestClassifier(500, random_state=seed).fit([bits[row] for row in train], y_train)
            scores.append(roc_auc_score(y_test, forest.predict_proba([bits[row] for row in test])[:, 1]))
    return float(np.mean(scores))


if __name__ == "__main__":
    main()
