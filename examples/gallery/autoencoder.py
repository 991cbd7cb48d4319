"""An autoencoder whose two halves are handed in: three sites learn to compress signals of which each has other frequencies."""

from __future__ import annotations

import math

import lightning as L
import torch
import torch.nn.functional as F
from sites import LOCAL, Site, show
from torch import nn
from torch.utils.data import TensorDataset

from fl_lightning import FederatedTrainer

SETTINGS = {"num_rounds": 3, "trainer": LOCAL}


class LitAutoEncoder(L.LightningModule):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def training_step(self, batch, batch_idx):
        (x,) = batch
        x_hat = self.decoder(self.encoder(x))
        loss = F.mse_loss(x_hat, x)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        self.log("val_loss", F.mse_loss(self.decoder(self.encoder(x)), x))

    def test_step(self, batch, batch_idx):
        (x,) = batch
        self.log("test_loss", F.mse_loss(self.decoder(self.encoder(x)), x))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3)


def model():
    encoder = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 32))
    return LitAutoEncoder(encoder, decoder)


def site(number, shuffle=True):
    """80 sine waves with 1 + `number` to 2 + `number` periods."""
    generator = torch.Generator().manual_seed(number)
    periods, phase = torch.rand(2, 80, 1, generator=generator)
    x = torch.sin(2 * math.pi * ((1 + number + periods) * torch.linspace(0, 1, 32) + phase))
    return Site(TensorDataset(x[:64]), TensorDataset(x[64:]), shuffle=shuffle)


def main():
    L.seed_everything(0, verbose=False)
    trainer = FederatedTrainer(**SETTINGS, name="autoencoder")
    trainer.fit(model(), [site(number) for number in range(3)])
    return show(trainer)


if __name__ == "__main__":
    main()
