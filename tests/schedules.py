"""A small module with the learning-rate schedules that users write, for the tests of the run's clock."""

from __future__ import annotations

from collections.abc import Callable

import lightning as L
import torch
import torch.nn.functional as F
from federations import Linear, Table
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader, TensorDataset


def noam(steps: int) -> Callable[[int], float]:
    """Warm-up over a third of the steps, then as one over the root."""
    warm = max(steps // 3, 1)
    return lambda step: (step + 1) / warm if step < warm else (warm / (step + 1)) ** 0.5


KINDS = {
    "StepLR": lambda o, t: schedules.StepLR(o, 2, 0.5),
    "CosineAnnealingLR": lambda o, t: schedules.CosineAnnealingLR(o, t.max_epochs),
    "OneCycleLR": lambda o, t: {
        "scheduler": schedules.OneCycleLR(o, 0.2, total_steps=t.estimated_stepping_batches), "interval": "step",
    },
    "warm-up": lambda o, t: {
        "scheduler": schedules.LambdaLR(o, noam(t.estimated_stepping_batches)), "interval": "step",
    },
    "CosineAnnealingWarmRestarts": lambda o, t: {
        "scheduler": schedules.CosineAnnealingWarmRestarts(o, 4), "interval": "step", "frequency": 2,
    },
    "ReduceLROnPlateau": lambda o, t: {
        "scheduler": schedules.ReduceLROnPlateau(o, patience=0, threshold=0.5), "monitor": "val_loss", "frequency": 2,
    },
    "plateau of training": lambda o, t: {
        "scheduler": schedules.ReduceLROnPlateau(o, patience=0, threshold=0.5), "monitor": "train_loss",
    },
    "in a row": lambda o, t: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.2, total_iters=2), schedules.ExponentialLR(o, 0.7)], [2]
    ),
}  # fmt: skip
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, 0.05),
}


class Scheduled(Linear):
    """Two layers under a schedule; ``trace`` is what each step saw: learning rate, epoch, step, limits of the run."""

    trace: list[tuple] = []
    logged: list[dict[str, float]] = []

    def __init__(self, kind: str = "StepLR", optimizer: str = "Adam") -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.kind, self.optimizer = kind, optimizer

    def training_step(self, batch, batch_idx):
        trainer = self.trainer
        Scheduled.trace.append((
            self.optimizers().param_groups[0]["lr"], self.current_epoch, self.global_step, trainer.max_epochs,
            trainer.max_steps, trainer.fit_loop.total_batch_idx, batch_idx,
        ))  # fmt: skip
        self.log("lr", self.optimizers().param_groups[0]["lr"])
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self):
        logged = self.trainer.callback_metrics
        Scheduled.logged.append({name: float(value) for name, value in logged.items() if not name.startswith("val")})

    def configure_optimizers(self):
        optimizer = OPTIMIZERS[self.optimizer](self.parameters())
        return {"optimizer": optimizer, "lr_scheduler": KINDS[self.kind](optimizer, self.trainer)}


class TwoPlayers(Linear):
    """Manual optimisation with two optimisers, as of a GAN; one of them is stepped in every other batch."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(3, 1)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        Scheduled.trace.append((*(o.param_groups[0]["lr"] for o in self.optimizers()), self.current_epoch, self.global_step))
        first, second = self.optimizers()
        for optimizer, net, turn in ((first, self.net, True), (second, self.other, batch_idx % 2 == 0)):
            if turn:
                loss = F.mse_loss(net(batch[0]) + self.other(batch[0]).detach(), batch[1])
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
        self.log("train_loss", loss)

    def on_train_epoch_end(self):
        for schedule in self.lr_schedulers():
            schedule.step()

    def configure_optimizers(self):
        first, second = torch.optim.SGD(self.net.parameters(), 0.1), torch.optim.Adam(self.other.parameters(), 0.1)
        return [first, second], [schedules.StepLR(first, 1, 0.5), schedules.CosineAnnealingLR(second, self.trainer.max_epochs)]


class InOrder(Table):
    """A table in batches of 4, in the same order in every epoch."""

    def __init__(self, n: int = 12, seed: int = 1) -> None:
        super().__init__(n, seed, batch_size=4, shuffle=False)


class Stream(torch.utils.data.IterableDataset):
    """Samples without a number."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __iter__(self):
        return iter(self.data)


class Streamed(InOrder):
    """The same as a stream."""

    num_train_samples = 12

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Stream(self.train), batch_size=4)


def stock(module: L.LightningModule, data: L.LightningDataModule, **args) -> L.LightningModule:
    """The module after one ``Trainer.fit``."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    L.Trainer(accelerator="cpu", num_sanity_val_steps=0, **quiet, **args).fit(module, datamodule=data)
    return module
