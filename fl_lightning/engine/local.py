"""Local work: one reused ``lightning.Trainer`` which fits, evaluates and predicts for one client after the other.

Nothing is rebuilt from round to round but what Lightning itself makes new in a ``fit`` (the optimiser) and the loops'
counters, so that ``max_epochs`` and ``max_steps`` count from zero in every fit.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

QUIET = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities")


class LocalTrainer:
    """Trains and evaluates a live module on clients' data modules.

    Args:
        module: The one live module of this worker.
        trainer_args: Arguments of ``lightning.Trainer`` as the user gave them (YAML ``trainer:``).
    """

    def __init__(self, module: L.LightningModule, trainer_args: Mapping[str, Any]) -> None:
        self.module = module
        self._args = {name: value for name, value in trainer_args.items() if value is not None}
        self._callbacks = list(self._args.pop("callbacks", None) or [])
        self._data: dict[int, tuple[L.LightningDataModule, ReusedData]] = {}
        self._optimizer_state = _OptimizerState()
        self._trainer: L.Trainer | None = None

    def fit(
        self, datamodule: L.LightningDataModule, optimizer_state: dict[str, Tensor] | None = None
    ) -> dict[str, float]:
        """Train the module on the client's training data.

        Args:
            datamodule: The client's data.
            optimizer_state: State to continue from (see :attr:`optimizer_state`); ``None`` starts afresh.

        Returns:
            The metrics that the module logged.
        """
        with quiet():
            trainer = self._fresh_loops()
            trainer.limit_val_batches = 0  # evaluation between fits is the federation's
            self._optimizer_state.received = optimizer_state
            self.module.train()  # `fit` keeps the mode it finds, and an evaluation leaves eval mode
            self._guarded(trainer.fit, self.module, datamodule=self._reused(datamodule))
            return _floats(trainer.callback_metrics)

    @property
    def optimizer_state(self) -> dict[str, Tensor]:
        """State of the optimiser(s) at the end of the last fit, as flat tensors on the CPU."""
        return self._optimizer_state.final

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
            trainer = self._fresh_loops()
            trainer.limit_val_batches = self._limit_val_batches
            results = self._guarded(
                getattr(trainer, run), self.module, datamodule=self._reused(datamodule), verbose=False
            )
        metrics = {k: v for result in results for k, v in result.items()}
        return {k.removeprefix(f"{stage}/").removeprefix(f"{stage}_"): float(v) for k, v in metrics.items()}

    def predict(self, datamodule: L.LightningDataModule) -> list[Any] | None:
        """What ``predict_step`` returned for every batch; ``None`` if there are no data to predict on."""
        if not is_overridden("predict_dataloader", datamodule):
            return None
        with quiet():
            trainer = self._fresh_loops()
            return self._guarded(trainer.predict, self.module, datamodule=self._reused(datamodule))

    def _reused(self, datamodule: L.LightningDataModule) -> ReusedData:
        held = self._data.get(id(datamodule))
        if held is None:
            held = self._data[id(datamodule)] = (datamodule, reused(datamodule))
        return held[1]

    def _fresh_loops(self) -> L.Trainer:
        if self._trainer is None:
            self._trainer = self._build()
        trainer = self._trainer
        old = trainer.fit_loop
        trainer.fit_loop = type(old)(trainer, min_epochs=old.min_epochs, max_epochs=old.max_epochs)
        trainer.fit_loop.epoch_loop = type(old.epoch_loop)(trainer, old.epoch_loop.min_steps, old.epoch_loop.max_steps)
        trainer.should_stop = False
        if self._callbacks:  # their state (patience counters, ...) belongs to one fit of one client
            kept = [c for c in trainer.callbacks if getattr(c, "_of_federation", False)]
            trainer.callbacks = trainer._callback_connector._reorder_callbacks(copy.deepcopy(self._callbacks) + kept)
        return trainer

    def _build(self) -> L.Trainer:
        args = {
            "logger": DummyLogger(),
            "enable_checkpointing": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "inference_mode": False,
            **self._args,
        }
        args["enable_progress_bar"] = False
        if args.get("max_epochs") is None and args.get("max_steps", -1) == -1 and args.get("max_time") is None:
            args["max_epochs"] = 1
        trainer = L.Trainer(callbacks=[self._optimizer_state], **args)
        self._limit_val_batches = trainer.limit_val_batches
        return trainer

    def _guarded(self, run: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except BaseException:
            self._trainer = None  # a Trainer that was interrupted is in no state to be reused
            raise


class ReusedData(L.LightningDataModule):
    """A client's data module whose ``prepare_data``, ``setup`` and loaders are called once, not once a round."""

    def __init__(self, inner: L.LightningDataModule) -> None:
        super().__init__()
        self._inner = inner
        self._done: dict[str, Any] = {}

    def _once(self, key: str, make: Any) -> Any:
        if key not in self._done:
            self._done[key] = make()
        return self._done[key]

    def prepare_data(self) -> None:
        self._once("prepare", self._inner.prepare_data)

    def setup(self, stage: str) -> None:
        self._inner.trainer = self.trainer
        self._once(f"setup/{stage}", lambda: self._inner.setup(stage))

    def train_dataloader(self) -> Any:
        return self._once("train", self._inner.train_dataloader)

    def val_dataloader(self) -> Any:
        return self._once("val", self._inner.val_dataloader)

    def test_dataloader(self) -> Any:
        return self._once("test", self._inner.test_dataloader)

    def predict_dataloader(self) -> Any:
        return self._once("predict", self._inner.predict_dataloader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)


TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def reused(datamodule: L.LightningDataModule) -> ReusedData:
    """A :class:`ReusedData` with those transfer hooks that ``datamodule`` overrides, since Lightning asks which are."""
    own = {hook: getattr(datamodule, hook) for hook in TRANSFER_HOOKS if is_overridden(hook, datamodule)}
    methods = {hook: lambda self, *args, _own=method: _own(*args) for hook, method in own.items()}
    return type("ReusedData", (ReusedData,), methods)(datamodule)


class _OptimizerState(Callback):
    """Hands optimiser state in when training starts and takes it out when it ends."""

    _of_federation = True

    def __init__(self) -> None:
        self.received: dict[str, Tensor] | None = None
        self.final: dict[str, Tensor] = {}

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.final = {}
        if self.received:
            for index, optimizer in enumerate(trainer.optimizers):
                optimizer.load_state_dict(_unflatten(optimizer, self.received, index))

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.final = {}
        for index, optimizer in enumerate(trainer.optimizers):
            for parameter, state in optimizer.state_dict()["state"].items():
                for key, value in state.items():
                    if value is not None:
                        tensor = value if isinstance(value, Tensor) else torch.tensor(value)
                        self.final[f"{index}/{parameter}/{key}"] = tensor.detach().to("cpu", copy=True)


def _unflatten(optimizer: torch.optim.Optimizer, flat: Mapping[str, Tensor], index: int) -> dict[str, Any]:
    content = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in flat.items():
        number, parameter, key = name.split("/", 2)
        if int(number) == index:
            state.setdefault(int(parameter), {})[key] = tensor.clone()
    return {**content, "state": state}


def check_trainer_args(args: Mapping[str, Any]) -> None:
    """Refuse what a client's trainer cannot do.

    Raises:
        ValueError: In the YAML's names.
    """
    for callback in args.get("callbacks") or []:
        if isinstance(callback, ModelCheckpoint):
            raise ValueError(
                "`trainer.callbacks` holds a ModelCheckpoint, but `trainer` is what a client does in one round. "
                "The federation writes a checkpoint a round itself: use `federation.keep_last`."
            )
    if args.get("max_epochs") == 0 or args.get("max_steps") == 0:
        raise ValueError(
            "`trainer.max_epochs` and `trainer.max_steps` are a client's local work in a round: at least 1."
        )


def _floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what Lightning says in every fit of every client; errors still come through."""
    loggers = [logging.getLogger(name) for name in QUIET]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec.*")
            warnings.filterwarnings("ignore", ".*`transfer_batch_to_device` in both.*")
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
                ".*sampler has shuffling enabled.*",
            ):
                warnings.filterwarnings("ignore", text)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
