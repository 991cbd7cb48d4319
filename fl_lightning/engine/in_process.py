"""Engine: all clients in this process, one after the other."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fl_lightning.engine.client import Worker
from fl_lightning.engine.messages import Message
from fl_lightning.engine.store import ClientStore
from fl_lightning.engine.transport import ClientSpec, Engine, client_file


class InProcess(Engine):
    """Clients run one after the other in the server's process, behind the same messages as everywhere else.

    Args:
        threads: Threads of a client on the CPU.
        rebuild_clients: Rebuild the client half, its module and its trainer before every request, as happens across
            machines. Slow; same bits.
    """

    def __init__(self, threads: int = 1, rebuild_clients: bool = False) -> None:
        if threads < 1:
            raise ValueError(f"`federation.engine.init_args.threads` must be at least 1, got {threads}.")
        self.threads = threads
        self.rebuild_clients = rebuild_clients
        self.last_exception: Exception | None = None

    def start(self, spec: ClientSpec) -> None:
        self._spec = spec
        self._worker = self._build()
        self._saved = StoreFiles(self._worker)

    def _build(self) -> Worker:
        spec = self._spec
        return Worker(copy.deepcopy(spec.module), copy.deepcopy(spec.half), dict(enumerate(spec.datamodules)), spec.settings)

    def exchange(self, requests: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        for request in requests:
            if self.rebuild_clients:
                stores = self._worker.stores
                self._worker = self._saved.worker = self._build()
                self._worker.stores.update(stores)
            reply = self._worker.handle(request.cloned())
            if reply.error is not None:
                self.last_exception = getattr(self._worker, "last_exception", None)
            yield reply.cloned()

    def save(self, directory: Path, previous: Path | None) -> None:
        self._saved.save(directory, previous)

    def load(self, directory: Path) -> None:
        self._saved.load(directory)


class StoreFiles:
    """Writes and reads the stores of one worker; unchanged ones are hard links to the previous checkpoint's files."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._written: dict[int, ClientStore] = {}

    def save(self, directory: Path, previous: Path | None) -> None:
        """Write the non-empty stores to ``directory``."""
        changed = {}
        for client, store in self.worker.stores.items():
            if not store:
                continue
            path = client_file(directory, client)
            old = client_file(previous, client) if previous is not None else None
            if old is not None and self._written.get(client) is store and old.is_file():
                os.link(old, path)
            else:
                changed[client] = (store, path)
        with ThreadPoolExecutor(4) as pool:  # most of the time is waiting for the disk
            list(pool.map(lambda written: written[0].save(written[1]), changed.values()))
        self._written |= {client: store for client, (store, _) in changed.items()}

    def load(self, directory: Path) -> None:
        """Replace all stores of this worker by those in ``directory``."""
        self._written = {}
        for client in self.worker.stores:
            self.worker.stores[client] = ClientStore.load(client_file(directory, client))
