"""Time of a round of FED-PUB over that of a hand-written loop of the same mathematics, in the same run.

    python -m benchmarks.fedpub_round --json FILE [--root DATA]

10 METIS clients of Cora's largest component, GCN 1433-128-128-7 with masks, one full-batch step each, embedding,
aggregation, validation *and* test scores of every client in every round, curves and heat maps to TensorBoard. Ours also
writes metrics.csv, the ledger and a checkpoint a round, as by default; the share of the checkpoint is listed apart.
Rounds of both sides alternate, so that other load on the machine hits both alike; figures are medians.
Without Cora's files (``DATA/planetoid/Cora/raw``) a synthetic graph of its sizes is used.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.plain_fedpub import PlainFedPub, PlainMaskedGCN
from datamodules import PlanetoidDataModule, SyntheticCitationDataModule
from datamodules.graph import GraphDataModule
from fl_lightning import FederatedTrainer, FedPub
from fl_lightning.engine import checkpoint
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.seeds import derive
from fl_lightning.reporting.scores import versions
from fl_lightning.strategies.fedpub import proxy_graph
from lit_models import LitNodeClassifier, MaskedGCN
from lit_models.objectives import MaskedProximal

HIDDEN, CLIENTS, WARM_UP, TAU, L2 = 128, 10, 3, 3.0, 1e-3
TARGET = 2.0
adam = partial(torch.optim.Adam, lr=0.01, weight_decay=1e-6, fused=True)


class AlternatingFedPub(FedPub):
    """FED-PUB which, before each of its rounds, lets the baseline do one, and notes how long both took.

    A round of ours is all that happens between two such points: training, embedding, aggregation, evaluation of the
    validation data (by the trainer) and of the test data (asked for here), logging, checkpoint.

    Args:
        baseline: Does one round of the baseline, given its number.
        options: As for `FedPub`.
    """

    def __init__(self, baseline: Callable[[int], None], **options: Any) -> None:
        super().__init__(**options)
        self._baseline = baseline
        self._ours: list[float] = []
        self._theirs: list[float] = []
        self._parts: dict[str, list[float]] = {"fit": [], "test": []}
        self._begin: float | None = None

    def round(self, federation: Federation, round: int, clients: Any) -> dict[int, dict[str, float]]:
        begin = time.perf_counter()
        if self._begin is not None:
            self._ours.append(begin - self._begin)
        self._baseline(round)
        self._begin = time.perf_counter()
        self._theirs.append(self._begin - begin)
        metrics = super().round(federation, round, clients)
        self._parts["fit"].append(time.perf_counter() - self._begin)
        self._latest = dict(self._mixtures)  # afterwards `fit` goes back to the best round's
        begin = time.perf_counter()
        replies = federation.call("evaluate", {c: Payload(values={"stages": ["test"]}) for c in clients}, round)
        self._parts["test"].append(time.perf_counter() - begin)
        return {c: {**m, **{f"test/{k}": v for k, v in replies[c].values["test"].items()}} for c, m in metrics.items()}


def cora(root: str | None, sparse: bool) -> GraphDataModule:
    """10 METIS clients of Cora, or of a synthetic graph of its sizes."""
    options: dict[str, Any] = {
        "num_clients": CLIENTS, "partition": "metis", "split": "random_20_40_40", "largest_component": True,
        "normalize_features": True, "sparse_features": sparse,
    }  # fmt: skip
    if root is not None and any(Path(root, f, "Cora/raw/ind.cora.x").is_file() for f in (".", "planetoid")):
        data: GraphDataModule = PlanetoidDataModule(root=root, name="Cora", **options)
    else:
        data = SyntheticCitationDataModule(2485, 7, 1433, words_per_node=18, **options)
    data.setup("fit")
    return data


def compare(dense: GraphDataModule, data: GraphDataModule, rounds: int, dropout: float) -> dict[str, float]:
    """Run both sides in turns from the same weights.

    Args:
        dense: Data of the baseline.
        data: Data of ours: the same, dense or sparse.
        rounds: Timed rounds, besides the first few.
        dropout: Of the hidden layers.

    Returns:
        Median milliseconds of a round (``ours``, ``loop``), of parts of ours (``fit``, ``test``, ``checkpoint``), and
        ``difference``, the largest between the mixed weights of both in the end.
    """
    features, classes = (int(dense.schema[k]) for k in ("num_features", "num_classes"))
    module = LitNodeClassifier(
        MaskedGCN(HIDDEN, dropout=dropout), MaskedProximal(l2=L2), adam, num_classes=classes, in_channels=features
    )
    initial = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    names = ["convs.0.lin.weight", "convs.1.lin.weight", "head.weight", "convs.0.bias", "convs.1.bias", "head.bias"]
    models = [PlainMaskedGCN(features, HIDDEN, classes, dropout) for _ in range(CLIENTS)]
    for model in models:
        for parameter, name in zip([*model.weights, *model.biases], names, strict=True):
            parameter.data.copy_(initial[f"encoder.{name}"])
    saving: list[float] = []
    save = checkpoint.Checkpoints.save

    def timed(*args: Any, **kwargs: Any) -> Path:
        begin = time.perf_counter()
        path = save(*args, **kwargs)
        saving.append(time.perf_counter() - begin)
        return path

    with tempfile.TemporaryDirectory() as folder:
        graphs = [client.data for client in dense.client_datamodules()]
        proxy = proxy_graph(features, seed=derive(0, "fedpub proxy graph") % 2**31)
        loop = PlainFedPub(models, graphs, proxy, TAU, L2, Path(folder, "loop"))
        strategy = AlternatingFedPub(loop.round, tau=TAU)
        trainer = FederatedTrainer(
            trainer={"max_epochs": 1, "accelerator": "cpu", "default_root_dir": folder},
            num_rounds=WARM_UP + rounds + 1, strategy=strategy, seed=0,
        )  # fmt: skip
        checkpoint.Checkpoints.save = timed  # type: ignore[method-assign]
        try:
            trainer.fit(module, data)
        finally:
            checkpoint.Checkpoints.save = save  # type: ignore[method-assign]
        loop.writer.close()
    difference = max(
        (strategy._latest[client][f"encoder.{name}"] - parameter).abs().max().item()
        for client, own in enumerate(loop.shared)
        for parameter, name in zip(own, names, strict=True)
    )
    parts = {"ours": strategy._ours, "loop": strategy._theirs, **strategy._parts, "checkpoint": saving}
    return {**{k: round(1000 * median(v[WARM_UP:]), 2) for k, v in parts.items()}, "difference": difference}


def measure(root: str | None, rounds: int) -> dict[str, Any]:
    """All figures, as they go to the JSON file."""
    dense, sparse = cora(root, sparse=False), cora(root, sparse=True)
    result: dict[str, Any] = {"dataset": type(dense).__name__, "num_clients": CLIENTS, "rounds": rounds, "ms": {}}
    load = [os.getloadavg()[0]]
    for kind, data in (("", dense), ("sparse_", sparse)):
        result[f"{kind}max_difference_of_weights"] = compare(dense, data, rounds=2, dropout=0.0)["difference"]
        ms = compare(dense, data, rounds, dropout=0.5)
        result["ms"][f"{kind}round"] = ms
        result[f"ratio_{kind}vs_loop"] = round(ms["ours"] / ms["loop"], 3)
        result[f"ratio_{kind}vs_loop_without_checkpoint"] = round((ms["ours"] - ms["checkpoint"]) / ms["loop"], 3)
        load.append(os.getloadavg()[0])
    result["target"] = TARGET
    result["met"] = result["ratio_vs_loop"] <= TARGET
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
    return 0 if max(result["max_difference_of_weights"], result["sparse_max_difference_of_weights"]) <= 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
