"""The main job on the embedded graph: local, federated and central training of one model, then one table.

``make demo`` runs this. Each of the three is the command line's own ``fit`` with ``configs/demo.yaml``, in one process.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from pathlib import Path

from fl_lightning.cli import main as fl_lightning
from fl_lightning.reporting.tables import text_table

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "demo.yaml"
JOBS = {
    "local (each client alone)": [
        "--federation.strategy=fl_lightning.strategies.LocalOnly",
        "--federation.name=demo_local",
    ],
    "federated (FedAvg)": [],
    "central (data pooled)": ["--federation=null"],
}


def fit(arguments: list[str]) -> tuple[dict, Path]:
    """``fl-lightning fit --config configs/demo.yaml ARGUMENTS``: the content of results.json, and the run's folder."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        fl_lightning(["fit", f"--config={CONFIG}", *arguments])
    folder = Path(said.getvalue().rsplit("run: ", 1)[-1].strip())
    return json.loads((folder / "results.json").read_text(encoding="utf-8")), folder


def row(name: str, results: dict) -> list:
    """Scores on the server's test nodes and on the clients' own, and the megabytes of all messages."""
    test = results["test"]
    each = [score for score in test["each_on_global"] or [] if score is not None]
    on_global = sum(each) / len(each) if each else test["global"]
    sent = results["bytes"]["up"] + results["bytes"]["down"]  # central: no model is sent, but all data were
    return [name, on_global, test["mean"], test["worst"], f"{sent / 1e6:.1f}" if sent else None]


def main(arguments: list[str] | None = None) -> None:
    """Run the three jobs; ``arguments`` are added to each ``fit``."""
    out, arguments = sys.stdout, sys.argv[1:] if arguments is None else arguments
    begin, rows, folders = time.perf_counter(), [], []
    for number, (name, own) in enumerate(JOBS.items(), start=1):
        if out.isatty():
            out.write(f"[{number}/{len(JOBS)}] {name}\n")
            out.flush()
        results, folder = fit([*own, *arguments])
        rows.append(row(name, results))
        folders.append((name, folder))
    header = ["test accuracy", "global graph", "client mean", "worst client", "MB sent"]
    lines = ["", *text_table(header, rows), ""]
    lines += [
        "global graph: all test nodes, with all edges; for local the mean of the clients' models.",
        "client mean, worst client: each client's own test nodes, on its own subgraph.",
        f"{results['num_clients']} clients, {time.perf_counter() - begin:.0f} s. The runs' folders:",
        *(f"  {name}: {folder}" for name, folder in folders),
    ]
    out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
