"""Failing clients: named, left out, the others go on; too few of them and the run ends with the last good model."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from federations import (
    CPU,
    Faulty,
    Linear,
    assert_same_bits,
    checkpoint_tensors,
    clients,
    federate,
    last_checkpoint,
)

from fl_lightning import FedAvg, FederatedTrainer
from fl_lightning.engine import WorkerProcesses, worker_processes
from fl_lightning.engine.client import ClientHalf
from fl_lightning.engine.messages import Payload
from fl_lightning.errors import FederationError


def order(tmp_path, **content):
    path = tmp_path / "orders.json"
    path.write_text(json.dumps(content))
    return lambda: Faulty(str(path))


@pytest.mark.parametrize(
    ("what", "reason"), [("raise", "RuntimeError: the site's disk is gone"), ("nan", "non-finite values in `net.weight`")]
)
def test_a_client_that_fails_is_named_and_left_out(tmp_path, what, reason):
    fed = federate(tmp_path, order(tmp_path, what=what, size=16), clients((10, 16, 24)))
    assert [(f["round"], f["client"], f["kind"]) for f in fed.results["failures"]] == [(0, 1, "fit"), (1, 1, "fit")]
    assert all(reason in f["reason"] for f in fed.results["failures"])
    # The others' weights are those of a federation without it.
    two = [clients((10, 16, 24))[i] for i in (0, 2)]
    alone = federate(tmp_path / "two", Linear, two)
    for mine, other in zip(fed.module.parameters(), alone.module.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("what", ["raise", "nan", "cannot be sent"])
def test_a_failed_clients_memory_is_as_before(tmp_path, what):
    module = Linear if what == "cannot be sent" else order(tmp_path, what=what, size=16)
    strategy = Bad(values={"x": {1, 2}}) if what == "cannot be sent" else FedAvg()  # fails after it has remembered
    fed = federate(tmp_path, module, clients((10, 16)), private=["net.bias"], num_rounds=1, strategy=strategy)
    assert sorted(p.name for p in last_checkpoint(fed.run_dir).iterdir()) == ["client_00000.pt", "server.pt"]


@pytest.mark.parametrize("what", ["raise", "nan"])
def test_below_min_clients_the_run_ends_with_reasons_and_the_last_checkpoint_is_whole(tmp_path, what):
    path = tmp_path / "orders.json"
    fed = FederatedTrainer(
        trainer={**CPU, "logger": False, "default_root_dir": str(tmp_path)}, num_rounds=4, min_clients=2, seed=0
    )

    class Later(Faulty):
        def on_round_start(self, round, num_rounds):
            if round == 2:
                path.write_text(json.dumps({"what": what, "size": 16}))

    torch.manual_seed(0)
    with pytest.raises(FederationError, match=r"(?s)Round 3, step `fit`: 1 client.*2 needed.*min_clients.*client 1: "):
        fed.fit(Later(str(path)), clients((10, 16)))
    assert last_checkpoint(fed.run_dir).name == "round_00001"
    path.unlink()
    # The site is repaired: `last` goes on, and ends where a run without the failure ends.
    again = FederatedTrainer(
        trainer={**CPU, "logger": False, "default_root_dir": str(tmp_path)}, num_rounds=4, min_clients=2, seed=0
    )
    repaired = type("Later", (Faulty,), {"__qualname__": Later.__qualname__, "__module__": Later.__module__})
    again.fit(repaired(str(path)), clients((10, 16)), ckpt_path="last")
    torch.manual_seed(0)
    straight = federate(tmp_path / "straight", Linear, clients((10, 16)), num_rounds=4, min_clients=2)
    assert_same_bits(checkpoint_tensors(last_checkpoint(again.run_dir)), checkpoint_tensors(last_checkpoint(straight.run_dir)))


def test_every_client_fails(tmp_path):
    with pytest.raises(FederationError, match=r"(?s)0 client.*client 0: .*disk.*client 1: .*disk") as caught:
        federate(tmp_path, order(tmp_path, what="raise", size="all"), clients((10, 16)))
    assert isinstance(caught.value.__cause__, RuntimeError)  # where it was raised is in the traceback
    assert not list(tmp_path.rglob("round_*"))


class BadHalf(ClientHalf):
    """Its client 1 answers with something that cannot be sent."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def fit(self, client, request):
        reply = super().fit(client, request)
        return Payload({**reply.tensors, **self.what[0]}, {**reply.values, **self.what[1]}) if client.id == 1 else reply


class Bad(FedAvg):
    def __init__(self, tensors=None, values=None):
        super().__init__()
        self._what = (tensors or {}, values or {})

    def client_half(self):
        return BadHalf(self._what)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Bad(values={"x": float("nan")}), "ValueError"),
        (Bad(values={"x": {1, 2}}), "TypeError"),
        (Bad(tensors={"x": torch.eye(2).to_sparse()}), "dense tensors only; entry `x`"),
        (Bad(tensors={"x": torch.tensor(float("inf"))}), "non-finite values in `x`"),
        (Bad(tensors={"x": torch.ones(1)}), "unexpected: ['x']"),
        (Bad(tensors={"net.bias": torch.ones(1, 1)}), "`net.bias` is float32[1, 1], expected float32[1]"),
    ],
)
def test_what_cannot_be_sent_or_used_is_that_clients_failure(tmp_path, bad, reason):
    fed = federate(tmp_path, Linear, clients((10, 16)), strategy=bad, num_rounds=1)
    (failure,) = fed.results["failures"]
    assert failure["client"] == 1 and reason in failure["reason"]


