"""The main jobs on data that come with the packages: a citation graph, and molecules with measured activity.

``make demo`` runs this. Each job is the command line's own ``fit`` with a config, in one process: local, federated and
central training of one model, then one table for the graph and one for the molecules.

    python examples/demo.py [graph | molecules] [options of fl-lightning fit, for that part]
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fl_lightning.commands import main as fl_lightning
from fl_lightning.reporting.tables import text_table

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
LOCAL = "--federation.strategy=fl_lightning.strategies.LocalOnly"
JOBS = {
    "local (each client alone)": [LOCAL, "--federation.name={config}_local"],
    "federated (FedAvg)": [],
    "central (data pooled)": ["--federation=null"],
}


@dataclass(frozen=True)
class Example:
    """One config, and what its table says."""

    config: str
    header: tuple[str, str]
    notes: tuple[str, str]


EXAMPLES = {
    "graph": Example(
        "demo",
        ("test accuracy", "global graph"),
        (
            "global graph: all test nodes, with all edges; for local the mean of the clients' models.",
            "client mean, worst client: each client's own test nodes, on its own subgraph.",
        ),
    ),
    "molecules": Example(
        "demo_molecules",
        ("test RMSE (log units)", "server"),
        (
            "server: the server's test molecules; for local the mean of the clients' models. Lower is better.",
            "client mean, worst client: each client's own test molecules. Central takes as many steps as one client.",
        ),
    ),
}


def fit(config: str, arguments: list[str]) -> tuple[dict, Path]:
    """``fl-lightning fit --config configs/CONFIG.yaml ARGUMENTS``: the content of results.json, and the run's folder."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = fl_lightning(["fit", f"--config={CONFIGS / config}.yaml", *arguments])
    if code:
        raise SystemExit(code)
    folder = Path(said.getvalue().rsplit("run: ", 1)[-1].strip())
    return json.loads((folder / "results.json").read_text(encoding="utf-8")), folder


def row(name: str, results: dict) -> list:
    """Scores on the server's test data and on the clients' own, and the megabytes of all messages."""
    test = results["test"]
    each = [score for score in test["each_on_global"] or [] if score is not None]
    on_global = sum(each) / len(each) if each else test["global"]
    sent = results["bytes"]["up"] + results["bytes"]["down"]  # central: no model is sent, but all data were
    return [name, on_global, test["mean"], test["worst"], f"{sent / 1e6:.1f}" if sent else None]


def show(example: Example, arguments: list[str]) -> None:
    """Run the three jobs and print the table; ``arguments`` are added to each ``fit``."""
    out, begin, rows, folders = sys.stdout, time.perf_counter(), [], []
    for number, (name, own) in enumerate(JOBS.items(), start=1):
        if out.isatty():
            out.write(f"[{number}/{len(JOBS)}] {example.config}: {name}\n")
            out.flush()
        results, folder = fit(example.config, [*(o.format(config=example.config) for o in own), *arguments])
        rows.append(row(name, results))
        folders.append((name, folder))
    lines = ["", *text_table([*example.header, "client mean", "worst client", "MB sent"], rows), ""]
    lines += [
        *example.notes,
        f"{results['num_clients']} clients, {time.perf_counter() - begin:.0f} s. The runs' folders:",
        *(f"  {name}: {folder}" for name, folder in folders),
    ]
    out.write("\n".join(lines) + "\n")


def main(arguments: list[str] | None = None) -> None:
    """Run all examples, or the one that the first argument names."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in EXAMPLES:
        return show(EXAMPLES[arguments[0]], arguments[1:])
    if arguments:
        sys.exit(f"examples/demo.py: say first which example {arguments} are for: {' or '.join(EXAMPLES)}")
    for example in EXAMPLES.values():
        show(example, [])


if __name__ == "__main__":
    main()
