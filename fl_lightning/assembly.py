"""What a run is put together from, checked before anything is trained: the module, the clients' data, what tells them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
from lightning.pytorch.utilities.model_helpers import is_overridden

from fl_lightning.engine.local import set_up
from fl_lightning.engine.samples import count_samples
from fl_lightning.engine.trainer_args import check_package
from fl_lightning.settings import describe

Data = L.LightningDataModule | Sequence[L.LightningDataModule]


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
