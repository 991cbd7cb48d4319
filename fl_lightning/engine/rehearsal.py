"""Rehearsal: what would fail in every round, tried on a copy before round 1.

A client that errs is named and left out of the round, which is right for a broken disk and wrong for a mistake that all
rounds share: it would be told once a client and round, after phases that may take hours.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from fl_lightning.engine.buffers import can_differ, check_alike, hashes, unlearnt
from fl_lightning.engine.clock import Position
from fl_lightning.engine.local import LocalTrainer
from fl_lightning.engine.names import without_stage
from fl_lightning.engine.optimizer_state import check_binding
from fl_lightning.engine.samples import lone_batch
from fl_lightning.engine.seeds import stream
from fl_lightning.engine.trainer_args import callbacks_of, check_callbacks, check_package, early_stops

Clients = Mapping[int, L.LightningDataModule]
# What says how much is trained, or who looks on: a rehearsal trains on one batch, alone.
_LEFT_OUT = ("callbacks", "fast_dev_run", "min_epochs", "min_steps", "max_steps", "max_time", "overfit_batches")


class Rehearsal:
    """Tries a run's steps on copies, under a random stream of its own, so that the run's bits are those without it.

    Args:
        module: The module, with its layers.
        trainer_args: Arguments of the clients' ``lightning.Trainer``.
        seed: Seed of the run.
        fast_loops: As :class:`~fl_lightning.engine.local.LocalTrainer` has it.
        kept_apart: ``fnmatch`` patterns of entries that may differ: private ones, and those of ``federation.average``.
        num_rounds: Of the run, where its rounds have one clock (``federation.local_clock``); ``None``: each fit is its own.
        check_optimizers: The client half's, if the algorithm may not go with all.
    """

    def __init__(
        self,
        module: L.LightningModule,
        trainer_args: Mapping[str, Any],
        seed: int,
        fast_loops: bool = True,
        num_rounds: int | None = None,
        kept_apart: Sequence[str] = (),
        check_optimizers: Callable[[L.LightningModule, Sequence[Any]], None] | None = None,
    ) -> None:
        self._kept_apart, self._check_optimizers = tuple(kept_apart), check_optimizers
        self._module, self._args, self._seed, self._fast_loops = module, trainer_args, seed, fast_loops
        self._clock = "round" if num_rounds is None else "run"
        # Rehearsed is the first of all local epochs: what a schedule makes of their number must be seen, too.
        epochs = max((num_rounds or 1) * (self._args.get("max_epochs") or 1), 1)
        self._position = None if num_rounds is None else Position(0, epochs)

    def check(self, clients: Clients) -> dict[int, dict[str, str]]:
        """All that can be tried on these clients' training data.

        Returns:
            What :meth:`unlearnt_at_start` has found, which is alike here, to be compared with clients elsewhere.

        Raises:
            ValueError: As the single checks.
        """
        self.check_lone_batches(clients)
        self.check_optimizers_and_callbacks(clients)
        found = self.unlearnt_at_start(clients)
        check_alike(found)
        return found

    # ---- what is not learnt -------------------------------------------------------------------------------------------

    def unlearnt_at_start(self, clients: Clients) -> dict[int, dict[str, str]]:
        """Hashes of the buffers and frozen parameters with which each client would begin its first batch; empty where
        there are none, or nothing could make them differ."""
        names = unlearnt(self._module, self._kept_apart)
        found: dict[int, dict[str, str]] = {}
        for client, data in clients.items() if names and can_differ(self._module) else ():
            probe = self._trainer_of(copy.deepcopy(self._module), callbacks=[_StopsAtTheFirstBatch()])
            try:
                with _untouched(data), stream(self._seed, "rehearsal", client=client):
                    probe.fit(data, position=self._position)
            except _Configured:
                found[client] = hashes(probe.module, names)
            except Exception:  # noqa: BLE001  a module may need what only a round gives it; the first round tells
                continue
        return found

    # ---- batches of one -----------------------------------------------------------------------------------------------

    def check_lone_batches(self, clients: Clients) -> None:
        """A BatchNorm layer cannot be trained on a single value a channel, so a batch of one sample may fail in each round.

        Whether it does depends on the layer's place (an image and a molecule have many values): one such batch is tried.

        Raises:
            ValueError: Naming clients, layer and remedy.
        """
        if not any(isinstance(layer, _BatchNorm) for layer in self._module.modules()):
            return
        found: dict[int, str] = {}
        layer = None
        for client, data in clients.items():
            with stream(self._seed, "train loader", client=client):
                loader = data.train_dataloader()
            text = lone_batch(loader, self._args)
            if text is None:
                continue
            layer = layer or self._layer_that_needs_two(client, data, loader)
            if layer is None:
                return
            found[client] = text
        if found:
            some = "; ".join(f"client {client}: {text}" for client, text in list(found.items())[:5])
            raise ValueError(
                f"{layer} of `model: {type(self._module).__name__}` cannot be trained on a batch of one sample, which "
                f"{len(found)} client{'s have' if len(found) > 1 else ' has'} in every epoch ({some}) and would fail for. Use "
                "`drop_last=True` in the training loader, another batch size, or a normalisation that needs no batch "
                "(LayerNorm, GroupNorm)."
            )

    def _layer_that_needs_two(self, client: int, data: L.LightningDataModule, loader: DataLoader[Any]) -> str | None:
        """Name and class of the layer that refuses one sample of this client, if one does."""
        probe = self._probe()
        entered: list[str] = []
        for name, layer in probe.module.named_modules():
            text = f"`{name}` ({type(layer).__name__})"
            layer.register_forward_pre_hook(lambda *call, _text=text: entered.append(_text))
        try:
            with _untouched(data), stream(self._seed, "rehearsal", client=client):
                sample = loader.dataset[next(iter(loader.sampler))]
                alone: Any = [sample]  # a list is data set enough
                probe.fit(data, loader=DataLoader(alone, batch_size=1, collate_fn=loader.collate_fn), position=self._position)
        except ValueError as error:
            if "Expected more than 1 value per channel" in str(error) and entered:
                return entered[-1]
        except Exception:  # noqa: BLE001  anything else is not what was asked; the first round tells
            return None
        return None

    # ---- monitors -----------------------------------------------------------------------------------------------------

    def check_optimizers_and_callbacks(self, clients: Clients) -> None:
        """The module's optimisers, schedulers and callbacks, and what early stopping and schedulers wait for.

        A client's fit validates nothing: a plateau on a validation metric watches the server's, if the run has one clock.

        Raises:
            ValueError: Naming where the monitor was set and what is logged.
        """
        if not clients:
            return
        client, data = next(iter(clients.items()))
        probe = self._probe()
        own, where = self._callbacks_of_the_module(probe.module), f"{type(self._module).__name__}.configure_callbacks"
        waiting = {
            f'`EarlyStopping(monitor="{stop.monitor}")` in `{place}`': stop.monitor
            for place, callbacks in (("trainer.callbacks", callbacks_of(self._args)), (where, own))
            for stop in early_stops(callbacks)
        }
        waiting |= self._plateaus(probe, data, client)
        if not waiting:
            return
        logged: set[str] = set()
        for client, data in clients.items():
            try:
                with _untouched(data), stream(self._seed, "rehearsal", client=client):
                    logged |= probe.fit(data, position=self._position).keys()
            except Exception:  # noqa: BLE001  a module may need what only a round gives it; the first round tells
                return
            if logged.issuperset(waiting.values()):
                return
        one_clock = self._clock == "run"
        for where, monitor in waiting.items():
            validated = one_clock and any(
                without_stage(monitor, "val") in (metrics or {})
                for metrics in self.logged_in_validation(clients.values(), without_stage(monitor, "val"))
            )
            if monitor not in logged and not validated:
                raise ValueError(
                    f"{where} waits for a metric that is not logged in a client's local training"
                    + (", nor in the validation. " if one_clock else ", in which nothing is validated. ")
                    + f"`{type(self._module).__name__}` logs in training: {', '.join(sorted(logged)) or 'nothing'}. Monitor "
                    "one of these, or leave it out: the best round by `federation.monitor` is kept in any case."
                    + ("" if one_clock else " With `federation.local_clock: run`, schedulers may wait for the validation.")
                )

    def _callbacks_of_the_module(self, module: L.LightningModule) -> list[Any]:
        """The module's own callbacks; the copy then trains without them."""
        try:
            given = module.configure_callbacks()
        except Exception:  # noqa: BLE001  it may need its trainer
            return []
        callbacks = list(given) if isinstance(given, Sequence) else [given]
        where = f"{type(module).__name__}.configure_callbacks"
        check_callbacks(callbacks, f"`{where}`", self._clock)
        for callback in callbacks:
            check_package(callback, where)
        module.configure_callbacks = list  # type: ignore[method-assign]  # of the copy
        return callbacks

    def _plateaus(self, probe: LocalTrainer, data: L.LightningDataModule, client: int) -> dict[str, str]:
        """Monitors of the schedulers that cannot do without, by where they are set. The copy then trains without schedulers."""
        module, where = probe.module, f"`{type(self._module).__name__}.configure_optimizers`"
        given: list[Any] = []
        configure = module.configure_optimizers

        def noted() -> Any:
            given.append(configure())
            return given[-1]

        module.configure_optimizers = noted  # type: ignore[method-assign]  # of the copy
        try:
            with _untouched(data), stream(self._seed, "rehearsal", client=client):
                self._trainer_of(module, callbacks=[_StopsBeforeTraining()]).fit(data, position=self._position)
        except _Configured as found:
            optimizers, schedulers = found.args
        except Exception as error:
            if given:  # Lightning can do nothing with what it gave
                raise ValueError(f"{where}: {error}") from error
            return {}  # as in `check_optimizers_and_callbacks`
        if module.automatic_optimization:
            check_binding(optimizers, module)
        if self._check_optimizers is not None:
            self._check_optimizers(self._module, optimizers)
        if not module.automatic_optimization:  # schedulers of manual optimisation wait for nothing
            return {}
        if given[-1] is None:  # of a module with nothing to train
            return {}
        module.configure_optimizers = lambda: optimizers  # type: ignore[method-assign]  # of the copy
        return {
            f'`{type(scheduler.scheduler).__name__}` with `"monitor": "{scheduler.monitor}"` in {where}': scheduler.monitor
            for scheduler in schedulers
            if scheduler.reduce_on_plateau and scheduler.strict
        }

    # ---- what validation logs -----------------------------------------------------------------------------------------

    def logged_in_validation(self, data: Iterable[L.LightningDataModule], wanted: str) -> list[Mapping[str, float] | None]:
        """Validation metrics of the untrained model on these data, up to the first that have the wanted one: as a rule one.
        Nothing if the module cannot be evaluated now."""
        return self._logged("val", self._probe(), data, wanted)

    def logged_in_tests(self, data: Iterable[L.LightningDataModule], wanted: str) -> list[Mapping[str, float] | None]:
        """The same of tests. One batch of each is enough: it is the names that are asked for."""
        return self._logged("test", self._trainer_of(copy.deepcopy(self._module), limit_test_batches=1), data, wanted)

    def _logged(
        self, stage: str, probe: LocalTrainer, data: Iterable[L.LightningDataModule], wanted: str
    ) -> list[Mapping[str, float] | None]:
        seen: list[Mapping[str, float] | None] = []
        for one in data:
            try:
                with _untouched(one), stream(self._seed, "monitor", 0):
                    seen.append(probe.evaluate(one, stage))
            except Exception:  # noqa: BLE001  a module may need what only a round gives it; the first validation tells
                return []
            if wanted in (seen[-1] or {}):
                break
        return seen

    def _probe(self) -> LocalTrainer:
        return self._trainer_of(copy.deepcopy(self._module))

    def _trainer_of(self, module: L.LightningModule, **more: Any) -> LocalTrainer:
        args = copy.deepcopy({name: value for name, value in self._args.items() if name not in _LEFT_OUT})
        args |= {"max_epochs": 1, "limit_train_batches": 1}
        if self._args.get("fast_dev_run"):
            args["limit_val_batches"] = 1
        return LocalTrainer(module, {**args, **more}, self._seed, fast_loops=self._fast_loops)


class _Configured(Exception):
    """Ends a fit that has its optimisers and schedulers, and carries them."""


class _StopsBeforeTraining(Callback):
    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        raise _Configured(trainer.optimizers, trainer.lr_scheduler_configs)


class _StopsAtTheFirstBatch(Callback):
    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        raise _Configured


@contextmanager
def _untouched(data: L.LightningDataModule) -> Iterator[None]:
    """The data module is left without the probe's trainer: it may yet be sent to another process."""
    before = data.trainer
    try:
        yield
    finally:
        data.trainer = before
