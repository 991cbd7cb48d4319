r"""LitGraphModule: a LightningModule whose local objective can be exchanged, built from its data's schema.

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
import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI, LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.core.mixins import hparams_mixin
from torch import Tensor, nn
from torchmetrics import Metric

from lit_models.epoch_means import EpochMeans
from lit_models.objectives.base import Objective
from lit_models.objectives.erm import ERM

Schema = Mapping[str, Any]
NAMES = ("feature_names", "class_names", "task_names", "units")  # of a schema: what the places of inputs and outputs mean

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


def frozen_copy(module: nn.Module) -> nn.Module:
    """A deep copy in eval mode that needs no gradient: a reference model (FLIT's and MOON's global model)."""
    return copy.deepcopy(module).requires_grad_(False).eval()


def _without_parser(make: Any) -> Any:
    """The same callable, without the command line's parser that LightningCLI ties to it.

    jsonargparse gives ``partial(helper, instantiator, torch.optim.Adam, lr=...)`` for an optimiser, and the like for a
    scheduler; its instantiator would go along with every copy of a module, and to worker processes.
    """
    if isinstance(make, partial) and make.args and isinstance(make.args[-1], type):
        return partial(make.args[-1], **make.keywords)
    return make


class LitGraphModule(LightningModule):
    r"""Base of all our modules. Subclasses implement `build_layers`, `forward`, `losses` and, if scored, `make_scores`.

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
        schema: What the layers were built from; ``None`` before `build`.
    """

    monitor: str = "loss"
    monitor_mode: str | None = None
    private_entries: tuple[str, ...] = ()
    default_optimizer = staticmethod(default_optimizer)

    def __init__(
        self,
        objective: Objective | None = None,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__()
        # Set while LightningCLI makes a module, whose arguments are then known as plain values, safe in a checkpoint.
        given_by_cli = getattr(hparams_mixin, "_given_hyperparameters", None)
        if given_by_cli is not None and given_by_cli.get() is not None:
            self.save_hyperparameters(logger=False)
        self.objective = ERM() if objective is None else objective
        self.optimizer = type(self).default_optimizer if optimizer is None else _without_parser(optimizer)
        self.lr_scheduler = _without_parser(lr_scheduler)
        self.schema: dict[str, Any] | None = None
        self._means = EpochMeans()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_current_fx_name":  # set twice a hook by Lightning; nn.Module would search its parameters for it
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    # ---- building -------------------------------------------------------------------------------------------------

    def build(self, schema: Schema) -> None:
        """Create the layers for data of this schema, with initial weights from torch's global RNG.

        Idempotent: a second call with the same schema does nothing.

        Raises:
            ValueError: The module was already built for another schema.
        """
        schema = dict(schema)
        if self.schema is not None:
            if any(self.schema[key] != schema[key] for key in self.schema.keys() & schema.keys()):
                raise ValueError(
                    f"{type(self).__name__} was built for data with {self.schema} and cannot be used with data with "
                    f"{schema}. Build a new module for the new data."
                )
            return
        self.build_layers(schema)
        self.val_scores = self.make_scores()
        self.test_scores = self.make_scores()
        self.schema = schema

    def build_layers(self, schema: dict[str, Any]) -> None:
        """Create parameters from the schema; called once, by `build`."""
        raise NotImplementedError(f"{type(self).__name__} must implement `build_layers(schema)`.")

    def make_scores(self) -> Metric | None:
        """A torchmetrics ``Metric`` whose ``compute()`` is a dict with only the metrics that are defined, or None."""
        return None

    def setup(self, stage: str) -> None:
        datamodule = getattr(self.trainer, "datamodule", None)
        schema = getattr(datamodule, "schema", None)
        if self.schema is not None:
            self._check_names(self.schema, schema or {})
            return
        if schema is None:
            raise ValueError(
                f"{type(self).__name__} builds its layers from the data's schema, but "
                f"`data: {type(datamodule).__name__ if datamodule is not None else None}` has no attribute `schema`. "
                'Give the data module one (e.g. {"num_features": 1433, "num_classes": 7}) '
                "or call `module.build(schema)` first."
            )
        self.build(schema)

    def _check_names(self, learnt: Schema, found: Schema) -> None:
        """Data of the right shape may mean something else: the module of a checkpoint meets whatever it is given."""
        for key in NAMES:
            own, other = learnt.get(key), found.get(key)
            if own is None or other is None or list(own) == list(other):
                continue
            pairs = enumerate(itertools.zip_longest(own, other))
            place, (mine, theirs) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
            raise ValueError(
                f"{type(self).__name__} learnt with other {key} than these data have: number {place + 1} is {mine!r} there and "
                f"{theirs!r} here (of {len(own)} and {len(other)}). Give the data the same names in the same order, or train a "
                "new model."
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["schema"] = self.schema

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if checkpoint.get("schema") is not None:
            self.build(checkpoint["schema"])

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self.parameters())
        scheduler = None if self.lr_scheduler is None else self.lr_scheduler(optimizer)
        return LightningCLI.configure_optimizers(self, optimizer, scheduler)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        # PyG moves a graph in place: moved during validation it would hold inference tensors that training cannot use.
        with torch.inference_mode(False):
            return super().transfer_batch_to_device(batch, device, dataloader_idx)

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

    def observe(self, values: Mapping[str, Tensor], mask: Tensor | None = None) -> None:
        """Log the mean of ``values`` over all batches of the epoch, as ``train/<name>``; call it in every batch.

        Args:
            values: Scalars (each batch weighs the same) or a value for each sample (each weighs the same), by name.
            mask: Bool, of the values' shape: the entries that count, e.g. those with a label. If none does in the whole
                epoch, nothing is logged.
        """
        if self._trainer is not None:  # else nobody asks for the means, and they would pile up
            self._means.add(values, mask)

    # ---- training -------------------------------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.objective(self, batch)
        self.observe({"loss": loss})
        return loss

    def on_train_epoch_end(self) -> None:
        # Once an epoch, not once a step: a call of `self.log` costs as much as a small optimiser step.
        means = self._means.pop()
        if means:
            self.log_values({f"train/{name}": mean for name, mean in means.items()})

    def on_train_start(self) -> None:
        self._means = EpochMeans()
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

    def log_values(self, values: dict[str, Tensor]) -> None:
        """Log values of an epoch, by full name. Everything that we log comes through here.

        Lightning's bookkeeping costs about 0.3 ms a name and epoch, so a caller that runs many small fits may put a
        cheaper sink in its place for their duration (``module.log_values = sink``, then ``del``).
        """
        self.log_dict(values, on_step=False, on_epoch=True, batch_size=1, sync_dist=self.trainer.world_size > 1)

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
