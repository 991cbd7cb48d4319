"""Engine: clients spread over worker processes of this machine, with nothing between them but encoded messages.

Each client belongs to one worker, which holds its data and memory. A worker that dies or overruns the timeout is replaced
at the next request; its clients are named in that round's failures and go on from the last checkpoint.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch

from fl_lightning.engine.client import Worker
from fl_lightning.engine.in_process import StoreFiles
from fl_lightning.engine.local import quiet
from fl_lightning.engine.messages import Message, NoReply
from fl_lightning.engine.samples import count_samples
from fl_lightning.engine.transport import ClientSpec, Engine


class WorkerProcesses(Engine):
    """Clients in parallel worker processes (spawned); same bits as :class:`InProcess`, whatever the number of workers.

    Args:
        num_workers: Number of processes; more than there are clients are not started.
        threads: Threads of a client on the CPU.
    """

    def __init__(self, num_workers: int = 2, threads: int = 1) -> None:
        if num_workers < 1:
            raise ValueError(f"`federation.engine.init_args.num_workers` must be at least 1, got {num_workers}.")
        if threads < 1:
            raise ValueError(f"`federation.engine.init_args.threads` must be at least 1, got {threads}.")
        self.num_workers, self.threads = num_workers, threads
        self._workers: list[_Process] = []

    def start(self, spec: ClientSpec) -> None:
        self._spec = spec
        self._checkpoint: Path | None = None
        # Largest clients first, each to the worker with the least to do so far.
        number = min(self.num_workers, len(spec.datamodules))
        load = [0] * number
        clients: list[list[int]] = [[] for _ in range(number)]
        sizes = [count_samples(data) for data in spec.datamodules]
        for client in sorted(range(len(sizes)), key=lambda c: (-sizes[c], c)):
            worker = min(range(number), key=lambda w: (load[w], w))
            clients[worker].append(client)
            load[worker] += 1 + sizes[client]
        self._workers = [_Process(sorted(own)) for own in clients]
        for index in range(number):
            self._spawn(index)

    def _spawn(self, index: int) -> None:
        worker, spec = self._workers[index], self._spec
        settings = replace(spec.settings, trainer_args=_on_own_device(spec.settings.trainer_args, index))
        datamodules = {client: spec.datamodules[client] for client in worker.clients}
        context = mp.get_context("spawn")
        worker.connection, theirs = context.Pipe()
        worker.process = context.Process(target=_serve, daemon=True, args=(theirs,))
        with _single_thread_environment(self.threads):
            worker.process.start()
        theirs.close()
        # The clients' data follow over the pipe that we can watch: `Process.start` would hang for ever if a process
        # died while it is handed more than the pipe's buffer.
        try:
            _send(worker, (spec.module, spec.half, datamodules, settings, self.threads))
            worker.done()
        except OSError as error:
            code = worker.exit_code()
            worker.stop()
            raise OSError(
                f"A worker process ended while it started (exit code {code}); see its message above. If a script of yours "
                'starts the training, put what it does under `if __name__ == "__main__":`, since workers import it.'
            ) from error
        if self._checkpoint is not None:
            worker.command("load", directory=str(self._checkpoint))
            worker.done()

    def _queues(self, requests: Sequence[Message]) -> dict[int, list[Message]]:
        """The requests of each worker's clients."""
        queues: dict[int, list[Message]] = {}
        for request in requests:
            index = next(i for i, w in enumerate(self._workers) if request.client in w.clients)
            queues.setdefault(index, []).append(request)
        return queues

    def _replace_dead(self, queues: dict[int, list[Message]]) -> Iterator[Message]:
        """A new process for each worker that has ended; if it does not start, its requests fail and leave ``queues``."""
        for index in list(queues):
            if not self._workers[index].alive:
                self._workers[index].stop()
                try:
                    self._spawn(index)
                except OSError as error:
                    yield from (_failed(r, str(error)) for r in queues.pop(index))

    def exchange(self, requests: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        queues = self._queues(requests)
        yield from self._replace_dead(queues)
        deadline = None if timeout is None else time.monotonic() + timeout  # a new process's imports are no client's fault
        for index, queue in queues.items():
            self._workers[index].send(queue[0])
        while queues:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            handles = {h: i for i in queues for h in (self._workers[i].connection, self._workers[i].process.sentinel)}
            ready = {handles[h] for h in wait(list(handles), left)}
            if not ready:  # the deadline passed: these workers are ended and replaced later
                for index, queue in queues.items():
                    self._workers[index].stop()
                    yield from (_failed(r, f"no answer within {timeout} s") for r in queue)
                return
            for index in sorted(ready):
                worker = self._workers[index]
                try:
                    reply = Message.decode(worker.connection.recv_bytes())
                except (EOFError, OSError):
                    reason = f"its worker process died (exit code {worker.exit_code()})"
                    worker.stop()
                    yield from (_failed(r, reason) for r in queues.pop(index))
                    continue
                yield reply
                queues[index].pop(0)
                if queues[index]:
                    worker.send(queues[index][0])
                else:
                    del queues[index]

    def save(self, directory: Path, previous: Path | None) -> None:
        self._revive()
        for worker in self._workers:
            worker.command("save", directory=str(directory), previous=None if previous is None else str(previous))
        for worker in self._workers:
            worker.done()

    def checkpointed(self, directory: Path) -> None:
        self._checkpoint = directory

    def load(self, directory: Path) -> None:
        self._revive()
        self._checkpoint = directory
        for worker in self._workers:
            worker.command("load", directory=str(directory))
        for worker in self._workers:
            worker.done()

    def _revive(self) -> None:
        for index, worker in enumerate(self._workers):
            if not worker.alive:
                worker.stop()
                self._spawn(index)

    def peak_rss_mb(self) -> float:
        total = 0.0
        for worker in self._workers:
            status = Path(f"/proc/{worker.process.pid}/status") if worker.alive else None
            if status is not None and status.is_file():
                line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
                total += int(line.split()[1]) / 1024
        return total

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers = []


def _send(worker: _Process, content: Any) -> None:
    """Hand a new process what it works with.

    Raises:
        ValueError: If it cannot be sent; the process is then ended.
        OSError: If the process is gone.
    """
    try:
        with _tensors_by_value():
            worker.connection.send(content)
    except OSError:
        raise
    except Exception as error:
        worker.stop()
        raise ValueError(
            "`federation.engine: WorkerProcesses` sends the model and each client's data to its workers, and these "
            f"cannot be sent: {error}. Define classes and functions at a module's top level (no lambdas), or use "
            "`fl_lightning.engine.InProcess`."
        ) from error


class _Process:
    """A worker process as the server sees it."""

    def __init__(self, clients: list[int]) -> None:
        self.clients = clients
        self.process: Any = None  # both while it runs
        self.connection: Any = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def send(self, request: Message) -> None:
        try:
            self.connection.send_bytes(b"m" + request.encode())
        except OSError:  # died meanwhile: its sentinel tells when we wait for the reply
            pass

    def command(self, name: str, **values: Any) -> None:
        self.connection.send_bytes(b"c" + json.dumps({"name": name, **values}).encode())

    def done(self) -> None:
        try:
            answer = self.connection.recv_bytes().decode()
        except EOFError:
            answer = "the process died"
        if answer != "done":
            raise OSError(f"A worker process could not write or read its clients' state: {answer}")

    def exit_code(self) -> int | None:
        """Of a process that has hung up, and may need a moment to end."""
        self.process.join(5)
        code: int | None = self.process.exitcode
        return code

    def stop(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        if self.process is not None and self.process.pid is not None:  # None: it could not even be started
            self.process.join(0.5)
            if self.process.is_alive():
                self.process.terminate()
                self.process.join(2)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()
            self.process.close()
        self.process = None


def _serve(connection: Connection) -> None:
    """A worker process: ends without a word when the server closes the connection, or is killed."""
    threading.Thread(target=_end_with_server, daemon=True).start()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt), quiet():
        _answer(connection)


def _end_with_server() -> None:
    """Nobody waits for an answer any more: do not train on for what may be hours."""
    server = mp.parent_process()
    if server is not None:
        server.join()
        os._exit(1)


def _answer(connection: Connection) -> None:
    """Main loop: its clients first, then requests until the other end closes."""
    module, half, datamodules, settings, threads = connection.recv()
    torch.set_num_threads(threads)
    worker = Worker(module, half, datamodules, settings)
    files = StoreFiles(worker)
    connection.send_bytes(b"done")
    while True:
        data = connection.recv_bytes()
        if data[:1] == b"m":
            connection.send_bytes(worker.handle(Message.decode(data[1:])).encode())
            continue
        command = json.loads(data[1:])
        try:
            directory = Path(command["directory"])
            if command["name"] == "save":
                files.save(directory, None if command["previous"] is None else Path(command["previous"]))
            else:
                files.load(directory)
            answer = "done"
        except OSError as error:
            answer = str(error)
        connection.send_bytes(answer.encode())


def _failed(request: Message, reason: str) -> NoReply:
    return NoReply(request.kind, request.run, request.round, request.client, error=reason)


def _on_own_device(trainer_args: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Give worker ``index`` one of the devices that the user's ``trainer.accelerator`` and ``devices`` name, in turn."""
    args = dict(trainer_args)
    accelerator = args.get("accelerator", "auto")
    if accelerator not in ("gpu", "cuda", "auto") or not torch.cuda.is_available():
        return {**args, "devices": 1} if accelerator in ("cpu", "auto") else args
    devices = args.get("devices", "auto")
    present = list(range(torch.cuda.device_count()))
    if isinstance(devices, list | tuple):
        present = [int(d) for d in devices]
    elif isinstance(devices, int) and devices > 0:
        present = present[:devices]
    elif isinstance(devices, str) and devices not in ("auto", "-1"):
        present = [int(d) for d in devices.split(",") if d.strip()]
    return {**args, "accelerator": "gpu", "devices": [present[index % len(present)]]}


@contextmanager
def _single_thread_environment(threads: int) -> Iterator[None]:
    """The spawned process reads its number of threads when it imports torch."""
    old = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ.update({name: str(threads) for name in old})
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _tensors_by_value() -> Iterator[None]:
    """While a process starts, tensors travel by value. Torch would share their memory instead, and hold a file descriptor
    for each tensor (or a file in a shared-memory file system that is often small) for as long as they live."""
    reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]  # noqa: SLF001  there is no way to unregister
    kept = {kind: reduce for kind, reduce in reducers.items() if getattr(kind, "__module__", "").startswith("torch")}
    for kind in kept:
        del reducers[kind]
    try:
        yield
    finally:
        reducers.update(kept)
