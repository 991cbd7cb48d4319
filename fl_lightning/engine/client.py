"""The client half: answers typed requests with the client's own data and memory.

`ClientHalf` holds the protocol steps that every strategy needs: ``fit``, ``evaluate``, ``predict``, ``model``. A strategy
with more steps subclasses it: a step is a method marked with ``@protocol_step``, named by the request's ``kind``. A half has no
state of its own: it may be rebuilt between any two requests, so what must survive goes to ``client.store``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from fl_lightning.engine.buffers import unlearnt
from fl_lightning.engine.clock import Clock, Position, Validation
from fl_lightning.engine.entries import Entries
from fl_lightning.engine.faults import fault
from fl_lightning.engine.local import LocalTrainer
from fl_lightning.engine.messages import Message, Payload, check_payload, non_finite
from fl_lightning.engine.predict_methods import LOADER
from fl_lightning.engine.seeds import stream
from fl_lightning.engine.still import AS_AT_START, Start
from fl_lightning.engine.store import ClientStore
from fl_lightning.engine.upload_transforms import Upload, UploadTransform, transformed


@dataclass(frozen=True)
class LocalSettings:
    """What a client needs to know of the run, the same for every engine.

    Args:
        run: Identifier of the run.
        seed: Seed of the run; all streams derive from it.
        num_rounds: Number of rounds of the run.
        trainer_args: Arguments of ``lightning.Trainer`` (YAML ``trainer:``).
        private: ``fnmatch`` patterns of entries which never leave the client.
        carry_optimizer_state: Whether a client's optimiser goes on where its last round ended.
        shared: ``config`` and ``federation``: what the weights depend on, as plain values; a client elsewhere must have
            the same.
        fast_loops: Whether clients may go through Lightning's loops in a short way (``federation.fast_loops``).
        upload_transforms: What happens to a client's update before it leaves (``federation.upload_transforms``).
        statistics: What the clients' data modules have agreed on before round 1 (`engine/statistics.py`).
        local_clock: ``"run"``: a client's fit is a part of one training over all rounds; ``"round"``: one of its own.
    """

    run: str
    seed: int
    num_rounds: int
    trainer_args: Mapping[str, Any] = field(default_factory=dict)
    private: tuple[str, ...] = ()
    carry_optimizer_state: bool = False
    shared: Mapping[str, Any] = field(default_factory=dict)
    fast_loops: bool = True
    local_clock: str = "run"
    upload_transforms: tuple[UploadTransform, ...] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)


class Client:
    """One client during one request: its data, its memory, and the worker's live module.

    Attributes:
        id: Client id.
        round: Round of the request.
        datamodule: The client's own data.
        store: The client's memory (a draft, kept if the request is answered).
        module: The live module; belongs to the worker and holds whatever the last request left in it.
        settings: Settings of the run.
    """

    def __init__(self, worker: Worker, id: int, round: int, store: ClientStore) -> None:
        self._worker = worker
        self.id, self.round, self.store = id, round, store
        self.datamodule: Any = worker.datamodules[id]  # with what the strategy has asked for: `schema`, `with_data`, ...
        self.module: Any = worker.module  # it may offer more than a LightningModule: `on_round_start`, `private_state`, ...
        self.settings = worker.settings

    @property
    def device(self) -> torch.device:
        """The device that Lightning gives this worker."""
        return self._worker.local.device

    def memo(self, name: str, key: Hashable, compute: Callable[[], Any]) -> Any:
        """A value that follows from the client's data and store alone, kept for speed: one per name, until ``key`` changes."""
        held = self._worker.memos.get((self.id, name))
        if held is None or held[0] != key:
            held = self._worker.memos[self.id, name] = (key, compute())
        return held[1]

    def forget(self, name: str) -> None:
        """Let go of a memo; if it is a data module, of what was kept for training on it, too."""
        _, value = self._worker.memos.pop((self.id, name), (None, None))
        self._worker.local.forget(value)

    @property
    def shared_names(self) -> tuple[str, ...]:
        """Names of the entries that may leave the client."""
        return self._worker.entries.shared

    @property
    def num_train_samples(self) -> int:
        """Number of training samples, 0 if the client has nothing to train on."""
        return self._worker.local.num_train_samples(self.datamodule)

    def load(self, received: Mapping[str, Tensor]) -> None:
        """Make the live module this client's: initial values, then its remembered entries, then the received ones.

        Raises:
            ValueError: If a private entry, or none of this module, was received.
        """
        entries = self._worker.entries
        private = [n for n in received if n in set(entries.private)]
        if private:
            raise ValueError(f"Received private entries: {', '.join(private)}. They never cross the border.")
        known = {**self.store.section("module"), **received}
        entries.set({**{n: t for n, t in self._worker.initial.items() if n not in known}, **known})
        if hasattr(self.module, "load_private_state"):
            self.module.load_private_state(self.store.section("objective"))

    def train(self, validation: Validation | None = None) -> dict[str, float]:
        """One round of local work; remembers the private entries, the objective's state and, if asked, the optimiser's.

        Args:
            validation: What the server's validation gave so far, for schedulers that watch it.
        """
        carry, one_clock = self.settings.carry_optimizer_state, self.settings.local_clock == "run"
        position = self._position(validation or {}) if one_clock else None
        if hasattr(self.module, "on_round_start"):
            self.module.on_round_start(self.round, self.settings.num_rounds)
        with stream(self.settings.seed, "fit", self.round, self.id):
            state = self.store.section("optimizer") if carry else None
            metrics = self._worker.local.fit(self.datamodule, state, position=position)
        if one_clock:
            self._keep_position(self._worker.local.clock)
        self.remember(self._worker.entries.private)
        if hasattr(self.module, "private_state"):
            self.store.put_section(
                "objective", {n: t.detach().to("cpu", copy=True) for n, t in self.module.private_state().items()}
            )
        if carry:
            self.store.put_section("optimizer", self._worker.local.optimizer_state)
        return metrics

    def _position(self, validation: Validation) -> Position:
        """Where the fit of this round stands in the run."""
        states: dict[str, dict[str, Any]] = copy.deepcopy(self.store.values.get("callbacks", {}))
        for name, tensor in self.store.section("callbacks").items():
            index, entry = name.split("/", 1)
            states[list(states)[int(index)]][entry] = tensor
        return Position(self.round, self.settings.num_rounds, validation, self.store.values.get("clock"), states)

    def _keep_position(self, clock: Clock) -> None:
        """Remember what the next fit goes on from and the federation's position does not tell."""
        tensors: dict[str, Tensor] = {}
        states: dict[str, dict[str, Any]] = {}
        for index, (name, state) in enumerate(clock.callbacks.items()):
            states[name] = {entry: value for entry, value in state.items() if not isinstance(value, Tensor)}
            own = {entry: value for entry, value in state.items() if isinstance(value, Tensor)}
            tensors |= {f"{index}/{entry}": value.detach().to("cpu", copy=True) for entry, value in own.items()}
        for key, value in (("clock", clock.kept), ("callbacks", states)):
            if value:
                self.store.values[key] = value
        self.store.put_section("callbacks", tensors)

    @property
    def watches(self) -> list[str]:
        """Metrics of the server's validation that the schedulers of the last fit waited for."""
        return self._worker.local.clock.watches

    def remember(self, names: tuple[str, ...] | None = None) -> None:
        """Keep entries of the live module (all of them by default) as this client's own."""
        entries = self._worker.entries
        self.store.put_section("module", entries.get(entries.shared + entries.private if names is None else names))

    def evaluate(self, stage: str) -> dict[str, float] | None:
        """Metrics of the live module on this client's ``"val"`` or ``"test"`` data."""
        with stream(self.settings.seed, stage, self.round, self.id):
            return self._worker.local.evaluate(self.datamodule, stage)

    def predict(self) -> list[Any] | None:
        """Outputs of ``predict_step`` of the live module on this client's data."""
        with stream(self.settings.seed, "predict", self.round, self.id):
            return self._worker.local.predict(self.datamodule)

    def untrained_rows(self) -> dict[str, list[int]]:
        """Rows of entries that the last local fit had nothing to learn from, as the module says (its ``untrained_rows()``).

        Raises:
            ValueError: If it names no entry, or its rows are not a mask of that entry's rows.
        """
        told = self.module.untrained_rows() if hasattr(self.module, "untrained_rows") else {}
        found = {}
        for name, mask in told.items():
            entry = self._worker.entries.canonical(name)
            shape = self.module.state_dict()[entry].shape
            if mask.dtype != torch.bool or mask.shape != shape[:1] or mask.dim() != 1:
                raise ValueError(
                    f"`{type(self.module).__name__}.untrained_rows` must give a bool tensor with one value for each row of "
                    f"`{name}` {list(shape)}, but gives {str(mask.dtype).removeprefix('torch.')}{list(mask.shape)}."
                )
            if bool(mask.any()):
                found[entry] = mask.nonzero().flatten().tolist()
        return found

    def shared_entries(self) -> dict[str, Tensor]:
        """The shared entries of the live module."""
        return self._worker.entries.get(self.shared_names)

    def changed(self, received: Mapping[str, Tensor], sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What was received, without the buffers and frozen parameters that are sent back as they came: no update."""
        still = {n for n in self._worker.unlearnt if n in received and n in sent and torch.equal(received[n], sent[n])}
        return {name: tensor for name, tensor in received.items() if name not in still}

    def upload(self) -> dict[str, Tensor]:
        """The shared entries that an average is defined for (integers stay as the server has them)."""
        return {n: t for n, t in self.shared_entries().items() if t.is_floating_point() or t.is_complex()}


Step = TypeVar("Step", bound=Callable[..., Payload])


def protocol_step(method: Step) -> Step:
    """Declares a method ``(client, request) -> Payload`` of a client half as a step of the protocol: a server may ask for it.

    What overrides a step is one, too.
    """
    method.is_protocol_step = True  # type: ignore[attr-defined]  # a mark of our own
    return method


def step_of(half: ClientHalf, kind: str) -> Callable[[Client, Payload], Payload]:
    """The step that a request asks for.

    Raises:
        ValueError: If the half has no such step: nothing else in it can be called from outside.
    """
    if any(getattr(vars(kind_of).get(kind), "is_protocol_step", False) for kind_of in type(half).__mro__):
        found: Callable[[Client, Payload], Payload] = getattr(half, kind)
        return found
    raise ValueError(f"{type(half).__name__} has no protocol step `{kind}`.")


class ClientHalf:
    """The protocol steps common to all strategies.

    Args:
        personal: The client's model is its own: everything is remembered, and evaluated as it is after local training.
    """

    def __init__(self, personal: bool = False) -> None:
        self.personal = personal

    def callbacks(self, module: L.LightningModule) -> list[Callback]:
        """Callbacks that the algorithm itself needs in each fit; what they keep lasts for one fit. None by default.

        Args:
            module: The live module.
        """
        return []

    def check_optimizers(self, module: L.LightningModule, optimizers: Sequence[Any]) -> None:
        """Before round 1: do the module's optimisers go with this algorithm? All do, by default.

        Raises:
            ValueError: Naming what was needed, what was found and what to write.
        """

    @protocol_step
    def fit(self, client: Client, request: Payload) -> Payload:
        """Receive the shared entries, train, send them back with the number of samples and the logged metrics.

        Rows of entries that were not trained are named (``untrained_rows``), so that the client does not weigh in them.
        """
        num_samples = client.num_train_samples
        if num_samples == 0:
            return Payload(values={"num_samples": 0, "metrics": {}})
        client.load(request.tensors)
        metrics = client.train(request.values.get("validation"))
        if self.personal:
            client.remember()
        upload = Upload(client.id, client.round, client.settings.seed)
        sent = self.reply_tensors(client)
        tensors = transformed(client.settings.upload_transforms, sent, client.changed(request.tensors, sent), upload)
        values: dict[str, Any] = {"num_samples": num_samples, "metrics": _json(metrics)}
        optional = {
            "pictures": client.module.pictures() if hasattr(client.module, "pictures") else {},
            "watches": client.watches,
            "untrained_rows": {name: rows for name, rows in client.untrained_rows().items() if name in tensors},
        }
        return Payload(tensors, values | {name: value for name, value in optional.items() if value})

    def reply_tensors(self, client: Client) -> dict[str, Tensor]:
        """What a client uploads after training."""
        return client.upload()

    @protocol_step
    def evaluate(self, client: Client, request: Payload) -> Payload:
        """Metrics on the client's own data for every stage in ``request.values["stages"]``; ``None`` where undefined."""
        client.load(request.tensors)
        metrics = {stage: client.evaluate(stage) for stage in request.values["stages"]}
        return Payload(values={stage: None if m is None else _json(m) for stage, m in metrics.items()})

    @protocol_step
    def predict(self, client: Client, request: Payload) -> Payload:
        """Predictions on the client's own data, batch by batch.

        Raises:
            ValueError: If the data do not say what is to be predicted.
        """
        client.load(request.tensors)
        batches = client.predict()
        if batches is None:
            raise ValueError(f"`data: {type(client.datamodule).__name__}` has no `predict_dataloader`. {LOADER}")
        return Payload(
            {f"{i}/{name}": tensor for i, batch in enumerate(batches) for name, tensor in named_outputs(batch).items()}
        )

    @protocol_step
    def model(self, client: Client, request: Payload) -> Payload:
        """The client's model as it is evaluated, for scoring on the server's data; the ledger shows it."""
        client.load(request.tensors)
        return Payload(client.shared_entries())


class Worker:
    """Holds one live module and one reused trainer, and answers requests for its clients.

    Args:
        module: The module, fully built, with the initial weights.
        half: The strategy's client half.
        datamodules: Data module of each client, by id.
        settings: Settings of the run.
    """

    def __init__(
        self,
        module: L.LightningModule,
        half: ClientHalf,
        datamodules: Mapping[int, L.LightningDataModule],
        settings: LocalSettings,
    ) -> None:
        self.module, self.half, self.settings = module, half, settings
        self.datamodules = dict(datamodules)
        self.entries = Entries(module, settings.private)
        module.private_entries = tuple(settings.private)  # type: ignore[assignment]  # `federation.private`, too (FedProx asks)
        self.initial = self.entries.get(self.entries.shared + self.entries.private)
        self.start, self.unlearnt = Start(self.initial), unlearnt(module)
        self.local = LocalTrainer(
            module, settings.trainer_args, settings.seed, self.datamodules, settings.fast_loops, half.callbacks(module)
        )
        self.memos: dict[tuple[int, str], tuple[Hashable, Any]] = {}
        self.stores = {client: ClientStore() for client in self.datamodules}

    def handle(self, request: Message) -> Message:
        """Answer one request. A client's fault becomes a reply with ``error``; its memory is then as before."""
        reply = replace(request, payload=Payload())
        store = self.stores[request.client].draft()
        try:
            step = step_of(self.half, request.kind)
            received = self.start.put_back(request.payload)
            payload = step(Client(self, request.client, request.round, store), received)
            check_payload(payload)
            for part, tensors in (("reply", payload.tensors), ("private state", store.tensors)):
                bad = non_finite(tensors)
                if bad is not None:
                    return replace(reply, error=f"non-finite values in `{bad}` of its {part}")
        except Exception as error:  # noqa: BLE001  whatever it is, it is this client's fault alone
            self.last_exception = error
            return replace(reply, error=fault(error))
        if not store.same_as(self.stores[request.client]):  # else its file of the last checkpoint still holds
            self.stores[request.client] = store
        return replace(reply, payload=self.start.leave_out(payload, request.payload.values.get(AS_AT_START, ())))


def named_outputs(batch: Any) -> dict[str, Tensor]:
    """A ``predict_step``'s output as named tensors: a dict of tensors, or one tensor called ``output``.

    Raises:
        ValueError: For any other type.
    """
    if isinstance(batch, Tensor):
        return {"output": batch}
    if isinstance(batch, Mapping) and all(isinstance(t, Tensor) for t in batch.values()):
        return dict(batch)
    raise ValueError(f"`predict_step` returned {type(batch).__name__}; return a tensor or a dict of tensors.")


def _json(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if torch.isfinite(torch.tensor(value)) else None for name, value in metrics.items()}
