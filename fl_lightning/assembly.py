"""What a run is put together from, checked before anything is trained: module, clients' data, what is shared, what tells
runs apart. One home for the trainer, Flower's sites and the forecast."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
from lightning.pytorch.utilities.model_helpers import is_overridden

from fl_lightning.engine.buffers import normalisation_entries, unlearnt
from fl_lightning.engine.client import LocalSettings
from fl_lightning.engine.entries import Entries
from fl_lightning.engine.ledger import Ledger
from fl_lightning.engine.local import set_up
from fl_lightning.engine.messages import Message, Payload
from fl_lightning.engine.remote import AtSites, SiteData
from fl_lightning.engine.samples import count_samples
from fl_lightning.engine.sampling import number_of_participants
from fl_lightning.engine.seeds import stream
from fl_lightning.engine.statistics import Exchange, exchange, use
from fl_lightning.engine.trainer_args import check_package
from fl_lightning.reporting.left_out import LeftOut
from fl_lightning.schema import agreed_schema
from fl_lightning.settings import FederationSettings, describe
from fl_lightning.strategies.base import Strategy

Data = L.LightningDataModule | Sequence[L.LightningDataModule]


@dataclass(frozen=True)
class Assembly:
    """Module and data of a run.

    Args:
        module: The module, with its layers.
        given: The data as the caller gave them.
        server_data: The server's data module, if any.
        datamodules: The clients'.
        sizes: Training samples of each client.
        entries: The module's entries, shared and private.
        still: Shared buffers and frozen parameters with which all begin alike.
        private: Patterns of the private ones.
        shared: What a client elsewhere must have the same.
        left_out: The rows of the data that cannot be used.
        schema: What the module's layers were made for, if the data say it.
        statistics: What the clients told and share.
    """

    module: L.LightningModule
    given: Data
    server_data: L.LightningDataModule | None
    datamodules: Sequence[L.LightningDataModule]
    sizes: Sequence[int]
    entries: Entries
    still: tuple[str, ...]
    private: tuple[str, ...]
    shared: Mapping[str, Any]
    left_out: LeftOut
    schema: Mapping[str, Any] | None
    statistics: Exchange

    @property
    def clients(self) -> tuple[int, ...]:
        """Ids of all clients."""
        return tuple(range(len(self.datamodules)))

    @property
    def empty(self) -> list[int]:
        """Clients without a training sample."""
        return [client for client in self.clients if self.sizes[client] == 0]

    @property
    def here(self) -> dict[int, L.LightningDataModule]:
        """Data modules of the clients that are not at sites elsewhere."""
        return {client: data for client, data in enumerate(self.datamodules) if not isinstance(data, SiteData)}

    @property
    def training_here(self) -> dict[int, L.LightningDataModule]:
        """Those of them that have a training sample."""
        return {client: data for client, data in self.here.items() if self.sizes[client] > 0}

    @property
    def data_here(self) -> list[L.LightningDataModule]:
        """The server's data module, if any, and those of the clients that are not at sites elsewhere."""
        return [*([] if self.server_data is None else [self.server_data]), *self.here.values()]

    @property
    def known_data(self) -> list[L.LightningDataModule]:
        """The server's data module, if any, and all clients'; none if some are at sites elsewhere."""
        return self.data_here if len(self.here) == len(self.datamodules) else []

    @property
    def data(self) -> Data:
        """The server's data module, or a list of the clients'."""
        return self.datamodules if self.server_data is None else self.server_data

    def identity(self, settings: FederationSettings, seed: int, config: Any, trainer_args: Mapping[str, Any]) -> dict[str, Any]:
        """What a run must have in common with the checkpoint that it goes on from, as a checkpoint gives it back."""
        identity = {
            "config": config or described(self.module, trainer_args),
            "federation": settings.describe(),
            "seed": seed,
            "clients": len(self.datamodules),
            "data": fingerprint(self.given, self.datamodules, self.sizes),
        }
        return json.loads(json.dumps(identity, default=str))

    def list_statistics(self, ledger: Ledger, run: str) -> None:
        """Write the exchange of statistics into the ledger: what each client told, and what all were told."""
        for kind, values in (("up", self.statistics.told), ("down", dict.fromkeys(self.clients, self.statistics.agreed))):
            for client, content in values.items():
                if content:
                    ledger.record(kind, Message("statistics", run, 0, client, Payload(values=content)))

    def local_settings(
        self, settings: FederationSettings, seed: int, identity: Mapping[str, Any], trainer_args: Mapping[str, Any]
    ) -> LocalSettings:
        """What every client is told of the run."""
        return LocalSettings(
            run=hashlib.sha256(repr(identity).encode()).hexdigest()[:12],
            seed=seed,
            num_rounds=settings.num_rounds,
            trainer_args=trainer_args,
            private=self.private,
            carry_optimizer_state=bool(settings.carry_optimizer_state),
            shared=self.shared,
            fast_loops=settings.fast_loops,
            local_clock=settings.local_clock,
            upload_transforms=tuple(settings.upload_transforms),
            statistics=self.statistics.agreed,
        )


