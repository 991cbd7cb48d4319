"""One cell in a process of its own: ``fl-lightning fit`` with the cell's config, its output in a log beside the run.

In the cell's folder: ``cell.yaml`` the config, ``cell.log`` what it said, ``cell/version_N`` (central: ``cell_central/``) the
run, ``cell.failed.json`` why it failed. The folder bears the config's hash: what has a results.json there, and no
``cell.failed.json``, is finished.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing as mp
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import torch
import yaml
from tqdm import tqdm

from fl_lightning.cli import FederatedCLI
from fl_lightning.comparison.plan import Cell
from fl_lightning.config_errors import describe_mistake
from fl_lightning.engine.checkpoint import existing
from fl_lightning.errors import MISTAKES
from fl_lightning.reporting.monitor import Monitor


def run_folders(out: Path, cell: Cell) -> list[Path]:
    """Folders of this cell's runs, newest last."""
    base = out / cell.path / ("cell_central" if cell.central else "cell")
    found = [p for p in base.glob("version_*") if p.name[8:].isdigit()]
    return sorted(found, key=lambda p: int(p.name[8:]))


def finished(out: Path, cell: Cell) -> Path | None:
    """The folder of the cell's finished run, if there is one. What failed after its results were written is not finished."""
    if file_of(out, cell, ".failed.json").is_file():
        return None
    return next((p for p in run_folders(out, cell) if (p / "results.json").is_file()), None)


def failure(out: Path, cell: Cell) -> str | None:
    """Why the cell failed when it last ran."""
    path = file_of(out, cell, ".failed.json")
    return json.loads(path.read_text(encoding="utf-8"))["reason"] if path.is_file() else None


def file_of(out: Path, cell: Cell, ending: str) -> Path:
    """A file beside the run, in the cell's folder."""
    return out / cell.path / f"cell{ending}"


def prepare(out: Path, cell: Cell) -> dict[str, Any]:
    """Write the cell's config and say what its process has to do, as plain values."""
    config = file_of(out, cell, ".yaml")
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(f"# {cell}\n" + yaml.safe_dump(cell.config, sort_keys=False), encoding="utf-8")
    failed = file_of(out, cell, ".failed.json")
    failed.unlink(missing_ok=True)
    arguments = ["fit", "--config", str(config), "--trainer.default_root_dir", str(config.parent)]
    if cell.central:
        # It starts anew if it was interrupted: one fit has no rounds to go on from.
        arguments += ["--federation", "null", "--trainer.enable_checkpointing", "false"]
    else:
        begun = [p for p in run_folders(out, cell) if existing(p / "checkpoints")]
        arguments += ["--ckpt_path", str(begun[-1])] if begun else []
    return {
        "arguments": arguments,
        "log": str(file_of(out, cell, ".log")),
        "lock": str(file_of(out, cell, ".lock")),
        "failed": str(failed),
        "data": str(file_of(out, cell, ".data.json")),
        "monitor": str(file_of(out, cell, ".monitor.json")),
    }


class CellCLI(FederatedCLI):
    """Also writes down which metric chooses the best round (before training), and the clients' labels (after it)."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        super().__init__(job["arguments"])

    def fit(self, **arguments: Any) -> None:
        """``fit``, with the two files for the report."""
        monitor = Monitor.of(self.model, *self.monitor_given)
        _write(self.job["monitor"], {"metric": monitor.metric, "mode": monitor.mode})
        super().fit(**arguments)
        if hasattr(self.datamodule, "report"):
            report = self.datamodule.report()
            _write(self.job["data"], {k: report[k] for k in ("labels", "client_sizes", "client_names") if k in report})


def run_cell(job: dict[str, Any]) -> None:
    """Body of the process. Exits with 1 after a failure that it has written down."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    lock = open(job["lock"], "w")  # noqa: SIM115 (held until the process ends)
    fcntl.flock(lock, fcntl.LOCK_EX)  # a process of a killed comparison may still be ending
    begin = os.path.getsize(job["log"])
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system, which a killed process would leave behind
    try:
        CellCLI(job)
    except SystemExit as stop:
        if stop.code in (0, None):
            return
        _failed(job, _last_words(job["log"], begin))
    except Exception as error:  # noqa: BLE001  whatever it is, the table has it in place of the result
        traceback.print_exc()
        _failed(job, describe_mistake(error) if isinstance(error, MISTAKES) else f"{type(error).__name__}: {error}")


def _failed(job: dict[str, Any], reason: str) -> None:
    _write(job["failed"], {"reason": reason, "log": job["log"]})
    sys.stdout.flush()
    raise SystemExit(1)


def _last_words(log: str, begin: int) -> str:
    """The last line of a process that ended itself."""
    with open(log, "rb") as file:
        file.seek(begin)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "it ended without a word")


def _write(path: str, content: Any) -> None:
    draft = f"{path}.writing"
    Path(draft).write_text(json.dumps(content) + "\n", encoding="utf-8")
    os.replace(draft, path)


def _end_with_parent() -> None:
    """A killed comparison leaves no process behind."""
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
