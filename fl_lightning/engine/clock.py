"""One clock for the whole run (``federation.local_clock``): a client's fit in round r is a part of one uninterrupted training.

With R rounds of E local epochs (or S local steps), a client's fit in round r, counted from 0, begins at epoch rE of RE (step
rS of RS): ``current_epoch``, ``global_step``, ``max_epochs``, ``max_steps`` and ``estimated_stepping_batches`` say so, and
learning-rate schedulers stand where they would after r rounds of this client's data. That is the federation's position, not
the number of rounds in which this client took part, so that all clients of a round use one learning rate. The optimiser and
its schedulers are new in each fit, as Lightning makes them; their steps so far are gone through again (:meth:`Clock._replay`).

A plateau scheduler whose metric a client's training does not log watches the server's validation, once for each round that was
validated. What cannot be told in advance goes on from where this client's own last fit ended: the schedulers of manual
optimisation, plateaus on a training metric, data without a length, ``max_time``.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler, Timer

from fl_lightning.engine.run_loops import lightnings_own, loops_of_a_run
from fl_lightning.engine.scheduler_state import groups_of, moving_numbers, set_groups, with_numbers

Validation = Mapping[str, Sequence[tuple[int, float | None]]]
"""What the server's validation gave for a metric: round and value, in order; ``None`` where it was undefined."""

Limits = tuple[int | None, int, int | None, int]
"""``min_epochs``, ``max_epochs``, ``min_steps`` and ``max_steps`` of one round; -1 is no limit."""


