"""Time of a federated round over that of a hand-written loop of the same mathematics, in the same run.

    python -m benchmarks.rounds --json FILE [--root DATA]

FedAvg of a GraphSAGE 1433-64-7 over 10 Louvain clients of Cora, full-batch local epochs, validation of the global model
on the whole graph and on every client, curves to TensorBoard; ours also writes metrics.csv, the ledger and a checkpoint a
round, as by default, and the loop does not. Rounds of both sides alternate, so that other load on the machine hits both
alike; figures are medians of wall time, and next to them of this process's CPU time, which other load disturbs less.
Without Cora's files (``DATA/planetoid/Cora/raw``) a synthetic graph of Cora's sizes is used.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.plain_loop import PlainLoop, PlainSAGE
from datamodules import PlanetoidDataModule, SyntheticCitationDataModule
from datamodules.graph import GraphDataModule
from fl_lightning import FederatedTrainer
from fl_lightning.engine.federation import Federation
from fl_lightning.reporting.scores import versions
from fl_lightning.strategies import FedAvg
from lit_models import GraphSAGE, LitNodeClassifier

HIDDEN, CLIENTS, WARM_UP = 64, 10, 3
TARGETS = {
    "ratio_vs_loop_1_epoch": 1.5,
    "ratio_vs_loop_5_epochs": 1.2,
    "ratio_sparse_vs_loop_1_epoch": 0.7,
    "ratio_sparse_vs_loop_5_epochs": 0.6,
}


class AlternatingFedAvg(FedAvg):
    """FedAvg which, before each of its rounds, lets the baseline do one, and notes how long both took.

    A round of ours is all that happens between two such points: training, aggregation, evaluation, logging, checkpoint.

    Args:
        baseline: Does one round of the baseline, given its number.
    """

    def __init__(self, baseline: Callable[[int], None]) -> None:
        super().__init__(weighting="uniform")  # as the baseline
        self._baseline = baseline
        self._ours: list[Tensor] = []
        self._theirs: list[Tensor] = []
        self._begin: Tensor | None = None

    def round(self, federation: Federation, round: int, clients: Any) -> dict[int, dict[str, float]]:
        begin = _now()
        if self._begin is not None:
            self._ours.append(begin - self._begin)
        self._baseline(round)
        self._begin = _now()
        self._theirs.append(self._begin - begin)
        metrics = super().round(federation, round, clients)
        self.latest = self.weights  # afterwards `fit` goes back to the best round's
        return metrics

    def medians(self) -> dict[str, float]:
        """Milliseconds of a round, ours and the baseline's, without the first rounds."""
        sides = {"ours": self._ours, "loop": self._theirs}
        return {
            f"{side}{clock}": round(1000 * median(times[column].item() for times in rounds[WARM_UP:]), 2)
            for side, rounds in sides.items()
            for column, clock in enumerate(("", "_cpu"))
        }


def _now() -> Tensor:
    """Wall clock and CPU time of this process, in seconds, shape ``(2,)``."""
    return torch.tensor([time.perf_counter(), time.process_time()], dtype=torch.float64)


def cora(root: str | None, sparse: bool) -> GraphDataModule:
    """10 Louvain clients of Cora, or of a synthetic graph of its sizes."""
    options = {"num_clients": CLIENTS, "partition": "louvain", "sparse_features": sparse}
    if root is not None and any(Path(root, f, "Cora/raw/ind.cora.x").is_file() for f in (".", "planetoid")):
        data: GraphDataModule = PlanetoidDataModule(root=root, name="Cora", **options)
    else:
        data = SyntheticCitationDataModule(2708, 7, 1433, words_per_node=18, **options)
    data.setup("fit")
    return data


def compare(
    dense: GraphDataModule, data: GraphDataModule, epochs: int, rounds: int, dropout: float
) -> tuple[dict[str, float], float]:
    """Run both sides in turns from the same weights.

    Args:
        dense: Data of the baseline.
        data: Data of ours: the same, dense or sparse.
        epochs: Local epochs of a round.
        rounds: Timed rounds, besides the first few.
        dropout: Of the hidden layer.

    Returns:
        Milliseconds of a round of each side, and the largest difference between their final weights.
    """
    features, classes = (int(dense.schema[k]) for k in ("num_features", "num_classes"))
    torch.manual_seed(0)
    module = LitNodeClassifier(GraphSAGE(HIDDEN, 2, dropout), num_classes=classes, in_channels=features)
    plain = PlainSAGE(features, HIDDEN, classes, dropout)
    plain.load_state_dict(module.encoder.state_dict())
    with tempfile.TemporaryDirectory() as folder:
        graphs = [client.data for client in dense.client_datamodules()]
        loop = PlainLoop(plain, graphs, dense.data, epochs, Path(folder, "loop"))
        strategy = AlternatingFedAvg(loop.round)
        trainer = FederatedTrainer(
            trainer={"max_epochs": epochs, "accelerator": "cpu", "default_root_dir": folder},
            num_rounds=WARM_UP + rounds + 1,
            strategy=strategy,
        )
        trainer.fit(module, data)
        loop.writer.close()
    difference = max((strategy.latest[f"encoder.{n}"] - t).abs().max().item() for n, t in loop.weights.items())
    return strategy.medians(), difference


def measure(root: str | None, rounds: int) -> dict[str, Any]:
    """All figures, as they go to the JSON file."""
    dense, sparse = cora(root, sparse=False), cora(root, sparse=True)
    result: dict[str, Any] = {"dataset": type(dense).__name__, "num_clients": CLIENTS, "rounds": rounds, "ms": {}}
    load = [os.getloadavg()[0]]
    for kind, data in (("", dense), ("sparse_", sparse)):
        result[f"{kind}max_difference_of_weights"] = compare(dense, data, epochs=1, rounds=1, dropout=0.0)[1]
        for epochs, name in ((1, "1_epoch"), (5, "5_epochs")):
            ms, _ = compare(dense, data, epochs, rounds, dropout=0.5)
            result[f"ratio_{kind}vs_loop_{name}"] = round(ms["ours"] / ms["loop"], 3)
            result[f"cpu_ratio_{kind}vs_loop_{name}"] = round(ms["ours_cpu"] / ms["loop_cpu"], 3)
            result["ms"][f"{kind}{name}"] = ms
            load.append(os.getloadavg()[0])
    result["targets"] = TARGETS
    result["met"] = {name: result[name] <= most for name, most in TARGETS.items()}
    result["load_average"] = load
    return {**result, "cpus": os.cpu_count(), "versions": versions()}


def main() -> int:
    """Command line; exit code 1 if both sides do not compute the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, help="File to write.")
    parser.add_argument("--root", default=None, help="Folder with planetoid/Cora/raw; without it a synthetic graph.")
    parser.add_argument("--rounds", type=int, default=20, help="Timed rounds of each comparison.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    result = measure(options.root, options.rounds)
    text = json.dumps(result, indent=1)
    Path(options.json).write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")
    agree = all(result[f"{kind}max_difference_of_weights"] <= 1e-4 for kind in ("", "sparse_"))
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
