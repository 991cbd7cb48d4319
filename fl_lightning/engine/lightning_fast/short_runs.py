"""Fit and evaluate as Lightning's loops do (2.6), but shorter where no hook is called: for many runs of few small batches.

A stock batch calls some forty hooks, most of them empty, which costs more than the step of a small model. Here it is asked
once a run who has an own version of a hook around a batch. If nobody has, what remains is done in Lightning's order, with
its counters and its logging, so that weights, metrics and random numbers are the same bits; if anybody has (a callback, the
module, a scheduler, a sampler, another precision, validation within the fit), the stock loops run. Hooks around an epoch
and a run are called in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loops.optimization.automatic import Closure, ClosureResult
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.utils.data import DataLoader

# The hooks around a batch, which are not called here.
FIT_HOOKS = (
    "on_train_batch_start", "on_train_batch_end", "on_before_zero_grad", "optimizer_zero_grad", "on_before_backward",
    "backward", "on_after_backward", "on_before_optimizer_step", "configure_gradient_clipping", "optimizer_step",
)  # fmt: skip
EVALUATION_HOOKS = (
    "on_validation_batch_start", "on_validation_batch_end", "on_test_batch_start", "on_test_batch_end",
)  # fmt: skip


class _Known(NamedTuple):
    loader: DataLoader[Any]
    combined: CombinedLoader
    num_batches: int


class ShortRuns:
    """The short way of a trainer on one CPU, for loaders that it has already used in a stock run.

    Args:
        trainer: Whose loops, counters and logging are used.
    """

    def __init__(self, trainer: L.Trainer) -> None:
        self._trainer: Any = trainer  # whose connectors set most attributes, unseen by a type checker
        self._known: dict[tuple[int, str], _Known] = {}
        self._asked: dict[str, tuple[Any, bool]] = {}

    # ---- loaders ------------------------------------------------------------------------------------------------------

    def remember(self) -> None:
        """After a stock run: keep the loader that Lightning checked, if it is a plain one that the data module will
        give again (``built(stage)``) and that Lightning did not replace."""
        trainer = self._trainer
        loop, stage = trainer._active_loop, trainer.state.stage.dataloader_prefix
        datamodule, combined = trainer.datamodule, getattr(loop, "_combined_loader", None)
        loader = datamodule.built(stage) if hasattr(datamodule, "built") else None
        if combined is None or not isinstance(loader, DataLoader) or loader is not combined.iterables:
            return
        num_batches = combined.limits[0] if combined.limits else len(loader)
        samplers = (loader.sampler, loader.batch_sampler)
        if loader.num_workers == 0 and 0 < num_batches < float("inf") and not any(hasattr(s, "set_epoch") for s in samplers):
            self._known[id(datamodule), stage] = _Known(loader, combined, int(num_batches))

    def forget(self, datamodule: L.LightningDataModule) -> None:
        """Its loaders will not come again."""
        self._known = {key: known for key, known in self._known.items() if key[0] != id(datamodule)}

    def _find(self, stage: str) -> _Known | None:
        datamodule = self._trainer.datamodule
        known = self._known.get((id(datamodule), stage))
        if known is None or getattr(datamodule, f"{stage}_dataloader")() is not known.loader:
            return None
        return known

    # ---- fit ----------------------------------------------------------------------------------------------------------

    def fit(self) -> bool:
        """Do what ``fit_loop.run()`` would do; ``False``, and nothing done, if somebody would notice the difference."""
        trainer, module = self._trainer, self._trainer.lightning_module
        if not (
            type(trainer.precision_plugin) is Precision
            and module.automatic_optimization
            and not trainer.lr_scheduler_configs
            and trainer.accumulate_grad_batches == 1
            and not trainer.reload_dataloaders_every_n_epochs
            and not trainer.enable_validation
            and not trainer._detect_anomaly
            and _has_none(FIT_HOOKS, module, trainer.callbacks)
        ):
            return False
        loop, epochs = trainer.fit_loop, trainer.fit_loop.epoch_loop
        known = self._find("train")
        if known is None or loop.done or loop._combined_loader is not None:  # `configure_optimizers` has asked for its length
            return False
        loop._combined_loader, loop.max_batches = known.combined, known.num_batches
        iterator = iter(known.loader)  # draws its seed before the hooks, as in a stock run
        torch.set_grad_enabled(True)
        module.zero_grad()
        call._call_callback_hooks(trainer, "on_train_start")
        call._call_lightning_module_hook(trainer, "on_train_start")
        takes_index, first = self._takes_index("training_step"), True
        epoch_starts, epoch_ends = (not _has_none([f"on_train_epoch_{at}"], None, trainer.callbacks) for at in ("start", "end"))
        while not loop.done:
            loop.epoch_progress.increment_ready()
            if epoch_starts:
                call._call_callback_hooks(trainer, "on_train_epoch_start")
            call._call_lightning_module_hook(trainer, "on_train_epoch_start")
            loop.epoch_progress.increment_started()
            epochs.reset()
            if not first:
                iterator = iter(known.loader)
            first = False
            while not epochs.done:
                batch = self._next(iterator, epochs.batch_progress, known.num_batches)
                index = epochs.batch_idx
                self._step(module, trainer.optimizers[0], (batch, index) if takes_index else (batch,))
                self._count(epochs)
                if epochs._results:
                    trainer._logger_connector.update_train_step_metrics()
                epochs._batches_that_stepped += 1
                epochs._save_loggers_on_train_batch_end()
                if not epochs._is_training_done and trainer.received_sigterm:
                    raise SIGTERMException
            self._end_epoch(epoch_ends)
        loop.on_run_end()
        return True

    def _end_epoch(self, callbacks_look: bool) -> None:
        trainer, loop = self._trainer, self._trainer.fit_loop
        if callbacks_look:
            loop.on_advance_end()
            return
        trainer._logger_connector.epoch_end_reached()
        loop.epoch_progress.increment_processed()
        call._call_lightning_module_hook(trainer, "on_train_epoch_end")
        if loop.epoch_loop._results:  # the hook has logged something
            trainer._logger_connector.on_epoch_end()
            loop.epoch_loop._batches_that_stepped -= 1  # as in `on_advance_end`: loggers get the last batch's number
            trainer._logger_connector.update_train_epoch_metrics()
            loop.epoch_loop._batches_that_stepped += 1
        loop.epoch_progress.increment_completed()
        if trainer.received_sigterm:
            raise SIGTERMException

    def _step(self, module: L.LightningModule, optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...]) -> None:
        """One optimiser step; the gradients are set to zero between forward and backward, as Lightning does."""
        trainer, counted = self._trainer, self._trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer

        def closure() -> Tensor | None:
            with torch.enable_grad():
                module._current_fx_name = "training_step"
                output = module.training_step(*arguments)
                module._current_fx_name = None
                loss = output if isinstance(output, Tensor) else ClosureResult.from_training_step_output(output).closure_loss
                if loss is None:
                    Closure.warning_cache.warn("`training_step` returned `None`, so the weights were left as they are.")
                counted.zero_grad.increment_ready()
                counted.zero_grad.increment_started()
                optimizer.zero_grad()
                counted.zero_grad.increment_completed()
                if loss is not None:
                    loss.backward()
            if trainer.gradient_clip_val is not None:
                clip = (trainer.gradient_clip_val, trainer.gradient_clip_algorithm)
                trainer.precision_plugin._clip_gradients(module, optimizer, *clip)
            return None if loss is None else loss.detach()

        counted.step.increment_ready()
        optimizer.step(closure)  # type: ignore[arg-type]  # Lightning's closures may give None, too
        counted.step.increment_completed()

    # ---- evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(self) -> list[Any] | None:
        """What the validation or test loop's ``run()`` would give; ``None``, and nothing done, as in :meth:`fit`."""
        trainer, module = self._trainer, self._trainer.lightning_module
        loop, stage = trainer._evaluation_loop, trainer.state.stage.dataloader_prefix
        if (
            loop.inference_mode
            or type(trainer.precision_plugin) is not Precision
            or not _has_none(EVALUATION_HOOKS, module, trainer.callbacks)
        ):
            return None
        known = self._find(stage)
        if known is None:
            return None
        loop._combined_loader, loop._max_batches = known.combined, [known.num_batches]
        module.zero_grad()
        step = "test_step" if trainer.testing else "validation_step"
        arguments = 2 if self._takes_index(step) else 1
        with torch.no_grad():
            loop._logged_outputs = []
            loop.batch_progress.reset_on_run()
            iterator = iter(known.loader)
            loop._on_evaluation_model_eval()
            loop._on_evaluation_start()
            loop._on_evaluation_epoch_start()
            for index in range(known.num_batches):
                batch = self._next(iterator, loop.batch_progress, known.num_batches)
                call._call_strategy_hook(trainer, step, *(batch, index)[:arguments])
                self._count(loop)
                if loop._results:
                    trainer._logger_connector.update_eval_step_metrics(index)
                if not loop.batch_progress.is_last_batch and trainer.received_sigterm:
                    raise SIGTERMException
            loop._store_dataloader_outputs()
            outputs: list[Any] = loop.on_run_end()
        return outputs

    # ---- a batch ------------------------------------------------------------------------------------------------------

    def _takes_index(self, name: str) -> bool:
        """Whether a step of the module takes the batch's number, too; Lightning reads its signature in each run."""
        step = getattr(self._trainer.lightning_module, name)
        function = getattr(step, "__func__", step)
        if self._asked.get(name, (None, False))[0] is not function:
            self._asked[name] = (function, is_param_in_hook_signature(step, "batch_idx", min_args=2))
        return self._asked[name][1]

    def _next(self, iterator: Any, progress: Any, num_batches: int) -> Any:
        """Fetch, move and count a batch."""
        trainer = self._trainer
        batch = next(iterator)
        progress.is_last_batch = progress.current.ready + 1 == num_batches
        batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)
        progress.increment_ready()
        trainer._logger_connector.on_batch_start(batch)
        progress.increment_started()
        return batch

    def _count(self, loop: Any) -> None:
        loop.batch_progress.increment_processed()
        if loop._results:  # something was logged
            self._trainer._logger_connector.on_batch_end()
        else:
            loop._results.batch = loop._results.batch_size = None
        loop.batch_progress.increment_completed()


def _has_none(hooks: Sequence[str], module: L.LightningModule | None, callbacks: Sequence[Callback]) -> bool:
    """Whether neither the module nor a callback has an own version of one of ``hooks``."""
    parts: list[tuple[Any, type]] = [(callback, Callback) for callback in callbacks]
    for part, base in parts if module is None else [(module, L.LightningModule), *parts]:
        own = vars(part)
        if any(h in own or getattr(type(part), h, None) is not getattr(base, h, None) for h in hooks):
            return False
    return True
