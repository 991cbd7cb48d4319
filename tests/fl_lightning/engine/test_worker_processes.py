"""The server's half of worker processes, with threads in the place of processes: who gets which client, who answers, what
happens to those who do not. Real processes are in ``test_same_bits.py`` and ``test_failures.py``."""

import multiprocessing
import os
import threading
import time
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace

import pytest
import torch
from federations import CPU, Linear, Table

from fl_lightning.engine import WorkerProcesses, worker_processes
from fl_lightning.engine.client import ClientHalf, LocalSettings
from fl_lightning.engine.messages import Message, NoReply, Payload
from fl_lightning.engine.transport import ClientSpec, client_file
from fl_lightning.engine.worker_processes import _Process, _single_thread_environment, _tensors_by_value

RELEASE = threading.Event()


class Half(ClientHalf):
    """Steps that answer, remember, die or wait."""

    def echo(self, client, request):
        return Payload({"x": request.tensors["x"] + client.id}, {"round": client.round, "kept": dict(client.store.values)})

    def keep(self, client, request):
        client.store.values["n"] = request.values["n"]
        return Payload()

    def die(self, client, request):
        raise SystemExit  # not an Exception: it ends the worker

    def wait(self, client, request):
        RELEASE.wait(30)
        return Payload()


class ThreadProcess:
    """What the engine asks of a process, around a thread."""

    pid, started = 1, []

    def __init__(self, target, daemon, args):
        self.exitcode = None
        self._read, self._write = os.pipe()
        self._thread = threading.Thread(target=self._run, args=(target, args), daemon=daemon)

    def _run(self, target, args):
        self._held = multiprocessing.connection.Connection(os.dup(args[0].fileno()))
        with suppress(SystemExit, OSError):
            target(self._held)
        self.exitcode = -9
        self._held.close()
        with suppress(OSError):
            os.close(self._write)

    def start(self):
        ThreadProcess.started.append(self)
        self._ready = self._thread.start()
        while not hasattr(self, "_held"):
            time.sleep(0.001)

    @property
    def sentinel(self):
        return self._read

    def is_alive(self):
        return self.exitcode is None and self._thread.is_alive()

    def join(self, timeout=None):
        self._thread.join(timeout)

    def terminate(self):
        self.exitcode = -15

    def close(self):
        os.close(self._read)


@pytest.fixture
def engine(monkeypatch):
    """Started, with three clients on two workers."""
    ThreadProcess.started = []
    RELEASE.clear()
    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=ThreadProcess)
    monkeypatch.setattr(worker_processes.mp, "get_context", lambda method: context)
    threads = torch.get_num_threads()
    made = WorkerProcesses(num_workers=2)
    data = [Table(n, seed=n) for n in (8, 16, 4)]
    for client in data:
        client.setup()
    made.start(ClientSpec(Linear(), Half(), data, LocalSettings("r", 0, 2, CPU)))
    yield made
    RELEASE.set()
    made.close()
    torch.set_num_threads(threads)


def ask(engine, kind, clients=(0, 1, 2), timeout=20.0, **values):
    requests = [Message(kind, "r", 4, c, Payload({"x": torch.ones(2)}, values)) for c in clients]
    return {reply.client: reply for reply in engine.exchange(requests, timeout)}


def test_every_client_answers_for_itself(engine):
    assert [w.clients for w in engine._workers] == [[1], [0, 2]]
    replies = ask(engine, "echo")
    assert {c: r.payload.tensors["x"].tolist() for c, r in replies.items()} == {0: [1.0] * 2, 1: [2.0] * 2, 2: [3.0] * 2}
    assert all(r.error is None and r.payload.values == {"round": 4, "kept": {}} for r in replies.values())
    assert list(ask(engine, "echo", clients=[2])) == [2] and len(ThreadProcess.started) == 2
    assert "no protocol step `dance`" in ask(engine, "dance", clients=[0])[0].error


def test_memories_are_saved_and_loaded_by_their_workers(engine, tmp_path):
    for client in range(3):
        ask(engine, "keep", [client], n=client + 10)
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    engine.save(tmp_path / "first", None)
    ask(engine, "keep", [1], n=0)
    engine.save(tmp_path / "second", tmp_path / "first")
    linked = [client_file(tmp_path / "first", c).samefile(client_file(tmp_path / "second", c)) for c in range(3)]
    assert linked == [True, False, True]  # only client 1's has changed
    engine.load(tmp_path / "first")
    assert {c: r.payload.values["kept"] for c, r in ask(engine, "echo").items()} == {c: {"n": c + 10} for c in range(3)}