def test_a_client_whose_evaluation_fails_is_undefined_there(tmp_path):
    class FailsInValidation(Linear):
        def validation_step(self, batch, batch_idx):
            if len(batch[0]) == 3:
                raise RuntimeError("cannot read its validation data")
            super().validation_step(batch, batch_idx)

    data = [*clients((10,)), *clients((16,), held_out=3)]
    fed = federate(tmp_path, FailsInValidation, data, num_rounds=1)
    assert fed.results["last"]["val"]["per_client"][1] is None and fed.results["last"]["val"]["undefined"] == 1
    assert {f["kind"] for f in fed.results["failures"]} == {"evaluate"}


class Acts(Faulty):
    """Follows a plan ``{round: [what, size]}``; each entry once, even if its process does not survive it."""

    def on_round_start(self, round, num_rounds):
        plan = json.loads(Path(self.orders + ".plan").read_text())
        done = Path(f"{self.orders}.done{round}")
        if str(round) in plan and not done.exists():
            what, size = plan[str(round)]
            done.touch()
            Path(self.orders).write_text(json.dumps({"what": what, "size": size, "once": True}))


@pytest.fixture(scope="module")
def eventful(tmp_path_factory):
    """Two worker processes: one is killed in round 1, one hangs in round 2; rounds 0 and 3 are quiet."""
    tmp = tmp_path_factory.mktemp("eventful")
    path = tmp / "orders.json"
    Path(f"{path}.plan").write_text(json.dumps({1: ["die", 16], 2: ["hang", 24]}))
    begin = time.monotonic()
    fed = federate(
        tmp, lambda: Acts(str(path)), clients((10, 16, 24)), num_rounds=4, engine=WorkerProcesses(2),
        client_timeout=5, private=["net.bias"], keep_last=9, min_clients=1,
    )  # fmt: skip
    return fed, time.monotonic() - begin


def test_a_killed_worker_is_named_with_its_exit_code_and_replaced(eventful):
    fed, _ = eventful
    killed = [f for f in fed.results["failures"] if f["round"] == 1]
    assert any(f["client"] == 1 for f in killed)
    assert all(f["kind"] == "fit" and "worker process died (exit code -9)" in f["reason"] for f in killed)


def test_a_hanging_client_is_named_after_the_timeout(eventful):
    fed, seconds = eventful
    late = [f for f in fed.results["failures"] if f["round"] == 2]
    assert any(f["client"] == 2 for f in late)
    assert all("no answer within 5 s" in f["reason"] for f in late) and seconds < 300


def test_after_both_everybody_takes_part_again_from_the_last_checkpoint(eventful):
    fed, _ = eventful
    assert not [f for f in fed.results["failures"] if f["round"] not in (1, 2)]
    assert fed.results["rounds_run"] == 4 and None not in fed.results["last"]["val"]["per_client"]
    biases = [checkpoint_tensors(p).get("client_00001.pt/module/net.bias")
              for p in sorted((fed.run_dir / "checkpoints").glob("round_*"))]  # fmt: skip
    assert torch.equal(biases[0], biases[1]) and not torch.equal(biases[0], biases[3])


def test_what_never_came_back_is_not_in_the_ledger(eventful):
    fed, _ = eventful
    lines = [json.loads(x) for x in (fed.run_dir / "ledger.jsonl").read_text().splitlines()]
    for round, client in ((1, 1), (2, 2)):
        mine = [x["direction"] for x in lines if (x["round"], x["client"], x["kind"]) == (round, client, "fit")]
        assert mine == ["down"]


def test_no_worker_process_is_left(eventful):
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if not children.exists():
        pytest.skip("this kernel does not list a process's children")
    for pid in children.read_text().split():
        assert b"spawn_main" not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_worker_at_work_ends_with_the_server(tmp_path):
    """Killed, the server cannot tell its workers; one that trains for hours would go on."""
    orders = tmp_path / "orders.json"
    orders.write_text(json.dumps({"what": "hang", "size": "all", "once": True}))  # the file goes when the worker is at work
    code = (
        "import sys; from pathlib import Path; from federations import Faulty, clients, federate; "
        "from fl_lightning.engine import WorkerProcesses; "
        "federate(Path(sys.argv[1]), lambda: Faulty(sys.argv[2]), clients((10,)), engine=WorkerProcesses(1))"
    )
    server = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(orders)],
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    try:
        if not children.exists():
            pytest.skip("this kernel does not list a process's children")
        wait_until(lambda: not orders.exists())
        assert server.poll() is None
        (worker,) = [pid for pid in map(int, children.read_text().split()) if is_worker(pid)]
    finally:
        server.kill()
        server.wait()
    wait_until(lambda: not is_worker(worker))


def is_worker(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it is gone
        return False


def wait_until(true, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_cannot_be_sent_to_a_worker_is_a_clear_error_and_leaves_no_process(tmp_path):
    module = Linear()
    module.function = lambda x: x
    with pytest.raises(ValueError, match=r"(?s)WorkerProcesses` sends.*cannot be sent.*no lambdas.*InProcess"):
        federate(tmp_path, module, engine=WorkerProcesses(1))
    test_no_worker_process_is_left(None)


def test_a_half_made_run_closes_its_engine(tmp_path, monkeypatch):
    closed = []
    from fl_lightning.engine import InProcess

    class Watched(InProcess):
        def close(self):
            closed.append(True)
            super().close()

    monkeypatch.setattr("fl_lightning.run_files.RunFolder", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        federate(tmp_path, engine=Watched())
    assert closed == [True]


def test_a_worker_that_could_not_be_started_can_be_stopped():
    """What a script without `if __name__ == "__main__":` runs into; the reason must not be hidden by another error."""
    worker = worker_processes._Process([0])
    worker.process = multiprocessing.get_context("spawn").Process(target=print)
    worker.stop()
    assert worker.process is None and not worker.alive
