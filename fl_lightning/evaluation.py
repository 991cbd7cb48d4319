"""Scores and predictions of a strategy's current models: at the clients, and of the global model on the server's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
from torch import Tensor

from fl_lightning.engine.client import named_outputs
from fl_lightning.engine.entries import Entries
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.local import LocalTrainer
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.replies import Expected, evaluate_reply, predict_reply
from fl_lightning.engine.seeds import stream
from fl_lightning.reporting.monitor import Monitor
from fl_lightning.reporting.scores import defined, of_clients, summarise
from fl_lightning.strategies.base import Strategy


@dataclass
class Evaluation:
    """Asks the clients, and evaluates on the server's data itself.

    Args:
        strategy: Says what clients receive, and has the global weights.
        federation: The clients.
        local: Evaluates the server's module.
        entries: Of the server's module.
        server_data: The server's data, if it has any.
        monitor: The metric that summaries are about.
        seed: Of the run.
    """

    strategy: Strategy
    federation: Federation
    local: LocalTrainer
    entries: Entries
    server_data: L.LightningDataModule | None
    monitor: Monitor
    seed: int

    def summaries(
        self, stages: Sequence[str], round: int, scalars: dict[str, Any] | None = None, tolerant: bool = False
    ) -> dict[str, Any]:
        """Summaries of the strategy's current models for each stage; all metrics are added to ``scalars`` if given.

        If ``tolerant``, an error on the server's data is recorded like a client's: it costs no more than that score.
        """
        clients = self.federation.clients
        requests = {c: self.strategy.evaluation(c) for c in clients}
        replies = self.federation.call(
            "evaluate",
            {c: Payload(p.tensors, {**p.values, "stages": list(stages)}) for c, p in requests.items()},
            round,
            required=False,
            expected=evaluate_reply(tuple(stages)),
        )
        found = {}
        for stage in stages:
            per_client = [replies[c].values[stage] if c in replies else None for c in clients]
            overall = self._global_scores(stage, round, tolerant)
            if stage == "val":  # it chooses the best round; what a test does not log is undefined there
                self.monitor.check([overall, *per_client])
            found[stage] = summarise(self.monitor.metric, self.monitor.mode, overall, per_client)
            if scalars is not None:
                scalars |= {f"{stage}/{k}": v for k, v in (overall or {}).items()}
                scalars |= {f"clients/{c}/{stage}/{k}": v for c, m in enumerate(per_client) for k, v in (m or {}).items()}
                scalars |= {f"{stage}/clients_{k}": found[stage][k] for k in ("mean", "worst")}
                if of_clients(found[stage]["per_client"]):  # of these the mean and the worst know nothing
                    scalars[f"{stage}/clients_undefined"] = found[stage]["undefined"]
        return found

    def predictions(self, round: int) -> dict[int | None, list[dict[str, Tensor]]]:
        """Of the global model on the server's data under ``None`` if there are both, else of each client under its id."""
        if self._take_global_weights() and self.server_data is not None:
            batches = self.local.predict(self.server_data)
            if batches is not None:
                return {None: [named_outputs(batch) for batch in batches]}
        requests = {c: self.strategy.evaluation(c) for c in self.federation.clients}
        replies = self.federation.call("predict", requests, round, expected=predict_reply())
        result: dict[int | None, list[dict[str, Tensor]]] = {}
        for client, reply in replies.items():
            by_batch: dict[int, dict[str, Tensor]] = {}
            for name, tensor in reply.tensors.items():
                index, key = name.split("/", 1)
                by_batch.setdefault(int(index), {})[key] = tensor
            result[client] = list(by_batch.values())
        return result

    def each_on_global(self, round: int) -> list[float | None]:
        """The test score of every client's own model on the server's data; the models are uploaded for it."""
        requests = {c: self.strategy.evaluation(c) for c in self.federation.clients}
        whole = Expected(layout=self.entries.get(self.entries.shared), varying=self.entries.varying)
        replies = self.federation.call("model", requests, round, required=False, expected=whole)
        scores: list[float | None] = []
        for client in self.federation.clients:
            metrics = None
            if client in replies:
                self.entries.set(replies[client].tensors)
                metrics = self._on_server_data("test", round, tolerant=True)
            scores.append(defined(metrics, self.monitor.metric))
        return scores

    def _take_global_weights(self) -> bool:
        """Put the global model into the server's module; ``False`` if there is none, or not all of it is here."""
        weights = self.strategy.global_weights()
        if weights is None or self.entries.private or self.server_data is None:
            return False
        self.entries.set(weights)
        return True

    def _global_scores(self, stage: str, round: int, tolerant: bool) -> dict[str, float] | None:
        if not self._take_global_weights():
            return None
        with stream(self.seed, f"global {stage}", round):
            return self._on_server_data(stage, round, tolerant)

    def _on_server_data(self, stage: str, round: int, tolerant: bool) -> dict[str, float] | None:
        if self.server_data is None:
            return None
        try:
            return self.local.evaluate(self.server_data, stage)
        except Exception as error:
            if not tolerant:
                raise
            self.federation.reject(None, "evaluate", round, f"{type(error).__name__}: {error}")
            return None