def test_a_worker_that_dies_is_named_for_all_its_waiting_clients_and_replaced(engine, tmp_path):
    ask(engine, "keep", n=5)
    engine.save(tmp_path, None)
    engine.checkpointed(tmp_path)
    ask(engine, "keep", n=6)
    replies = ask(engine, "die", clients=[0, 2])
    assert all(isinstance(r, NoReply) and r.error == "its worker process died (exit code -9)" for r in replies.values())
    assert {(r.kind, r.run, r.round, r.client) for r in replies.values()} == {("die", "r", 4, 0), ("die", "r", 4, 2)}
    kept = {c: r.payload.values["kept"] for c, r in ask(engine, "echo").items()}
    assert kept == {0: {"n": 5}, 1: {"n": 6}, 2: {"n": 5}}  # those of the new worker go on from the checkpoint
    assert len(ThreadProcess.started) == 3


def test_who_does_not_answer_in_time_is_named_and_the_others_are_heard(engine):
    requests = [
        Message("wait", "r", 4, 0),
        Message("echo", "r", 4, 1, Payload({"x": torch.ones(2)})),
        Message("wait", "r", 4, 2),
    ]
    replies = {reply.client: reply for reply in engine.exchange(requests, 0.3)}
    assert replies[1].error is None
    assert [replies[c].error for c in (0, 2)] == ["no answer within 0.3 s"] * 2 and isinstance(replies[0], NoReply)
    RELEASE.set()
    assert all(r.error is None for r in ask(engine, "echo").values())


def test_what_cannot_be_written_is_told(engine, tmp_path):
    ask(engine, "keep", [1], n=1)
    with pytest.raises(OSError, match="A worker process could not write or read its clients' state: .*No such file"):
        engine.save(tmp_path / "absent", None)


@pytest.mark.parametrize(
    ("sizes", "workers", "expected"),
    [
        ([5, 1, 9, 1, 3], 2, [[1, 2], [0, 3, 4]]),  # 9 | 5 | 3 to the second | 1 to the first (10 and 10) | 1
        ([0, 0, 0, 0], 2, [[0, 2], [1, 3]]),  # each client counts, with nothing to train on, too
        ([3, 3], 9, [[0], [1]]), ([7], 1, [[0]]),
    ],
)  # fmt: skip
def test_clients_are_shared_out_largest_first(monkeypatch, sizes, workers, expected):
    spawned = []
    monkeypatch.setattr(WorkerProcesses, "_spawn", lambda self, index: spawned.append(index))
    made = WorkerProcesses(workers)
    made.start(SimpleNamespace(datamodules=[SimpleNamespace(num_train_samples=n) for n in sizes]))
    assert [w.clients for w in made._workers] == expected and spawned == list(range(len(expected)))


def test_the_environment_of_a_new_process_is_only_its_own(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with pytest.raises(RuntimeError), _single_thread_environment(3):
        assert (os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"]) == ("3", "3")
        raise RuntimeError
    assert os.environ["OMP_NUM_THREADS"] == "7" and "MKL_NUM_THREADS" not in os.environ


def test_tensors_travel_by_value_while_a_process_starts():
    ForkingPickler.register(int, None)  # somebody else's stays
    before = dict(ForkingPickler._extra_reducers)
    try:
        with pytest.raises(RuntimeError), _tensors_by_value():
            assert torch.Tensor not in ForkingPickler._extra_reducers and int in ForkingPickler._extra_reducers
            raise RuntimeError
        assert before == ForkingPickler._extra_reducers and torch.Tensor in before
    finally:
        del ForkingPickler._extra_reducers[int]


def test_peak_memory_is_the_sum_over_the_living_in_mb():
    made = WorkerProcesses()
    me = SimpleNamespace(pid=os.getpid(), is_alive=lambda: True)
    gone = SimpleNamespace(pid=os.getpid(), is_alive=lambda: False)
    made._workers = [_Process([0]), _Process([1])]
    made._workers[0].process = me
    made._workers[1].process = gone
    one = made.peak_rss_mb()
    with open("/proc/self/status") as file:
        high = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    assert one == pytest.approx(high / 1024, rel=0.01)
    made._workers[1].process = me
    assert made.peak_rss_mb() == pytest.approx(2 * one, rel=0.01)


@pytest.mark.parametrize(
    ("obeys", "expected"),
    [
        ("join", ["join 0.5"]),
        ("terminate", ["join 0.5", "terminate", "join 2"]),
        ("kill", ["join 0.5", "terminate", "join 2", "kill", "join None"]),
    ],
)
def test_a_worker_is_asked_before_it_is_killed(obeys, expected):
    calls = []

    class Stubborn:
        pid = 1

        def is_alive(self):
            return not any(call.startswith(obeys) for call in calls)

        def join(self, timeout=None):
            calls.append(f"join {timeout}")

        def terminate(self):
            calls.append("terminate")

        def kill(self):
            calls.append("kill")

        def close(self):
            calls.append("close")

    worker = _Process([0])
    worker.process, worker.connection = Stubborn(), SimpleNamespace(close=lambda: calls.append("hang up"))
    worker.stop()
    assert calls == ["hang up", *expected, "close"] and worker.process is worker.connection is None
    worker.stop()  # once is enough
    assert not worker.alive and WorkerProcesses().num_workers == 2 and WorkerProcesses(1).num_workers == 1
