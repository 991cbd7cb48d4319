"""The run's folder: config.yaml, metrics.csv, ledger.jsonl, partition.json, results.json, checkpoints/, TensorBoard."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from fl_lightning.reporting.output_paths import make_folder, no_folder
from fl_lightning.reporting.plain import plain
from fl_lightning.reporting.run_lock import RunLock

WRITTEN = ("results.json", "metrics.csv", "ledger.jsonl", "partition.json", "checkpoints")


ROOT = "trainer.default_root_dir"


class RunFolder:
    """Folder and loggers of one run.

    Args:
        root: ``trainer.default_root_dir``; runs go to ``<root>/<name>/version_N``. Default ``runs``.
        name: Name of the run.
        loggers: ``trainer.logger`` as a user gives it: ``True`` / ``None`` (TensorBoard), ``False``, or loggers.
        lock: Taken over the folder, unless it is a temporary one; whoever gives it releases it.
        resume: A run's folder to go on in, instead of a new one.
        purge_step: On resuming, the first round that will be logged anew.
        keep_rows: On resuming, how many rows of metrics.csv stay; the rest will be written anew.
        scratch: Use a temporary folder and no logger (fast_dev_run, and ranks other than 0).

    Raises:
        ValueError: If a logger of the user's writes where there are files which the run would overwrite, or another process
            writes the run, or the folder cannot be made or written.
    """

    def __init__(
        self,
        root: str | None,
        name: str,
        loggers: Any,
        lock: RunLock,
        resume: Path | None = None,
        purge_step: int | None = None,
        keep_rows: int = 0,
        scratch: bool = False,
    ) -> None:
        self._temporary = None
        self._columns: list[str] = []
        self.num_rows = 0
        self.loggers: list[Logger] = []
        if scratch:
            self._temporary = tempfile.TemporaryDirectory(prefix="fl_lightning_")
            self.path = Path(self._temporary.name)
            return
        base = Path(root or "runs").expanduser()
        given = loggers if isinstance(loggers, Sequence) else [] if loggers in (None, True, False) else [loggers]
        if resume is not None:
            self.path = resume
        elif given and getattr(given[0], "log_dir", None):
            self.path = Path(given[0].log_dir)
            _check_free(self.path)
        else:
            self.path = new_version(base / name)
        make_folder(self.path, "trainer.logger" if resume is None and given else ROOT)
        lock.hold(self.path)
        if not given and loggers is not False:
            version = re.fullmatch(r"version_\d+", self.path.name)
            parent = self.path.parent
            given = [
                TensorBoardLogger(
                    str(parent.parent),
                    name=parent.name,
                    default_hp_metric=False,
                    purge_step=purge_step,
                    version=self.path.name if version else str(self.path.name),
                )
            ]
        self.loggers = list(given)
        # A CSVLogger of the user's in this very folder writes metrics.csv itself.
        self._writes_csv = not any(isinstance(x, CSVLogger) and Path(x.log_dir) == self.path for x in self.loggers)
        if resume is not None and self._writes_csv:
            self._keep_metrics(keep_rows)

    def log(self, metrics: Mapping[str, float], round: int, prefix: str = "") -> None:
        """Send scalars to the loggers and to metrics.csv, with the round as x axis; what is undefined is left out."""
        named = {prefix + k: v for k, v in metrics.items() if v is not None and math.isfinite(v)}
        for logger in self.loggers:
            logger.log_metrics(named, step=round)
        if self._temporary is None and self._writes_csv:
            self._write_row({"round": round, **named})

    @property
    def tensorboard(self) -> Any | None:
        """The ``SummaryWriter`` of the first TensorBoard logger, for pictures; ``None`` without one."""
        return next((logger.experiment for logger in self.loggers if isinstance(logger, TensorBoardLogger)), None)

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file, atomically; see :func:`~fl_lightning.reporting.plain.plain` for what becomes ``null``."""
        draft = self.path / f".writing_{name}"
        draft.write_text(json.dumps(plain(content), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(draft, self.path / name)

    def close(self) -> None:
        """Flush the loggers; remove a scratch folder."""
        for logger in self.loggers:
            logger.finalize("success")
        if self._temporary is not None:
            self._temporary.cleanup()

    def _write_row(self, row: dict[str, Any]) -> None:
        path = self.path / "metrics.csv"
        new = [c for c in row if c not in self._columns]
        if new or not path.is_file():
            self._columns += new
            self._rewrite(self._load(path))
        with path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerow(row)
        self.num_rows += 1

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        """The whole file anew, for a new column or fewer rows; a crash leaves the old one."""
        draft = self.path / ".writing_metrics.csv"
        with draft.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(draft, self.path / "metrics.csv")

    def _keep_metrics(self, number: int) -> None:
        rows = self._load(self.path / "metrics.csv")[:number]
        self._columns, self.num_rows = list(rows[0]) if rows else [], len(rows)
        self._rewrite(rows)

    @staticmethod
    def _load(path: Path) -> list[dict[str, str]]:
        if not path.is_file():
            return []
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))


def central_run_of(checkpoint: Path) -> Path | None:
    """The folder of the central run that a Lightning checkpoint lies in, or ``None`` if it lies anywhere else."""
    run = Path(os.path.abspath(checkpoint)).parent.parent
    if checkpoint.parent.name != "checkpoints":
        return None
    results = run / "results.json"
    try:
        finished = results.is_file() and json.loads(results.read_text(encoding="utf-8")).get("strategy") == "Central"
    except (ValueError, AttributeError):
        finished = False
    begun = re.fullmatch(r"version_\d+", run.name) and run.parent.name.endswith("_central") and (run / "config.yaml").is_file()
    return checkpoint.parent.parent if finished or begun else None


def _check_free(folder: Path) -> None:
    taken = [name for name in WRITTEN if (folder / name).exists()]
    if taken:
        raise ValueError(
            f"`trainer.logger` writes into `{folder}`, where there is {', '.join(f'`{name}`' for name in taken)} already. Give "
            f"the logger another folder, name or version; or go on with the run that is there: `--ckpt_path {folder}`."
        )


def new_version(base: Path) -> Path:
    """Make and return the first unused ``version_N`` after all that exist in ``base``, whoever else does the same.

    Raises:
        ValueError: It cannot be made.
    """
    while True:
        numbers = [
            int(p.name.removeprefix("version_")) for p in base.glob("version_*") if p.name.removeprefix("version_").isdigit()
        ]
        folder = base / f"version_{max(numbers, default=-1) + 1}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise ValueError(no_folder(base, ROOT, error)) from error
