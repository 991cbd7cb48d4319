"""Checkpoints: one folder a round, written aside and renamed, holding tensors and JSON only.

``checkpoints/round_00007/server.pt`` has the server's tensors and a JSON description of the run up to here;
``client_00003.pt`` a client's private state. The random streams need no entry: they derive from (seed, purpose, round, client).
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from fl_lightning.engine.ledger import is_ledger
from fl_lightning.engine.store import read_tensors, write_tensors
from fl_lightning.engine.transport import Engine
from fl_lightning.errors import ResumeError

FORMAT = 1


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: The run's ``checkpoints`` folder; made if absent.
        keep_last: How many are kept besides the best one.
    """

    def __init__(self, directory: Path, keep_last: int) -> None:
        self.directory, self.keep_last = directory, keep_last
        directory.mkdir(parents=True, exist_ok=True)

    def save(self, name: str, tensors: dict[str, Tensor], values: dict[str, Any], engine: Engine, best: str | None) -> Path:
        """Write checkpoint ``name`` and delete older ones, except the last ``keep_last`` and ``best``.

        Raises:
            OSError: If it cannot be written (a full disk, say); earlier checkpoints are intact.
        """
        final, draft = self.directory / name, self.directory / f".writing_{name}"
        previous = existing(self.directory)
        try:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            write_tensors(draft / "server.pt", tensors, {**values, "format": FORMAT})
            engine.save(draft, previous[-1] if previous else None)
            if final.exists():
                shutil.rmtree(final)
            os.replace(draft, final)
            sync_folder(self.directory)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            hint = " The disk is full." if error.errno == errno.ENOSPC else ""
            raise OSError(
                error.errno,
                f"Checkpoint `{final}` could not be written: {error}.{hint} Earlier checkpoints are "
                "intact; make room and go on with `--ckpt_path last`.",
            ) from error
        for old in existing(self.directory)[: -self.keep_last]:
            if old.name != best:
                shutil.rmtree(old)
        return final

    def adopt(self, source: Path, name: str, best: str | None) -> Path:
        """Copy a checkpoint from elsewhere under ``name``, and the best one if it is beside it; returns the copy."""
        for folder, copied in ((source, name), (source.parent / (best or name), best)):
            if copied is not None and folder.is_dir() and not (self.directory / copied).exists():
                shutil.copytree(folder, self.directory / copied)
        return self.directory / name

    def forget_after(self, name: str) -> None:
        """Delete what was saved after checkpoint ``name``, from which the run goes on."""
        for later in existing(self.directory):
            if later.name > name:
                shutil.rmtree(later)


def existing(directory: Path) -> list[Path]:
    """Complete checkpoints in a ``checkpoints`` folder, oldest first (phases come before rounds)."""
    found = [p for p in directory.glob("*") if not p.name.startswith(".") and (p / "server.pt").is_file()]
    return sorted(found, key=lambda p: p.name)


def read(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and description of a checkpoint.

    Raises:
        ResumeError: If it is no checkpoint of this library.
    """
    path = directory / "server.pt"
    if not path.is_file():
        raise ResumeError(f"`{directory}` is no checkpoint: it holds no server.pt.")
    tensors, values = read_tensors(path)
    if values.get("format") != FORMAT:
        raise ResumeError(f"`{directory}` has checkpoint format {values.get('format')}, this version reads {FORMAT}.")
    return tensors, values


def find(path: str, runs: Path, newest: Path | None = None) -> Path:
    """The checkpoint that ``--ckpt_path`` means.

    Args:
        path: ``last`` or ``best`` (of the newest run in ``runs`` that has a checkpoint), a run's folder (its last), or
            a checkpoint's folder.
        runs: Folder of the ``version_N`` folders.
        newest: The run that ``last`` and ``best`` mean, instead of the newest in ``runs``.

    Raises:
        ResumeError: If there is none.
    """
    if path in ("last", "best"):
        versions = sorted(
            (p for p in runs.glob("version_*") if p.name[8:].isdigit() and existing(p / "checkpoints")),
            key=lambda p: int(p.name.removeprefix("version_")),
        )
        if newest is not None and existing(newest / "checkpoints"):
            versions = [newest]
        if not versions:
            raise ResumeError(f"`--ckpt_path {path}`: no run with a checkpoint in `{runs}`.")
        run = versions[-1]
        last = existing(run / "checkpoints")[-1]
        if path == "last":
            return last
        best: str | None = read(last)[1]["best"]["checkpoint"]
        if best is None and (run / "results.json").is_file():  # no validation sample anywhere: it ended with its last round
            return last
        if best is None:
            raise ResumeError(
                f"`--ckpt_path best`: `{run}` has not been validated yet; use `--ckpt_path last`, or go on with `fit`."
            )
        return run / "checkpoints" / best
    if (Path(path) / "server.pt").is_file():
        return Path(path)
    inside = existing(Path(path) / "checkpoints")
    if not inside:
        raise ResumeError(f"`--ckpt_path {path}`: neither a checkpoint, nor a run's folder with one, nor `last` or `best`.")
    return inside[-1]


def run_of(checkpoint: Path) -> Path | None:
    """The run's folder that a checkpoint lies in, or ``None`` if it lies anywhere else, as a copy of it does.

    Only in a run's folder may anything be written or deleted. It is one if the checkpoint is in its ``checkpoints``, and it
    has a ledger.
    """
    if checkpoint.parent.name != "checkpoints":  # also where the path is relative to a folder inside of the run
        checkpoint = Path(os.path.abspath(checkpoint))
    run = checkpoint.parent.parent
    return run if checkpoint.parent.name == "checkpoints" and is_ledger(run / "ledger.jsonl") else None


def name_of(values: dict[str, Any]) -> str:
    """A checkpoint's name in its run, whatever its folder is called now."""
    state = values["state"]
    if state["round"] > 0:
        return f"round_{state['round'] - 1:05d}"
    return f"phase{state['phase']}_{state['step'] - 1:05d}"


def difference(old: Any, new: Any, key: str = "") -> list[str]:
    """Lines ``key: old -> new`` where two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for name in sorted(old.keys() | new.keys()):
            lines += difference(old.get(name), new.get(name), f"{key}.{name}" if key else name)
        return lines
    return [] if old == new else [f"{key}: {old} -> {new}"]


def sync_folder(directory: Path) -> None:
    """Make the names in a folder durable: a file that was renamed into it is there after a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
