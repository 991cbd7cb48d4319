"""Time of our NNConv over that of PyG's, and of the whole MPNN's training step, in one run.

    python -m benchmarks.nnconv --json FILE [--root DATA]

Three message passing layers (64 channels), forward and backward, on 64 molecules, one thread: PyG's ``NNConv``, our
factorised form and our grouped form, which includes grouping the bonds. The three alternate, so that other load on the
machine hits all alike; times are processor time, figures are medians. Molecules are the first of ESOL
(``DATA/moleculenet/esol/raw``), or without its file those that RDKit carries.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric
from torch import Tensor, nn
from torch_geometric.nn import NNConv
from torch_geometric.nn import Set2Set as PyGSet2Set

from datamodules import ChEMBLDataModule, MoleculeNetDataModule
from lit_models import MPNN, FastNNConv
from lit_models.fast_nnconv import bond_groups

MOLECULES, CHANNELS, STEPS = 64, 64, 3
TARGETS = {"nnconv_speedup": 20.0}


def load_batches(root: str | None) -> tuple[str, list[Any]]:
    """Name of the data and its training set in batches of 64 molecules."""
    if root is not None and (Path(root) / "moleculenet/esol/raw/delaney-processed.csv").exists():
        name, data = "ESOL", MoleculeNetDataModule(root=str(Path(root) / "moleculenet"), name="ESOL", cache_dir=None)
    else:
        name, data = "ChEMBL, from RDKit", ChEMBLDataModule(cache_dir=None)
    data.setup("fit")
    batches = [batch for batch in data.train_dataloader() if batch.y.size(0) == MOLECULES]
    return name, batches


def edge_network() -> nn.Module:
    return nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, CHANNELS * CHANNELS))


def convolutions(batch: Any) -> tuple[dict[str, Callable[[], list[Tensor]]], float]:
    """The three forms as functions that return output and gradients; and how far they are apart, relatively."""
    torch.manual_seed(0)
    reference = NNConv(CHANNELS, CHANNELS, edge_network(), aggr="add", root_weight=False)
    fast = FastNNConv(CHANNELS, CHANNELS, edge_network())
    fast.load_state_dict(reference.state_dict())
    x = torch.randn(batch.num_nodes, CHANNELS, requires_grad=True)
    down = torch.randn(batch.num_nodes, CHANNELS)

    def backward(conv: nn.Module, out: Tensor) -> list[Tensor]:
        return [out.detach(), *torch.autograd.grad(out, [x, *conv.parameters()], down)]

    def plain() -> list[Tensor]:
        out = x
        for _ in range(STEPS):
            out = reference(out, batch.edge_index, batch.edge_attr).relu()
        return backward(reference, out)

    def factorised() -> list[Tensor]:
        out = x
        for _ in range(STEPS):
            out = fast.factorised(out, batch.edge_index, batch.edge_attr).relu()
        return backward(fast, out)

    def grouped() -> list[Tensor]:
        groups = bond_groups(batch.edge_index, batch.edge_attr, batch.num_nodes, batch.edge_type)
        matrices, out = fast.matrices(batch.edge_attr[groups.representative]), x
        for _ in range(STEPS):
            out = fast.grouped(out, matrices, groups).relu()
        return backward(fast, out)

    forms = {"plain": plain, "factorised": factorised, "grouped": grouped}
    results = {name: run() for name, run in forms.items()}
    apart = max(
        float((got - want).abs().max() / want.abs().max())
        for name in ("factorised", "grouped")
        for got, want in zip(results[name], results["plain"], strict=True)
    )
    return forms, apart


class PlainMPNN(nn.Module):
    """The same model from PyG's and PyTorch's layers, with the weights of ``model``."""

    def __init__(self, model: MPNN) -> None:
        super().__init__()
        self.project_vertex, self.project_edge = nn.Linear(74, 74), nn.Linear(13, 13)
        self.lin0, self.gru = nn.Linear(74, CHANNELS), nn.GRU(CHANNELS, CHANNELS)
        self.conv = NNConv(CHANNELS, CHANNELS, edge_network(), aggr="add", root_weight=False)
        self.set2set = PyGSet2Set(CHANNELS, processing_steps=3, num_layers=3)
        self.head = nn.Sequential(nn.Linear(2 * CHANNELS, CHANNELS), nn.ReLU(), nn.Linear(CHANNELS, 1))
        self.load_state_dict(model.state_dict())

    def forward(self, batch: Any) -> Tensor:
        edge = self.project_edge(batch.edge_attr)
        vertex = F.relu(self.lin0(self.project_vertex(batch.x)))
        hidden = vertex.unsqueeze(0)
        for _ in range(STEPS):
            message = F.relu(self.conv(vertex, batch.edge_index, edge))
            vertex, hidden = self.gru(message.unsqueeze(0), hidden)
            vertex = vertex.squeeze(0)
        return self.head(self.set2set(vertex, batch.batch, dim_size=batch.num_graphs))


def training_step(model: nn.Module, batches: list[Any], **adam: Any) -> Callable[[], None]:
    """One step of the protocol (Adam, gradients clipped to 1) on the next batch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=1e-5, **adam)
    position = 0

    def step() -> None:
        nonlocal position
        batch, position = batches[position % len(batches)], position + 1
        optimizer.zero_grad()
        F.mse_loss(model(batch), batch.y[:, :1]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def medians(runs: dict[str, Callable[[], Any]], repeats: dict[str, int]) -> dict[str, float]:
    """Median processor time in ms of each function; they alternate, the quick ones run several times a turn."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(max(repeats.values())):
        for name, run in runs.items():
            if turn < repeats[name]:
                for _ in range(1 if repeats[name] == min(repeats.values()) else 5):
                    begin = time.process_time()
                    run()
                    times[name].append(time.process_time() - begin)
    return {name: 1e3 * median(values) for name, values in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, help="file to write the figures to")
    parser.add_argument("--root", help="folder of data sets; default: the molecules that RDKit carries")
    parser.add_argument("--turns", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    name, batches = load_batches(args.root)
    forms, apart = convolutions(batches[0])
    conv = medians(forms, {"plain": args.turns, "factorised": args.turns, "grouped": args.turns + 1})
    torch.manual_seed(0)
    model = MPNN()
    model.build({"num_tasks": 1, "atom_features": 74, "bond_features": 13})
    steps = {"plain": training_step(PlainMPNN(model), batches), "ours": training_step(model, batches, fused=True)}
    step = medians(steps, {"plain": args.turns, "ours": args.turns + 1})
    figures = {
        "nnconv_speedup": conv["plain"] / conv["grouped"],
        "nnconv_speedup_factorised": conv["plain"] / conv["factorised"],
        "mpnn_step_speedup": step["plain"] / step["ours"],
    }
    batch = batches[0]
    report = {
        "benchmark": "nnconv",
        "data": name,
        "molecules": MOLECULES,
        "atoms": batch.num_nodes,
        "bonds": batch.edge_index.size(1),
        "bond_types": int(batch.edge_type.unique().numel()),
        **{key: round(value, 2) for key, value in figures.items()},
        "targets": TARGETS,
        "reached": {key: figures[key] >= target for key, target in TARGETS.items()},
        "largest_difference": apart,
        "milliseconds": {"nnconv": conv, "mpnn_step": step},
        "versions": {"torch": torch.__version__, "torch_geometric": torch_geometric.__version__},
    }
    Path(args.json).parent.mkdir(parents=True, exist_ok=True)
    Path(args.json).write_text(json.dumps(report, indent=1) + os.linesep, encoding="utf-8")
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0 if all(report["reached"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
