"""The label canary: no label outside the training part has reached what is trained.

A short federation runs twice from the same seed, the second time with all labels outside the training part permuted. Then
every message, every weight and all that clients remember must be the same bits. Scores do differ, and with them what they
choose: so early stopping is left out, only the last round is validated, and replies to ``evaluate`` are not compared.

It shows that labels for validation and testing do not train. It cannot show what a data module did with them before: how it
drew the split and the clients.
"""

from __future__ import annotations

import copy
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from torch import Tensor

from fl_lightning.engine.in_process import InProcess
from fl_lightning.engine.messages import Message
from fl_lightning.engine.transport import ClientSpec
from fl_lightning.relabelling import Relabelled
from fl_lightning.trainer import FederatedTrainer

Content = Mapping[str, str]
"""Names of entries and values with what they are, as a digest."""


@dataclass(frozen=True)
class Verdict:
    """What a canary has found.

    Args:
        changed: Labels that differed between the two runs, by whose they are: ``client 0``, ..., ``server``.
        compared: Number of messages, of their entries, and of what clients remember.
        difference: Where the two runs differed first, in words; ``None``: nowhere.
    """

    changed: Mapping[str, int]
    compared: int
    difference: str | None

    def lines(self) -> list[str]:
        """For the terminal."""
        labels = ", ".join(f"{number} of {whose}" for whose, number in self.changed.items())
        told = [f"canary: labels outside the training part that differ between the two runs: {labels}"]
        if self.difference is None:
            return [*told, f"canary: {self.compared} messages, weights and memories have the same bits: no such label trains"]
        return [*told, f"canary: a label outside the training part has reached training. First difference: {self.difference}"]


def run_canary(
    module: L.LightningModule,
    datamodule: L.LightningDataModule | Sequence[L.LightningDataModule],
    trainer: Mapping[str, Any],
    federation: Mapping[str, Any],
    seed: int = 0,
    rounds: int = 2,
) -> Verdict:
    """Run the federation twice and compare.

    Args:
        module: As for :meth:`FederatedTrainer.fit <fl_lightning.FederatedTrainer.fit>`; stays as it is.
        datamodule: The same.
        trainer: Arguments of ``lightning.Trainer``.
        federation: Arguments of :class:`~fl_lightning.settings.FederationSettings`.
        seed: Of both runs, and of the permutation.
        rounds: Of each run; phases before the rounds are run whole.

    Raises:
        ValueError: As ``fit``; or if no label could be changed, so that nothing would be shown.
    """
    settings = {
        **federation,
        "num_rounds": rounds,
        "check_val_every_n_rounds": rounds,
        "early_stopping": None,
        "score_each_on_global": False,
        "client_timeout": None,
        "force": False,
        "name": "canary",
    }
    histories: list[list[tuple[str, Content]]] = []
    changed: dict[str, int] = {}
    for permute in (False, True):
        data = copy.deepcopy(datamodule)
        relabelled = Relabelled(data, seed) if permute else None
        engine = Recorder()
        own = {**settings, "strategy": copy.deepcopy(federation.get("strategy")), "engine": engine}
        with tempfile.TemporaryDirectory() as folder:
            arguments = {**trainer, "default_root_dir": folder, "logger": False, "enable_progress_bar": False}
            fed = FederatedTrainer(trainer=arguments, seed=seed, **own)
            fed.fit(copy.deepcopy(module), data)
        histories.append(
            [*engine.history, *engine.memories(), ("the server's weights", digests(fed.settings.strategy.state()))]
        )
        changed = dict(relabelled.changed) if relabelled is not None else {}
    if not any(changed.values()):
        raise ValueError(
            "The canary needs labels outside the training part, and found none that could be changed. Give the data a "
            "validation and a test part of more than one class or value."
        )
    return Verdict(changed, len(histories[0]), first_difference(*histories))


def canary_of_config(module: L.LightningModule, datamodule: L.LightningDataModule, config: Mapping[str, Any]) -> Verdict:
    """:func:`run_canary` of a parsed config.

    Raises:
        ValueError: As there; or if it trains centrally.
    """
    if config["federation"] is None:
        raise ValueError(
            "`fl-lightning canary` compares what crosses between server and clients: leave out `--federation null`."
        )
    return run_canary(
        module, datamodule, dict(config["trainer"]), vars(config["federation"]), config["seed_everything"], config["rounds"]
    )


def first_difference(one: Sequence[tuple[str, Content]], other: Sequence[tuple[str, Content]]) -> str | None:
    """Where two histories part, in words."""
    for (what, content), (twin, changed) in zip(one, other, strict=False):
        if what != twin:
            return f"{what} in one run is {twin} in the other"
        for name in [*content, *(n for n in changed if n not in content)]:
            if content.get(name) != changed.get(name):
                return f"{what}, {name}"
    return None if len(one) == len(other) else f"{abs(len(one) - len(other))} messages more in one run"


class Recorder(InProcess):
    """Runs clients in this process and notes what crosses, as digests."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[tuple[str, Content]] = []

    def start(self, spec: ClientSpec) -> None:
        super().start(spec)
        self.history.append(("what clients are told before round 1", {"`statistics`": as_json(spec.settings.statistics)}))

    def exchange(self, requests: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        for request in requests:
            self._note("request to", request)
        for reply in super().exchange(requests, timeout):
            self._note("reply of", reply)
            yield reply

    def _note(self, way: str, message: Message) -> None:
        values = {key: value for key, value in message.payload.values.items() if not is_a_score(message.kind, key)}
        content = {**digests(message.payload.tensors), **{f"value `{k}`": as_json(v) for k, v in sorted(values.items())}}
        if message.error is not None:
            content["the error"] = message.error
        self.history.append((f"step {message.round}, {way} client {message.client}, `{message.kind}`", content))

    def memories(self) -> Iterator[tuple[str, Content]]:
        """What the clients have in their memory at the end."""
        for client, store in self._worker.stores.items():
            values = {f"value `{name}`": as_json(value) for name, value in sorted(store.values.items())}
            yield f"the memory of client {client}", {**digests(store.tensors), **values}


def is_a_score(kind: str, key: str) -> bool:
    """Whether a message's value is made of labels for validation or testing, by its purpose."""
    return kind == "evaluate" or (kind == "fit" and key == "validation")


def digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """SHA-256 of each tensor's dtype, shape and bits."""
    found = {}
    for name, tensor in tensors.items():
        sha = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        sha.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        found[f"entry `{name}`"] = sha.hexdigest()
    return found


def as_json(value: Any) -> str:
    """As text that is the same for equal values."""
    return json.dumps(value, sort_keys=True, default=str)
