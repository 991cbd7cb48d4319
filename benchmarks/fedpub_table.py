"""FED-PUB, its variants and its baselines over data sets and seeds: Markdown tables from real runs of the configs.

    python -m benchmarks.fedpub_table --root DATA --json FILE [--settings cora_disjoint_10 ...] [--methods default ...]

A run is one ``fl-lightning fit --config configs/fedpub_<setting>.yaml`` with a method's overrides; the seed sets split,
partition, initial weights and all noise. Figures are test accuracies in %, the unweighted mean over clients of each
client's own model (FedAvg: of the global model), at the last round and at the best validation round.
FILE keeps every run; those that it holds already are not repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from pathlib import Path

from fl_lightning.cli import FederatedCLI

STRATEGY, OBJECTIVE = "--federation.strategy.init_args.", "--model.init_args.objective.init_args."
DECAY = "--model.init_args.optimizer.init_args.weight_decay"
UNMASKED = (
    "--model.init_args.encoder", "lit_models.GCNWithHead",
    "--model.init_args.objective", "lit_models.objectives.ERM",
    "--federation.carry_optimizer_state", "true",
)  # fmt: skip
FEDAVG = (*UNMASKED, "--federation.strategy", "FedAvg", "--federation.strategy.weighting", "uniform")
METHODS: dict[str, tuple[str, ...]] = {
    "default": (),
    "reference": (f"{OBJECTIVE}l1", "0", f"{OBJECTIVE}l2", "0", f"{STRATEGY}tau", "3", DECAY, "1e-6"),
    "mask only (tau 0)": (f"{STRATEGY}tau", "0"),
    "tau 3": (f"{STRATEGY}tau", "3"),
    "no terms": (f"{OBJECTIVE}l1", "0", f"{OBJECTIVE}l2", "0"),
    "L1 1e-3 (sum)": (f"{OBJECTIVE}l1", "1e-3", f"{OBJECTIVE}l2", "0"),
    "L1 1e-3, proximal 1e-3": (f"{OBJECTIVE}l1", "1e-3", f"{OBJECTIVE}l2", "1e-3"),
    "LocalOnly": (*UNMASKED, "--federation.strategy", "LocalOnly", "--federation.score_each_on_global", "false"),
    "FedAvg, weight decay 0": (*FEDAVG, DECAY, "0"),
    "FedAvg, weight decay 1e-6": (*FEDAVG, DECAY, "1e-6"),
}


def run(setting: str, method: str, seed: int, root: str) -> dict[str, float]:
    """One run; test scores in %."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        FederatedCLI([
            "fit", "--config", f"configs/fedpub_{setting}.yaml",
            *(() if setting == "planted" else ("--data.init_args.root", root)),
            "--seed_everything", str(seed), "--data.init_args.seed", str(seed),
            "--trainer.default_root_dir", folder, "--trainer.logger", "false", "--federation.keep_last", "1",
            *METHODS[method],
        ])  # fmt: skip
        found = json.loads(next(Path(folder).glob("*/version_0/results.json")).read_text())
    return {
        "last": 100 * found["last"]["test"]["mean"],
        "best": 100 * found["test"]["mean"],
        "best_val": 100 * found["val"]["mean"],
        "best_round": found["best_round"],
        "seconds": found["seconds"]["total"],
    }


def spread(values: list[float]) -> str:
    """``mean ± sd`` (sample standard deviation); the sd is left out for a single run."""
    sd = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{sd}"


def main() -> None:
    """Run what FILE lacks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="Folder with the raw data files.")
    parser.add_argument("--json", required=True, help="File with all runs; read and extended.")
    parser.add_argument("--settings", nargs="+", default=["cora_disjoint_10"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    file = Path(asked.json)
    runs: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.is_file() else {}
    for seed in range(asked.seeds):
        for setting in asked.settings:
            for method in asked.methods:
                key = f"{setting} | {method} | {seed}"
                if key not in runs:
                    runs[key] = run(setting, method, seed, asked.root)
                    file.write_text(json.dumps(runs, indent=1) + "\n")
    sys.stdout.write(table(runs) + "\n")


def table(runs: dict[str, dict[str, float]]) -> str:
    """Markdown: setting, method, number of seeds, accuracy at the last and at the best validation round."""
    lines = ["| setting | method | seeds | last round | best validation round |", "|---|---|---|---|---|"]
    groups: dict[tuple[str, str], list[dict[str, float]]] = {}
    for key, found in runs.items():
        setting, method, _ = key.split(" | ")
        groups.setdefault((setting, method), []).append(found)
    order = {name: place for place, name in enumerate(METHODS)}
    for setting, method in sorted(groups, key=lambda g: (g[0], order.get(g[1], 99))):
        found = groups[setting, method]
        last, best = (spread([f[key] for f in found]) for key in ("last", "best"))
        lines.append(f"| {setting} | {method} | {len(found)} | {last} | {best} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
