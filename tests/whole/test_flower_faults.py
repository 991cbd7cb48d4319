"""What goes wrong across machines, with real processes: each fault ends in the stated behaviour, and nothing is lost.

Slow: minutes of waiting for Flower's deadlines.
"""

import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from federations import assert_same_bits, without_times
from flower_cluster import PATIENCE, Cluster
from flower_sites import EXPERIMENTS, server_tensors

pytest.importorskip("flwr", reason="needs the extra `fl-lightning[flower]`")
pytestmark = pytest.mark.slow

HOLDING = copy.deepcopy(EXPERIMENTS["fedpub"])
HOLDING["model"]["class_path"] = "flower_holding.Holding"
HOLDING["federation"] |= {"num_rounds": 3, "min_clients": 2}
TESTS = Path(__file__).resolve().parents[1] / "fl_lightning"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    old = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(TESTS), old)))
    cluster = Cluster(tmp_path_factory.mktemp("faults"), {"holding": HOLDING})
    try:
        cluster.start("server", 0, 1, 2)
        yield cluster
    finally:
        cluster.close()
        os.environ["PYTHONPATH"] = old or ""


@pytest.fixture
def cluster(running):
    for number in range(3):
        for name in ("hold", "trainings"):
            (running.site(number) / name).unlink(missing_ok=True)
    yield running
    while Fit.started:  # of a test that failed
        process = Fit.started.pop()
        process.kill()
        process.wait()


class Fit:
    """`fl-lightning fit` in a process of its own."""

    started: list[subprocess.Popen] = []

    def __init__(self, cluster, name, *more):
        self.folder = cluster.root / name
        self.log = (cluster.root / f"{name}.log").open("a")
        arguments = cluster.arguments("holding", *more, runs=name)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fl_lightning", *arguments], stdout=self.log, stderr=subprocess.STDOUT
        )
        self.started.append(self.process)

    @property
    def run(self):
        return self.folder / "holding" / "version_0"

    def results(self):
        code = self.process.wait(PATIENCE)
        assert code == 0, Path(self.log.name).read_text()
        return json.loads((self.run / "results.json").read_text())


def until(fit, condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end and fit.process.poll() is None, Path(fit.log.name).read_text()
        time.sleep(0.1)


def hold(cluster, number, after):
    """The site waits in its training after ``after`` of them."""
    (cluster.site(number) / "hold").write_text(str(after))


def release(cluster, number):
    (cluster.site(number) / "hold").unlink()


def trainings(cluster, number):
    path = cluster.site(number) / "trainings"
    return len(path.read_text()) if path.is_file() else 0


def took_part(run, client):
    """Rounds in which a client's training reached the server."""
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    return [x["round"] for x in lines if (x["client"], x["kind"], x["direction"], x["error"]) == (client, "fit", "up", None)]


def test_a_worker_that_dies_is_named_at_once_and_goes_on_from_its_disk(cluster):
    hold(cluster, 1, after=1)
    fit = Fit(cluster, "worker")
    until(fit, lambda: trainings(cluster, 1) == 2)
    os.kill(cluster.children(1)["flower.worker"], signal.SIGKILL)
    release(cluster, 1)
    results = fit.results()
    assert [(f["client"], f["round"], f["kind"]) for f in results["failures"]][0] == (1, 1, "fit")
    assert "its worker process ended" in results["failures"][0]["reason"]
    assert took_part(fit.run, 1) == [0, 2] and took_part(fit.run, 0) == [0, 1, 2]
    assert "worker ended (exit code -9) and is started again" in cluster.output(1)


def test_a_site_that_loses_power_is_left_out_and_rejoins(cluster):
    for number in (0, 1):
        hold(cluster, number, after=0)
    fit = Fit(cluster, "power")
    until(fit, lambda: trainings(cluster, 1) == 1 and trainings(cluster, 0) == 1)
    cluster.kill(1)
    release(cluster, 1)
    cluster.start(1)
    release(cluster, 0)
    results = fit.results()
    assert {(f["client"], f["round"]) for f in results["failures"]} == {(1, 0)}
    assert took_part(fit.run, 1) == [1, 2] and took_part(fit.run, 0) == [0, 1, 2]


def test_a_straggler_is_left_out_and_its_late_reply_leaves_no_trace(cluster):
    hold(cluster, 2, after=0)
    fit = Fit(cluster, "late", "--federation.client_timeout", "40")
    until(fit, lambda: (fit.run / "checkpoints" / "round_00000").is_dir())
    release(cluster, 2)
    results = fit.results()
    first = results["failures"][0]
    assert (first["client"], first["round"], first["kind"]) == (2, 0, "fit") and "no answer within 40 s" in first["reason"]
    assert 2 in took_part(fit.run, 2) and 0 not in took_part(fit.run, 2)


def test_the_superlink_may_die_and_the_run_goes_on(cluster):
    hold(cluster, 0, after=1)
    fit = Fit(cluster, "superlink")
    until(fit, lambda: trainings(cluster, 0) == 2)
    os.kill(cluster.children("server")["superlink"], signal.SIGKILL)
    cluster.wait_for("server", "superlink ended (exit code -9)")
    release(cluster, 0)
    results = fit.results()
    assert took_part(fit.run, 0) == [0, 1, 2] and results["rounds_run"] == 3


def test_server_and_fit_are_killed_and_resumed_with_the_same_bits(cluster, tmp_path, monkeypatch):
    from fl_lightning.cli import FederatedCLI

    monkeypatch.chdir(tmp_path)  # where the run in process notes its trainings
    hold(cluster, 0, after=1)
    fit = Fit(cluster, "resumed")
    until(fit, lambda: trainings(cluster, 0) == 2)
    fit.process.kill()
    fit.process.wait()
    cluster.kill("server")
    release(cluster, 0)
    cluster.start("server")
    results = Fit(cluster, "resumed", "--ckpt_path", "last").results()
    whole = FederatedCLI(cluster.arguments("holding", runs="whole", flower=False)).trainer.run_dir
    expected = json.loads((whole / "results.json").read_text())
    assert without_times(results) == without_times(expected)
    last = "round_00002"
    pick = [{n: t for n, t in server_tensors(run).items() if n.startswith(last)} for run in (whole, fit.run)]
    assert pick[0] and not assert_same_bits(*pick)


def test_who_is_not_known_is_refused_with_the_reason(cluster, tmp_path):
    other = Cluster(tmp_path, {"holding": HOLDING}, sites=2)
    # Site 0 has a stranger's authority, site 1 a stranger's key.
    listen = cluster.server_yaml.read_text().split("listen: ")[1].split()[0]
    other.change(0, server=listen)
    other.change(1, server=listen, ca=str(cluster.server_yaml.parent / "ca.crt"))
    try:
        other.start(0, 1, wait=False)
        assert other.ended(0) == 3 and "is not the authority that signed the server's certificate" in other.output(0)
        assert other.ended(1) == 3 and "the server does not know the key of this site" in other.output(1)
    finally:
        other.close()
