"""chemprop's MPNN, imported as it is, on tables of three sites: one CSV file at each, with SMILES and what was measured.

    python examples/gallery/chemprop_own_tables.py [SITE.csv ...]

The column `smiles` and those of TARGETS are read; an empty cell was not measured. The sites' labels differ much, so that all
standardise them by numbers of all sites, of which nobody sees another's: `statistics()` tells sums, `use_statistics(agreed)`
gets everybody's, in the data modules and in chemprop's output transform. Without arguments: the three files in `tables`, with
logP and polar surface (in units of 20 Å²) of made-up series, of which some were not measured.

Needs the extra: pip install -e ".[chemprop]" (CONTRIBUTING says with which rdkit).
"""

from __future__ import annotations

import sys
from pathlib import Path

import lightning as L
import numpy as np
import pandas as pd
import torch
from chemprop import data, models, nn
from sites import LOCAL, show

from datamodules.molecules.loaders import label_scale, sum_labels
from fl_lightning import FederatedTrainer

SETTINGS = {"num_rounds": 8, "monitor": "rmse", "trainer": LOCAL}
TARGETS = ("logP", "TPSA")
TABLES = sorted((Path(__file__).parent / "tables").glob("site_*.csv"))


class TableSite(L.LightningDataModule):
    """A site's table: 70 % of its rows to train on, 15 % to validate and 15 % to test on, drawn by `seed`."""

    def __init__(self, path, targets=TARGETS, batch_size=8, shuffle=True, seed=0):
        super().__init__()
        self.path, self.targets, self.batch_size, self.shuffle, self.seed = str(path), list(targets), batch_size, shuffle, seed
        self.train = None

    def setup(self, stage=None):
        if self.train is not None:
            return
        table = pd.read_csv(self.path)
        labels = table[self.targets].to_numpy(dtype=float)
        points = [data.MoleculeDatapoint.from_smi(smiles, y) for smiles, y in zip(table["smiles"], labels, strict=True)]
        order = np.random.default_rng(self.seed).permutation(len(points))
        parts = np.split(order, [int(0.7 * len(points)), int(0.85 * len(points))])
        self.labels = torch.from_numpy(labels[parts[0]])  # in units, also once the data set's are standardised
        self.train, self.val, self.test = (data.MoleculeDataset([points[row] for row in part]) for part in parts)

    def statistics(self):
        return {"sums": {"labels": sum_labels(self.labels)}}

    def use_statistics(self, agreed):
        """As `chemprop train` does it: labels to test on stay in units."""
        scaler = nn.UnscaleTransform(*label_scale(agreed["sums"]["labels"])).to_standard_scaler()
        self.train.normalize_targets(scaler)
        self.val.normalize_targets(scaler)

    def train_dataloader(self):
        return data.build_dataloader(self.train, self.batch_size, shuffle=self.shuffle)

    def val_dataloader(self):
        return data.build_dataloader(self.val, 64, shuffle=False)

    def test_dataloader(self):
        return data.build_dataloader(self.test, 64, shuffle=False)


class AgreedScale(nn.UnscaleTransform):
    """chemprop's output transform with mean and deviation of all sites' labels, agreed before round 1."""

    def __init__(self, num_tasks):
        super().__init__([0.0] * num_tasks, [1.0] * num_tasks)

    def use_statistics(self, agreed):
        mean, scale = label_scale(agreed["sums"]["labels"])
        self.mean.copy_(torch.tensor([mean]))
        self.scale.copy_(torch.tensor([scale]))


def model():
    num_tasks = len(TARGETS)
    message_passing = nn.BondMessagePassing(d_h=32, depth=2)
    predictor = nn.RegressionFFN(num_tasks, message_passing.output_dim, hidden_dim=32, output_transform=AgreedScale(num_tasks))
    return models.MPNN(message_passing, nn.MeanAggregation(), predictor, metrics=[nn.RMSE()], warmup_epochs=1, max_lr=5e-3)


def site(number, shuffle=True):
    return TableSite(TABLES[number], shuffle=shuffle)


def main(paths=TABLES):
    L.seed_everything(0, verbose=False)
    trainer = FederatedTrainer(**SETTINGS, name="chemprop_own_tables")
    trainer.fit(model(), [TableSite(path) for path in paths])
    return show(trainer)


if __name__ == "__main__":
    main(sys.argv[1:] or TABLES)
