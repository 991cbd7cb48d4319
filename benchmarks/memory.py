"""Memory and open files over many rounds, and the peak memory of the larger graphs.

    python -m benchmarks.memory --json FILE [--data pubmed|cs --root DATA]

Without ``--data``: 200 rounds of FedAvg with 50 clients of 40 nodes each in this process, with logs and checkpoints as
by default; resident memory and open file descriptors at rounds 20, 50, 100, 150 and 200. Flat means that nothing grows
with the number of rounds but the run's own files on disk.

With ``--data``: peak resident memory of ``fl-lightning fit`` on PubMed or Coauthor CS with 10 clients, in a process of
its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from datamodules import SyntheticCitationDataModule
from fl_lightning import FederatedTrainer
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.memory import peak_rss_bytes
from fl_lightning.reporting.scores import versions
from fl_lightning.strategies import FedAvg
from lit_models import GraphSAGE, LitNodeClassifier

ROUNDS = (20, 50, 100, 150, 200)
GRAPHS = {
    "pubmed": ("datamodules.PlanetoidDataModule", "PubMed"),
    "cs": ("datamodules.CoauthorDataModule", "CS"),
}


class WatchedFedAvg(FedAvg):
    """FedAvg that notes this process's memory and open files after the given numbers of rounds."""

    def __init__(self) -> None:
        super().__init__(weighting="uniform")
        self.seen: dict[int, dict[str, float]] = {}

    def round(self, federation: Federation, round: int, clients: Any) -> dict[int, dict[str, float]]:
        if round in ROUNDS:  # counted from 0: this many are done
            gc.collect()
            self.seen[round] = {"rss_mb": _rss_mb(), "open_files": len(os.listdir("/proc/self/fd"))}
        return super().round(federation, round, clients)


def over_rounds() -> dict[str, Any]:
    """Memory and open files at `ROUNDS`."""
    data = SyntheticCitationDataModule(2000, 6, 200, num_clients=50, partition="random")
    module = LitNodeClassifier(GraphSAGE(16))
    strategy = WatchedFedAvg()
    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(
            trainer={"max_epochs": 1, "accelerator": "cpu", "default_root_dir": folder},
            num_rounds=max(ROUNDS) + 1,
            strategy=strategy,
        )
        trainer.fit(module, data)
    seen = strategy.seen
    first, last = seen[ROUNDS[1]], seen[ROUNDS[-1]]
    return {
        "clients": 50,
        "at_round": {str(round): values for round, values in seen.items()},
        "growth_mb_from_round_50_to_200": round(last["rss_mb"] - first["rss_mb"], 2),
        "growth_open_files_from_round_50_to_200": last["open_files"] - first["open_files"],
    }


def of_fit(name: str, root: str) -> dict[str, Any]:
    """Peak memory of ``fl-lightning fit`` with 10 clients, 3 rounds."""
    class_path, dataset = GRAPHS[name]
    arguments = {
        "--model": "lit_models.LitNodeClassifier",
        "--model.encoder": "lit_models.GraphSAGE",
        "--data": class_path,
        "--data.root": root,
        "--data.name": dataset,
        "--data.num_clients": "10",
        "--federation.num_rounds": "3",
        "--trainer.max_epochs": "1",
        "--trainer.accelerator": "cpu",
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fl_lightning", "fit", f"--trainer.default_root_dir={folder}"]
        subprocess.run(command + [f"{key}={value}" for key, value in arguments.items()], check=True)
        results = json.loads(next(Path(folder).rglob("results.json")).read_text())
    peak = peak_rss_bytes(children=True) / 2**20
    return {
        "data": dataset,
        "peak_rss_mb": round(peak),
        "reported_peak_rss_mb": results["peak_rss_mb"],
        "target_mb": 4096,
        "met": peak < 4096,
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, help="File to write.")
    parser.add_argument("--data", choices=sorted(GRAPHS), default=None, help="Measure `fit` on this graph instead.")
    parser.add_argument("--root", default=None, help="Folder with planetoid/ and coauthor/.")
    options = parser.parse_args()
    if options.data is not None and options.root is None:
        parser.error("`--data` needs `--root`, the folder with the data.")
    torch.set_num_threads(1)
    result = over_rounds() if options.data is None else of_fit(options.data, options.root)
    text = json.dumps({**result, "versions": versions()}, indent=1)
    Path(options.json).write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")
    return 0


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 2**20, 2)


if __name__ == "__main__":
    sys.exit(main())
