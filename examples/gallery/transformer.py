"""A small transformer that predicts the next sign, with AdamW in two groups and a warm-up by steps."""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from sites import LOCAL, Site, show
from torch import nn
from torch.utils.data import TensorDataset

from fl_lightning import FederatedTrainer

SETTINGS = {"num_rounds": 6, "trainer": LOCAL}


class LitTransformer(L.LightningModule):
    def __init__(self, vocab_size=8, d_model=16, nhead=2, num_layers=2, dropout=0.1, lr=5e-3, warmup_steps=6, max_len=16):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.positions = nn.Parameter(0.02 * torch.randn(max_len, d_model))
        layer = nn.TransformerEncoderLayer(d_model, nhead, 2 * d_model, dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers, nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        self.head.weight = self.embed.weight  # tied
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(max_len), persistent=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        hidden = self.embed(tokens) + self.positions[:length]
        return self.head(self.encoder(hidden, self.mask[:length, :length], is_causal=True))

    def _loss(self, batch):
        (tokens,) = batch
        return F.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def training_step(self, batch, batch_idx):
        loss = self._loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        self.log("lr", self.lr_schedulers().get_last_lr()[0])
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self._loss(batch))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self._loss(batch))

    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.ndim > 1]
        no_decay = [p for p in self.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": 0.01}, {"params": no_decay, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=self.hparams.lr)
        total, warmup = self.trainer.estimated_stepping_batches, self.hparams.warmup_steps

        def lr_lambda(step):
            return (step + 1) / warmup if step < warmup else max(0.0, (total - step) / max(1, total - warmup))

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def model(dropout=0.1):
    return LitTransformer(dropout=dropout)


def site(number, shuffle=True):
    """96 sequences in which each sign is the one before plus 1 + `number`, or now and then any."""
    generator = torch.Generator().manual_seed(number)
    start = torch.randint(8, (96, 1), generator=generator)
    x = (start + (1 + number) * torch.arange(13)) % 8
    noisy = torch.rand(x.shape, generator=generator) < 0.05
    x = torch.where(noisy, torch.randint(8, x.shape, generator=generator), x)
    return Site(TensorDataset(x[:64]), TensorDataset(x[64:]), shuffle=shuffle)


def main():
    L.seed_everything(0, verbose=False)
    trainer = FederatedTrainer(**SETTINGS, name="transformer")
    trainer.fit(model(), [site(number) for number in range(3)])
    return show(trainer)


if __name__ == "__main__":
    main()
