"""A federation whose server and sites each have a network of their own: the same bits, and nobody reaches more than needed.

Every site is a network namespace with one address and one link, to the server's; there is no other network, no name server and
no route between sites. Slow, and needs root and iproute2.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flower_cluster import Cluster, assert_same_run
from flower_sites import EXPERIMENTS

from fl_lightning.flower.commands import main as command

pytest.importorskip("flwr", reason="needs the extra `fl-lightning[flower]`")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and iproute2"),
]
SERVER = "10.77.255.1"


def ip(*arguments, check=True):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0 or not check, f"ip {' '.join(arguments)}: {done.stderr}"
    return done


class Networked(Cluster):
    """Server and sites in network namespaces ``fl<pid>-server``, ``fl<pid>-0``, ..."""

    def space(self, who):
        return f"fl{os.getpid()}-{who}"

    def machine(self, who):
        return ["ip", "netns", "exec", self.space(who)]

    def prepare(self, sites, port, control):
        server = self.root / "fed" / "server"
        command(["site", "init", str(server), "--host", SERVER, "--port", str(port), "--control", str(control)])
        with self.server_yaml.open("a") as file:
            for number in range(sites):
                command(["site", "init", str(self.site(number)), "--name", f"site-{number}", "--server", f"{SERVER}:{port}"])
                shutil.copy(self.site(number) / f"site-{number}.pub", server / "keys")
                shutil.copy(server / "ca.crt", self.site(number))
                file.write(f"  site-{number}: keys/site-{number}.pub\n")
        self.spaces = ["server", *range(sites)]
        for who in self.spaces:
            ip("netns", "add", self.space(who))
            ip("-n", self.space(who), "link", "set", "lo", "up")
        ip("-n", self.space("server"), "address", "add", f"{SERVER}/32", "dev", "lo")
        for number in range(sites):
            here, there = f"to{number}", "server"
            ip("link", "add", here, "netns", self.space("server"), "type", "veth",
               "peer", "name", there, "netns", self.space(number))  # fmt: skip
            for who, device, last in (("server", here, 1), (number, there, 2)):
                ip("-n", self.space(who), "address", "add", f"10.77.{number}.{last}/30", "dev", device)
                ip("-n", self.space(who), "link", "set", device, "up")
            ip("-n", self.space(number), "route", "add", f"{SERVER}/32", "via", f"10.77.{number}.1")

    def close(self):
        super().close()
        for who in self.spaces:
            ip("netns", "delete", self.space(who), check=False)

    def python(self, who, code):
        """What a few lines print on the server's or a site's machine."""
        done = subprocess.run([*self.machine(who), sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def reaches(self, who, host, port):
        code = f"import socket\ntry: socket.create_connection(({host!r}, {port}), 2); print('yes')\nexcept OSError: print('no')"
        return self.python(who, code) == "yes"

    def listening(self, who):
        """Addresses and ports at which something listens."""
        return [line.split()[3] for line in self.lines(who, ["ss", "-Hltn"])]

    def lines(self, who, arguments):
        return subprocess.run([*self.machine(who), *arguments], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with contextlib.ExitStack() as stack:
        cluster = Networked.__new__(Networked)
        cluster.processes, cluster.spaces = {}, []
        stack.callback(cluster.close)  # also when it is half made
        cluster.__init__(tmp_path_factory.mktemp("namespaces"))
        cluster.start("server", 0, 1, 2)
        yield cluster


def fit(cluster, name, **options):
    where = cluster.machine("server") if options.get("flower", True) else []
    command = [*where, sys.executable, "-m", "fl_lightning", *cluster.arguments(name, **options)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return cluster.root / options.get("runs", "runs") / name / "version_0"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_same_bits_as_in_process(cluster, name):
    local, there = fit(cluster, name, flower=False, runs="in_process"), fit(cluster, name)
    assert_same_run(local, there)


def test_sites_open_no_port_and_reach_the_server_alone(cluster):
    import yaml

    server = yaml.safe_load(cluster.server_yaml.read_text())
    port, control = (int(server[key].rsplit(":", 1)[1]) for key in ("listen", "control"))
    outside = [a for a in cluster.listening("server") if not a.startswith("127.0.0.1:")]
    assert outside == [f"0.0.0.0:{port}"], "one port of the server is open"
    for number in range(3):
        assert all(a.startswith("127.0.0.1:") for a in cluster.listening(number)), "a site opens none"
        assert cluster.reaches(number, SERVER, port) and not cluster.reaches(number, SERVER, control)
        peers = {line.split()[4].rsplit(":", 1)[0] for line in cluster.lines(number, ["ss", "-Htn"])}
        assert peers <= {"127.0.0.1", SERVER}
    assert not cluster.reaches(0, "10.77.1.2", port), "sites do not reach each other"
    assert Path(cluster.site(0) / "state" / "ledger.jsonl").stat().st_size > 0
