"""What watches the server's validation: plateau schedulers of the clients, and the run's early stopping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L

from fl_lightning.early_stopping import EarlyStopping
from fl_lightning.engine.names import without_stage
from fl_lightning.engine.rehearsal import Rehearsal
from fl_lightning.reporting.monitor import Monitor
from fl_lightning.reporting.unscored import Unscored
from fl_lightning.reporting.untested import Untested
from fl_lightning.run_state import RunState


class Watching:
    """Keeps, in the run's state, what each validation gave for them.

    Args:
        module: Whose metrics they are.
        stop: When the run ends early, if it may.
        monitor: What chooses the best round: what early stopping watches where it names nothing.
        state: The run's state.
        data: The data that are known here, on which rehearsals try.
        limit: ``trainer.limit_val_batches``.
    """

    def __init__(
        self,
        module: Any,
        stop: EarlyStopping | None,
        monitor: Monitor,
        state: RunState,
        data: Sequence[L.LightningDataModule],
        limit: float | None = None,
    ) -> None:
        self._kind, self._stop, self._monitor, self._state = type(module).__name__, stop, monitor, state
        self._data, self._unscored = data, Unscored(module, limit=limit)
        self._untested = Untested(module, monitor.metric, data)
        self.stopping: Monitor | None = None
        if stop is not None:
            own = Monitor.of(module, stop.metric or monitor.metric, stop.mode or (None if stop.metric else monitor.mode))
            source, typed = ("early_stopping", stop.metric) if stop.metric else (monitor.source, monitor.typed)
            self.stopping = Monitor(own.metric, own.mode, self._kind, source, typed, own.is_guessed and bool(stop.metric))

    def rehearse(self, rehearsal: Rehearsal) -> None:
        """Is what is watched logged in validation, and what chooses the best round in tests, too? Told before round 1.

        Args:
            rehearsal: Tries validations and tests.

        Raises:
            ValueError: If other metrics are logged in validation.
        """
        for watched in filter(None, (self._monitor, self.stopping)):
            logged = rehearsal.logged_in_validation(self._data, watched.metric)
            self._unscored.tell(logged)
            watched.check(logged)
            watched.tell_guess()
        self._untested.tell(rehearsal.logged_in_tests(self._data, self._monitor.metric))

    def tell_tested(self, test: Mapping[str, Any]) -> None:
        """Say what is missing in the summary of a test, if it was not known before round 1."""
        self._untested.tell([test["global_metrics"], *test["per_client_metrics"]])

    def remember(self, val: Mapping[str, Any], round: int) -> None:
        """Keep what a validation gave.

        Args:
            val: Its summary.
            round: The round that was validated, counted from 0.

        Raises:
            ValueError: If what is watched was not logged.
        """
        self._unscored.tell([val["global_metrics"], *val["per_client_metrics"]])
        for name, points in self._state.validation.items():
            points.append((round, Monitor(without_stage(name, "val"), "min", self._kind, "scheduler", name).value_of(val)))
        if self.stopping is not None:
            self._state.stopping.append((round, self.stopping.value_of(val)))

    def is_over(self) -> bool:
        """Whether the run ends here."""
        if self._stop is None or self.stopping is None:
            return False
        return self._stop.is_over([value for _, value in self._state.stopping], self.stopping.mode)
