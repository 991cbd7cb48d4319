"""A run's folder has one writer: the process that holds the system's lock on it, which the kernel takes back however it ends.

Two processes that went on with one run (``--ckpt_path last`` typed twice) would mix its metrics, ledger and checkpoints.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from types import TracebackType

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # asked for before each use

LOG = logging.getLogger("fl_lightning")
LOCK = ".lock"
"""The file that is locked, with the number of the process that writes; it stays, since to delete it would let two in."""

_held: set[int] = set()
"""Descriptors of the locks of this process. A forked child (a loader's worker) must not hold on to them."""


class RunLock:
    """The lock on one run's folder; none until :meth:`hold`. A context manager that releases it."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._descriptor: int | None = None

    def hold(self, folder: Path) -> None:
        """Take the lock, or keep it if it is held already.

        Args:
            folder: The run's folder.

        Raises:
            ValueError: Another process holds it, or nothing can be written there.
        """
        if self._folder is not None and self._folder == folder:
            return
        self.release()
        try:
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise ValueError(
                f"The run's folder `{folder}` cannot be written: {error.strerror}. Make it writable; or, to begin a new run "
                "elsewhere, leave out `--ckpt_path` and set `trainer.default_root_dir`."
            ) from error
        try:
            _lock(descriptor, folder)
        except BaseException:
            os.close(descriptor)
            raise
        self._folder, self._descriptor = folder, descriptor
        _held.add(descriptor)

    def release(self) -> None:
        """Let others write."""
        if self._descriptor is not None:
            _held.discard(self._descriptor)
            os.close(self._descriptor)
        self._folder = self._descriptor = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def _lock(descriptor: int, folder: Path) -> None:
    """Lock an open file, and write our number into it; where no lock can be had at all, say so and go on."""
    if fcntl is None:
        _tell_unlocked(folder, "this system has no `flock`")
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            _tell_unlocked(folder, error.strerror)
            return
        number = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        who = "another fit of this process" if number == str(os.getpid()) else f"another process (pid {number or 'unknown'})"
        raise ValueError(
            f"`{folder}`: {who} is writing this run; two would mix its metrics, ledger and checkpoints. Wait until it ends, or "
            "end it; or begin a new run, without `--ckpt_path`."
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


_told: set[str] = set()


def _tell_unlocked(folder: Path, reason: str | None) -> None:
    if str(reason) not in _told:
        _told.add(str(reason))
        LOG.warning("`%s` cannot be locked (%s): see to it that no other process goes on with this run.", folder, reason)


def _forget_in_child() -> None:
    """After a fork: the lock is the parent's, and free when the parent is gone."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
