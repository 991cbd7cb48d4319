"""Cells in parallel processes: as many as there are cores, each with one thread, forked from a server that has imported all.

Failures are listed and do not stop the others. When time is up or the user interrupts, running cells are stopped; they go on
from their last checkpoint at the next start.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from fl_lightning.comparison.cell import failure, file_of, finished, prepare, run_cell
from fl_lightning.comparison.plan import Cell
from fl_lightning.reporting.monitor import said

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PRELOAD = ["fl_lightning.comparison.cell", "lit_models", "datamodules"]
POLL_SECONDS = 0.3

Prune = Callable[[Cell], bool]


class Runner:
    """Runs cells and remembers how each ended.

    Args:
        out: The comparison's folder.
        workers: Processes at a time.
        budget_minutes: When to stop, counted from now; ``None`` for never.
        say: Receives one line for each cell that ended.

    Attributes:
        done: Folder of each finished run, by the cell's key.
        failed: Reason of each failure, by the cell's key.
        pruned: Keys of trials that were stopped for good.
        left: Cells that were not finished when the time was up.
    """

    def __init__(self, out: Path, workers: int, budget_minutes: float | None, say: Callable[[str], None]) -> None:
        self.out, self.workers, self.say = out, workers, say
        self.deadline = None if budget_minutes is None else time.monotonic() + 60 * budget_minutes
        self.done: dict[str, Path] = {}
        self.failed: dict[str, str] = {}
        self.left: list[Cell] = []
        self.pruned: set[str] = set()
        self.expected = 0
        self._ended = 0
        self._seconds: dict[str, list[float]] = {}
        self._context = mp.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)

    def run(self, cells: Sequence[Cell], prune: Mapping[str, Prune] | None = None) -> None:
        """Run what is not finished yet.

        Args:
            cells: In the order in which they are started.
            prune: By a cell's key: called now and then while it runs, says whether to stop it for good.
        """
        prune = prune or {}
        waiting: list[Cell] = []
        for cell in dict((c.key, c) for c in cells).values():
            folder = finished(self.out, cell)
            if folder is not None:
                self._note(cell, folder)
            elif cell.key in prune and prune[cell.key](cell):
                self._stop_for_good(cell)
            else:
                waiting.append(cell)
        self.expected = max(self.expected, self._ended + len(waiting))
        running: dict[Any, tuple[Cell, mp.process.BaseProcess, float]] = {}
        try:
            while (waiting or running) and not self._time_is_up():
                while waiting and len(running) < self.workers:
                    cell = waiting.pop(0)
                    process = self._start(cell)
                    running[process.sentinel] = (cell, process, time.monotonic())
                for sentinel in wait(list(running), timeout=POLL_SECONDS if prune or self.deadline else None):
                    cell, process, begin = running.pop(sentinel)
                    process.join()
                    self._end(cell, process, time.monotonic() - begin, [c for c, *_ in running.values()], waiting)
                for sentinel, (cell, process, _) in list(running.items()):
                    if cell.key in prune and prune[cell.key](cell):
                        del running[sentinel]
                        _kill(process)
                        self._stop_for_good(cell)
        finally:
            for _, process, _ in running.values():
                _kill(process)
            self.left += [cell for cell, *_ in running.values()] + waiting

    def _start(self, cell: Cell) -> mp.process.BaseProcess:
        process = self._context.Process(target=run_cell, args=(prepare(self.out, cell),), name=str(cell))
        with _one_thread():  # inherited by the server, and by all that it forks
            process.start()
        return process

    def _end(self, cell: Cell, process: Any, seconds: float, running: list[Cell], waiting: list[Cell]) -> None:
        folder = finished(self.out, cell)
        self._seconds.setdefault(cell.method, []).append(seconds)
        self._ended += 1
        if process.exitcode == 0 and folder is not None:
            self.done[cell.key] = folder
            what = f"{_headline(folder, cell)} ({seconds:.0f} s)"
        else:
            reason = failure(self.out, cell) or (
                f"its process ended with signal {-process.exitcode} (9 is often: out of memory)"
                if process.exitcode < 0
                else f"its process ended with code {process.exitcode} and no results"
            )
            self.failed[cell.key] = reason
            what = f"FAILED: {reason.splitlines()[0]} (log: {file_of(self.out, cell, '.log')})"
        left = len(running) + len(waiting)
        rest = f" | about {_span(self._estimate(running + waiting))} left" if left else ""
        failures = f", {len(self.failed)} failed" if self.failed else ""
        self.say(f"[{self._ended}/{self.expected}{failures}] {cell}: {what}{rest}")

    def _note(self, cell: Cell, folder: Path) -> None:
        if cell.key not in self.done:
            self._ended += 1
        self.done[cell.key] = folder

    def _stop_for_good(self, cell: Cell) -> None:
        self._ended += 1
        self.pruned.add(cell.key)
        self.say(f"[{self._ended}/{self.expected}] {cell}: stopped early, behind the median")

    def _estimate(self, cells: Sequence[Cell]) -> float:
        """Seconds for these cells: the mean of the same method's, else of all, over the workers."""
        every = [s for values in self._seconds.values() for s in values]
        total = 0.0
        for cell in cells:
            known = self._seconds.get(cell.method) or every
            total += sum(known) / len(known)
        return total / min(self.workers, max(len(cells), 1))

    def _time_is_up(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline


def _headline(folder: Path, cell: Cell) -> str:
    """The validation score; test scores are for the report (and of a trial are not looked at)."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return f"val {results['metric']} {said(results['val'], 'undefined')}"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _kill(process: Any) -> None:
    process.kill()
    process.join()


@contextmanager
def _one_thread():
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
