"""FedSage+ against FedSage and the controls of its mending step, paired by (seed, classifier start): JSON lines and a table.

``python -m benchmarks.fedsage_plus_table run --config configs/fedsage_plus_cora.yaml --root DATA --clients 3 --seeds 0 1 2 3 4
  --starts 3 --out FILE``        (appends; what FILE already has is not run again)
``python -m benchmarks.fedsage_plus_table table FILE...``

A seed sets split, partition and generator; a start sets the classifier's weights and dropout. The generator of a seed is
trained once; every start then trains FedSage on the plain subgraphs and on each kind of mended ones, which is what the
rounds of ``FedSagePlus`` do. Scores: test accuracy of the global model on the untouched global graph, at the round that
was best on validation data.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import lightning as L
import torch
from scipy import stats
from torch_geometric.data import Data

from datamodules.mending import CONSTANTS, constant_features, cross_neighbours, mend
from fl_lightning import FedAvg, FederatedTrainer
from fl_lightning.cli import FederatedCLI
from fl_lightning.engine.messages import Message, Payload

CONTROLS = ("counts_zero", "counts_mean", "counts_class")  # with `oracle`: what of the true neighbours it is that helps
METHODS = ("fedsage", "fedsage_plus", "known_counts", "local_generator", "zero", "mean", "oracle", *CONTROLS)


class Parsed(FederatedCLI):
    """The parts that a config describes, without running anything."""

    def _run_subcommand(self, subcommand: str) -> None:
        pass


class Mended(L.LightningDataModule):
    """A federated data module whose clients have other graphs; the server's data stay the untouched global graph."""

    def __init__(self, whole: L.LightningDataModule, clients: Sequence[L.LightningDataModule]) -> None:
        super().__init__()
        self.whole, self.clients, self.schema = whole, list(clients), whole.schema

    def client_datamodules(self) -> list[L.LightningDataModule]:
        return self.clients

    def val_dataloader(self):
        return self.whole.val_dataloader()

    def test_dataloader(self):
        return self.whole.test_dataloader()


Clients = list[L.LightningDataModule]


def generate(arguments: list[str]) -> tuple[Parsed, Clients, Clients, dict[str, float]]:
    """Train the generators as the config says; the clients' data modules, mended with predicted and with known counts, and the
    generators' last figures."""
    with tempfile.TemporaryDirectory() as folder:
        parsed = Parsed([*arguments, "--trainer.default_root_dir", folder, "--federation.num_rounds", "1"])
        parsed.trainer.fit(copy.deepcopy(parsed.model), parsed.datamodule)
        worker = parsed.trainer.settings.engine._worker
        mended = []
        for worker.half.needs_counts in (False, True):
            for client in worker.datamodules:
                worker.memos.pop((client, "mended"), None)
                reply = worker.handle(Message("mend", worker.settings.run, 0, client, Payload()))
                assert reply.error is None, reply.error
            mended.append([worker.memos[client, "mended"][1] for client in sorted(worker.datamodules)])
        rows = (parsed.trainer.run_dir / "metrics.csv").read_text().splitlines()
    header = rows[0].split(",")
    figures: dict[str, float] = {}
    for row in rows[1:]:
        for name, value in zip(header, row.split(","), strict=True):
            if value and name.startswith(("generator/", "exchange/", "mending/")) and "clients/" not in name:
                figures[name] = float(value)
    return parsed, *mended, figures


def classify(parsed: Parsed, clients: Sequence[L.LightningDataModule], rounds: int, seed: int) -> float:
    """FedSage on these client graphs."""
    settings = parsed.config_init["fit"]
    epochs = dict(settings["trainer"])["max_epochs"]
    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(
            num_rounds=rounds,
            strategy=FedAvg(weighting="uniform"),
            seed=seed,
            carry_optimizer_state=settings["federation"].carry_optimizer_state,
            trainer={"max_epochs": epochs, "accelerator": "cpu", "logger": False, "default_root_dir": folder},
        )
        return trainer.fit(copy.deepcopy(parsed.model), Mended(parsed.datamodule, clients))["test"]["global"]


