"""A pure function over the rows of a large table, in worker processes, with a progress bar.

Workers are forked on Linux while this process has a single Python thread: at once, and they use RDKit and NumPy only.
Otherwise they are spawned, which takes many seconds (they import PyTorch), so that only large tables are worth it. A
daemonic process may not have children and works alone.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from tqdm import TMonitor, tqdm

Item = TypeVar("Item")
Result = TypeVar("Result")
WORTH_IT = {"fork": 2_000, "spawn": 20_000}  # rows from which worker processes are used unasked


def map_chunks(
    function: Callable[[Sequence[Item]], Result],
    items: Sequence[Item],
    num_workers: int | None = None,
    description: str = "",
    chunk: int = 256,
) -> list[Result]:
    """``function`` of each run of ``chunk`` items, in order.

    Args:
        function: A module-level function (it is sent to the workers by name) of a list of items.
        items: The rows.
        num_workers: Processes; 0 or 1 = this one; None = all cores (at most 8) from ``WORTH_IT`` rows on.
        description: Label of the progress bar, which is quiet when standard error is not a terminal.
        chunk: Rows handed over at a time.
    """
    chunks = [items[i : i + chunk] for i in range(0, len(items), chunk)]
    method = _start_method()
    if num_workers is None:
        num_workers = min(_cores(), 8) if len(items) >= WORTH_IT[method] else 0
    if num_workers > 1 and not multiprocessing.current_process().daemon:
        try:
            with ProcessPoolExecutor(num_workers, mp_context=multiprocessing.get_context(method)) as pool:
                return _collect(pool.map(function, chunks), chunks, len(items), description)
        except BrokenProcessPool:
            warnings.warn(
                "worker processes died or could not be started (a script needs `if __name__ == '__main__':`):"
                " going on in this process",
                stacklevel=2,
            )
    return _collect(map(function, chunks), chunks, len(items), description)


def _start_method() -> str:
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    harmless = all(isinstance(thread, TMonitor) for thread in others)  # tqdm's own, which workers never touch
    return "fork" if sys.platform == "linux" and harmless else "spawn"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _collect(results: Iterator[Result], chunks: Sequence[Sequence[Item]], total: int, description: str) -> list[Result]:
    done = []
    with tqdm(total=total, desc=description, unit="mol", disable=None, delay=1.0, leave=False) as bar:
        for part, result in zip(chunks, results, strict=True):
            done.append(result)
            bar.update(len(part))
    return done
