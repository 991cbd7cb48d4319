"""A convolutional classifier with BatchNorm, torchmetrics as attributes, `save_hyperparameters` and OneCycleLR."""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from sites import LOCAL, Site, show
from torch import nn
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import FederatedTrainer

SETTINGS = {"num_rounds": 3, "monitor": "acc", "trainer": LOCAL}


class LitCNN(L.LightningModule):
    def __init__(self, channels=8, num_classes=3, max_lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(channels, num_classes),
        )  # fmt: skip
        self.train_acc = MulticlassAccuracy(num_classes, average="micro")
        self.val_acc = MulticlassAccuracy(num_classes, average="micro")
        self.test_acc = MulticlassAccuracy(num_classes, average="micro")

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.train_acc(logits, y)
        self.log("train_loss", loss)
        self.log("train_acc", self.train_acc, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.val_acc(logits, y)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", self.val_acc, prog_bar=True)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.test_acc(self(x), y)
        self.log("test_acc", self.test_acc)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, nesterov=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.hparams.max_lr, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def model():
    return LitCNN()


def site(number, shuffle=True):
    """96 pictures with a horizontal, a vertical or a slanting bar; each site has one kind twice as often as the others."""
    generator = torch.Generator().manual_seed(number)
    y = torch.multinomial(torch.ones(3).index_fill(0, torch.tensor(number % 3), 2.0), 96, True, generator=generator)
    x = 0.3 * torch.randn(96, 1, 8, 8, generator=generator)
    for picture, kind, place in zip(x[:, 0], y.tolist(), torch.randint(8, (96,), generator=generator).tolist(), strict=True):
        (picture[place], picture[:, place], picture.diagonal())[kind].add_(1)
    return Site(TensorDataset(x[:64], y[:64]), TensorDataset(x[64:], y[64:]), shuffle=shuffle)


def main():
    L.seed_everything(0, verbose=False)
    trainer = FederatedTrainer(**SETTINGS, name="cnn")
    trainer.fit(model(), [site(number) for number in range(3)])
    return show(trainer)


if __name__ == "__main__":
    main()