@dataclass(frozen=True)
class Position:
    """Which part of the run a fit is.

    Args:
        round: The round, counted from 0.
        num_rounds: Rounds of the whole run.
        validation: Of the metrics that plateau schedulers watch, by the name that the scheduler has.
        kept: What :attr:`Clock.kept` was after this client's last fit.
        callbacks: What :attr:`Clock.callbacks` was after it.
    """

    round: int
    num_rounds: int
    validation: Validation = field(default_factory=dict)
    kept: Mapping[str, Any] | None = None
    callbacks: Mapping[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class _Count:
    """How far a training is: complete epochs, batches of the one that is under way, steps and batches in all."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    batches: int = 0


@dataclass
class _Replayed:
    """Where the schedulers of a client stood at the beginning of a round."""

    round: int
    count: _Count
    schedulers: list[dict[str, Any]]
    groups: list[list[dict[str, Any]]]


class Clock(Callback):
    """Sets counters and schedulers when a fit begins, and keeps what only its end tells.

    Attributes:
        watches: After a fit: monitors of plateau schedulers that waited for the server's validation.
        kept: After a fit: what this client's next fit must go on from, as JSON; ``None`` if the position says it all.
        callbacks: After a fit: the states (``state_dict()``) of the callbacks that have one.
    """

    def __init__(self) -> None:
        self.position: Position | None = None
        self._at = Position(0, 1)  # the same during a fit that has one
        self.watches: list[str] = []
        self.kept: dict[str, Any] | None = None
        self.callbacks: dict[str, dict[str, Any]] = {}
        self._client: int = 0
        self._replayed: dict[int, _Replayed] = {}
        self._epochs: int | None = None
        self._steps: int | None = None

    def begin(self, position: Position | None, client: int) -> None:
        """Before a fit.

        Args:
            position: Where it stands; ``None``: all counts begin at 0, and schedulers anew.
            client: A number for whose fit it is.
        """
        self.position, self._client = position, client
        self._at = position or self._at
        self.watches, self.kept, self.callbacks = [], None, {}

    def forget(self, client: int) -> None:
        """There will be no further fit of this number."""
        self._replayed.pop(client, None)

    def give_loops(self, trainer: L.Trainer, limits: Limits) -> None:
        """Give a Trainer new loops for the fit.

        Args:
            trainer: With Lightning's own loops, or with those of an earlier fit.
            limits: Of one round.
        """
        min_epochs, max_epochs, min_steps, max_steps = limits
        fit, epoch = lightnings_own(type(trainer.fit_loop)), lightnings_own(type(trainer.fit_loop.epoch_loop))
        if self.position is None:
            trainer.fit_loop = fit(trainer, min_epochs, max_epochs)
            trainer.fit_loop.epoch_loop = epoch(trainer, min_steps, max_steps)
            return
        in_run_fit, in_run_epoch = loops_of_a_run(fit, epoch)
        rounds = self.position.num_rounds
        self._epochs = None if max_epochs == -1 else max_epochs
        self._steps = None if max_steps == -1 else max_steps
        loop: Any = in_run_fit(trainer, min_epochs, -1 if self._epochs is None else rounds * self._epochs)
        loop.epoch_loop = in_run_epoch(trainer, min_steps, max_steps)
        loop.run_steps = -1 if self._steps is None else rounds * self._steps
        loop.stop_epoch = self._epochs
        trainer.fit_loop = loop

    # ---- hooks --------------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self.position is None:
            return
        for name, callback in self._stateful(trainer).items():
            if name in self._at.callbacks:
                callback.load_state_dict(copy.deepcopy(self._at.callbacks[name]))
        for config in self._plateaus(trainer):
            config.strict = False  # what training does not log is the server's: Lightning is not to wait for it
        if self._goes_on_by_itself(trainer, module):
            count = self._go_on(trainer)
        else:
            count = self._replay(trainer, module)
        _set_counters(trainer, module, count)
        loop: Any = trainer.fit_loop
        loop.first_epoch = count.epoch
        if self._epochs is not None:
            loop.stop_epoch = count.epoch + self._epochs
        if self._steps is not None:
            loop.epoch_loop.max_steps = count.step + self._steps
        if loop.min_epochs:
            loop.min_epochs += count.epoch
        if loop.min_steps:
            loop.epoch_loop.min_steps = count.step + loop.min_steps

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self.position is None:
            return
        plateaus = [str(config.monitor) for config in self._plateaus(trainer)]
        logged = trainer.callback_metrics
        self.watches = sorted({monitor for monitor in plateaus if monitor not in logged})
        if self._goes_on_by_itself(trainer, module) or any(monitor in logged for monitor in plateaus):
            progress = trainer.fit_loop.epoch_loop.batch_progress.total
            self.kept = {
                "round": self._at.round,
                "count": [trainer.current_epoch, trainer.global_step, progress.ready],
                "schedulers": [moving_numbers(config.scheduler.state_dict()) for config in trainer.lr_scheduler_configs],
                "groups": [[moving_numbers(group) for group in groups] for groups in groups_of(trainer)],
            }

    def on_fit_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self.position is not None:  # after the `on_train_end` of all callbacks
            states = {name: callback.state_dict() for name, callback in self._stateful(trainer).items()}
            self.callbacks = {name: state for name, state in states.items() if state}

    @staticmethod
    def _stateful(trainer: L.Trainer) -> dict[str, Callback]:
        """Callbacks with a state of their own, by a name that is the same in each fit. The time of a `Timer` is a fit's."""
        callbacks = getattr(trainer, "callbacks", ())
        own = [c for c in callbacks if type(c).state_dict is not Callback.state_dict and not isinstance(c, Timer)]
        return {f"{index}:{callback.state_key}": callback for index, callback in enumerate(own)}

    def _goes_on_by_itself(self, trainer: L.Trainer, module: L.LightningModule) -> bool:
        """Whether only this client's last fit tells where the next one begins."""
        return (
            not module.automatic_optimization
            or math.isinf(trainer.num_training_batches)
            or self._epochs is self._steps is None
            or (self._at.kept is not None and bool(self._plateaus(trainer)))
        )

    @staticmethod
    def _plateaus(trainer: L.Trainer) -> list[Any]:
        """Schedulers that Lightning steps by a metric; in manual optimisation it steps none."""
        if not trainer.lightning_module.automatic_optimization:
            return []
        return [config for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]

    # ---- from the last fit --------------------------------------------------------------------------------------------

    def _go_on(self, trainer: L.Trainer) -> _Count:
        """Schedulers as this client's last fit left them, and the rounds' epochs where their number is known."""
        kept = self._at.kept or {"round": 0, "count": [0, 0, 0], "schedulers": [], "groups": []}
        epoch, step, batches = kept["count"]
        if kept["schedulers"]:
            for config, numbers in zip(trainer.lr_scheduler_configs, kept["schedulers"], strict=True):
                config.scheduler.load_state_dict(with_numbers(config.scheduler.state_dict(), numbers))
            set_groups(trainer, kept["groups"])
        for config in self._plateaus(trainer):
            self._watch(trainer.lightning_module, config, kept["round"], self._at.round)
        return _Count(epoch if self._epochs is None else self._at.round * self._epochs, 0, step, batches)

    # ---- by the position ----------------------------------------------------------------------------------------------

    def _replay(self, trainer: L.Trainer, module: L.LightningModule) -> _Count:
        """Go through the schedulers' steps of all rounds so far, from the last place that is remembered."""
        configs = trainer.lr_scheduler_configs
        known = self._replayed.get(self._client)
        count, done = _Count(), 0
        if known is not None and known.round <= self._at.round and len(known.schedulers) == len(configs):
            count, done = copy.copy(known.count), known.round
            for config, state in zip(configs, known.schedulers, strict=True):
                config.scheduler.load_state_dict(copy.deepcopy(state))
            if configs:
                set_groups(trainer, known.groups)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*lr_scheduler.step.*before.*optimizer.step.*")
            for round in range(done, self._at.round):
                for at_end_of_epoch in self._walk(trainer, count):
                    if configs:
                        _step_schedulers(trainer, module, count, at_end_of_epoch)
                for config in self._plateaus(trainer):
                    self._watch(module, config, round, round)
        self._replayed[self._client] = _Replayed(
            self._at.round,
            copy.copy(count),
            [copy.deepcopy(config.scheduler.state_dict()) for config in configs],
            groups_of(trainer) if configs else [],
        )
        return count

    def _walk(self, trainer: L.Trainer, count: _Count) -> Iterator[bool]:
        """Count one round on, as an uninterrupted training does; pauses after each batch that ends in a step (``False``) and
        after each epoch (``True``), with ``count`` as it is while schedulers are called there."""
        batches = int(trainer.num_training_batches)
        accumulate = _accumulation(trainer)

        def steps_of(epoch: int) -> int:
            return math.ceil(batches / accumulate(epoch))

        last_epoch = None if self._epochs is None else count.epoch + self._epochs
        if last_epoch is not None and (
            self._steps is None or self._steps >= sum(steps_of(epoch) for epoch in range(count.epoch, last_epoch))
        ):
            done: Callable[[], bool] = lambda: count.epoch >= last_epoch  # noqa: E731
        else:
            last_step = count.step + (self._steps or 0)
            done = lambda: count.step >= last_step  # noqa: E731
        while not done():
            count.batch, count.batches = count.batch + 1, count.batches + 1
            ends = count.batch == batches
            if ends or count.batch % accumulate(count.epoch) == 0:
                count.step += 1
                yield False
            if ends:
                yield True
                count.epoch, count.batch = count.epoch + 1, 0

    def _watch(self, module: L.LightningModule, config: Any, first: int, last: int) -> None:
        """Step a plateau scheduler by what the server's validation gave in these rounds."""
        for round, value in self._at.validation.get(str(config.monitor), ()):
            if first <= round <= last:
                module.lr_scheduler_step(config.scheduler, math.nan if value is None else value)


def _step_schedulers(trainer: L.Trainer, module: L.LightningModule, count: _Count, at_end_of_epoch: bool) -> None:
    """What Lightning does after a batch with a step, or after an epoch: the schedulers whose turn it is."""
    interval, index = ("epoch", count.epoch + 1) if at_end_of_epoch else ("step", count.batch)
    turn = [
        config.scheduler
        for config in trainer.lr_scheduler_configs
        if not config.reduce_on_plateau and config.interval == interval and index % config.frequency == 0
    ]
    if turn:
        _set_counters(trainer, module, count)  # a module's own `lr_scheduler_step` may read them
    for scheduler in turn:
        module.lr_scheduler_step(scheduler, None)


def _accumulation(trainer: L.Trainer) -> Callable[[int], int]:
    """Batches of one step, by epoch."""
    for callback in getattr(trainer, "callbacks", ()):
        if isinstance(callback, GradientAccumulationScheduler):
            return callback.get_accumulate_grad_batches
    return lambda epoch: int(trainer.accumulate_grad_batches)


def _set_counters(trainer: L.Trainer, module: L.LightningModule, count: _Count) -> None:
    loop: Any = trainer.fit_loop
    batches = loop.epoch_loop
    for progress in (loop.epoch_progress.current, loop.epoch_progress.total):
        progress.ready = progress.started = progress.processed = progress.completed = count.epoch
    total = batches.batch_progress.total
    total.ready = total.started = total.processed = total.completed = count.batches
    steps = (
        batches.automatic_optimization.optim_progress.optimizer.step.total
        if module.automatic_optimization
        else batches.manual_optimization.optim_step_progress.total
    )
    steps.ready = steps.completed = count.step
