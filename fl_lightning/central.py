"""The centralised baseline: the same module on the undivided data, under a stock ``lightning.Trainer``."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, Checkpoint
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fl_lightning.assembly import build_layers, check_module
from fl_lightning.central_checkpoints import BestEpoch
from fl_lightning.engine.client import named_outputs
from fl_lightning.engine.local import LocalTrainer, quiet
from fl_lightning.engine.optimizer_state import check_binding
from fl_lightning.engine.predict_methods import check_predicts, explain_forward
from fl_lightning.engine.rehearsal import Rehearsal
from fl_lightning.engine.samples import no_sample_in_words
from fl_lightning.engine.seeds import stream
from fl_lightning.engine.trainer_args import check_trains, missing_metric_in_words
from fl_lightning.loading import LIGHTNING
from fl_lightning.reporting.left_out import LeftOut
from fl_lightning.reporting.monitor import Monitor
from fl_lightning.reporting.rank import first_rank
from fl_lightning.reporting.results import Results
from fl_lightning.reporting.run_folder import RunFolder
from fl_lightning.reporting.run_lock import RunLock
from fl_lightning.reporting.scores import summarise
from fl_lightning.reporting.unscored import Unscored
from fl_lightning.reporting.untested import Untested


def fit_centrally(
    trainer: L.Trainer,
    module: L.LightningModule,
    datamodule: L.LightningDataModule,
    ckpt_path: str | Path | None,
    name: str,
    trainer_args: Mapping[str, Any],
    *,
    monitor: str | None = None,
    monitor_mode: str | None = None,
    max_dropped_share: float = 0.5,
    on_start: Callable[[Path], None] | None = None,
) -> tuple[dict[str, Any], Path | None]:
    """Fit on the undivided data, keep the best epoch by the validation metric, test it, write results.json.

    Args:
        trainer: A stock Trainer, without a logger.
        module: The module.
        datamodule: The data module; with ``client_datamodules()`` the model is also scored on each client's part.
        ckpt_path: A Lightning checkpoint to go on from, in a new folder; the best epoch up to there comes along from beside it.
        name: Name of the run's folder.
        trainer_args: What the user gave for ``trainer:``; its logger, folder, accelerator and precision are used here.
        monitor: ``federation.monitor``.
        monitor_mode: ``federation.monitor_mode``.
        max_dropped_share: ``federation.max_dropped_share``.
        on_start: Called with the run's folder before training.

    Returns:
        The content of results.json, and the run's folder (``None`` for ``fast_dev_run``, which writes nothing).

    Raises:
        ValueError: Before training, if something does not fit.
    """
    begin = time.perf_counter()
    seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
    check_module(module)
    if not is_overridden("train_dataloader", datamodule):
        raise ValueError(
            f"`--federation null` trains on the undivided data, but `data: {type(datamodule).__name__}` has no "
            "`train_dataloader`. Give it one over the data of all clients, or train each client alone: "
            "`--federation.strategy LocalOnly`."
        )
    datamodule.prepare_data()
    datamodule.setup("fit")
    left_out = LeftOut.of(datamodule)
    left_out.check(max_dropped_share)
    build_layers(module, getattr(datamodule, "schema", None), seed)
    chooses = Monitor.of(module, monitor, monitor_mode)
    local_args = {key: trainer_args.get(key) for key in ("accelerator", "precision")}
    stock: Any = trainer  # Lightning's connectors set attributes that its type does not have
    check_trains({"limit_train_batches": stock.limit_train_batches})
    rehearsal = Rehearsal(module, local_args, seed)
    logged = rehearsal.logged_in_validation([datamodule], chooses.metric) if stock.limit_val_batches else [None]
    Unscored(module, "epoch", stock.limit_val_batches).tell(logged)
    chooses.check(logged)
    chooses.tell_guess()
    untested = Untested(module, chooses.metric, [datamodule])
    untested.tell(rehearsal.logged_in_tests([datamodule], chooses.metric))
    scratch = bool(stock.fast_dev_run) or not first_rank()
    with RunLock() as lock, quiet():
        folder = RunFolder(trainer_args.get("default_root_dir"), name, trainer_args.get("logger"), lock, scratch=scratch)
        if on_start is not None and not scratch:
            on_start(folder.path)
        trainer.loggers = folder.loggers
        for callback in stock.checkpoint_callbacks:
            if getattr(callback, "dirpath", "") is None:  # else it writes into the current folder where there is no logger
                callback.dirpath = str(folder.path / "checkpoints")
        best = BestEpoch(folder.path / "checkpoints" / LIGHTNING, chooses, None if ckpt_path is None else Path(ckpt_path))
        savers = [callback for callback in stock.callbacks if isinstance(callback, Checkpoint)]  # they come last
        others = [callback for callback in stock.callbacks if callback not in savers]
        stock.callbacks = [_ChecksOptimizers(), *others, best, *savers]
        words = missing_metric_in_words(), no_sample_in_words(datamodule)
        with stream(seed, "central"), words[0], words[1], warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The dirpath has changed from")  # the run goes on in a folder of its own
            trainer.fit(module, datamodule=datamodule, ckpt_path=None if ckpt_path is None else str(ckpt_path))
        epochs = trainer.current_epoch
        trained = time.perf_counter() - begin
        local = LocalTrainer(module, local_args)
        clients = list(datamodule.client_datamodules()) if hasattr(datamodule, "client_datamodules") else []
        failures: list[dict[str, Any]] = []

        def evaluate(data: L.LightningDataModule, stage: str, epoch: int, client: int | None) -> dict[str, float] | None:
            try:
                return local.evaluate(data, stage)
            except Exception as error:  # noqa: BLE001  what was trained is not lost for it
                reason = f"{type(error).__name__}: {error}"
                failures.append({"round": epoch, "client": client, "kind": "evaluate", "reason": reason})
                return None

        def score(epoch: int) -> dict[str, Any]:
            return {
                stage: summarise(
                    chooses.metric, chooses.mode, evaluate(datamodule, stage, epoch, None),
                    [evaluate(data, stage, epoch, client) for client, data in enumerate(clients)],
                )
                for stage in ("val", "test")
            }  # fmt: skip

        chosen = last = score(max(epochs - 1, 0))
        untested.tell([last["test"]["global_metrics"], *last["test"]["per_client_metrics"]])
        best_epoch = epochs - 1 if best.epoch is None else best.epoch
        if best.weights:
            module.load_state_dict(best.weights)
            chosen = score(best_epoch)
        results = Results(
            name=name,
            strategy="Central",
            seed=seed,
            monitor=chooses,
            num_clients=len(clients),
            rounds_run=epochs,
            best_round=best_epoch,
            chosen=chosen,
            last=last,
            data=datamodule,
            total_seconds=time.perf_counter() - begin,
            train_seconds=trained,
            failures=failures,
        ).write(folder)
        folder.close()
        left_out.warn()
        return results, None if scratch else folder.path


class _ChecksOptimizers(Callback):
    """A fit without an optimiser, or with another copy's, would train nothing; Lightning only warns."""

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        check_binding(trainer.optimizers, module)


def predict_centrally(
    trainer: L.Trainer, module: L.LightningModule, datamodule: L.LightningDataModule, ckpt_path: Path
) -> list[dict[str, Tensor]]:
    """Predictions of a Lightning checkpoint, as batches of named tensors.

    Raises:
        ValueError: If the module or the data lack the method that predicting needs.
    """
    check_predicts(module, [datamodule])
    with quiet(), explain_forward(module):
        batches: Any = trainer.predict(module, datamodule=datamodule, ckpt_path=str(ckpt_path))
    return [named_outputs(batch) for batch in batches or ()]  # `None` of a loader without a batch
