"""Clients whose loss is a quadratic: what any number of local steps gives can be said without a network.

Client i has n_i equal samples of f_i(w) = sum_d a_d (w_d - b_d)^2 / 2, so that each batch has the gradient a (w - b), and
ceil(n_i / batch size) steps in an epoch.
"""

from __future__ import annotations

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


class Quadratic(L.LightningModule):
    """One vector of weights under plain SGD (or what else is asked for)."""

    def __init__(self, lr: float = 0.1, size: int = 1, **sgd: object) -> None:
        super().__init__()
        self.lr, self.sgd = lr, sgd
        self.w = torch.nn.Parameter(torch.zeros(size))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        a, b = batch
        return (a * (self.w - b).square()).sum(-1).mean() / 2

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, **self.sgd)


class Samples(L.LightningDataModule):
    """``n`` equal samples of a client's quadratic."""

    def __init__(self, a: float, b: float, n: int = 1, batch_size: int | None = None) -> None:
        super().__init__()
        self.data = TensorDataset(torch.full((n, 1), float(a)), torch.full((n, 1), float(b)))
        self.batch_size = batch_size or n

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.data, batch_size=self.batch_size)


def descend(w: float, a: float, b: float, lr: float, steps: int, correction: float = 0.0) -> float:
    """``steps`` steps w <- w - lr (a (w - b) + correction)."""
    for _ in range(steps):
        w -= lr * (a * (w - b) + correction)
    return w
