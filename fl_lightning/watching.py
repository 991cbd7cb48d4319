"""What watches the server's validation: plateau schedulers of the clients, and the run's early stopping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_lightning.early_stopping import EarlyStopping
from fl_lightning.engine.names import without_stage
from fl_lightning.reporting.monitor import Monitor
from fl_lightning.run_state import RunState


class Watching:
    """Keeps, in the run's state, what each validation gave for them.

    Args:
        module: Whose metrics they are.
        stop: When the run ends early, if it may.
        monitor: What chooses the best round: what early stopping watches where it names nothing.
        state: The run's state.
    """

    def __init__(self, module: Any, stop: EarlyStopping | None, monitor: Monitor, state: RunState) -> None:
        self._kind, self._stop, self._state = type(module).__name__, stop, state
        self.stopping: Monitor | None = None
        if stop is not None:
            own = Monitor.of(module, stop.metric or monitor.metric, stop.mode or (None if stop.metric else monitor.mode))
            self.stopping = Monitor(own.metric, own.mode, self._kind, "early_stopping" if stop.metric else monitor.source)

    def remember(self, val: Mapping[str, Any], round: int) -> None:
        """Keep what a validation gave.

        Args:
            val: Its summary.
            round: The round that was validated, counted from 0.

        Raises:
            ValueError: If what is watched was not logged.
        """
        for name, points in self._state.validation.items():
            points.append((round, Monitor(without_stage(name, "val"), "min", self._kind, "scheduler").value_of(val)))
        if self.stopping is not None:
            self._state.stopping.append((round, self.stopping.value_of(val)))

    def is_over(self) -> bool:
        """Whether the run ends here."""
        if self._stop is None or self.stopping is None:
            return False
        return self._stop.is_over([value for _, value in self._state.stopping], self.stopping.mode)
