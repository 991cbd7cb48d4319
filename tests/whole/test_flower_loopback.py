"""A federation as processes on loopback, with TLS and node keys: the same bits as in process, for every strategy.

Slow: some 60 s of processor time, most of it for starting a dozen Python processes.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from federations import assert_same_bits
from flower_cluster import Cluster, assert_same_run
from flower_sites import EXPERIMENTS, memory

pytest.importorskip("flwr", reason="needs the extra `fl-lightning[flower]`")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("loopback"))
    try:
        cluster.start("server", 0, 1, 2)
        yield cluster
    finally:
        cluster.close()


def fit(cluster, name, *more, **options):
    from fl_lightning.cli import FederatedCLI

    begin = time.monotonic()
    run = FederatedCLI(cluster.arguments(name, *more, **options)).trainer.run_dir
    sys.stderr.write(f"{name} {options}: {time.monotonic() - begin:.1f} s\n")
    return run


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_same_bits_as_in_process(cluster, name):
    local, there = fit(cluster, name, flower=False, runs="in_process"), fit(cluster, name)
    assert_same_run(local, there)
    last = sorted((local / "checkpoints").glob("round_*"))[-1]
    from fl_lightning.engine.store import ClientStore

    session = json.loads((there / "checkpoints" / last.name / "flower.json").read_text())["session"]
    for client in range(3):
        kept = ClientStore.load(last / f"client_{client:05d}.pt").tensors
        assert_same_bits(kept, memory(cluster.site(client) / "state", session))
    lines = [sorted((run / "ledger.jsonl").read_text().splitlines()) for run in (local, there)]
    assert lines[0] == lines[1]


def test_nothing_but_the_fleet_interface_is_exposed(cluster):
    import httpx
    import yaml

    server = yaml.safe_load(cluster.server_yaml.read_text())
    verify = str(cluster.server_yaml.parent / "ca.crt")
    for address, path, expected in (
        (server["listen"], "/v1/control/list-runs", 404),
        (server["listen"], "/v1/fleet/../control/list-runs", 404),
        (server["listen"], "/v1/fleet/%2e%2e/control/list-runs", 404),
        (server["listen"], "/v1/fleet/pull-messages", 401),
    ):
        with httpx.Client(verify=verify, trust_env=False) as client:
            request = client.build_request("POST", f"https://{address}", headers={"content-type": "application/protobuf"})
            request.url = request.url.copy_with(raw_path=path.encode())
            assert client.send(request).status_code == expected, path
        # The authority of this federation is needed to talk at all.
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.post(f"https://{address}{path}", trust_env=False)


def test_a_site_never_unpacks_what_the_server_sends(cluster):
    for number in range(3):
        assert not list(cluster.site(number).rglob("relay.py")) and not list(cluster.site(number).rglob("*.fab"))
    for folder in Path("/tmp").glob("fl-site-*"):
        assert not list(folder.rglob("relay.py"))


def test_private_keys_are_readable_by_their_owner_alone(cluster):
    for path in (cluster.site(0) / "site-0.key", cluster.server_yaml.parent / "server.key"):
        assert path.stat().st_mode & 0o077 == 0


def test_flwr_is_not_imported_by_the_worker(cluster):
    code = "import sys, fl_lightning.flower.worker, fl_lightning.flower.engine; sys.exit('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
