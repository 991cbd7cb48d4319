"""FedSage, LocalOnly and central GraphSAGE over seeds and client counts: one Markdown table, from real runs of a config.

``python -m benchmarks.fedsage_table --root DATA [--config configs/fedsage_cora.yaml] [--seeds 5] [--clients 3 5 10]``

The seed sets split, partition, initial weights and all noise. Every figure is test accuracy on the untouched global graph
of the round that was best on validation data: for FedSage and central of the one model, for LocalOnly the mean over the
clients' models.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from fl_lightning.cli import FederatedCLI


def run(config: str, root: str, folder: Path, *extra: str) -> dict:
    """One ``fl-lightning fit``; returns its results.json."""
    FederatedCLI(["fit", "--config", config, "--data.init_args.root", root, "--trainer.default_root_dir", str(folder), *extra])
    return json.loads(next(folder.glob("*/version_0/results.json")).read_text())


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="Folder with the raw data files.")
    parser.add_argument("--config", default="configs/fedsage_cora.yaml")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--clients", type=int, nargs="+", default=[3, 5, 10])
    parser.add_argument("--json", help="Also write all scores to this file.")
    asked = parser.parse_args()
    scores: dict[str, list[float]] = {}
    for seed in range(asked.seeds):
        seeded = ("--seed_everything", str(seed), "--data.init_args.seed", str(seed))
        jobs = [("central", ("--federation", "null"))]
        for clients in asked.clients:
            count = ("--data.init_args.num_clients", str(clients))
            jobs += [(f"FedSage {clients}", count), (f"LocalOnly {clients}", (*count, "--federation.strategy", "LocalOnly"))]
        for name, extra in jobs:
            with tempfile.TemporaryDirectory() as folder:
                test = run(asked.config, asked.root, Path(folder), *seeded, *extra)["test"]
            each = test["each_on_global"]
            scores.setdefault(name, []).append(test["global"] if each is None else statistics.mean(each))
    if asked.json:
        Path(asked.json).write_text(json.dumps(scores, indent=1))
    lines = ["| clients | FedSage | LocalOnly | FedSage - LocalOnly (paired) |", "|---|---|---|---|"]
    for clients in asked.clients:
        fed, alone = scores[f"FedSage {clients}"], scores[f"LocalOnly {clients}"]
        gap = [a - b for a, b in zip(fed, alone, strict=True)]
        lines.append(f"| {clients} | {spread(fed)} | {spread(alone)} | {spread(gap)} |")
    print("\n".join([*lines, "", f"Central GraphSAGE: {spread(scores['central'])} ({asked.seeds} seeds, mean ± sd)"]))


def spread(values: list[float]) -> str:
    """``mean ± sd`` (sample standard deviation)."""
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values) if len(values) > 1 else 0:.4f}"


if __name__ == "__main__":
    main()