def assemble(
    module: L.LightningModule, datamodule: Data, settings: FederationSettings, seed: int, config: Any, trains: bool = True
) -> Assembly:
    """Set the data up, build the module for them, and check that they fit each other and, to train, that enough can be used.

    Raises:
        ValueError: In the user's YAML names.
    """
    check_module(module)
    shared = {"config": config, "federation": settings.describe()}
    if isinstance(datamodule, AtSites):
        server_data, datamodules = None, settings.engine.remote_clients(shared)
        statistics = exchange(datamodules)
        if statistics.agreed:
            datamodules = settings.engine.remote_clients(shared, statistics.agreed)
    else:
        server_data, datamodules = client_data(datamodule, seed)
        statistics = exchange(datamodules)
        use(statistics.agreed, *([] if server_data is None else [server_data]), *datamodules)
    left_out = LeftOut.of(datamodules if server_data is None else server_data)
    if trains:
        left_out.check(settings.max_dropped_share)
    schema = agreed_schema(server_data, datamodules)
    build_layers(module, schema, seed)
    use(statistics.agreed, module)
    private = private_patterns(module, settings.strategy, settings.private, settings.batch_norm)
    entries = Entries(module, private)
    if not entries.shared and not entries.private:
        raise ValueError(
            f"`model: {type(module).__name__}` has no parameters yet. Create its layers in `__init__`, in "
            "`configure_model` (not in `setup`), or in `build(schema)`."
        )
    check_varying(module, entries, settings)
    check_participation(settings, len(datamodules))
    if settings.score_each_on_global and (entries.private or server_data is None):
        raise ValueError(
            "`federation.score_each_on_global` uploads whole models to score them on the server's data, but "
            + ("some entries are private." if entries.private else "the server has no data.")
            + " Leave it out."
        )
    if settings.score_each_on_global and settings.upload_transforms:
        raise ValueError(
            "`federation.score_each_on_global` uploads whole models as they are, past `federation.upload_transforms`. Leave "
            "one of them out."
        )
    sizes = sizes_of(datamodules)
    if not any(sizes):
        raise ValueError("No client has a training sample; check the split of the data (`data.init_args`).")
    still = tuple(name for name in unlearnt(module, [*private, *settings.average]) if name in entries.shared)
    return Assembly(
        module, datamodule, server_data, datamodules, sizes, entries, still, private, shared, left_out, schema, statistics
    )


def build_layers(module: L.LightningModule, schema: Mapping[str, Any] | None, seed: int) -> None:
    """Layers for data of this schema, of a module that makes them in ``build``, and those that it makes in Lightning's
    ``configure_model``; the same weights wherever it is done.

    Raises:
        ValueError: If ``configure_model`` makes them anew whenever it is called.
    """
    if hasattr(module, "build") and schema is not None:
        with stream(seed, "initial weights"):
            module.build(schema)  # type: ignore[operator]  # a method
    if is_overridden("configure_model", module):
        with stream(seed, "initial weights"):
            _configure(module)


def _configure(module: L.LightningModule) -> None:
    """Lightning calls the hook in every fit, so what it makes anew would take the place of the weights of all rounds."""
    module.configure_model()
    made = dict(module.named_parameters())
    module.configure_model()
    again = dict(module.named_parameters())
    if made.keys() != again.keys() or any(parameter is not again[name] for name, parameter in made.items()):
        raise ValueError(
            f"`{type(module).__name__}.configure_model` makes other layers when it is called again, and Lightning calls it in "
            "every fit: what was trained would be lost. Let it begin with `if self.net is not None: return` (and "
            "`self.net = None` in `__init__`)."
        )


