"""Small generated federations for the tests of `fl_lightning`: plain LightningModules and data modules, none of ours.

Everything here can be sent to worker processes and is imported by the scripts that tests run.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FedAvg, FederatedTrainer
from fl_lightning.engine import InProcess
from fl_lightning.engine.messages import Message

CPU = {"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False}


def points(n: int, seed: int, features: int = 3) -> tuple[Tensor, Tensor]:
    """``n`` points of a noisy linear function, ``(n, features)`` and ``(n, 1)``."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=generator)
    truth = torch.arange(1.0, features + 1)
    return x, (x @ truth + 0.3 * torch.randn(n, generator=generator)).unsqueeze(1)


class Table(L.LightningDataModule):
    """A client's table, built in ``setup`` as users do; validation and test data are optional."""

    def __init__(self, n: int, seed: int, batch_size: int | None = None, held_out: int = 8, shuffle: bool = True) -> None:
        super().__init__()
        self.n, self.seed, self.batch_size, self.held_out, self.shuffle = n, seed, batch_size, held_out, shuffle

    def setup(self, stage: str | None = None) -> None:
        self.train = TensorDataset(*points(self.n, self.seed))
        self.held = TensorDataset(*points(self.held_out, self.seed + 10_000))

    def train_dataloader(self) -> DataLoader:
        size = self.batch_size or max(self.n, 1)
        return DataLoader(self.train, batch_size=size, shuffle=self.shuffle and self.n > size)

    def val_dataloader(self) -> DataLoader | list:
        return DataLoader(self.held, batch_size=64) if self.held_out else []

    test_dataloader = val_dataloader


class TrainOnly(L.LightningDataModule):
    """Nothing but training data."""

    def __init__(self, n: int, seed: int) -> None:
        super().__init__()
        self.data = TensorDataset(*points(n, seed))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.data, batch_size=len(self.data))


class Central(L.LightningDataModule):
    """A federated data module: the union of its clients is the server's data."""

    def __init__(self, *clients: Table) -> None:
        super().__init__()
        self.clients = clients

    def client_datamodules(self) -> list[L.LightningDataModule]:
        return list(self.clients)

    def setup(self, stage: str | None = None) -> None:
        for client in self.clients:
            client.setup(stage)

    def union(self) -> TensorDataset:
        parts = [c.train.tensors for c in self.clients]
        return TensorDataset(*(torch.cat(t) for t in zip(*parts, strict=True)))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.union(), batch_size=100_000)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(TensorDataset(*points(16, 77)), batch_size=64)

    test_dataloader = val_dataloader


class Linear(L.LightningModule):
    """Least squares under plain SGD."""

    def __init__(self, lr: float = 0.05, features: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Linear(features, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch, batch_idx):
        loss = F.mse_loss(self(batch[0]), batch[1])
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.mse_loss(self(batch[0]), batch[1]))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", F.mse_loss(self(batch[0]), batch[1]))

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


class Deep(Linear):
    """Dropout, BatchNorm, Adam, a personal head and a memory of its own: everything that could make bits differ."""

    private_entries = ("head.*",)

    def __init__(self, lr: float = 0.05, features: int = 3) -> None:
        super().__init__(lr, features)
        self.net = nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))
        self.head = nn.Linear(4, 1)
        self.memory: dict[str, Tensor] = {}
        self.rounds: list[tuple[int, int]] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.net(x))

    def on_round_start(self, round: int, num_rounds: int) -> None:
        self.rounds.append((round, num_rounds))

    def on_train_end(self) -> None:
        before = self.memory.get("count", torch.zeros((), dtype=torch.int64))
        self.memory = {"count": before + 1, "previous": self.head.weight.detach().clone()}

    def training_step(self, batch, batch_idx):
        loss = F.mse_loss(self(batch[0]), batch[1])
        if "previous" in self.memory:  # pulls towards where this client's head was a round ago
            loss = loss + 0.1 * (self.head.weight - self.memory["previous"].to(self.device)).square().sum()
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def private_state(self) -> dict[str, Tensor]:
        return dict(self.memory)

    def load_private_state(self, state: dict[str, Tensor]) -> None:
        self.memory = {name: tensor.clone() for name, tensor in state.items()}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class Faulty(Linear):
    """Does something bad once a file says so: ``{"what": ..., "size": training samples of the client it happens to}``.

    ``what``: ``raise``, ``nan``, ``die`` (kill its process), ``hang``. With ``"once"`` the file is removed first.
    """

    def __init__(self, orders: str, lr: float = 0.05) -> None:
        super().__init__(lr)
        self.orders = orders

    def training_step(self, batch, batch_idx):
        path = Path(self.orders)
        order = json.loads(path.read_text()) if path.is_file() else {"size": None}
        if order["size"] in ("all", len(batch[0])):
            if order.get("once"):
                path.unlink()
            if order["what"] == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if order["what"] == "raise":
                raise RuntimeError("the site's disk is gone")
            if order["what"] == "hang":
                time.sleep(600)
            if order["what"] == "nan":
                return super().training_step(batch, batch_idx) * float("nan")
        return super().training_step(batch, batch_idx)


def clients(sizes=(10, 16, 24, 8), **options) -> list[Table]:
    """One table a client, of these sizes."""
    return [Table(n, seed=10 + i, **options) for i, n in enumerate(sizes)]


def federate(root, module=None, data=None, trainer=None, **federation):
    """Fit; returns the trainer. A class or function for ``module`` is called under a fixed seed."""
    torch.manual_seed(0)
    module = Linear if module is None else module
    module = module if isinstance(module, L.LightningModule) else module()
    federation = {"num_rounds": 2, "strategy": FedAvg(), "seed": 0, **federation}
    root = {"default_root_dir": str(root)}
    fed = FederatedTrainer(trainer={**CPU, "logger": False, **root, **(trainer or {})}, **federation)
    fed.module = module
    fed.fit(module, clients() if data is None else data)
    return fed


def without_times(results: dict) -> dict:
    """results.json without what depends on the machine and the moment, and on what sites call themselves."""
    return {k: v for k, v in results.items() if k not in ("seconds", "peak_rss_mb", "versions", "client_names")}


def checkpoint_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint folder, by file and name."""
    found = {}
    for path in sorted(folder.glob("*.pt")):
        content = torch.load(path, weights_only=True)
        found |= {f"{path.name}/{name}": tensor for name, tensor in content["tensors"].items()}
    return found


def assert_same_bits(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    """Same names, dtypes, shapes and bits."""
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype and torch.equal(tensor, second[name]), name


def last_checkpoint(run: Path) -> Path:
    """The newest checkpoint folder of a run."""
    return sorted((run / "checkpoints").glob("round_*"))[-1]


class OfSizes(Central):
    """For configs: a table of each size."""

    def __init__(self, sizes: list[int], batch_size: int | None = None) -> None:
        super().__init__(*clients(sizes, batch_size=batch_size))


class Bare(Linear):
    """Leaves the optimizer to the config, as modules for LightningCLI do; notes the rate of each step."""

    rates: list[float] = []
    configure_optimizers = L.LightningModule.configure_optimizers

    def training_step(self, batch, batch_idx):
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        return super().training_step(batch, batch_idx)


class Spy(InProcess):
    """Keeps every message as it crosses, with its direction."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[tuple[str, Message]] = []

    def exchange(self, requests: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        self.seen += [("down", r.cloned()) for r in requests]
        for reply in super().exchange(requests, timeout):
            self.seen.append(("up", reply.cloned()))
            yield reply