def run(asked: argparse.Namespace) -> None:
    """All seeds, starts and methods that the output file does not have yet."""
    out = Path(asked.out)
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []
    for seed in asked.seeds:
        key = {"config": Path(asked.config).stem, "clients": asked.clients, "seed": seed, "extra": asked.extra}
        missing = [
            (start, method)
            for start in range(asked.starts)
            for method in asked.methods
            if not any({**key, "start": start, "method": method}.items() <= d.items() for d in done)
        ]
        if not missing:
            continue
        arguments = ["fit", "--config", asked.config, "--data.init_args.root", asked.root, *asked.extra]
        arguments += ["--data.init_args.num_clients", str(asked.clients), "--data.init_args.seed", str(seed)]
        arguments += ["--seed_everything", str(seed)]
        if all(method in ("fedsage", "oracle", *CONTROLS) for _, method in missing):  # these need no generator
            arguments += ["--federation.strategy.init_args.mending", "none"]
            parsed, figures = Parsed(arguments), {}
            parsed.datamodule.setup("fit")
            plain = generated = known = parsed.datamodule.client_datamodules()
        else:
            parsed, generated, known, figures = generate(arguments)
            plain = parsed.datamodule.client_datamodules()
        for method in dict.fromkeys(method for _, method in missing):  # one after the other: mended graphs are dense
            graphs = known if method == "known_counts" else generated if method == "fedsage_plus" else plain
            if method == "local_generator":
                graphs = generate([*arguments, "--federation.strategy.init_args.alpha", "0"])[1]
            elif method in CONSTANTS:
                graphs = [p.with_data(constant_mend(p.data, g.data, method)) for p, g in zip(plain, generated, strict=True)]
            elif method == "oracle" or method in CONTROLS:
                graphs = [p.with_data(true_neighbours(p.data, parsed.datamodule.data, method)) for p in plain]
            for start in [start for start, m in missing if m == method]:
                score = classify(parsed, graphs, asked.rounds, 1000 * seed + start)
                line = {**key, "start": start, "method": method, "accuracy": score, "figures": figures}
                with out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


def constant_mend(data, mended, kind: str):
    """The same nodes get the same number of new neighbours, but with a constant for features."""
    counts = (mended.edge_index[0] < data.num_nodes) & (mended.edge_index[1] >= data.num_nodes)
    counts = mended.edge_index[0][counts].bincount(minlength=data.num_nodes)
    return mend(data, counts, constant_features(data.x, counts, kind))


def true_neighbours(data, whole, kind: str):
    """The oracle; or as many new neighbours as it gives, but each is the zero vector, the client's mean vector or the mean
    vector of the true neighbour's class."""
    if kind == "counts_class":
        x = whole.x if whole.x.layout == torch.strided else whole.x.to_dense()
        classes = torch.stack([x[whole.y == c].mean(0) for c in range(int(whole.y.max()) + 1)])
        whole = Data(x=classes[whole.y], edge_index=whole.edge_index, node_id=whole.node_id)
    counts, features = cross_neighbours(data, whole)
    if kind in ("counts_zero", "counts_mean"):
        features = constant_features(data.x, counts, kind.removeprefix("counts_"))
    return mend(data, counts, features)


def table(files: Sequence[str]) -> str:
    """Markdown: mean ± sd over seeds (each the mean of its starts), and paired differences to FedSage with 95 % intervals."""
    lines = [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]
    groups = sorted({(d["config"], d["clients"], " ".join(d["extra"])) for d in lines})
    text = [
        "| setting | clients | method | accuracy | minus FedSage (paired, 95 % interval) | seeds x starts |",
        "|---|---|---|---|---|---|",
    ]
    for config, clients, extra in groups:
        own = [d for d in lines if (d["config"], d["clients"], " ".join(d["extra"])) == (config, clients, extra)]
        for method in [m for m in METHODS if any(d["method"] == m for d in own)]:
            scores = per_seed(own, method)
            base = per_seed(own, "fedsage")
            gaps = [scores[s] - base[s] for s in sorted(scores.keys() & base.keys())]
            starts = max(d["start"] for d in own) + 1
            text.append(
                f"| {config} {extra} | {clients} | {method} | {spread(list(scores.values()))} | "
                f"{'' if method == 'fedsage' or not gaps else interval(gaps)} | {len(scores)} x {starts} |"
            )
    return "\n".join(text)


def per_seed(lines: Sequence[dict], method: str) -> dict[int, float]:
    """Mean over the starts of each seed."""
    seeds = {d["seed"] for d in lines if d["method"] == method}
    return {s: statistics.mean(d["accuracy"] for d in lines if d["method"] == method and d["seed"] == s) for s in seeds}


def spread(values: Sequence[float]) -> str:
    """``mean ± sd`` (sample standard deviation)."""
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values) if len(values) > 1 else math.nan:.4f}"


def interval(gaps: Sequence[float]) -> str:
    """``mean [low, high]``: Student's t interval of paired differences."""
    mean = statistics.mean(gaps)
    if len(gaps) < 2:
        return f"{mean:+.4f}"
    half = stats.t.ppf(0.975, len(gaps) - 1) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    return f"{mean:+.4f} [{mean - half:+.4f}, {mean + half:+.4f}]"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--config", default="configs/fedsage_plus_cora.yaml")
    running.add_argument("--root", required=True)
    running.add_argument("--clients", type=int, default=3)
    running.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    running.add_argument("--starts", type=int, default=3)
    running.add_argument("--rounds", type=int, default=50)
    running.add_argument("--methods", nargs="+", choices=METHODS, default=["fedsage", "fedsage_plus", "oracle"])
    running.add_argument("--out", required=True)
    running.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="Further options of fl-lightning fit.")
    showing = commands.add_parser("table")
    showing.add_argument("files", nargs="+")
    asked = parser.parse_args()
    if asked.command == "run":
        run(asked)
    else:
        print(table(asked.files))


if __name__ == "__main__":
    main()
