"""The centralised baseline: the same module on the undivided data, under a stock ``lightning.Trainer``."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.model_helpers import is_overridden

from fl_lightning.engine.local import LocalTrainer, quiet
from fl_lightning.engine.memory import peak_rss_bytes
from fl_lightning.engine.seeds import stream
from fl_lightning.engine.trainer_args import missing_metric_in_words
from fl_lightning.reporting.run_folder import RunFolder
from fl_lightning.reporting.scores import summarise, versions


def fit_centrally(
    trainer: L.Trainer,
    module: L.LightningModule,
    datamodule: L.LightningDataModule,
    ckpt_path: str | None,
    name: str,
    trainer_args: Mapping[str, Any],
) -> tuple[dict[str, Any], Path]:
    """Fit on the undivided data, keep the best epoch by the validation metric, test it, write results.json.

    Args:
        trainer: A stock Trainer, without a logger.
        module: The module.
        datamodule: The data module; with ``client_datamodules()`` the model is also scored on each client's part.
        ckpt_path: A Lightning checkpoint to go on from.
        name: Name of the run's folder.
        trainer_args: What the user gave for ``trainer:``; its logger, folder, accelerator and precision are used here.

    Returns:
        The content of results.json, and the run's folder.
    """
    begin = time.perf_counter()
    seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
    if not is_overridden("train_dataloader", datamodule):
        raise ValueError(
            f"`--federation null` trains on the undivided data, but `data: {type(datamodule).__name__}` has no "
            "`train_dataloader`. Give it one over the data of all clients, or train each client alone: "
            "`--federation.strategy LocalOnly`."
        )
    datamodule.prepare_data()
    datamodule.setup("fit")
    schema = getattr(datamodule, "schema", None)
    if hasattr(module, "build") and schema is not None:
        with stream(seed, "initial weights"):
            module.build(schema)
    metric, mode = getattr(module, "monitor", "loss"), getattr(module, "monitor_mode", "min")
    folder = RunFolder(trainer_args.get("default_root_dir"), name, trainer_args.get("logger"))
    trainer.loggers = folder.loggers
    monitor = None if getattr(datamodule, "num_val_samples", None) == 0 else f"val/{metric}"
    best = ModelCheckpoint(folder.path / "checkpoints", "best", monitor=monitor, mode=mode, save_top_k=1)
    trainer.callbacks = trainer._callback_connector._reorder_callbacks([*trainer.callbacks, best])
    with stream(seed, "central"), quiet():
        with missing_metric_in_words():
            trainer.fit(module, datamodule=datamodule, ckpt_path=ckpt_path)
        epochs = trainer.current_epoch
        if best.best_model_score is not None and not bool(best.best_model_score.isfinite()):
            trainer.save_checkpoint(best.best_model_path)  # undefined in each epoch: the last is the best, as in a federation
    trained = time.perf_counter() - begin
    local = LocalTrainer(module, {key: trainer_args.get(key) for key in ("accelerator", "precision")})
    clients = list(datamodule.client_datamodules()) if hasattr(datamodule, "client_datamodules") else []

    def score() -> dict[str, Any]:
        return {
            stage: summarise(
                metric, mode, local.evaluate(datamodule, stage), [local.evaluate(c, stage) for c in clients]
            )
            for stage in ("val", "test")
        }

    last = score()
    chosen, best_epoch = last, epochs - 1
    if best.best_model_path:
        content = torch.load(best.best_model_path, map_location="cpu", weights_only=True)
        module.load_state_dict(content["state_dict"])
        best_epoch = min(int(content["epoch"]), epochs - 1)  # one saved after the fit counts one epoch more
        chosen = score()
    total = time.perf_counter() - begin
    results = {
        "name": name,
        "strategy": "Central",
        "seed": seed,
        "num_clients": len(clients),
        "rounds_run": epochs,
        "best_round": best_epoch,
        "metric": metric,
        "mode": mode,
        "weighting": None,
        "val": chosen["val"],
        "test": {**chosen["test"], "each_on_global": None},
        "last": last,
        "bytes": {"up": 0, "down": 0, "by_kind": {}},
        "seconds": {"total": total, "train": trained, "overhead": total - trained},
        "peak_rss_mb": round(peak_rss_bytes() / 2**20),
        "failures": [],
        "empty_clients": [],
        "dropped_rows": list(getattr(datamodule, "dropped_rows", [])),
        "task_names": list(getattr(datamodule, "task_names", [])),
        "versions": versions(),
    }
    folder.write_json("results.json", results)
    folder.close()
    return results, folder.path
