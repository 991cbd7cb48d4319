"""FedChem's methods over data sets, partitions and seeds, by the paper's protocol: JSON lines from real runs, and tables.

    python -m benchmarks.fedchem_table run --root DATA --out FILE --data esol --methods central fedavg flit:gamma=0.5
           --alphas 0.1 0.5 --seeds 0 1 2 [--partition official] [--split official] [--rounds 30] [--steps 333] [--workers 2]
           [--extra --model.init_args.optimizer.init_args.lr 5e-4]
    python -m benchmarks.fedchem_table table FILE... [--against fedavg]

A run is one ``fl-lightning fit --config configs/fedavg_<data>.yaml`` with a method's overrides: 30 rounds, 3 of 4 clients
a round, 333 steps a client and round, batch 64, Adam 1e-4. ``central`` has one client, who holds everything and keeps its
optimiser: what ``--federation null`` computes, in 9,990 steps, scored every 333. ``method:name=value,...`` sets the
objective's arguments.

The seed sets initial weights, shuffling, who takes part and, for partitions other than ``official``, who holds what;
``--split random`` (default ``official``, the authors' fixed split) lets it set the test molecules, too. ``val`` and
``test`` are of the round that was best on the server's validation molecules; ``local_only``: the mean over clients of
what each client's own model scores on the server's test molecules (no client has validation data, so the last round).
The test score chooses nothing. What FILE holds already is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fedsage_plus_table import interval, spread
from fl_lightning.cli import FederatedCLI

OBJECTIVES = {
    "fedavg": "ERM",
    "fedprox": "FedProx",
    "moon": "MOON",
    "focal": "FedFocal",
    "vat": "FedVAT",
    "flit": "FLIT",
    "flit_plus": "FLITPlus",
}
METHODS = ("central", "local_only", *OBJECTIVES)
KEY = ("data", "method", "arguments", "alpha", "partition", "split", "seed", "rounds", "steps", "extra")


def parse_method(text: str) -> tuple[str, dict[str, str]]:
    """``flit_plus:gamma=1,lam=0.1`` -> ``("flit_plus", {"gamma": "1", "lam": "0.1"})``."""
    name, _, given = text.partition(":")
    if name not in METHODS:
        raise ValueError(f"`--methods` knows {', '.join(METHODS)}, found {name!r}.")
    arguments = dict(pair.split("=", 1) for pair in given.split(",") if pair)
    if arguments and name in ("central", "local_only", "fedavg"):
        raise ValueError(f"`{name}` has no objective with arguments, found {text!r}.")
    return name, arguments


def overrides(key: dict[str, Any]) -> list[str]:
    """The command line of one run, after ``--config``."""
    given = ["--seed_everything", str(key["seed"]), "--data.init_args.seed", str(key["seed"])]
    given += ["--data.init_args.split", key["split"]]
    given += ["--federation.num_rounds", str(key["rounds"]), "--trainer.max_steps", str(key["steps"])]
    given += ["--federation.keep_last", "1", *key["extra"]]
    if key["method"] == "central":
        given += ["--data.init_args.num_clients", "1", "--data.init_args.partition", "iid"]
        return [*given, "--federation.clients_per_round", "1.0", "--federation.carry_optimizer_state", "true"]
    given += ["--data.init_args.partition", key["partition"], "--data.init_args.alpha", str(key["alpha"])]
    if key["method"] == "local_only":  # as many steps a client as it takes on average in a federation
        return [*given, "--federation.strategy", "LocalOnly"]
    given += ["--model.init_args.objective", f"lit_models.objectives.{OBJECTIVES[key['method']]}"]
    for name, value in key["arguments"].items():
        given += [f"--model.init_args.objective.init_args.{name}", value]
    return given


def engine(workers: int) -> list[str]:
    """One process or several: the same bits."""
    if workers == 1:
        return ["--federation.engine", "fl_lightning.engine.InProcess"]
    return [
        "--federation.engine", "fl_lightning.engine.WorkerProcesses",
        "--federation.engine.init_args.num_workers", str(workers),
    ]  # fmt: skip


def run(key: dict[str, Any], root: str, workers: int = 1) -> dict[str, Any]:
    """One run: its key, and what came out. ``cpu_seconds`` are of this process and of workers that have ended."""
    begin, used = time.perf_counter(), processor_seconds()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        FederatedCLI([
            "fit", "--config", f"configs/fedavg_{key['data']}.yaml", "--data.init_args.root", root,
            "--trainer.default_root_dir", folder, "--trainer.logger", "false", *overrides(key), *engine(workers),
        ])  # fmt: skip
        found = json.loads(next(Path(folder).glob("*/version_0/results.json")).read_text())
    each = [score for score in found["test"]["each_on_global"] or [] if score is not None]
    alone = key["method"] == "local_only"
    return {
        **key,
        "metric": found["metric"],
        "val": None if alone else found["val"]["global"],
        "test": statistics.mean(each) if alone else found["test"]["global"],
        "last_test": None if alone else found["last"]["test"]["global"],
        "best_round": found["best_round"],
        "seconds": round(time.perf_counter() - begin, 1),
        "workers": workers,
        "cpu_seconds": round(processor_seconds() - used, 1),
    }


def processor_seconds() -> float:
    """Of this process and of its children that have ended."""
    return sum(sum(used[:2]) for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def read(files: Iterable[str]) -> list[dict[str, Any]]:
    """All lines of these files that exist."""
    lines = [line for file in files if Path(file).is_file() for line in Path(file).read_text().splitlines()]
    return [{"extra": [], **json.loads(line)} for line in lines]


def run_missing(asked: argparse.Namespace) -> None:
    """All runs asked for that the output file does not hold, one after the other."""
    for seed in asked.seeds:
        for data in asked.data:
            for alpha in asked.alphas:
                for text in asked.methods:
                    method, arguments = parse_method(text)
                    central = method == "central"
                    values = (
                        data,
                        method,
                        arguments,
                        None if central else alpha,
                        None if central else asked.partition,
                        asked.split,
                        seed,
                        asked.rounds,
                        asked.steps,
                        asked.extra,
                    )
                    key = dict(zip(KEY, values, strict=True))
                    if any(all(line[name] == key[name] for name in KEY) for line in read([asked.out])):
                        continue
                    line = run(key, asked.root, asked.workers)
                    with open(asked.out, "a") as file:
                        file.write(json.dumps(line) + "\n")


def label(line: dict[str, Any]) -> str:
    """Method and arguments, as ``--methods`` takes them."""
    given = ",".join(f"{name}={value}" for name, value in line["arguments"].items())
    return f"{line['method']}:{given}" if given else line["method"]


def mean_and_sd(scores: Sequence[float]) -> str:
    """``mean ± sd`` over seeds; of one seed its score, of none nothing."""
    return spread(scores) if len(scores) > 1 else "".join(f"{score:.4f}" for score in scores)


def table(lines: Sequence[dict[str, Any]], against: str = "fedavg") -> str:
    """Markdown: mean ± sd over seeds of validation and test score, and the paired test difference to ``against``."""
    text = [
        f"| data | alpha | partition | split | method | seeds | validation | test | test minus {against} (paired, 95 %) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = {}
    for line in lines:
        setting = (line["data"], line["metric"], line["alpha"], line["partition"], line["split"], line["rounds"], line["steps"])
        setting += (" ".join(line["extra"]),)
        groups.setdefault((*setting, label(line)), {})[line["seed"]] = line
    order = {name: place for place, name in enumerate(METHODS)}
    place = lambda group: (*[str(part) for part in group[:-1]], order[group[-1].partition(":")[0]], group[-1])  # noqa: E731
    for group in sorted(groups, key=place):
        data, metric, alpha, partition, split, rounds, steps, extra, method = group
        own, base = groups[group], groups.get((*group[:-1], against), {})
        gaps = [own[seed]["test"] - base[seed]["test"] for seed in sorted(own.keys() & base.keys())]
        scores = [[line[part] for line in own.values() if line[part] is not None] for part in ("val", "test")]
        budget = ("" if (rounds, steps) == (30, 333) else f", {rounds} x {steps} steps") + (f", {extra}" if extra else "")
        text.append(
            f"| {data} ({metric}{budget}) | {'' if alpha is None else alpha} | {partition or ''} | {split} | {method} | "
            f"{len(own)} | {mean_and_sd(scores[0])} | {mean_and_sd(scores[1])} | "
            f"{interval(gaps) if gaps and method != against else ''} |"
        )
    return "\n".join(text)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--root", required=True, help="Folder of MoleculeNet's raw files.")
    running.add_argument("--out", required=True)
    running.add_argument("--data", nargs="+", required=True, help="Names in configs/fedavg_<name>.yaml.")
    running.add_argument("--methods", nargs="+", required=True, help="; ".join(METHODS))
    running.add_argument("--alphas", type=float, nargs="+", default=[0.1])
    running.add_argument("--partition", default="scaffold_lda")
    running.add_argument("--split", default="official")
    running.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    running.add_argument("--rounds", type=int, default=30)
    running.add_argument("--steps", type=int, default=333)
    running.add_argument("--workers", type=int, default=1, help="Worker processes for the clients.")
    running.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="Further options of fl-lightning fit.")
    showing = commands.add_parser("table")
    showing.add_argument("files", nargs="+")
    showing.add_argument("--against", default="fedavg")
    asked = parser.parse_args()
    if asked.command == "run":
        for text in asked.methods:
            parse_method(text)
        run_missing(asked)
    else:
        print(table(read(asked.files), asked.against))


if __name__ == "__main__":
    main()
