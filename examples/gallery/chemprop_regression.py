"""chemprop's MPNN, imported as it is, as a regression with its Noam schedule and BatchNorm: three sites with other scaffolds.

Needs the extra: pip install -e ".[chemprop]" (CONTRIBUTING says with which rdkit).
"""

from __future__ import annotations

import itertools

import lightning as L
import numpy as np
from chemprop import data, models, nn
from rdkit.Chem import Crippen, MolFromSmiles
from sites import LOCAL, Site, show

from fl_lightning import FederatedTrainer

SETTINGS = {"num_rounds": 8, "monitor": "rmse", "trainer": LOCAL}
SCAFFOLDS = ("c1ccccc1{}", "C1CCCCC1{}", "c1ccncc1{}")
CHAINS = ("", "C", "CC", "CCC", "CC(C)", "CCCC")
ENDS = ("O", "N", "F", "Cl", "C(=O)O", "C(=O)N", "C#N", "OC")


def model():
    message_passing = nn.BondMessagePassing(d_h=32, depth=2)
    predictor = nn.RegressionFFN(input_dim=message_passing.output_dim, hidden_dim=32)
    return models.MPNN(
        message_passing, nn.MeanAggregation(), predictor, batch_norm=True, metrics=[nn.RMSE()], warmup_epochs=1, max_lr=5e-3
    )


def molecules(number):
    """The 48 molecules of a site: all chains and ends at one ring, in an order of chance."""
    smiles = [SCAFFOLDS[number].format(chain + end) for chain, end in itertools.product(CHAINS, ENDS)]
    return [smiles[index] for index in np.random.default_rng(number).permutation(len(smiles))]


def site(number, shuffle=True):
    """Molecules with Crippen's logP."""
    points = [
        data.MoleculeDatapoint.from_smi(smiles, np.array([Crippen.MolLogP(MolFromSmiles(smiles))]))
        for smiles in molecules(number)
    ]
    train, held_out = data.MoleculeDataset(points[:32]), data.MoleculeDataset(points[32:])
    return Site(train, held_out, batch_size=8, shuffle=shuffle, loader=data.build_dataloader)


def main():
    L.seed_everything(0, verbose=False)
    trainer = FederatedTrainer(**SETTINGS, name="chemprop_regression")
    trainer.fit(model(), [site(number) for number in range(3)])
    return show(trainer)


if __name__ == "__main__":
    main()
