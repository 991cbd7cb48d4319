"""A pure function over the rows of a large table, in worker processes, with a progress bar.

Workers are spawned, never forked (a fork after PyTorch's threads have started can hang). Spawning costs seconds, so
small tables stay in this process, as do tables in a daemonic process, which may not have children.
"""
from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
Result = TypeVar("Result")
SMALL = 20_000


def map_chunks(function: Callable[[Sequence[Item]], Result], items: Sequence[Item], num_workers: int | None = None,
               description: str = "", chunk: int = 256) -> list[Result]:
    """``function`` of each run of ``chunk`` items, in order.

    Args:
        function: A module-level function (it is sent to the workers by name) of a list of items.
        items: The rows.
        num_workers: Processes; 0 or 1 = this one; None = all cores (at most 8) from ``SMALL`` rows on.
        description: Label of the progress bar, which is quiet when standard error is not a terminal.
        chunk: Rows handed over at a time.
    """
    chunks = [items[i:i + chunk] for i in range(0, len(items), chunk)]
    if num_workers is None:
        num_workers = min(os.cpu_count() or 1, 8) if len(items) >= SMALL else 0
    if num_workers > 1 and not multiprocessing.current_process().daemon:
        try:
            with ProcessPoolExecutor(num_workers, mp_context=multiprocessing.get_context("spawn")) as pool:
                return _collect(pool.map(function, chunks), chunks, len(items), description)
        except BrokenProcessPool:
            warnings.warn("worker processes could not be started (a script needs `if __name__ == '__main__':`); "
                          "going on in this process", stacklevel=2)
    return _collect(map(function, chunks), chunks, len(items), description)


def _collect(results: Iterator[Result], chunks: Sequence[Sequence[Item]], total: int, description: str) -> list[Result]:
    done = []
    with tqdm(total=total, desc=description, unit="mol", disable=None, delay=1.0, leave=False) as bar:
        for part, result in zip(chunks, results, strict=True):
            done.append(result)
            bar.update(len(part))
    return done
