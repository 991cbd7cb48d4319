"""What a step across machines costs beyond training: server and three sites as processes on loopback, TLS and node keys.

    python -m benchmarks.flower_steps [--rounds 10] [--megabytes 98] [--json FILE]        (needs the extra `[flower]`)

FedSage on a synthetic graph. A step is one request to all sites and their replies, as `fit` sees it; its training is what
the slowest client takes in one process on this machine. ``--megabytes``: of weights, by the width of a third layer. Memory is
the peak of each process (VmHWM).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from fl_lightning.cli import FederatedCLI
from fl_lightning.engine import InProcess
from fl_lightning.engine.messages import Message
from fl_lightning.flower.commands import main as command
from fl_lightning.flower.engine import Flower
from fl_lightning.flower.processes.children import free_port

SITES = 3
STEPS: list[tuple[str, float, float]] = []  # kind; seconds of the step; of the slowest client, if they run one by one


def timed(replies: Iterator[Message], kind: str) -> Iterator[Message]:
    """Pass replies on and note how long they took."""
    begin = last = time.perf_counter()
    slowest = 0.0
    for reply in replies:
        now = time.perf_counter()
        slowest, last = max(slowest, now - last), now
        yield reply
        last = time.perf_counter()
    STEPS.append((kind, time.perf_counter() - begin, slowest))


class TimedFlower(Flower):
    """Flower, timed."""

    def exchange(self, requests: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        return timed(super().exchange(requests, timeout), requests[0].kind)


class TimedInProcess(InProcess):
    """One process, timed."""

    def exchange(self, requests: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        return timed(super().exchange(requests, timeout), requests[0].kind)


def experiment(rounds: int, megabytes: float) -> dict:
    """FedSage; its weights are about so large (0: the smallest)."""
    width = int((megabytes * 1e6 / 4 / 2) ** 0.5) if megabytes else 8
    graph = {"num_nodes": 120, "num_classes": 3, "num_features": 30, "num_clients": SITES, "blocks_per_class": 2}
    return {
        "seed_everything": 0,
        "federation": {
            "num_rounds": rounds,
            "strategy": {"class_path": "fl_lightning.strategies.FedAvg", "init_args": {"weighting": "uniform"}},
            "keep_last": 1,
        },
        "trainer": {"max_epochs": 1, "accelerator": "cpu"},
        "model": {
            "class_path": "lit_models.LitNodeClassifier",
            "init_args": {
                "encoder": {
                    "class_path": "lit_models.GraphSAGE",
                    "init_args": {"hidden_channels": width, "num_layers": 3 if megabytes else 2},
                },
            },
        },
        "data": {"class_path": "datamodules.SyntheticCitationDataModule", "init_args": graph},
    }


def start(folder: Path, kind: str, ready: str) -> subprocess.Popen:
    """A server or a site, ready."""
    with (folder / "out").open("w") as output:
        process = subprocess.Popen([sys.executable, "-m", "fl_lightning", kind], cwd=folder, stdout=output, stderr=output)
    while ready not in (folder / "out").read_text():
        if process.poll() is not None:
            raise SystemExit((folder / "out").read_text())
        time.sleep(0.1)
    return process


def peaks(parents: dict[str, int]) -> dict[str, float]:
    """Peak memory in MB of the children of these processes, by what they are; the largest of several."""
    found: dict[str, float] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status, line = (path / "status").read_text(), (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        parent = int(re.findall(r"^PPid:\s+(\d+)", status, re.M)[0])
        side = next((side for side, pid in parents.items() if pid == parent), None)
        name = re.search(r"flower\.worker|zygote|supernode|superexec|superlink|edge", line)
        if side and name:
            key = f"{side.split('-')[0]} {name[0]}"
            found[key] = max(found.get(key, 0.0), int(re.findall(r"^VmHWM:\s+(\d+)", status, re.M)[0]) / 1024)
    return {key: round(value) for key, value in sorted(found.items())}


def measure(rounds: int, megabytes: float, root: Path) -> dict:
    """Figures of one federation."""
    config = root / "experiment.yaml"
    config.write_text(yaml.safe_dump(experiment(rounds, megabytes)))
    fit = ["fit", "--config", str(config), "--trainer.default_root_dir", str(root / "runs")]

    command(
        ["site", "init", str(root / "fed"), "--test", str(SITES), "--port", str(free_port()), "--control", str(free_port())]
    )
    own = {"experiments": [str(config)], "accelerator": "cpu", "whole_data": True}
    for number in range(SITES):
        path = root / "fed" / f"site-{number}" / "site.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **own}))
    os.environ["OMP_NUM_THREADS"] = "1"
    running: dict[str, subprocess.Popen] = {}
    try:
        begin = time.perf_counter()
        running["server"] = start(root / "fed" / "server", "server", "ready: sites reach")
        for number in range(SITES):
            running[f"site-{number}"] = start(root / "fed" / f"site-{number}", "client", "connected to")
        started = time.perf_counter() - begin
        begin = time.perf_counter()
        engine = ["--federation.engine", "benchmarks.flower_steps.TimedFlower"]
        server = ["--federation.engine.init_args.server", str(root / "fed" / "server" / "server.yaml")]
        cli = FederatedCLI([*fit, *engine, *server])
        whole = time.perf_counter() - begin
        memory = peaks({name: process.pid for name, process in running.items()})
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
    steps, STEPS[:] = list(STEPS), []
    FederatedCLI([*fit, "--federation.engine", "benchmarks.flower_steps.TimedInProcess"])
    training = list(STEPS)
    if [kind for kind, _, _ in steps] != [kind for kind, _, _ in training]:
        raise SystemExit("Not the same steps as in one process.")
    over = [there[1] - here[2] for there, here in zip(steps, training, strict=True)]
    results = json.loads((cli.trainer.run_dir / "results.json").read_text())
    return {
        "weights_mb": round(sum(p.numel() for p in cli.model.parameters()) * 4e-6, 2),
        "rounds": rounds,
        "steps": len(over),
        "load": os.getloadavg()[0],
        "seconds_until_connected": round(started, 1),
        "seconds_of_fit": round(whole, 1),
        "training_s": {"mean": statistics.mean(h[2] for h in training), "max": max(h[2] for h in training)},
        "overhead_s": {"mean": statistics.mean(over), "median": statistics.median(over), "min": min(over), "max": max(over)},
        "overhead_s_by_kind": {
            kind: statistics.mean(o for o, s in zip(over, steps, strict=True) if s[0] == kind) for kind in {s[0] for s in steps}
        },
        "bytes": {way: results["bytes"][way] for way in ("up", "down")},
        "failures": results["failures"],
        "peak_mb": {**memory, "fit": results["peak_rss_mb"]},
    }


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--megabytes", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(given.rounds, given.megabytes, Path(folder))
    text = json.dumps(figures, indent=2)
    sys.stdout.write(text + "\n")
    if given.json:
        given.json.write_text(text)


if __name__ == "__main__":
    from benchmarks import flower_steps  # the module that the command line finds the engines in, with its STEPS

    flower_steps.main()
