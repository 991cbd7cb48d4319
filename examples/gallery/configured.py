"""A module that makes its layers in `configure_model`, once: Lightning calls it in every fit."""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from sites import LOCAL, Site, show
from torch import nn
from torch.utils.data import TensorDataset

from fl_lightning import FederatedTrainer

SETTINGS = {"num_rounds": 3, "trainer": LOCAL}


class LargeModel(L.LightningModule):
    def __init__(self, width=32, depth=2, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.net = None

    def configure_model(self):
        if self.net is not None:
            return
        width, depth = self.hparams.width, self.hparams.depth
        layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.GELU())]
        self.net = nn.Sequential(nn.Linear(4, width), *layers, nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.mse_loss(self(x), y))

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_loss", F.mse_loss(self(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.trainer.max_epochs)
        return [optimizer], [scheduler]


def model():
    return LargeModel()


def site(number, shuffle=True):
    """96 points of one function, around another centre at each site."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(96, 4, generator=generator) + number - 1
    y = (x[:, :1] * x[:, 1:2]).sin() + x[:, 2:3]
    return Site(TensorDataset(x[:64], y[:64]), TensorDataset(x[64:], y[64:]), shuffle=shuffle)


def main():
    L.seed_everything(0, verbose=False)
    trainer = FederatedTrainer(**SETTINGS, name="configured")
    trainer.fit(model(), [site(number) for number in range(3)])
    return show(trainer)


if __name__ == "__main__":
    main()
