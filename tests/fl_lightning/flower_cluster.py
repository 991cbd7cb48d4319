"""A federation on loopback as operators start it: `fl-lightning server` and `fl-lightning client`, TLS and node keys."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from federations import assert_same_bits, without_times
from flower_sites import EXPERIMENTS, server_tensors

from fl_lightning.flower.commands import main as command

PATIENCE = 600  # seconds: only a machine that is stuck takes so long


def free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def assert_same_run(local: Path, there: Path) -> None:
    """A run in process and one across processes have the same results, bit for bit, and nobody failed."""
    results = [without_times(json.loads((run / "results.json").read_text())) for run in (local, there)]
    assert results[0] == results[1] and results[1]["failures"] == []
    assert_same_bits(server_tensors(local), server_tensors(there))


class Cluster:
    """A server and sites in a folder; every process is ended by :meth:`close`.

    Args:
        root: An empty folder.
        experiments: Configs that all sites approve, by name.
        sites: How many.
        own: Keys of every site.yaml besides those of `site init`.
    """

    def __init__(self, root: Path, experiments: dict[str, Any] = EXPERIMENTS, sites: int = 3, **own: Any) -> None:
        self.root, self.processes = root, {}
        self.prepare(sites, *free_ports(2))
        files = []
        for name, config in experiments.items():
            (root / f"{name}.yaml").write_text(yaml.safe_dump(config))
            files.append(str(root / f"{name}.yaml"))
        for number in range(sites):
            self.change(number, experiments=files, accelerator="cpu", **{"whole_data": True, **own})

    def prepare(self, sites: int, port: int, control: int) -> None:
        """Keys, certificates and configs."""
        folder = str(self.root / "fed")
        command(["site", "init", folder, "--test", str(sites), "--port", str(port), "--control", str(control)])

    def machine(self, who: str | int) -> list[str]:
        """What to put before a command so that it runs where the server or a site is."""
        return []

    @property
    def server_yaml(self) -> Path:
        return self.root / "fed" / "server" / "server.yaml"

    def site(self, number: int) -> Path:
        """A site's folder."""
        return self.root / "fed" / f"site-{number}"

    def change(self, number: int, **own: Any) -> None:
        """Change keys of a site.yaml."""
        path = self.site(number) / "site.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **own}))

    def start(self, *who: str | int, wait: bool = True) -> None:
        """Start ``"server"`` or sites by number, all at once, and wait until they are ready."""
        for each in who:
            folder = self.server_yaml.parent if each == "server" else self.site(each)
            output = (folder / "out").open("w")
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            kind = "server" if each == "server" else "client"
            self.processes[each] = subprocess.Popen(
                [*self.machine(each), sys.executable, "-m", "fl_lightning", kind], cwd=folder, env=environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        for each in who if wait else ():
            self.wait_for(each, "ready: sites reach" if each == "server" else "connected to")

    def output(self, who: str | int) -> str:
        return ((self.server_yaml.parent if who == "server" else self.site(who)) / "out").read_text()

    def wait_for(self, who: str | int, text: str) -> None:
        """Until a process has said this."""
        end = time.monotonic() + PATIENCE
        while text not in self.output(who):
            code = self.processes[who].poll()
            assert code is None, f"{who} ended with {code}:\n{self.output(who)}"
            assert time.monotonic() < end, f"{who} said only:\n{self.output(who)}"
            time.sleep(0.1)

    def ended(self, who: str | int) -> int:
        """Wait for its end; the exit code."""
        return self.processes[who].wait(PATIENCE)

    def children(self, who: str | int) -> dict[str, int]:
        """Process ids of what `fl-lightning client` or `server` has started, by their command lines."""
        parent, found = self.processes[who].pid, {}
        for path in Path("/proc").iterdir():
            try:
                status, line = (path / "status").read_text(), (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, ValueError):
                continue
            if re.search(rf"^PPid:\s+{parent}$", status, re.M):
                name = re.search(r"flower\.worker|zygote|supernode|superexec|superlink|edge", line)
                if name:
                    found[name[0]] = int(path.name)
        return found

    def kill(self, who: str | int) -> None:
        """KILL it with all that it has started, as when a machine loses power."""
        for pid in [self.processes[who].pid, *self.children(who).values()]:
            os.kill(pid, signal.SIGKILL)
        self.processes.pop(who).wait()

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def arguments(self, name: str, *more: str, runs: str = "runs", flower: bool = True) -> list[str]:
        """Arguments of `fl-lightning` for `fit` of an experiment on this federation or (``flower=False``) in process."""
        engine = ["--federation.engine", "fl_lightning.flower.Flower",
                  "--federation.engine.init_args.server", str(self.server_yaml),
                  "--federation.engine.init_args.wait_for_sites", str(PATIENCE)]  # fmt: skip
        return ["fit", "--config", str(self.root / f"{name}.yaml"), "--trainer.default_root_dir", str(self.root / runs),
                *(engine if flower else []), *more]  # fmt: skip
