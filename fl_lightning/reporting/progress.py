"""How far a run is: a bar in a terminal; elsewhere, if asked for, one line for each round."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from fl_lightning.reporting.rank import first_rank


class Progress:
    """Shows progress on the standard error stream.

    Args:
        shown: ``None``: in a terminal only; ``True``: elsewhere (a notebook, a log), too; ``False``: nowhere.
    """

    def __init__(self, shown: bool | None = None) -> None:
        visible = shown is not False and first_rank()
        self._bar = visible and sys.stderr.isatty()
        self._lines = visible and bool(shown) and not self._bar

    @contextmanager
    def steps(self, title: str, step_name: str, done: int, total: int) -> Iterator[Callable[[str | None], None]]:
        """Yields a function that is called after each step, with what to show beside its number.

        Args:
            title: Of the bar, e.g. ``rounds``.
            step_name: What a line begins with, e.g. ``round``.
            done: How many are already done.
            total: How many there are.
        """
        with tqdm(total=total, initial=done, desc=title, unit="round", disable=not self._bar, leave=True) as bar:

            def step(text: str | None = None) -> None:
                nonlocal done
                done += 1
                if text:
                    bar.set_postfix_str(text, refresh=False)
                bar.update()
                if self._lines:
                    sys.stderr.write(f"{step_name} {done} of {total}{': ' + text if text else ''}\n")
                    sys.stderr.flush()

            yield step
