"""One ``lightning.Trainer`` for many short runs, which does once what cannot differ from run to run.

The first ``fit``, ``validate`` and ``test`` are stock. Later ones, on one CPU device, leave out of ``Trainer._run``
(Lightning 2.6) what has no effect there: verifying the same module's hooks again, installing signal handlers, moving the
module to the device it is on and back, and asking for a checkpoint to load; the loops are gone through in the short way
of ``short_runs`` if nobody hooks in. Weights, metrics and random numbers are the same bits.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, OnExceptionCheckpoint
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus

from fl_lightning.engine.clock import Clock, Limits
from fl_lightning.engine.lightning_fast.short_runs import ShortRuns
from fl_lightning.engine.trainers import Trainers, limits_of


class NoProfiler(PassThroughProfiler):
    """Lightning's default, which measures nothing, without a generator for each of the 50 hooks of a run."""

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]  # wider: any context manager
        return _nothing


_nothing = nullcontext()


class ReusedTrainer(L.Trainer):
    """See the top of this file; arguments as for ``lightning.Trainer``."""

    callbacks: list[Callback]  # set by Lightning's connectors, unseen by a type checker
    profiler: Any

    def __init__(self, *args: Any, profiler: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, profiler=NoProfiler() if profiler is None else profiler, **kwargs)
        self.short_runs = ShortRuns(self)
        self._verified: set[tuple[int, TrainerFn | None]] = set()
        self._lightnings_choice = self._checkpoint_connector._select_ckpt_path
        self._checkpoint_connector._select_ckpt_path = self._select_checkpoint  # type: ignore[assignment, method-assign]
        self._can_be_short = (
            type(self.strategy) is SingleDeviceStrategy
            and self.strategy.root_device == torch.device("cpu")
            and isinstance(self.profiler, PassThroughProfiler)
        )

    def _select_checkpoint(self, state_fn: TrainerFn, ckpt_path: Any, **kwargs: Any) -> Any:
        """Lightning's answer, asked for once a kind of run: it searches the ``PATH`` for a cluster's programs each time."""
        asked = (id(self.strategy.lightning_module), state_fn) in self._verified
        if asked and ckpt_path is None and not any(isinstance(c, OnExceptionCheckpoint) for c in self.callbacks):
            return None
        return self._lightnings_choice(state_fn, ckpt_path, **kwargs)

    def _run(self, model: L.LightningModule, ckpt_path: Any = None, weights_only: bool | None = None) -> Any:
        run = (id(model), self.state.fn)
        if not (self._can_be_short and run in self._verified and ckpt_path is None):
            result = super()._run(model, ckpt_path, weights_only)
            if ckpt_path is None:
                self._verified.add(run)
            return result
        is_fit = self.state.fn == TrainerFn.FITTING
        self.strategy.connect(model)
        self._callback_connector._attach_model_callbacks()
        self._callback_connector._attach_model_logging_functions()
        call._call_setup_hook(self)
        self._logger_connector.reset_results()
        self._logger_connector.reset_metrics()
        if is_fit:
            self.strategy.setup_optimizers(self)
        self.strategy.setup_precision_plugin()
        if is_fit:
            call._call_callback_hooks(self, "on_fit_start")
            call._call_lightning_module_hook(self, "on_fit_start")
        result = self._short_stage() if self.state.fn != TrainerFn.PREDICTING else self._run_stage()
        self._active_loop.teardown()  # type: ignore[union-attr]  # one is active during a run
        self._logger_connector.teardown()
        if is_fit:
            call._call_callback_hooks(self, "on_fit_end")
            call._call_lightning_module_hook(self, "on_fit_end")
        call._call_teardown_hook(self)
        self.state.status = TrainerStatus.FINISHED
        self.state.stage = None
        return result

    def _short_stage(self) -> Any:
        if self.state.fn == TrainerFn.FITTING:
            if self.short_runs.fit():
                return None
        else:
            result = self.short_runs.evaluate()
            if result is not None:
                return result
        result = self._run_stage()
        self.short_runs.remember()
        return result


class OneTrainer(Trainers):
    """One :class:`ReusedTrainer` for all runs. Only its loops and their counters are new in each, and the copies of the user's
    callbacks."""

    short_logging = True

    def __init__(
        self, args: Mapping[str, Any], callbacks: Sequence[Callback], shared: Sequence[Callback], clock: Clock
    ) -> None:
        super().__init__(args, callbacks, shared, clock)
        self._limits: Limits  # as the Trainer was made with them, like the next four
        self._accumulate: int
        self._limit_val_batches: int | float
        self._distributed_sampler: bool
        self._own_callbacks: list[Callback]
        self._scaler: dict[str, Any] | None = None

    def take(self, training: bool) -> L.Trainer:
        trainer: Any = self.reference
        self._clock.give_loops(trainer, self._limits)
        trainer.should_stop = False
        trainer.accumulate_grad_batches = self._accumulate  # a GradientAccumulationScheduler has changed it
        trainer.limit_val_batches = 0 if training else self._limit_val_batches
        trainer._accelerator_connector.use_distributed_sampler = training and self._distributed_sampler
        callbacks = self._shared + copy.deepcopy(self._callbacks) + self._own_callbacks
        trainer.callbacks = trainer._callback_connector._reorder_callbacks(callbacks)
        if self._scaler is not None:  # the loss scale of float16 starts anew, too
            trainer.precision_plugin.scaler.load_state_dict(self._scaler)
        return self.reference

    def drop(self) -> None:
        self._reference = None

    def forget(self, datamodule: L.LightningDataModule) -> None:
        if self._reference is not None:
            trainer: Any = self._reference
            trainer.short_runs.forget(datamodule)
            if trainer.datamodule is datamodule:
                trainer.datamodule = None

    def _build(self, args: Mapping[str, Any]) -> L.Trainer:
        trainer: Any = ReusedTrainer(callbacks=self._shared, **args)
        self._limit_val_batches = trainer.limit_val_batches
        self._distributed_sampler = trainer._accelerator_connector.use_distributed_sampler
        self._own_callbacks = [callback for callback in trainer.callbacks if callback not in self._shared]
        self._limits, self._accumulate = limits_of(trainer), trainer.accumulate_grad_batches
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._scaler = None if scaler is None else scaler.state_dict()
        made: L.Trainer = trainer
        return made
