"""The server's view of its clients: requests go out, good replies come back, and every fault has a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fl_lightning.engine.ledger import Ledger
from fl_lightning.engine.messages import Message, NoReply, Payload, non_finite
from fl_lightning.engine.replies import Expected, odd_ones_out
from fl_lightning.engine.still import Start
from fl_lightning.engine.transport import Engine
from fl_lightning.errors import FederationError


@dataclass
class Federation:
    """What a strategy may do with its clients. It never holds a client.

    Args:
        engine: A started engine.
        run: Identifier of the run.
        clients: Ids of all clients.
        ledger: Counts every message.
        min_clients: A step with fewer good replies fails the round.
        timeout: Seconds for a step, or ``None``.
        validation: Round and value of each metric of the server's validation that clients' schedulers watch (a fit's reply
            says which); every later fit is told.
        start: Buffers and frozen parameters with which server and clients begin: they are sent only once they have changed.

    Attributes:
        failures: ``{"round", "client", "kind", "reason"}`` of every client that was left out of a step.
    """

    engine: Engine
    run: str
    clients: tuple[int, ...]
    ledger: Ledger = field(default_factory=Ledger)
    min_clients: int = 1
    timeout: float | None = None
    validation: dict[str, list[tuple[int, float | None]]] = field(default_factory=dict)
    start: Start = field(default_factory=lambda: Start({}))
    failures: list[dict[str, Any]] = field(default_factory=list)

    def call(
        self,
        kind: str,
        requests: Mapping[int, Payload],
        round: int,
        required: bool = True,
        expected: Expected | Mapping[int, Expected] | None = None,
    ) -> dict[int, Payload]:
        """One protocol step: ``requests`` go to their clients; good replies come back in client order.

        A client that errs, times out, or sends a non-finite value or a reply that is not as ``expected`` is recorded in
        ``failures`` and left out.

        Args:
            kind: Name of the client half's method.
            requests: One payload per client.
            round: Round number.
            required: Whether fewer than ``min_clients`` good replies fail the round.
            expected: What a reply must hold, for all clients or for each.

        Raises:
            FederationError: If fewer than ``min_clients`` (or none of those asked) answered and ``required``.
        """
        if kind == "fit":
            requests = self._with_validation(requests)
        sent = {client: self.start.leave_out(requests[client]) for client in sorted(requests)}
        messages = [Message(kind, self.run, round, client, payload) for client, payload in sent.items()]
        for message in messages:
            self.ledger.record("down", message)
        replies: dict[int, Payload] = {}
        reasons: dict[int, str] = {}
        for reply in self.engine.exchange(messages, self.timeout):
            payload, wrong = self._checked(reply, expected)
            if wrong is not None:
                reasons[reply.client] = wrong
            else:
                replies[reply.client] = payload
            if not isinstance(reply, NoReply):
                self.ledger.record("up", reply)
        if isinstance(expected, Expected) and expected.alike is not None:
            odd = odd_ones_out({client: expected.alike(replies[client]) for client in sorted(replies)})
            reasons |= odd
            replies = {client: reply for client, reply in replies.items() if client not in odd}
        for client in sorted(reasons):
            self.reject(client, kind, round, reasons[client])
        needed = min(self.min_clients, len(requests))
        if required and len(replies) < needed:
            self.fail(
                kind,
                round,
                len(replies),
                needed,
                [f for f in self.failures if f["round"] == round and f["kind"] == kind],
            )
        if kind == "fit":
            self._note_what_is_watched(replies)
        return {client: replies[client] for client in sorted(replies)}

    def _with_validation(self, requests: Mapping[int, Payload]) -> Mapping[int, Payload]:
        """Requests of a fit that tell what the server's validation gave for the metrics that schedulers watch."""
        if not self.validation:
            return requests
        validation = {name: [list(point) for point in points] for name, points in self.validation.items()}
        return {c: Payload(p.tensors, {**p.values, "validation": validation}) for c, p in requests.items()}

    def _note_what_is_watched(self, replies: Mapping[int, Payload]) -> None:
        for client in sorted(replies):
            for name in replies[client].values.get("watches", ()):
                self.validation.setdefault(name, [])

    def _checked(self, reply: Message, expected: Expected | Mapping[int, Expected] | None) -> tuple[Payload, str | None]:
        """A reply's content, with the entries that it only names; and what is wrong with it, if anything."""
        if reply.error:
            return reply.payload, reply.error
        try:
            payload = self.start.put_back(reply.payload)
        except ValueError as error:
            return reply.payload, str(error)
        return payload, self._fault(payload, expected, reply.client)

    @staticmethod
    def _fault(payload: Payload, expected: Expected | Mapping[int, Expected] | None, client: int) -> str | None:
        bad = non_finite(payload.tensors)
        if bad is not None:
            return f"non-finite values in `{bad}`"
        own = expected.get(client) if isinstance(expected, Mapping) else expected
        return None if own is None else own.fault(payload)

    def reject(self, client: int | None, kind: str, round: int, reason: str) -> None:
        """Record that a client (``None``: the server with its own data) was left out of a step."""
        self.failures.append({"round": round, "client": client, "kind": kind, "reason": reason})

    def fail(self, kind: str, round: int, good: int, needed: int, failures: list[dict[str, Any]]) -> None:
        """End the round.

        Raises:
            FederationError: Always, with each client's reason.
        """
        reasons = "\n".join(f"  client {f['client']}: {f['reason']}" for f in failures) or "  (none was asked)"
        error = FederationError(
            f"Round {round + 1}, step `{kind}`: {good} client(s) answered, {needed} needed "
            f"(`federation.min_clients`). The last good model is kept.\n{reasons}"
        )
        raise error from getattr(self.engine, "last_exception", None)
