"""Strategy: the server half of a federated algorithm and its protocol.

A round is: ask the participants to ``fit`` what `download` gives them, then `aggregate` their replies. An algorithm
overrides these two, or the whole `round` if its protocol has more steps. It knows clients by id only, and no transport.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
from torch import Tensor

from fl_lightning.engine.client import ClientHalf
from fl_lightning.engine.diagnostics import Diagnostics, Histogram
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.replies import Expected, fit_reply
from fl_lightning.strategies.aggregation import Aggregation

SERVER = "server/"
"""Before the names of ``server_state`` in a checkpoint."""


@dataclass(frozen=True)
class Phase:
    """Steps that come before the rounds, each with its own progress bar and checkpointed like a round.

    Args:
        name: What the user sees.
        num_steps: Number of steps.
        step: Called as ``step(federation, index)``; returns scalars to log.
    """

    name: str
    num_steps: int
    step: Callable[[Federation, int], Mapping[str, float]]


@dataclass(frozen=True)
class PhaseCosts:
    """What the phases before the rounds send and keep, in bytes, as far as it is known before they start.

    Args:
        up: Sent by all clients together.
        down: Sent to them.
        data: By how much the clients' data grow.
        messages: The messages of the largest step.
        clients: Private state of all clients.
        note: What is not known, for the user.
    """

    up: int = 0
    down: int = 0
    data: int = 0
    messages: int = 0
    clients: int = 0
    note: str = ""


class Strategy:
    """Base class.

    Attributes:
        personal: Every client has a model of its own; there is no global one.
        takes_varying_entries: Whether entries of a module may have another length at each client (its ``varying_entries``).
        carry_optimizer_state: Whether clients keep their optimiser's state between rounds unless the user says otherwise.
        histograms: Of the last round, summed over clients: counts of equal bins from 0 to 1, by name.
        takes_aggregation: Whether ``federation.aggregation`` can take the place of the mean of the clients' models.
        remarks: Figures that the server has found out about a client in this round, shown with those that it logged itself.
        server_state: What the server's optimiser remembers (see :meth:`server_step`): named tensors, kept in checkpoints.
    """

    histograms: Mapping[str, list[int]] = {}
    personal: bool = False
    takes_varying_entries: bool = False
    carry_optimizer_state: bool = False
    takes_aggregation: bool = False
    remarks: Mapping[int, Mapping[str, float]] = {}

    _aggregation: Aggregation | None = None

    def combine_by(self, aggregation: Aggregation | None) -> None:
        """How to make one model of the clients' (``federation.aggregation``); ``None`` is the weighted mean."""
        self._aggregation = aggregation

    def client_half(self) -> ClientHalf:
        """The client half that answers this strategy's requests."""
        return ClientHalf(personal=self.personal)

    def private_entries(self, module: L.LightningModule) -> Sequence[str]:
        """``fnmatch`` patterns of entries that the algorithm itself keeps at the clients, besides the user's and the module's.

        Args:
            module: The module, with its layers.
        """
        return ()

    def check_local_work(self, trainer_args: Mapping[str, Any]) -> None:
        """Before any work: does what a client trains in a round (YAML ``trainer``) suit the algorithm?

        Raises:
            ValueError: In the user's YAML names.
        """

    def check_rounds(self, num_rounds: int) -> None:
        """Before any work: does the number of rounds (YAML ``federation.num_rounds``) suit the algorithm?

        Raises:
            ValueError: In the user's YAML names.
        """

    def check(
        self,
        module: L.LightningModule,
        datamodules: Sequence[L.LightningDataModule],
        server_data: L.LightningDataModule | None,
    ) -> None:
        """Before round 1: is everything there that the algorithm needs?

        Args:
            module: The built module.
            datamodules: The clients' data modules, to look at types and schemas only.
            server_data: The server's own data, if it has any.

        Raises:
            ValueError: In the user's YAML names: what was needed, what was found, what to write.
        """

    def start(self, initial: dict[str, Tensor], private: Sequence[str]) -> None:
        """Take the initial shared entries; ``private`` names those that stay with the clients."""
        self.weights = initial
        self.server_state: dict[str, Tensor] = {}

    def phases(self) -> list[Phase]:
        """Phases before the rounds; none by default."""
        return []

    def phase_costs(self, datamodules: Sequence[L.LightningDataModule]) -> PhaseCosts:
        """What the phases send and keep, for ``inspect``; after :meth:`check`. Nothing by default."""
        return PhaseCosts()

    def round(self, federation: Federation, round: int, clients: Sequence[int]) -> dict[int, dict[str, float]]:
        """One round with these participants.

        Returns:
            The metrics that each client logged while training.
        """
        requests = {client: self.download(client) for client in clients}
        replies = federation.call("fit", requests, round, expected=self.fit_reply())
        trained = {client: reply for client, reply in replies.items() if reply.values["num_samples"] > 0}
        self.histograms = summed_counts(reply.values.get("pictures", {}) for reply in trained.values())
        if trained:  # else every participant has nothing to train on: the model stays
            self.aggregate(federation, round, trained)
        return {client: {**reply.values["metrics"], **self.remarks.get(client, {})} for client, reply in trained.items()}

    def uploads(self) -> Mapping[str, Tensor]:
        """Names, shapes and dtypes of what a client uploads after training: by default the floating entries of `weights`."""
        return {n: t for n, t in self.weights.items() if t.is_floating_point() or t.is_complex()}

    def fit_reply(self) -> Expected:
        """What a client's reply to ``fit`` must hold; any other is named and left out."""
        return fit_reply(self.uploads())

    def download(self, client: int) -> Payload:
        """What a client receives before it trains."""
        raise NotImplementedError(f"{type(self).__name__} must implement `download(client)`.")

    def aggregate(self, federation: Federation, round: int, replies: Mapping[int, Payload]) -> None:
        """Update the server's state from the replies of the clients that trained, in client order."""
        raise NotImplementedError(f"{type(self).__name__} must implement `aggregate(federation, round, replies)`.")

    def evaluation(self, client: int) -> Payload:
        """What a client receives before it evaluates or predicts: by default nothing if personal, else the global model."""
        return Payload() if self.personal else Payload(self.weights)

    def global_weights(self) -> dict[str, Tensor] | None:
        """The global model's shared entries, or ``None`` if there is no global model."""
        return None if self.personal else self.weights

    def server_step(self, average: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the model becomes after a round: by default the clients' average itself.

        A server's optimiser (`server_optimizers.py`) overrides this and keeps its memory in ``self.server_state``.

        Args:
            average: The average of the parameters; ``self.weights`` still are those of before the round. Buffers (running
                statistics of normalisation layers) become their average without being asked about, and rows that no client
                has trained stay whatever is returned for them.
        """
        return average

    def state(self) -> dict[str, Tensor]:
        """The server's state for a checkpoint, as named tensors."""
        kept = getattr(self, "server_state", {})  # absent where a subclass has a `start` of its own
        return {**self.weights, **{SERVER + name: tensor for name, tensor in kept.items()}}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Inverse of :meth:`state`."""
        self.weights = {name: tensor for name, tensor in state.items() if not name.startswith(SERVER)}
        self.server_state = {name.removeprefix(SERVER): t for name, t in state.items() if name.startswith(SERVER)}

    def diagnose(self) -> Diagnostics:
        """What there is to look at after a round: by default the clients' histograms, summed."""
        return Diagnostics(histograms={f"train/{name}": Histogram(counts) for name, counts in self.histograms.items()})

    def diagnose_phase(self) -> Diagnostics:
        """The same after each step of a phase; its name is put before theirs."""
        return Diagnostics()


def summed_counts(pictures: Iterable[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """Histograms of all clients as one, bin by bin."""
    result: dict[str, list[int]] = {}
    for client in pictures:
        for name, counts in client.items():
            result[name] = [a + b for a, b in zip(result.get(name, [0] * len(counts)), counts, strict=True)]
    return result
