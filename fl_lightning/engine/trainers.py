"""Where a client's next run gets its ``lightning.Trainer``: a new stock one each time, by public means alone.

`lightning_fast` has a faster way with the same bits: one Trainer for all runs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers.logger import DummyLogger

from fl_lightning.engine.clock import Clock, Limits

BOUND = ("strategy", "plugins")
"""Arguments whose objects belong to the Trainer that they were given to, and keep state (a loss scale) from run to run."""


class Trainers:
    """A new ``lightning.Trainer`` for each run.

    Args:
        args: Arguments of ``lightning.Trainer``, without callbacks.
        callbacks: The user's: each run has copies.
        shared: Callbacks that all runs share; they come first.
        clock: Gives a fit its loops.
    """

    short_logging = False
    """Whether what our modules log may go past Lightning's bookkeeping, straight to ``callback_metrics``."""

    def __init__(
        self, args: Mapping[str, Any], callbacks: Sequence[Callback], shared: Sequence[Callback], clock: Clock
    ) -> None:
        self._args = {
            "logger": DummyLogger(),
            "enable_checkpointing": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "inference_mode": False,
            **args,
            "enable_progress_bar": False,
        }
        if args.get("max_epochs") is None and args.get("max_steps", -1) == -1 and args.get("max_time") is None:
            self._args["max_epochs"] = 1
        self._callbacks, self._shared, self._clock = list(callbacks), [*shared, clock], clock
        self._reference: L.Trainer | None = None

    @property
    def reference(self) -> L.Trainer:
        """A Trainer made with these arguments, to ask it what they mean."""
        if self._reference is None:
            self._reference = self._build(self._args)
        return self._reference

    def take(self, training: bool) -> L.Trainer:
        """The Trainer of the next run, whose loops and counters begin where the clock says.

        Args:
            training: It is a fit: nothing is validated within, since evaluation between fits is the federation's. An
                evaluation goes over all data in every process of DDP: its scores are exactly those of one process (a
                ``DistributedSampler`` repeats samples to make parts even), and every rank chooses the same best round.
        """
        if not training:
            return self._build({**self._args, "use_distributed_sampler": False})
        trainer = self._build(self._args)
        trainer.limit_val_batches = 0
        if self._clock.position is not None:
            self._clock.give_loops(trainer, limits_of(trainer))
        return trainer

    def drop(self) -> None:
        """A run was interrupted: its Trainer is in no state to be used again."""

    def forget(self, datamodule: L.LightningDataModule) -> None:
        """This data module will not be used again."""

    def _build(self, args: Mapping[str, Any]) -> L.Trainer:
        own = {name: copy.deepcopy(args[name]) for name in BOUND if name in args}
        return L.Trainer(**{**args, **own, "callbacks": self._shared + copy.deepcopy(self._callbacks)})


def limits_of(trainer: L.Trainer) -> Limits:
    """``min_epochs``, ``max_epochs``, ``min_steps`` and ``max_steps`` of a new Trainer; -1 is no limit."""
    loop = trainer.fit_loop
    max_epochs = -1 if loop.max_epochs is None else loop.max_epochs
    return loop.min_epochs, max_epochs, loop.epoch_loop.min_steps, loop.epoch_loop.max_steps
