"""How far a run is: what a checkpoint keeps besides tensors, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Best:
    """The best round so far.

    Args:
        round: Counted from 0; ``None`` before the first validation with a defined score.
        value: Its validation score.
        checkpoint: Name of its checkpoint's folder.
        val: Summary of its validation.
    """

    round: int | None = None
    value: float | None = None
    checkpoint: str | None = None
    val: dict[str, Any] | None = None


@dataclass
class RunState:
    """Where a run stands.

    Args:
        phase, step: The phase before the rounds that is next, and the step in it.
        round: The round that is next, counted from 0.
        total_seconds, train_seconds: Time so far, over all starts.
        best: The best round so far.
        validation: Round and value of the metrics of the server's validation that schedulers of clients watch, by the
            scheduler's name.
        stopping: Round and value of the metric that may stop the run (``federation.early_stopping``).
    """

    phase: int = 0
    step: int = 0
    round: int = 0
    total_seconds: float = 0.0
    train_seconds: float = 0.0
    best: Best = field(default_factory=Best)
    validation: dict[str, list[tuple[int, float | None]]] = field(default_factory=dict)
    stopping: list[tuple[int, float | None]] = field(default_factory=list)

    @property
    def is_new(self) -> bool:
        """Whether nothing has been done yet."""
        return self.phase == self.step == self.round == 0

    @property
    def last_round(self) -> int:
        """The last round that was finished, counted from 0; 0 before the first."""
        return max(self.round - 1, 0)

    def as_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        best = {name: value for name, value in asdict(self.best).items() if name != "val" or value is not None}
        seconds = {"total": self.total_seconds, "train": self.train_seconds}
        state = {"phase": self.phase, "step": self.step, "round": self.round, "seconds": seconds, "best": best}
        return state | {"validation": self.validation, "stopping": self.stopping}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> RunState:
        """Inverse of :meth:`as_json`."""
        seconds = values["seconds"]
        best = Best(**values["best"])
        numbers = values["phase"], values["step"], values["round"], seconds["total"], seconds["train"]
        validation = {name: [tuple(point) for point in points] for name, points in values.get("validation", {}).items()}
        return RunState(*numbers, best, validation, [tuple(point) for point in values.get("stopping", [])])
