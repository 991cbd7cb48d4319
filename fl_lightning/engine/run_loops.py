"""Lightning's loops, which count over the whole run and end with the round."""

from __future__ import annotations

from functools import cache
from typing import Any


def lightnings_own(kind: type) -> Any:
    """The loop's class without what is added here."""
    return next(c for c in kind.__mro__ if not getattr(c, "in_run", False))


@cache
def loops_of_a_run(fit_loop: Any, epoch_loop: Any) -> tuple[Any, Any]:
    """The two classes, for Lightning's own."""
    """Lightning's loops, which count over the whole run and end with the round."""

    class FitLoop(fit_loop):
        """Shows the run's limits, and ends at the round's."""

        in_run = True
        run_steps: int
        stop_epoch: int | None = None
        first_epoch = 0

        @property
        def max_steps(self) -> int:
            return self.run_steps

        @property
        def done(self) -> bool:
            progress = self.epoch_progress.current
            if self.stop_epoch is not None and progress.processed >= self.stop_epoch:
                progress.completed = progress.processed
                return True
            steps = self.epoch_loop.max_steps
            return bool(steps != -1 and self.epoch_loop.global_step >= steps) or bool(super().done)

    class EpochLoop(epoch_loop):
        """Takes the iterator that is there in the first epoch of a fit, whichever of the run it is."""

        in_run = True

        def on_run_start(self, data_fetcher: Any) -> None:
            progress = self.trainer.fit_loop.epoch_progress.current
            count = progress.completed
            if count == self.trainer.fit_loop.first_epoch:
                progress.completed = 0  # Lightning makes a new iterator in all epochs but the one of this number
            super().on_run_start(data_fetcher)
            progress.completed = count

    return FitLoop, EpochLoop
