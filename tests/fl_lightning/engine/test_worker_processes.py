"""The server's half of worker processes, with threads in the place of processes: who gets which client, who answers, what
happens to those who do not. Real processes are in ``tests/whole``: ``test_same_bits.py``, ``test_failures.py``."""

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
from fl_lightning.engine.client import ClientHalf, LocalSettings, protocol_step
from fl_lightning.engine.messages import Message, NoReply, Payload
from fl_lightning.engine.transport import ClientSpec, client_file
from fl_lightning.engine.worker_processes import (
    _on_own_device,
    _Process,
    _single_thread_environment,
    _tensors_by_value,
)

RELEASE = threading.Event()


class Half(ClientHalf):
    """Steps that answer, remember, die or wait."""

    @protocol_step
    def echo(self, client, request):
        return Payload({"x": request.tensors["x"] + client.id}, {"round": client.round, "kept": dict(client.store.values)})

    @protocol_step
    def threads(self, client, request):
        return Payload(values={"threads": torch.get_num_threads()})

    @protocol_step
    def keep(self, client, request):
        client.store.values["n"] = request.values["n"]
        return Payload()

    @protocol_step
    def die(self, client, request):
        raise SystemExit  # not an Exception: it ends the worker

    @protocol_step
    def wait(self, client, request):
        RELEASE.wait(30)
        return Payload()


class ThreadProcess:
    """What the engine asks of a process, around a thread."""

    pid, started = 1, []

    def __init__(self, target, daemon, args):
        self.exitcode, self.daemon, self.closed = None, daemon, False
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
        self.closed = True
        os.close(self._read)


@pytest.fixture
def engine(monkeypatch):
    """Started, with three clients on two workers."""
    yield from started(monkeypatch)


def started(monkeypatch, module=None, closed=True, **options):
    ThreadProcess.started = []
    RELEASE.clear()
    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=ThreadProcess)
    monkeypatch.setattr(worker_processes.mp, "get_context", lambda method: context)
    threads = torch.get_num_threads()
    made = WorkerProcesses(num_workers=2, **options)
    data = [Table(n, seed=n) for n in (8, 16, 4)]
    for client in data:
        client.setup()
    try:
        made.start(ClientSpec(module or Linear(), Half(), data, LocalSettings("r", 0, 2, CPU)))
        yield made
    finally:
        RELEASE.set()
        if closed:
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


def test_who_does_not_answer_in_time_is_named_and_the_others_are_heard(engine, monkeypatch):
    requests = [
        Message("wait", "r", 4, 0),
        Message("echo", "r", 4, 1, Payload({"x": torch.ones(2)})),
        Message("wait", "r", 4, 2),
    ]
    waits, wait = [], worker_processes.wait
    monkeypatch.setattr(worker_processes, "wait", lambda handles, left: waits.append(left) or wait(handles, left))
    replies = {reply.client: reply for reply in engine.exchange(requests, 0.3)}
    assert replies[1].error is None and 0 <= min(waits) <= max(waits) <= 0.3
    assert [replies[c].error for c in (0, 2)] == ["no answer within 0.3 s"] * 2 and isinstance(replies[0], NoReply)
    RELEASE.set()
    replies = ask(engine, "echo")  # no late answers
    assert sorted(replies) == [0, 1, 2] and all(r.error is None and r.kind == "echo" for r in replies.values())


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
        ([4, 1, 1, 0, 0], 2, [[0, 4], [1, 2, 3]]),  # a client is as much as a sample: 5 | 2 | 4 | 5 | 6
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


def test_threads_reach_the_workers(monkeypatch):
    for made in started(monkeypatch, threads=3):
        assert {c: r.payload.values["threads"] for c, r in ask(made, "threads").items()} == {0: 3, 1: 3, 2: 3}
    assert WorkerProcesses().threads == 1


def test_without_a_timeout_everybody_is_waited_for(engine):
    assert sorted(ask(engine, "echo", timeout=None)) == [0, 1, 2]


def test_processes_end_with_the_server_and_are_closed(engine):
    assert len(ThreadProcess.started) == 2 and all(process.daemon for process in ThreadProcess.started)
    engine.close()
    assert all(process.closed for process in ThreadProcess.started) and engine._workers == []


@pytest.mark.parametrize("then", ["ask", "save", "load"])
def test_a_worker_that_dies_between_two_requests_is_replaced(engine, tmp_path, then):
    ask(engine, "keep", n=5)
    engine.save(tmp_path, None)
    engine.checkpointed(tmp_path)
    dead = engine._workers[1].process
    if then == "ask":
        dead.terminate()
    else:
        ask(engine, "die", clients=[0])
    if then == "save":
        (tmp_path / "next").mkdir()
        engine.save(tmp_path / "next", tmp_path)
        assert all(client_file(tmp_path / "next", client).is_file() for client in range(3))
    elif then == "load":
        engine.load(tmp_path)
    assert {c: r.payload.values["kept"] for c, r in ask(engine, "echo").items()} == {c: {"n": 5} for c in range(3)}
    assert dead.closed and len(ThreadProcess.started) == 3 and engine._workers[0].process is ThreadProcess.started[0]


def test_a_worker_that_died_is_put_away_at_once(engine):
    ask(engine, "die", clients=[2])
    assert engine._workers[1].process is engine._workers[1].connection is None and ThreadProcess.started[1].closed


