"""Checkpoints of central runs (``--federation null``): which file is meant, and what was the best epoch when it was written."""

from __future__ import annotations

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn

from fl_lightning.engine.names import without_stage
from fl_lightning.errors import ResumeError
from fl_lightning.loading import LIGHTNING
from fl_lightning.reporting.monitor import Monitor, is_better
from fl_lightning.reporting.scores import defined


def find_central(given: str, runs: Path) -> Path:
    """The checkpoint that ``--ckpt_path`` means for a central run.

    Args:
        given: ``last`` (of the newest run that keeps its last epoch), ``best`` (of the newest run), a run's folder (its last),
            or a Lightning checkpoint.
        runs: Folder of the ``version_N`` folders.

    Raises:
        ResumeError: If there is none, with the files that there are.
    """
    if Path(given).is_dir():
        return _last_of([Path(given)], f"`--ckpt_path {given}`", f"`{given}`")
    if given not in ("last", "best"):
        return Path(given)
    versions = [p for p in runs.glob("version_*") if p.name[8:].isdigit()]
    newest_first = sorted(versions, key=lambda run: -int(run.name[8:]))
    if given == "last":
        return _last_of(newest_first, "`--ckpt_path last`", f"`{runs}`")
    for run in newest_first:
        if (best := run / "checkpoints" / LIGHTNING).is_file():
            return best
    raise ResumeError(
        f"`--ckpt_path best`: no central run with a checkpoint in `{runs}`. Fit first (`--federation null`), or name a "
        "checkpoint's file."
    )


def _last_of(runs: list[Path], asked: str, where: str) -> Path:
    best = None
    for run in runs:
        kept = [path for path in (run / "checkpoints").glob("*.ckpt") if path.name != LIGHTNING]
        if kept:
            return max(kept, key=lambda path: (path.name.startswith("last"), _step_of(path), path.stat().st_mtime))
        if best is None and (run / "checkpoints" / LIGHTNING).is_file():
            best = run / "checkpoints" / LIGHTNING
    if best is not None:
        raise ResumeError(
            f"{asked}: no central run in {where} has kept its last epoch (`trainer.enable_checkpointing`). To go on from "
            f"the best one: `--ckpt_path {best}`."
        )
    raise ResumeError(
        f"{asked}: no central run with a checkpoint in {where}. Leave it out to begin (`--federation null`), or name a "
        "checkpoint's file."
    )


def _step_of(path: Path) -> int:
    """The step in the name that Lightning gives a checkpoint; -1 under another name."""
    match = re.search(r"step=(\d+)", path.name)
    return int(match[1]) if match else -1


class BestEpoch(Callback):
    """Keeps the weights of the best epoch, chosen as a federation chooses its best round; the last one if there is
    nothing to choose by.

    Args:
        path: Where it is saved, as a Lightning checkpoint.
        monitor: What chooses.
        source: The checkpoint that the run goes on from, if any: its best epoch so far lies beside it.

    Attributes:
        epoch: The epoch, from 0; ``None`` before the first has ended.
        weights: Its ``state_dict``.
    """

    def __init__(self, path: Path, monitor: Monitor, source: Path | None = None) -> None:
        self.path, self.monitor, self.source = path, monitor, source
        self.value: float | None = None
        self.epoch: int | None = None
        self.weights: dict[str, Any] = {}
        self._before: dict[str, Any] = {}

    def on_validation_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._before = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        # What is there since the validation began: there is also what training logged, which may bear the same name.
        found = {name: value for name, value in trainer.callback_metrics.items() if value is not self._before.get(name)}
        logged = {without_stage(name, "val"): float(value) for name, value in found.items()}
        self.monitor.check([logged])
        value = defined(logged, self.monitor.metric)
        if is_better(value, self.value, self.monitor.mode):
            self.value = value
            self._keep(trainer, module)

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self.value is None:
            self._keep(trainer, module)

    def on_save_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[self._key] = {"epoch": self.epoch, "value": self.value, **self._chooses}

    def on_load_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Take over the best epoch up to the checkpoint, if its file is still beside it and was chosen by the same rule."""
        known = checkpoint.get(self._key)
        beside = None if self.source is None else self.source.parent / LIGHTNING
        if known is None or known["epoch"] is None or beside is None or not beside.is_file():
            return
        kept = checkpoint if beside == self.source else torch.load(beside, map_location="cpu", weights_only=True)
        if kept.get(self._key) != known or any(known.get(name) != value for name, value in self._chooses.items()):
            return
        self.epoch, self.value, self.weights = known["epoch"], known["value"], _copied(kept["state_dict"])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(beside, self.path)

    @property
    def _key(self) -> str:
        return type(self).__name__

    @property
    def _chooses(self) -> dict[str, str]:
        return {"metric": self.monitor.metric, "mode": self.monitor.mode}

    def _keep(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.epoch = trainer.current_epoch
        # In memory, too: a checkpoint with hyperparameters that are objects cannot be read with `weights_only=True`.
        self.weights = _copied(module.state_dict())
        trainer.save_checkpoint(self.path)


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: copy.deepcopy(value.detach().cpu() if hasattr(value, "detach") else value) for name, value in state.items()}
