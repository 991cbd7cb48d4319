r"""ForestEnsemble: each client grows random forests, and the server predicts their mean. One round.

.. math:: F_t(x) = \sum_k \frac{n_{kt}}{\sum_l n_{lt}} f_{kt}(x)

with :math:`f_{kt}` the forest of client k for task t and :math:`n_{kt}` its number of training labels of t. A client
without a label of a task has no forest for it, and nothing to say. The sum is worked out where the model predicts, in
:func:`lit_models.forest.arrays.predict`; the server only puts the clients' trees one behind the other.

What leaves a client, once: its trees as arrays (which fingerprint bins are looked at, at which counts, and each leaf's
mean label or share of class 1), the number of its labels of each task, and its number of molecules.
``lit_models/forest/module.py`` says what they reveal. All clients receive the trees of all when they evaluate or predict.
The ledger has the bytes of each message.

A client is asked for its forests once. Whoever was not there in a round (``clients_per_round``, a failure) may be asked in a
later one; a round in which all that take part have answered before changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor

from fl_lightning.engine.client import Client, ClientHalf
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.replies import Expected, fit_reply
from fl_lightning.strategies.base import PhaseCosts, Strategy
from lit_models.forest.arrays import LAYOUT, fault_of, join

PREFIX = "forest."
"""Before the names of arrays in the module."""
ASKED = "asked"
"""In the server's state: ids of the clients whose forests are there, in the order in which they came."""


class ForestEnsemble(Strategy):
    """The mean of the clients' forests; for ``lit_models.LitMoleculeForest``.

    Args:
        weighting: ``num_samples`` weighs a forest by its number of labels of the task; ``uniform`` gives all the same weight.
    """

    takes_varying_entries = True

    def __init__(self, weighting: Literal["uniform", "num_samples"] = "num_samples") -> None:
        if weighting not in ("uniform", "num_samples"):
            raise ValueError(
                f"`federation.strategy.init_args.weighting` must be `uniform` or `num_samples`, got `{weighting}`."
            )
        self.weighting = weighting

    def client_half(self) -> ClientHalf:
        return _Grower()

    def check_local_work(self, trainer_args: Mapping[str, Any]) -> None:
        epochs, steps = trainer_args.get("max_epochs"), trainer_args.get("max_steps")
        if epochs != 1 or steps not in (None, -1):
            raise ValueError(
                f"`ForestEnsemble` needs all molecules of a client once, but `trainer.max_epochs` is {epochs} and "
                f"`trainer.max_steps` is {steps}. Write `trainer.max_epochs: 1`, and leave `max_steps` out."
            )

    def check(
        self,
        module: L.LightningModule,
        datamodules: Sequence[L.LightningDataModule],
        server_data: L.LightningDataModule | None,
    ) -> None:
        names = {name.removeprefix(PREFIX) for name in module.state_dict()}
        if names != set(LAYOUT):
            raise ValueError(
                f"`ForestEnsemble` gathers forests, but `model: {type(module).__name__}` has none. Write "
                "`model: lit_models.LitMoleculeForest`, or another `federation.strategy`."
            )
        kept: Any = module
        self._num_tasks, self._num_features = int(kept.num_tasks), int(kept.num_features)

    def start(self, initial: dict[str, Tensor], private: Sequence[str]) -> None:
        super().start(initial, private)
        if private:
            raise ValueError(
                f"`ForestEnsemble` gathers whole forests, but {', '.join(private)} stay with the clients. Leave out "
                "`federation.private`."
            )
        self.server_state = {ASKED: torch.zeros(0, dtype=torch.int64)}

    def phase_costs(self, datamodules: Sequence[L.LightningDataModule]) -> PhaseCosts:
        return PhaseCosts(note="The size of forests follows from the data: each client sends its own once and receives all.")

    def round(self, federation: Federation, round: int, clients: Sequence[int]) -> dict[int, dict[str, float]]:
        known = set(self.server_state[ASKED].tolist())
        new = [client for client in clients if client not in known]
        return super().round(federation, round, new) if new else {}

    def download(self, client: int) -> Payload:
        return Payload()

    def fit_reply(self) -> Expected:
        usual = fit_reply(self.weights)
        return Expected(
            usual.values,
            usual.optional,
            layout=self.weights,
            varying=tuple(self.weights),
            tensors=self._fault,
            alike=usual.alike,
        )

    def _fault(self, payload: Payload) -> str | None:
        """Is it a forest for each of some tasks, with no more labels than molecules?"""
        if payload.values["num_samples"] == 0:
            return None
        arrays = _arrays(payload.tensors)
        wrong = fault_of(arrays, self._num_tasks, self._num_features)
        if wrong is None and bool((arrays["forest_task"].diff() < 1).any()):
            wrong = "there must be one for each task, in the order of tasks"
        if wrong is None and bool((arrays["forest_weight"] > payload.values["num_samples"]).any()):
            wrong = "`forest_weight` is above the number of molecules"
        return None if wrong is None else f"its update is no forest: {wrong}"

    def aggregate(self, federation: Federation, round: int, replies: Mapping[int, Payload]) -> None:
        parts = [_arrays(reply.tensors) for reply in replies.values()]
        if self.weighting == "uniform":
            parts = [{**part, "forest_weight": torch.ones_like(part["forest_weight"])} for part in parts]
        joined = join([_arrays(self.weights), *parts])
        self.weights = {PREFIX + name: tensor for name, tensor in joined.items()}
        self.server_state[ASKED] = torch.cat([self.server_state[ASKED], torch.tensor(list(replies), dtype=torch.int64)])


class _Grower(ClientHalf):
    """A client's trees leave it whole, whatever their types are."""

    def reply_tensors(self, client: Client) -> dict[str, Tensor]:
        return client.shared_entries()


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
