r"""LitGraphModule: a module built from its data's schema (`SchemaModule`) whose local objective can be exchanged.

The one seam between data, model and algorithm. A training step is ``objective(module, batch)``; an objective sees the
weights as received (`on_train_start`, `snapshot`), the batch, and the *unreduced* per-sample loss (`SampleLosses`):

=====================  ======================================================================================
plain, focal           ``module.losses(module(batch), batch)``
FedProx, FED-PUB       ``module.named_parameters()`` against a ``snapshot(module)`` taken in ``on_train_start``
MOON                   ``module.embed(batch)`` of this, the received and the previous model
VAT                    ``module.perturbable(batch)``, ``module(batch, x=x + r)``, ``module.divergence(...)``
FLIT, FLIT+            losses and divergences under other weights: ``torch.func.functional_call`` or `frozen_copy`
=====================  ======================================================================================

Everything here runs unchanged under a stock ``lightning.Trainer``; only `on_round_start` is called by a federation.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, NamedTuple

import torch
from lightning.pytorch.cli import LightningCLI, LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torchmetrics import Metric

from lit_models.objectives.base import Objective
from lit_models.objectives.erm import ERM
from lit_models.schema_module import Schema, SchemaModule, without_parser

default_optimizer: OptimizerCallable = partial(torch.optim.Adam, lr=1e-2, weight_decay=5e-4, fused=True)
"""Adam with the node defaults; ``fused`` is the same update, 3 times faster on CPU. A ``functools.partial``, no lambda:
modules are pickled to worker processes."""


class SampleLosses(NamedTuple):
    """Unreduced losses of the S samples of one stage in one batch, T tasks each (T = 1 for node classification).

    Args:
        loss: Loss of each sample and task, shape ``(S, T)``. Must be finite with a finite gradient where ``mask`` is
            False too (put any valid label there before the loss), since ``0 * NaN`` is NaN.
        mask: True where a label exists, bool, shape ``(S, T)``.
        ids: Stable sample ids (global node id, molecule row), int64, shape ``(S,)``: the key of per-sample caches.
    """

    loss: Tensor
    mask: Tensor
    ids: Tensor


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    """Detached clones of all parameters by name (tied ones once), on the module's device.

    ``state_dict()`` returns live references that move with training: a proximal term against them is zero.
    """
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def inner_entries(name: str, part: nn.Module, kind: str) -> tuple[str, ...]:
    """The patterns of entries that a part of a module declares, by the module's names.

    Args:
        name: The part's name in the module.
        part: The part.
        kind: Which patterns: ``private_entries`` or ``head_entries``; none if the part declares none.
    """
    return tuple(f"{name}.{pattern}" for pattern in getattr(part, kind, ()))


def frozen_copy(module: nn.Module) -> nn.Module:
    """A deep copy in eval mode that needs no gradient: a reference model (FLIT's and MOON's global model)."""
    return copy.deepcopy(module).requires_grad_(False).eval()


class LitGraphModule(SchemaModule):
    r"""A module with an objective. Subclasses implement `build_layers`, `forward`, `losses` and, if scored, `make_scores`.

    Args:
        objective: What a training step minimises. Default: `ERM`, the mean loss.
        optimizer: Callable ``parameters -> Optimizer``; in YAML
            ``{class_path: torch.optim.Adam, init_args: {lr: 0.01}}``.
        lr_scheduler: Callable ``optimizer -> scheduler``, stepped once an epoch; in YAML
            ``{class_path: torch.optim.lr_scheduler.CosineAnnealingLR, init_args: {T_max: 100}}``, or
            ``lightning.pytorch.cli.ReduceLROnPlateau`` with a ``monitor``. Default: none, the rate stays.

    Attributes:
        monitor: Name of the metric that chooses the best round; logged as ``val/<monitor>`` and ``test/<monitor>``.
        monitor_mode: ``"max"`` or ``"min"``; ``None`` leaves it to the metric's name (less of a loss or an error is better).
        private_entries: fnmatch patterns over ``state_dict`` names that never leave the client.
        head_entries: The same for the last layer: what `FedPer` and `FedRep` keep at each client.
        schema: What the layers were built from; ``None`` before `build`.
    """

    monitor: str = "loss"
    monitor_mode: str | None = None
    private_entries: tuple[str, ...] = ()
    head_entries: tuple[str, ...] = ()
    default_optimizer = staticmethod(default_optimizer)

    def __init__(
        self,
        objective: Objective | None = None,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__(type(self).default_optimizer if optimizer is None else optimizer)
        self.objective = ERM() if objective is None else objective
        self.lr_scheduler = without_parser(lr_scheduler)

    # ---- building -------------------------------------------------------------------------------------------------

    def build(self, schema: Schema) -> None:
        is_new = self.schema is None
        super().build(schema)
        if is_new:
            self.val_scores = self.make_scores()
            self.test_scores = self.make_scores()

    def make_scores(self) -> Metric | None:
        """A torchmetrics ``Metric`` whose ``compute()`` is a dict with only the metrics that are defined, or None."""
        return None

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = None if self.lr_scheduler is None else self.lr_scheduler(optimizer)
        return LightningCLI.configure_optimizers(self, optimizer, scheduler)

    # ---- what an objective may use --------------------------------------------------------------------------------

    def forward(self, batch: Any, **replaced_inputs: Tensor) -> Tensor:
        """Outputs of a batch: logits ``(N, C)`` or predictions ``(B, T)``.

        Args:
            batch: A PyG ``Data`` or ``Batch``.
            replaced_inputs: Inputs to use instead of the batch's own, by name (those of `perturbable`).
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `forward(batch, **replaced_inputs)`.")

    def embed(self, batch: Any) -> Tensor:
        """Representation before the last layer, shape ``(N or B, H)``."""
        raise NotImplementedError(f"{type(self).__name__} must implement `embed(batch)`.")

    def losses(self, outputs: Tensor, batch: Any, stage: str = "train") -> SampleLosses:
        """Unreduced losses of the samples that belong to ``stage`` ("train", "val" or "test") in this batch."""
        raise NotImplementedError(f"{type(self).__name__} must implement `losses(outputs, batch, stage)`.")

    def perturbable(self, batch: Any) -> dict[str, Tensor]:
        """Continuous inputs that virtual adversarial training may disturb, by the name `forward` takes them."""
        raise NotImplementedError(f"{type(self).__name__} must implement `perturbable(batch)` to be used with VAT.")

    def divergence(self, outputs: Tensor, reference: Tensor, batch: Any) -> Tensor:
        """Distance of ``outputs`` from ``reference`` per training sample, shape ``(S, T)``, aligned with `losses`."""
        raise NotImplementedError(f"{type(self).__name__} must implement `divergence(outputs, reference, batch)`.")

    # ---- training -------------------------------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.objective(self, batch)
        self.observe({"loss": loss})
        return loss

    def on_train_start(self) -> None:
        super().on_train_start()
        self.objective.on_train_start(self)

    def on_train_end(self) -> None:
        self.objective.on_train_end(self)

    def on_round_start(self, round: int, num_rounds: int) -> None:
        """Called by a federation before each local fit (rounds count from 0); a stock Trainer never calls it."""
        self.objective.on_round_start(self, round, num_rounds)

    def pictures(self) -> dict[str, list[int]]:
        """The objective's histograms of the last local fit; a federation sends them along with the metrics."""
        return self.objective.pictures()

    def untrained_rows(self) -> dict[str, Tensor]:
        """Rows of entries that the last local fit had nothing to learn from (outputs of a task without labels, say).

        A federation gives this client no weight in them: they are averaged over the clients that have trained them.

        Returns:
            By ``state_dict`` name a bool tensor ``(rows,)``, true where the row of the entry's first dimension is untrained.
        """
        return {}

    def private_state(self) -> dict[str, Tensor]:
        """What the objective remembers between rounds; never leaves the client."""
        return self.objective.state()

    def load_private_state(self, state: dict[str, Tensor]) -> None:
        self.objective.load_state(state)

    # ---- evaluation -----------------------------------------------------------------------------------------------

    def update_scores(self, scores: Metric, batch: Any, stage: str) -> None:
        """Add one evaluation batch to ``scores``."""
        raise NotImplementedError(f"{type(self).__name__} must implement `update_scores(scores, batch, stage)`.")

    def log_scores(self, scores: Metric, stage: str) -> None:
        """Log ``<stage>/<metric>`` for every metric that is defined (over all batches and, under DDP, all ranks)."""
        values = {f"{stage}/{name}": value for name, value in scores.compute().items()}
        if values:
            self.log_values(values)

    def on_validation_epoch_start(self) -> None:
        if self.val_scores is not None:
            self.val_scores.reset()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.val_scores is not None:
            self.update_scores(self.val_scores, batch, "val")

    def on_validation_epoch_end(self) -> None:
        if self.val_scores is not None:
            self.log_scores(self.val_scores, "val")

    def on_test_epoch_start(self) -> None:
        if self.test_scores is not None:
            self.test_scores.reset()

    def test_step(self, batch: Any, batch_idx: int) -> None:
        if self.test_scores is not None:
            self.update_scores(self.test_scores, batch, "test")

    def on_test_epoch_end(self) -> None:
        if self.test_scores is not None:
            self.log_scores(self.test_scores, "test")
