"""The seam of an engine: it carries typed messages to clients, wherever they run, and brings their replies back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L

from fl_lightning.engine.client import ClientHalf, LocalSettings
from fl_lightning.engine.messages import Message


@dataclass(frozen=True)
class ClientSpec:
    """What an engine needs to set its clients up.

    Args:
        module: The built module with the initial weights; engines copy it.
        half: The strategy's client half.
        datamodules: One data module per client; client id = position.
        settings: Settings of the run.
    """

    module: L.LightningModule
    half: ClientHalf
    datamodules: Sequence[L.LightningDataModule]
    settings: LocalSettings


class Engine(ABC):
    """Base of all engines. A message is cloned (or serialised) on send and on receive."""

    threads: int = 1
    """Threads of a client on the CPU, and of the server during a run. Part of the configuration: they change float sums."""

    def remote_clients(
        self, shared: Mapping[str, Any], statistics: Mapping[str, Any] | None = None
    ) -> list[L.LightningDataModule]:
        """Stand-ins for data that the server does not have (``data: AtSites``), one per client.

        Args:
            shared: As :attr:`LocalSettings.shared`; called before :meth:`start`.
            statistics: What comes of the clients' statistics: they are contacted once more, to use it.
        """
        raise ValueError(
            f"`data: AtSites` means that the data are at the sites, but `federation.engine: {type(self).__name__}` runs "
            "clients here. Use `federation.engine: fl_lightning.flower.Flower`, or give the data."
        )

    @abstractmethod
    def start(self, spec: ClientSpec) -> None:
        """Set the clients up."""

    def begun_alike(self, module: L.LightningModule, names: Sequence[str]) -> list[str]:
        """Those of these buffers and frozen parameters that all clients and the server's module begin with in the same bits;
        after :meth:`start`."""
        return list(names)

    @abstractmethod
    def exchange(self, requests: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        """Deliver requests and yield one reply for each, in any order; a client that fails yields a reply with an error.

        Args:
            requests: At most one request per client.
            timeout: Seconds for the whole step, or ``None``.
        """

    @abstractmethod
    def save(self, directory: Path, previous: Path | None) -> None:
        """Write every client's memory as ``directory/client_<id>.pt``; ``previous`` is an earlier such folder (to link
        files of clients that have not changed since)."""

    @abstractmethod
    def load(self, directory: Path) -> None:
        """Take every client's memory from a folder that :meth:`save` wrote."""

    def checkpointed(self, directory: Path) -> None:  # noqa: B027  most engines need not know
        """A checkpoint was completed: a client that must be set up anew starts from it."""

    def peak_rss_mb(self) -> float:
        """Peak memory of other processes of this engine, in MB, summed."""
        return 0.0

    def close(self) -> None:  # noqa: B027  nothing to free by default
        """Free everything."""


def client_file(directory: Path, client: int) -> Path:
    """Where a client's memory lies in a checkpoint."""
    return directory / f"client_{client:05d}.pt"