def test_who_cannot_be_replaced_is_named_and_the_others_are_heard(engine, monkeypatch):
    def fail(self, index):
        raise OSError("no memory")

    engine._workers[1].process.terminate()
    monkeypatch.setattr(WorkerProcesses, "_spawn", fail)
    replies = ask(engine, "echo")
    assert [replies[client].error for client in range(3)] == ["no memory", None, "no memory"]
    assert isinstance(replies[0], NoReply) and not isinstance(replies[1], NoReply)


class Slow(ThreadProcess):
    """Has hung up, and has its exit code only when it is waited for."""

    def _run(self, target, args):
        super()._run(target, args)
        self.code, self.exitcode = 3, None

    def join(self, timeout=None):
        super().join(timeout)
        self.exitcode = self.code


def test_a_worker_that_ends_while_it_starts_is_told_with_its_exit_code(monkeypatch):
    monkeypatch.setattr(worker_processes, "_serve", lambda connection: connection.recv())
    monkeypatch.setitem(globals(), "ThreadProcess", Slow)
    with pytest.raises(OSError, match=r"ended while it started \(exit code 3\).*put what it does under `if __name__"):
        next(started(monkeypatch, closed=False))
    assert Slow.started[0].closed


LAMBDA = lambda x: x  # noqa: E731  of a module's top level, but without a name


@pytest.mark.parametrize("function", [lambda x: x, LAMBDA], ids=["local", "nameless"])
def test_what_cannot_be_sent_is_told_and_its_process_ended(monkeypatch, function):
    module = Linear()
    module.function = function
    with pytest.raises(ValueError, match="sends the model and each client's data to its workers, and these cannot be sent: "):
        next(started(monkeypatch, module, closed=False))
    assert ThreadProcess.started[0].closed


def test_a_process_that_never_began_is_not_waited_for():
    worker = _Process([0])
    worker.process = SimpleNamespace(pid=None)
    worker.stop()
    assert worker.process is None


def test_where_the_system_tells_no_peak_it_is_not_counted():
    made = WorkerProcesses()
    made._workers = [_Process([0]), _Process([1])]
    made._workers[0].process = SimpleNamespace(pid=2**30, is_alive=lambda: True)  # no process has such a number
    assert made.peak_rss_mb() == 0.0


def test_a_worker_watches_its_server_and_ends_with_it(monkeypatch):
    threads, ended = [], []

    class Thread:
        def __init__(self, target, daemon):
            threads.append((target, daemon))

        def start(self):
            threads.append("started")

    ours, theirs = multiprocessing.Pipe()
    ours.close()
    monkeypatch.setattr(worker_processes, "threading", SimpleNamespace(Thread=Thread))
    worker_processes._serve(theirs)
    assert threads == [(worker_processes._end_with_server, True), "started"]
    monkeypatch.setattr(worker_processes.os, "_exit", lambda code: ended.append(code))
    server = SimpleNamespace(join=lambda: ended.append("the server has ended"))
    for parent, expected in ((None, []), (server, ["the server has ended", 1])):
        monkeypatch.setattr(worker_processes.mp, "parent_process", lambda parent=parent: parent)
        worker_processes._end_with_server()
        assert ended == expected


@pytest.mark.parametrize(
    ("there", "arguments", "expected"),
    [
        (False, {"accelerator": "cpu", "devices": 4}, {"accelerator": "cpu", "devices": 1}),
        (True, {"accelerator": "cpu", "devices": 4}, {"accelerator": "cpu", "devices": 1}), (False, {}, {"devices": 1}),
        (False, {"accelerator": "gpu", "devices": 2}, {"accelerator": "gpu", "devices": 2}),  # Lightning's to refuse
        (True, {"accelerator": "tpu"}, {"accelerator": "tpu"}), (False, {"accelerator": "tpu"}, {"accelerator": "tpu"}),
        (True, {}, {"accelerator": "gpu", "devices": [1]}),
        (True, {"accelerator": "auto"}, {"accelerator": "gpu", "devices": [1]}),
        (True, {"accelerator": "cuda", "devices": 1}, {"accelerator": "gpu", "devices": [0]}),
        (True, {"accelerator": "gpu", "devices": 2}, {"accelerator": "gpu", "devices": [1]}),
        (True, {"accelerator": "gpu", "devices": -1}, {"accelerator": "gpu", "devices": [1]}),
        (True, {"accelerator": "gpu", "devices": "-1"}, {"accelerator": "gpu", "devices": [1]}),
        (True, {"accelerator": "gpu", "devices": "auto"}, {"accelerator": "gpu", "devices": [1]}),
        (True, {"accelerator": "gpu", "devices": "3,"}, {"accelerator": "gpu", "devices": [3]}),
        (True, {"accelerator": "gpu", "devices": (2, 3)}, {"accelerator": "gpu", "devices": [3]}),
        (True, {"accelerator": "gpu", "devices": ["2"]}, {"accelerator": "gpu", "devices": [2]}),
    ],
)  # fmt: skip
def test_the_sixth_of_the_workers_has_its_own_of_four_devices(monkeypatch, there, arguments, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    given = dict(arguments)
    assert _on_own_device(given, 5) == expected and given == arguments


@pytest.mark.parametrize("name", ["num_workers", "threads"])
def test_there_is_at_least_one_worker_with_one_thread(name):
    assert getattr(WorkerProcesses(**{name: 1}), name) == 1
    with pytest.raises(ValueError, match=f"`federation.engine.init_args.{name}` must be at least 1, got 0"):
        WorkerProcesses(**{name: 0})
