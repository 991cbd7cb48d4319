"""A generative adversarial network: manual optimisation, two optimisers, each toggled in turn."""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from sites import LOCAL, Site, show
from torch import nn
from torch.utils.data import TensorDataset

from fl_lightning import FederatedTrainer

SETTINGS = {"num_rounds": 3, "monitor": "gap", "monitor_mode": "min", "trainer": LOCAL}


class GAN(L.LightningModule):
    def __init__(self, latent_dim=4, lr=5e-3):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(latent_dim, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, z):
        return self.generator(z)

    def sample_z(self, n):
        return torch.randn(n, self.hparams.latent_dim, device=self.device)

    def training_step(self, batch, batch_idx):
        (real,) = batch
        optimizer_g, optimizer_d = self.optimizers()
        ones, zeros = real.new_ones(len(real), 1), real.new_zeros(len(real), 1)

        self.toggle_optimizer(optimizer_g)
        fake = self(self.sample_z(len(real)))
        g_loss = F.binary_cross_entropy_with_logits(self.discriminator(fake), ones)
        self.log("g_loss", g_loss, prog_bar=True)
        self.manual_backward(g_loss)
        optimizer_g.step()
        optimizer_g.zero_grad()
        self.untoggle_optimizer(optimizer_g)

        self.toggle_optimizer(optimizer_d)
        real_loss = F.binary_cross_entropy_with_logits(self.discriminator(real), ones)
        fake_loss = F.binary_cross_entropy_with_logits(self.discriminator(fake.detach()), zeros)
        d_loss = (real_loss + fake_loss) / 2
        self.log("d_loss", d_loss, prog_bar=True)
        self.manual_backward(d_loss)
        optimizer_d.step()
        optimizer_d.zero_grad()
        self.untoggle_optimizer(optimizer_d)

    def validation_step(self, batch, batch_idx):
        self.log("val_gap", self.gap(batch[0]))

    def test_step(self, batch, batch_idx):
        self.log("test_gap", self.gap(batch[0]))

    def gap(self, real):
        """Between the means of what is real and what is generated."""
        return (self(self.sample_z(len(real))).mean(0) - real.mean(0)).norm()

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=self.hparams.lr, betas=(0.5, 0.999))
        opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=self.hparams.lr, betas=(0.5, 0.999))
        return [opt_g, opt_d], []


def model():
    return GAN()


def site(number, shuffle=True):
    """160 points of one of three clouds on a line."""
    generator = torch.Generator().manual_seed(number)
    x = torch.tensor([1.0 + number, 1.0]) + 0.3 * torch.randn(160, 2, generator=generator)
    return Site(TensorDataset(x[:96]), TensorDataset(x[96:]), shuffle=shuffle)


def main():
    L.seed_everything(0, verbose=False)
    trainer = FederatedTrainer(**SETTINGS, name="gan")
    trainer.fit(model(), [site(number) for number in range(3)])
    return show(trainer)


if __name__ == "__main__":
    main()
