"""A client's private state on its own disk: ``<folder>/state/<session>/step_00000012.pt``, the memory after that step.

Files are written aside, synced and renamed. A step says on which earlier step it builds, so a reply that was lost or came
too late leaves no trace. Neither name can name another place: both are checked, and the folder is the site's own.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path

from fl_lightning.engine.checkpoint import sync_folder
from fl_lightning.engine.store import ClientStore

SESSION = re.compile(r"[0-9a-f]{16}")
KEPT = 2


class StateFolder:
    """The states of one site, for all sessions (a session is a training run with all that resumes it).

    Args:
        folder: The site's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "state"

    def load(self, session: str, step: int | None) -> ClientStore:
        """The memory after a step; empty for ``None``.

        Raises:
            ValueError: If it is not there.
        """
        if step is None:
            return ClientStore()
        path = self._path(session, step)
        if not path.is_file():
            raise ValueError(
                f"its private state of step {step} is not in `{path.parent}`. Restore that folder, or train this run anew"
            )
        return ClientStore.load(path)

    def save(self, session: str, step: int, store: ClientStore, keep: Iterable[int]) -> None:
        """Write the memory after a step; of older ones, the last two and ``keep`` stay.

        Raises:
            OSError: If it cannot be written; what was there is intact.
        """
        path = self._path(session, step)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".writing")
        try:
            store.save(draft)
            os.replace(draft, path)
            sync_folder(path.parent)
        except (OSError, RuntimeError) as error:  # torch.save makes a RuntimeError of a full disk
            draft.unlink(missing_ok=True)
            full = getattr(error, "errno", None) == errno.ENOSPC
            hint = "the disk is full, make room: " if full else "is the disk full? "
            raise OSError(
                f"its private state cannot be written to `{path.parent}` ({hint}{error}); the last one is intact"
            ) from error
        written = sorted(int(p.stem[5:]) for p in path.parent.glob("step_*.pt"))
        for old in set(written[:-KEPT]) - set(keep) - {step}:
            self._path(session, old).unlink(missing_ok=True)

    def _path(self, session: str, step: int) -> Path:
        if not SESSION.fullmatch(session) or not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise ValueError("a session must be 16 hexadecimal digits and a step a number")
        return self.folder / session / f"step_{step:08d}.pt"
