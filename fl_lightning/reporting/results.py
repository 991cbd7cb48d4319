"""results.json: the document that a federated or central run ends with, and the one place that writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fl_lightning.engine.memory import peak_rss_bytes
from fl_lightning.reporting.clients import names_of
from fl_lightning.reporting.left_out import LeftOut
from fl_lightning.reporting.monitor import Monitor
from fl_lightning.reporting.plain import plain
from fl_lightning.reporting.run_folder import RunFolder
from fl_lightning.reporting.scores import versions

NO_BYTES = {"up": 0, "down": 0, "by_kind": {}}


@dataclass
class Results:
    """What a run found.

    Args:
        name: Name of the run.
        strategy: Name of the strategy's class; ``Central``.
        seed: Seed of the run.
        monitor: What chose the best round.
        num_clients: Number of clients.
        rounds_run: Number of rounds; of epochs in a central run.
        best_round: The best round or epoch, counted from 0.
        chosen: Summaries ``{"val", "test"}`` of the best round.
        last: The same of the last round.
        data: The server's data module, or a list of the clients', for the rows that were left out and the tasks' names.
        total_seconds: Seconds of the whole run.
        train_seconds: Seconds of these in which clients trained.
        stopped_early: Whether ``federation.early_stopping`` ended it.
        weighting: How the strategy weighs clients, if it does.
        each_on_global: Each client's own model on the server's test data, where it was asked for.
        bytes: Totals of the ledger.
        failures: ``{"round", "client", "kind", "reason"}`` of each client that was left out of a step; rounds from 0.
        empty_clients: Clients without a training sample.
        workers_rss_mb: Peak memory of worker processes.
    """

    name: str
    strategy: str
    seed: int
    monitor: Monitor
    num_clients: int
    rounds_run: int
    best_round: int
    chosen: Mapping[str, Mapping[str, Any]]
    last: Mapping[str, Mapping[str, Any]]
    data: Any
    total_seconds: float
    train_seconds: float
    stopped_early: bool = False
    weighting: str | None = None
    each_on_global: Sequence[float | None] | None = None
    bytes: Mapping[str, Any] = field(default_factory=lambda: NO_BYTES)
    failures: Sequence[Mapping[str, Any]] = ()
    empty_clients: Sequence[int] = ()
    workers_rss_mb: float = 0.0

    def document(self) -> dict[str, Any]:
        """The content of results.json: plain values, ``None`` for what is undefined."""
        left_out = LeftOut.of(self.data)
        return plain({
            "name": self.name,
            "strategy": self.strategy,
            "seed": self.seed,
            "num_clients": self.num_clients,
            "client_names": names_of(self.data),
            "rounds_run": self.rounds_run,
            "stopped_early": self.stopped_early,
            "best_round": self.best_round,
            "metric": self.monitor.metric,
            "mode": self.monitor.mode,
            "weighting": self.weighting,
            "val": self.chosen["val"],
            "test": {**self.chosen["test"], "each_on_global": self.each_on_global},
            "last": self.last,
            "bytes": self.bytes,
            "seconds": {
                "total": self.total_seconds,
                "train": self.train_seconds,
                "overhead": self.total_seconds - self.train_seconds,
            },
            "peak_rss_mb": round(peak_rss_bytes() / 2**20 + self.workers_rss_mb),
            "failures": self.failures,
            "empty_clients": self.empty_clients,
            "dropped_rows": left_out.rows,
            "num_rows_read": left_out.num_rows_read,
            "row_counts": left_out.counts,
            "lost_clients": left_out.lost,
            "task_names": list(getattr(self.data, "task_names", None) or []),
            "versions": versions(),
        })  # fmt: skip

    def write(self, folder: RunFolder) -> dict[str, Any]:
        """Write results.json; returns its content."""
        document = self.document()
        folder.write_json("results.json", document)
        return document
