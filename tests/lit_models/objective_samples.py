"""Modules whose losses are known by hand, their data, and a way to look at the first step of a stock Trainer."""

from __future__ import annotations

import copy

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

from lit_models.base import LitGraphModule, SampleLosses
from lit_models.objectives import ERM

NAN = float("nan")


def make_trainer(**arguments) -> pl.Trainer:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return pl.Trainer(**{"accelerator": "cpu", **quiet, **arguments})


class Batch:
    """Rows ``x`` (B, F), labels ``y`` (B, T) with NaN where missing, ids (B,)."""

    def __init__(self, x, y, sample_id):
        self.x, self.y, self.sample_id = x, y, sample_id

    def to(self, device):
        return self


class Rows(pl.LightningDataModule):
    """Shuffled batches of rows; ids start at 100 and are not in order."""

    def __init__(self, x, y, batch_size=2, shuffle=True, drop_last=False):
        super().__init__()
        self.x, self.y = torch.as_tensor(x), torch.as_tensor(y)
        self.ids = 100 + (torch.arange(len(self.x)) * 7) % 11
        self.schema = {"in": self.x.size(1), "out": self.y.size(1)}
        rows = range(len(self.x))
        self.loader = DataLoader(rows, batch_size, shuffle=shuffle, drop_last=drop_last, collate_fn=self.batch)

    def batch(self, rows=None):
        rows = torch.arange(len(self.x)) if rows is None else torch.as_tensor(rows)
        return Batch(self.x[rows], self.y[rows], self.ids[rows])

    def train_dataloader(self):
        return self.loader


class Linear(LitGraphModule):
    """``F(x) = W x`` (no bias), squared error; a row's embedding is ``x * scale``, dropout on request."""

    def __init__(self, objective=None, weight=None, dropout=0.0, norm=False, lr=0.1):
        super().__init__(objective, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr))
        self.start, self.dropout, self.norm = weight, nn.Dropout(dropout), norm

    def build_layers(self, schema):
        self.layer = nn.Linear(schema["in"], schema["out"], bias=False)
        if self.start is not None:
            self.layer.weight.data.copy_(torch.tensor(self.start))
        self.bn = nn.BatchNorm1d(schema["in"]) if self.norm else nn.Identity()

    def embed(self, batch):
        return self.dropout(self.bn(batch.x)) * self.layer.weight.sum(0)

    def forward(self, batch, x=None):
        return self.layer(self.dropout(self.bn(batch.x if x is None else x)))

    def losses(self, outputs, batch, stage="train"):
        mask = batch.y.isfinite()
        return SampleLosses((outputs - torch.where(mask, batch.y, 0.0)).square(), mask, batch.sample_id)

    def perturbable(self, batch):
        return {"x": batch.x}

    def divergence(self, outputs, reference, batch):
        return (outputs - reference).square()


class Levels(LitGraphModule):
    """The loss of sample k (ids 0, 1, ...) is a row of the parameter ``levels``; its output, too."""

    def __init__(self, objective, levels, deltas):
        super().__init__(objective, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))
        self.schema, self.val_scores, self.test_scores = {}, None, None
        self.levels, self.deltas = nn.Parameter(levels.clone()), nn.Parameter(deltas.clone())

    def forward(self, batch):
        return self.levels[batch.sample_id]

    def losses(self, outputs, batch, stage="train"):
        return SampleLosses(outputs, batch.y.isfinite(), batch.sample_id)


class Recording(ERM):
    """Writes down when a fit begins and ends."""

    calls: tuple[str, ...] = ()

    def on_train_start(self, module):
        self.calls = (*self.calls, "start")

    def on_train_end(self, module):
        self.calls = (*self.calls, "end")


class KnownDelta:
    """In the place of VAT: the discrepancies are the module's parameter ``deltas``."""

    def begin(self, purpose="training"):
        pass

    end = begin

    def __call__(self, module, batch, outputs, mask, replay=None):
        return module.deltas[batch.sample_id]


def value_at(objective, levels, received=None, deltas=None, received_deltas=None, missing=(), logged=None):
    """An objective's value, its gradients and its moving average, where losses and discrepancies are given numbers.

    Args:
        levels: Losses of the model in training: one a sample, or a list of T a sample.
        received: Those of the model as received; the same by default.
        deltas, received_deltas: Discrepancies, zero by default.
        missing: (sample, task) pairs without a label.
        logged: A dict that receives what is logged in that step.
    """
    levels = torch.tensor(levels).view(len(levels), -1)
    deltas = torch.zeros_like(levels) if deltas is None else torch.tensor(deltas).view_as(levels)
    if hasattr(objective, "vat"):
        objective.vat = KnownDelta()
    module = Levels(objective,
                    levels if received is None else torch.tensor(received).view_as(levels),
                    deltas if received_deltas is None else torch.tensor(received_deltas).view_as(levels))  # fmt: skip

    if logged is not None:
        module.log_values = logged.update

    def step(batch):
        module.levels.data.copy_(levels)
        module.deltas.data.copy_(deltas)
        loss, gradient = loss_and_gradient(module, batch)
        return loss, gradient, getattr(objective, "average", None)

    return in_first_step(module, LevelData(*levels.shape, missing), step)


class LevelData(pl.LightningDataModule):
    """All samples in one batch; ``missing``: (sample, task) pairs without a label."""

    def __init__(self, samples, tasks=1, missing=()):
        super().__init__()
        y = torch.zeros(samples, tasks)
        for pair in missing:
            y[pair] = NAN
        self.whole = Batch(torch.zeros(samples, 1), y, torch.arange(samples))

    def train_dataloader(self):
        return DataLoader([self.whole], batch_size=None, collate_fn=lambda batch: batch)


def in_first_step(module, data, what, **trainer):
    """What ``what(batch)`` returns in the first training step of a stock Trainer, in place of that step."""
    seen = []

    def step(batch, batch_idx):
        seen.append(what(batch))
        return 0.0 * sum(parameter.sum() for parameter in module.parameters())

    module.training_step = step
    make_trainer(**{"max_steps": 1, **trainer}).fit(module, data)
    del module.training_step
    return seen[0]


def loss_and_gradient(module, batch):
    """The objective's value and the gradients of all parameters, which are left without."""
    module.zero_grad()
    loss = module.objective(module, batch)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad()
    return loss.detach(), gradients


def trained(module, data, seed=0, **trainer):
    """The weights and the random number after it, of a copy fitted by a stock Trainer under a seed."""
    module = copy.deepcopy(module)
    torch.manual_seed(seed)
    make_trainer(**{"max_epochs": 3, **trainer}).fit(module, data)
    return {**{n: v.clone() for n, v in module.state_dict().items()}, "next random number": torch.rand(1)}


def with_objective(module, objective):
    """A copy with the same weights and another objective."""
    module = copy.deepcopy(module)
    module.objective = objective
    return module


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def rows_data(number=9, tasks=2, missing=True, seed=0, features=4, **options):
    """Random rows; about a quarter of the labels are missing, all of the last row's."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(number, features, generator=generator), torch.randn(number, tasks, generator=generator)
    if missing:
        y[torch.rand(y.shape, generator=generator) < 0.25] = NAN
        y[-1] = NAN
    return Rows(x, y, **{"batch_size": 4, **options})
