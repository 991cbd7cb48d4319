"""chemprop's MPNN, imported as it is, for three tasks at once: each site has measured two of them (the third is NaN).

Needs the extra: pip install -e ".[chemprop]" (CONTRIBUTING says with which rdkit).
"""

from __future__ import annotations

import lightning as L
import numpy as np
from chemprop import data, models, nn
from chemprop_regression import molecules
from rdkit.Chem import Crippen, Descriptors, MolFromSmiles
from sites import LOCAL, Site, show

from fl_lightning import FederatedTrainer

SETTINGS = {"num_rounds": 8, "monitor": "mae", "trainer": LOCAL}
TASKS = (Crippen.MolLogP, lambda mol: Crippen.MolMR(mol) / 20, lambda mol: Descriptors.TPSA(mol) / 20)


def model():
    message_passing = nn.BondMessagePassing(d_h=32, depth=2)
    predictor = nn.RegressionFFN(n_tasks=3, input_dim=message_passing.output_dim, hidden_dim=32)
    agg = nn.NormAggregation(norm=10)
    return models.MPNN(message_passing, agg, predictor, metrics=[nn.MAE()], warmup_epochs=1, max_lr=5e-3)


def site(number, shuffle=True):
    """Molecules with logP, molar refractivity and polar surface, one of which the site has not measured."""
    points = []
    for smiles in molecules(number):
        y = np.array([task(MolFromSmiles(smiles)) for task in TASKS])
        y[number] = np.nan
        points.append(data.MoleculeDatapoint.from_smi(smiles, y))
    train, held_out = data.MoleculeDataset(points[:32]), data.MoleculeDataset(points[32:])
    return Site(train, held_out, batch_size=8, shuffle=shuffle, loader=data.build_dataloader)


def main():
    L.seed_everything(0, verbose=False)
    trainer = FederatedTrainer(**SETTINGS, name="chemprop_multitask")
    trainer.fit(model(), [site(number) for number in range(3)])
    return show(trainer)


if __name__ == "__main__":
    main()