def private_patterns(
    module: L.LightningModule, strategy: Strategy, private: Sequence[str] = (), batch_norm: str = "average"
) -> tuple[str, ...]:
    """Patterns of entries that never leave a client: the user's, the module's, the strategy's, and with ``batch_norm: local``
    those of normalisation layers.

    Raises:
        ValueError: There is no such layer.
    """
    patterns = (*private, *getattr(module, "private_entries", ()), *strategy.private_entries(module))
    if batch_norm != "local":
        return patterns
    own = normalisation_entries(module)
    if not own:
        raise ValueError(
            f"`federation.batch_norm: local` keeps normalisation layers at the clients, but `{type(module).__name__}` has no "
            "BatchNorm. Leave it out."
        )
    return (*patterns, *sorted(name.replace("[", "[[]") for name in own))


def check_varying(module: L.LightningModule, entries: Entries, settings: FederationSettings) -> None:
    """Entries whose length follows from the data have no mean, and no update that a transform could take."""
    if not entries.varying:
        return
    name, some = type(module).__name__, ", ".join(sorted(entries.varying)[:3])
    if not settings.strategy.takes_varying_entries:
        raise ValueError(
            f"`federation.strategy: {type(settings.strategy).__name__}` combines entries of one length, but those of `{name}` "
            f"({some}, ...) have the length that a client's data give them. Write `federation.strategy: "
            "fl_lightning.strategies.ForestEnsemble`, `LocalOnly`, or train centrally: `--federation null`."
        )
    if settings.upload_transforms:
        raise ValueError(
            f"`federation.upload_transforms` change a client's update of weights, and `{name}` has none ({some}, ... are new "
            "in each fit). Leave them out."
        )


def check_participation(settings: FederationSettings, number: int) -> None:
    """Can a round have as many answers as it needs?"""
    taking_part = number_of_participants(settings.clients_per_round, number)
    if settings.min_clients > taking_part:
        raise ValueError(
            f"`federation.min_clients` = {settings.min_clients}, but only {taking_part} of {number} "
            "clients take part in a round (`federation.clients_per_round`)."
        )


def check_module(module: L.LightningModule) -> None:
    """Can it be trained at all?

    Raises:
        ValueError: If it is none of ``lightning``'s, or a method is missing.
    """
    check_package(module, "model", L.LightningModule)
    for method in ("training_step", "configure_optimizers"):
        if not is_overridden(method, module):
            raise ValueError(f"`model: {type(module).__name__}` has no `{method}`; a client cannot train it.")


def client_data(datamodule: Data, seed: int) -> tuple[L.LightningDataModule | None, list[L.LightningDataModule]]:
    """The server's data module (if any) and the clients'."""
    if isinstance(datamodule, Sequence):
        clients, server = list(datamodule), None
    else:
        check_package(datamodule, "data", L.LightningDataModule)
        datamodule.prepare_data()
        set_up(datamodule, "fit", seed)
        if not hasattr(datamodule, "client_datamodules"):
            raise ValueError(
                f"`data: {type(datamodule).__name__}` has no `client_datamodules()`, which gives one LightningDataModule "
                "per client. Add it, pass a list of LightningDataModules, or train centrally: `--federation null`."
            )
        clients, server = list(datamodule.client_datamodules()), datamodule
    if not clients:
        raise ValueError("There are no clients: the list of data modules is empty.")
    for client, own in enumerate(clients):
        check_package(own, f"data of client {client}", L.LightningDataModule)
        own.prepare_data()
        set_up(own, "fit", seed, client)
    return server, clients


def sizes_of(clients: Sequence[L.LightningDataModule]) -> list[int]:
    """Number of training samples of each client, counted once: a data module may have to build a loader for it."""
    sizes = []
    for client, data in enumerate(clients):
        try:
            sizes.append(count_samples(data))
        except ValueError as error:
            raise ValueError(f"Client {client}: {error}") from error
    return sizes


def fingerprint(datamodule: Data, clients: Sequence[L.LightningDataModule], sizes: Sequence[int]) -> Any:
    """What tells these data from others, as far as the data modules say; else the clients' numbers of samples."""
    if hasattr(datamodule, "fingerprint"):
        return datamodule.fingerprint()
    return [c.fingerprint() if hasattr(c, "fingerprint") else size for c, size in zip(clients, sizes, strict=True)]


def described(module: L.LightningModule, trainer_args: Mapping[str, Any]) -> dict[str, Any]:
    """What the weights depend on, of a run that has no config: to be compared on resuming."""
    layout = {n: [str(t.dtype), list(t.shape)] for n, t in module.state_dict().items()}
    return {
        "model": type(module).__name__,
        "hparams": describe(dict(getattr(module, "hparams", {}))),
        "state": layout,
        "trainer": describe(dict(trainer_args)),
    }
