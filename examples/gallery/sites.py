"""What the examples beside this file share: a site with data of its own, and how scores are printed.

Each example has a module as its authors would write it for one `lightning.Trainer`, `model()`, `site(number)` with generated
data, `SETTINGS` of the federation, and `main()`, which federates over three sites: python examples/gallery/cnn.py
"""

from __future__ import annotations

import lightning as L
from torch.utils.data import DataLoader

from fl_lightning import FederatedTrainer

LOCAL = {"max_epochs": 2, "accelerator": "cpu", "enable_progress_bar": False}
"""The `lightning.Trainer` of one site in one round."""


class Site(L.LightningDataModule):
    """A site's data sets.

    Args:
        train: Training data.
        held_out: Data to validate and to test on.
        batch_size: Of the training data.
        shuffle: Whether they are shuffled in each epoch.
        loader: Class of the loaders.
    """

    def __init__(self, train, held_out, batch_size: int = 16, shuffle: bool = True, loader=DataLoader) -> None:
        super().__init__()
        self.train, self.held_out, self.batch_size, self.shuffle, self.loader = train, held_out, batch_size, shuffle, loader

    def train_dataloader(self):
        return self.loader(self.train, batch_size=self.batch_size, shuffle=self.shuffle)

    def val_dataloader(self):
        return self.loader(self.held_out, batch_size=64, shuffle=False)

    test_dataloader = val_dataloader


def show(trainer: FederatedTrainer) -> FederatedTrainer:
    """Print the scores of the best round; gives the trainer back."""
    test = trainer.results["test"]
    each = ", ".join(f"{value:.4f}" for value in test["per_client"])
    print(f"test {trainer.results['metric']}: {test['mean']:.4f} on average over the sites ({each}); {trainer.run_dir}")
    return trainer
