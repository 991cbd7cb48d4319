"""Local work: fits, evaluations and predictions of a live module for one client after the other.

Nothing is rebuilt from round to round but what Lightning itself makes new in a ``fit`` (the optimiser and its schedulers), and
the loops with their counters, which begin where the run's clock says.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fl_lightning.engine.clock import Clock, Position
from fl_lightning.engine.lightning_fast import trainers
from fl_lightning.engine.names import without_stage
from fl_lightning.engine.optimizer_state import OptimizerState, flatten_optimizers
from fl_lightning.engine.predict_methods import explain_forward, has_loader
from fl_lightning.engine.samples import is_of_no_sample, samples_of
from fl_lightning.engine.seeds import stream
from fl_lightning.engine.trainer_args import callbacks_of

QUIET = (
    "lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities",
    # Imported beside `lightning`, it takes over the one logger through which both speak.
    "pytorch_lightning", "pytorch_lightning.utilities.rank_zero",
)  # fmt: skip


class LocalTrainer:
    """Trains and evaluates a live module on clients' data modules.

    Args:
        module: The one live module of this worker.
        trainer_args: Arguments of ``lightning.Trainer`` as the user gave them (YAML ``trainer:``).
        seed: Seed of the run, for what data modules draw in ``setup``.
        clients: Whose data modules these are; any other is the server's.
        fast_loops: Whether the Trainer may be reused and its loops gone through in a short way (``federation.fast_loops``).
        callbacks: The algorithm's own, the same objects in each run; the user's are in ``trainer_args``, and copied.
    """

    def __init__(
        self,
        module: L.LightningModule,
        trainer_args: Mapping[str, Any],
        seed: int = 0,
        clients: Mapping[int, L.LightningDataModule] | None = None,
        fast_loops: bool = True,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.module, self._seed = module, seed
        self._client_of = {id(datamodule): client for client, datamodule in (clients or {}).items()}
        self._modes = {name: part.training or not module.training for name, part in module.named_modules()}
        args = {name: value for name, value in trainer_args.items() if value is not None}
        users = callbacks_of(args)
        args.pop("callbacks", None)
        self._data: dict[int, tuple[L.LightningDataModule, ReusedData]] = {}
        self._optimizer_state, self.clock = OptimizerState(), Clock()
        self._trainers = trainers(args, users, [self._optimizer_state, *callbacks], self.clock, fast_loops)

    def fit(
        self,
        datamodule: L.LightningDataModule,
        optimizer_state: dict[str, Tensor] | None = None,
        loader: Any = None,
        position: Position | None = None,
    ) -> dict[str, float]:
        """Train the module on the client's training data.

        Args:
            datamodule: The client's data.
            optimizer_state: State to continue from (see :attr:`optimizer_state`); ``None`` starts afresh.
            loader: A loader to train on in this and later fits, instead of the data module's own.
            position: Which part of a run the fit is; ``None``: one of its own, whose counters begin at 0.

        Returns:
            The metrics that the module logged.
        """
        with quiet():
            self.clock.begin(position, id(datamodule))
            trainer = self._trainers.take(training=True)
            self._optimizer_state.begin(optimizer_state)
            for name, part in self.module.named_modules():  # `fit` keeps the mode it finds, e.g. of an evaluation
                part.training = self._modes.get(name, True)
            data = self._reused(datamodule)
            if loader is not None:
                data.replace("train", loader)
            with self._short_logging(trainer):
                self._guarded(trainer.fit, self.module, datamodule=data)
            if trainer.num_training_batches == 0:
                raise ValueError(
                    "its training loader has no batch (`drop_last` with fewer samples than the batch size?), so nothing "
                    "was trained"
                )
            return _floats(trainer.callback_metrics)

    def num_train_samples(self, datamodule: L.LightningDataModule) -> int:
        """As :func:`~fl_lightning.engine.samples.count_samples`, by the loader of the fits, so that no other is built."""
        number = getattr(datamodule, "num_train_samples", None)
        if number is not None:
            return int(number)
        data = self._reused(datamodule)
        data.prepare_data()
        data.setup("fit")
        try:
            return samples_of(data.train_dataloader(), datamodule)
        except ValueError as error:
            if is_of_no_sample(error):
                return 0
            raise

    def check(self) -> None:
        """Can the trainer be made, and will it take the module's optimiser?

        Raises:
            ValueError: With Lightning's reason.
        """
        try:
            with quiet():
                trainer = self._trainers.reference
        except (TypeError, ValueError, MisconfigurationException) as error:
            raise ValueError(f"`trainer`: {error}") from error
        make = getattr(self.module, "optimizer", None)
        if trainer.gradient_clip_val and isinstance(trainer.precision_plugin, MixedPrecision) and callable(make):
            optimizer = make(self.module.parameters())
            if getattr(optimizer, "_step_supports_amp_scaling", False):  # what Lightning asks, in the first step
                raise ValueError(
                    f"`trainer.precision: {trainer.precision}` cannot clip the gradients "
                    f"(`trainer.gradient_clip_val`) of a fused {type(optimizer).__name__}: write "
                    "`model.init_args.optimizer.init_args.fused: false`."
                )

    @property
    def optimizer_state(self) -> dict[str, Tensor]:
        """State of the optimiser(s) at the end of the last fit, as flat tensors on the CPU."""
        return flatten_optimizers(self._optimizer_state.finished)

    @property
    def device(self) -> torch.device:
        """Where Lightning trains."""
        return self._trainers.reference.strategy.root_device

    def evaluate(self, datamodule: L.LightningDataModule, stage: str) -> dict[str, float] | None:
        """Metrics of the module on the ``"val"`` or ``"test"`` data; ``None`` if there are no such data.

        Keys come without the stage's prefix: ``val/accuracy`` and ``val_accuracy`` are both ``accuracy``.
        """
        loader, step, run = {
            "val": ("val_dataloader", "validation_step", "validate"),
            "test": ("test_dataloader", "test_step", "test"),
        }[stage]
        if not (is_overridden(loader, datamodule) and is_overridden(step, self.module)):
            return None
        with quiet():
            self.clock.begin(None, id(datamodule))
            trainer = self._trainers.take(training=False)
            with self._short_logging(trainer) as logged:
                results = self._guarded(getattr(trainer, run), self.module, datamodule=self._reused(datamodule), verbose=False)
        metrics = {k: v for result in [*results, logged] for k, v in result.items()}
        return {without_stage(k, stage): float(v) for k, v in metrics.items()}

    def predict(self, datamodule: L.LightningDataModule) -> list[Any] | None:
        """What ``predict_step`` returned for every batch; ``None`` if there are no data to predict on."""
        if not has_loader(datamodule):
            return None
        with quiet(), explain_forward(self.module):
            self.clock.begin(None, id(datamodule))
            trainer = self._trainers.take(training=False)
            outputs: list[Any] | None = self._guarded(trainer.predict, self.module, datamodule=self._reused(datamodule))
        return outputs or []  # Lightning gives `None` for a loader without a batch

    @contextmanager
    def _short_logging(self, trainer: L.Trainer) -> Iterator[dict[str, Tensor]]:
        """Lets what our modules log reach callbacks and the caller without Lightning's bookkeeping, which costs more
        than a small model's step. One process only: several have means to take."""
        logged: dict[str, Tensor] = {}

        def log_values(values: dict[str, Tensor]) -> None:
            logged.update(values)
            trainer.callback_metrics.update(values)

        if self._trainers.short_logging and trainer.world_size == 1 and hasattr(self.module, "log_values"):
            # A plain function: copies of the module drag nothing along.
            self.module.log_values = log_values  # type: ignore[assignment]  # it is there: just asked
        try:
            yield logged
        finally:
            vars(self.module).pop("log_values", None)

    def forget(self, datamodule: Any) -> None:
        """A data module that will not be used again: nothing of it is kept, for another may have its ``id``."""
        held = self._data.pop(id(datamodule), None)
        if held is not None:
            self._trainers.forget(held[1])
            self.clock.forget(id(datamodule))

    def _reused(self, datamodule: L.LightningDataModule) -> ReusedData:
        held = self._data.get(id(datamodule))
        if held is None:
            client = self._client_of.get(id(datamodule), -1)
            held = self._data[id(datamodule)] = (datamodule, reused(datamodule, self._seed, client))
        return held[1]

    def _guarded(self, run: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except BaseException:
            self._trainers.drop()
            raise


class ReusedData(L.LightningDataModule):
    """A client's data module whose ``prepare_data``, ``setup`` and loaders are called once, not once a round.

    What ``setup`` draws (a random split, say) is the same in every stage and wherever the client is set up anew.
    """

    def __init__(self, inner: L.LightningDataModule, seed: int, client: int) -> None:
        super().__init__()
        self._inner, self._seed, self._client = inner, seed, client
        self._done: dict[str, Any] = {}

    def _once(self, key: str, make: Any) -> Any:
        if key not in self._done:
            self._done[key] = make()
        return self._done[key]

    def built(self, stage: str) -> Any:
        """The loader of a stage which every later call gives again; ``None`` before the first."""
        return self._done.get(stage)

    def replace(self, stage: str, loader: Any) -> None:
        """Give this loader instead of the data module's own."""
        self._done[stage] = loader

    def _loader(self, stage: str, make: Any) -> Any:
        """A loader, made under a stream of its own: what it draws must not depend on the round in which it is first needed."""

        def under_its_stream() -> Any:
            with stream(self._seed, f"{stage} loader", client=self._client):
                return make()

        return self._once(stage, under_its_stream)

    def prepare_data(self) -> None:
        self._once("prepare", self._inner.prepare_data)

    def setup(self, stage: str) -> None:
        self._inner.trainer = self.trainer
        self._once("setup/" + stage, lambda: set_up(self._inner, stage, self._seed, self._client))

    def train_dataloader(self) -> Any:
        loader = self._loader("train", self._inner.train_dataloader)
        for holder in (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
            own = getattr(holder, "generator", None)
            if isinstance(own, torch.Generator):  # a stream of the user's own: begins anew in each fit, like all others
                own.manual_seed(torch.initial_seed())
        return loader

    def val_dataloader(self) -> Any:
        return self._loader("val", self._inner.val_dataloader)

    def test_dataloader(self) -> Any:
        return self._loader("test", self._inner.test_dataloader)

    def predict_dataloader(self) -> Any:
        return self._loader("predict", self._inner.predict_dataloader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)


TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def set_up(datamodule: L.LightningDataModule, stage: str, seed: int, client: int = -1) -> None:
    """``datamodule.setup(stage)`` under the client's own stream (the server's for -1)."""
    with stream(seed, "setup", client=client):
        datamodule.setup(stage)


def reused(datamodule: L.LightningDataModule, seed: int = 0, client: int = -1) -> ReusedData:
    """A :class:`ReusedData` with those transfer hooks that ``datamodule`` overrides, since Lightning asks which are."""
    own = {hook: getattr(datamodule, hook) for hook in TRANSFER_HOOKS if is_overridden(hook, datamodule)}
    methods = {hook: lambda self, *args, _own=method: _own(*args) for hook, method in own.items()}
    kind: type[ReusedData] = type("ReusedData", (ReusedData,), methods)
    return kind(datamodule, seed, client)


def _floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _once(show: Callable[..., None]) -> Callable[..., None]:
    """Shows each warning once. Python would do so by itself, but forgets what it has shown whenever its filters change, which
    happens in every fit: a loader's remark on `pin_memory` came ten times a run."""
    shown: set[tuple[str, type[Warning], str, int]] = set()

    def show_once(message: Any, category: type[Warning], filename: str, lineno: int, *more: Any, **named: Any) -> None:
        key = str(message), category, filename, lineno
        if key not in shown:
            shown.add(key)
            show(message, category, filename, lineno, *more, **named)

    return show_once


_is_quiet = False


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what Lightning says in every fit of every client, and let any other warning be said once; errors still come
    through. Free inside another one."""
    global _is_quiet
    if _is_quiet:
        yield
        return
    _is_quiet = True
    loggers = [logging.getLogger(name) for name in QUIET]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _once(warnings.showwarning)
            warnings.filterwarnings("ignore", ".*LeafSpec.*")
            warnings.filterwarnings("ignore", ".*overridden `transfer_batch_to_device` in.*")
            warnings.filterwarnings("ignore", ".*Sparse CSR tensor support is in beta.*")
            for text in (
                ".*does not have many workers.*",
                ".*smaller than the logging interval.*",
                ".*infer the `batch_size`.*",
                ".*in eval mode.*",
                ".*no `val_dataloader`.*",
                ".*no `validation_step`.*",
                ".*`max_epochs` was not set.*",
                ".*GPU available but not used.*",
                ".*total length of.*zero.*",
                ".*this fit will run with no optimizer.*",  # what is none by mistake is refused before round 1: `check_binding`
                ".*sampler has shuffling enabled.*",
                "ReduceLROnPlateau conditioned on metric.*",  # it watches the server's validation: `clock`
            ):
                warnings.filterwarnings("ignore", text)
            yield
    finally:
        _is_quiet = False
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
