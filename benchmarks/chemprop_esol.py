"""chemprop's MPNN and ours on ESOL, federated over scaffold clients and central, in equally many optimisation steps.

    python -m benchmarks.chemprop_esol run --root ../shared/data --out FILE [--seeds 0 1 2] [--models chemprop ours]
    python -m benchmarks.chemprop_esol table FILE

Data: `MoleculeNetDataModule` (scaffold and LDA, alpha 0.1; 80/10/10 at random); a seed sets split, clients, initial weights and
shuffling. All four trainings of a seed have the same validation and test molecules, and the federations the same clients.

Steps: a federation has 25 rounds of 30 steps at each of 4 clients; a central training has 25 times 30. All batches are of 64
where there are as many molecules. chemprop's schedule counts epochs (its default: 50), so that an epoch is 15 steps here
whatever a client holds: its molecules in a new order, again and again (`SameSteps`).

FedAvg by numbers of molecules, all clients in each round, an optimiser new in each round. chemprop as it comes: 3 steps of
BondMessagePassing in 300 channels, Adam under Noam's schedule (1e-4, 1e-3, 1e-4). Ours: `LitMoleculePredictor` with `MPNN`,
fused Adam, a constant rate (`--lr`), gradients clipped to 1. Labels are standardised by the training molecules of all.

The server's validation chooses a round (centrally: every 30 steps, as often); the test score is that of the chosen round, and
that of the last. Central trainings are a stock `lightning.Trainer`'s. What FILE holds already is not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import lightning as L
import torch
from chemprop import data as chemprop_data
from chemprop import models, nn
from pandas import read_csv
from torch.utils.data import DataLoader, RandomSampler

from benchmarks.fedchem_table import mean_and_sd, processor_seconds, read
from datamodules import MoleculeNetDataModule
from datamodules.molecules.loaders import label_scale, sum_labels
from fl_lightning import FederatedTrainer
from fl_lightning.engine.statistics import exchange, use
from lit_models import MPNN, LitMoleculePredictor

MODELS = ("chemprop", "ours")
ROUNDS, EPOCHS, STEPS, BATCH = 25, 2, 15, 64
QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
KEY = ("model", "training", "seed", "lr", "rounds", "steps")


# ---- data -------------------------------------------------------------------------------------------------------------


def esol(root: str, seed: int) -> MoleculeNetDataModule:
    data = MoleculeNetDataModule(
        root=root, name="ESOL", num_clients=4, partition="scaffold_lda", alpha=0.1, seed=seed, batch_size=BATCH,
        normalize_labels=True,
    )  # fmt: skip
    data.setup()
    return data


class Molecules(L.LightningDataModule):
    """Molecules of one client, or of the server, for chemprop.

    Args:
        smiles: Of all molecules.
        labels: float ``(M, 1)``, in units.
        parts: Positions of ``train``, ``val`` and ``test``; what is left out is empty.
    """

    def __init__(self, smiles, labels, parts) -> None:
        super().__init__()
        self.labels = labels[parts.get("train", [])]
        self.sets = {}
        for name, rows in parts.items():
            points = [chemprop_data.MoleculeDatapoint.from_smi(smiles[row], labels[row].numpy()) for row in rows]
            if points:
                self.sets[name] = chemprop_data.MoleculeDataset(points)
                self.sets[name].cache = True

    def statistics(self):
        return {"sums": {"labels": sum_labels(self.labels)}} if len(self.labels) else {}

    def use_statistics(self, agreed) -> None:
        """Labels to learn and to validate on are standardised, those to test on are in units, as `chemprop train` has it."""
        scaler = nn.UnscaleTransform(*label_scale(agreed["sums"]["labels"])).to_standard_scaler()
        for name in self.sets.keys() & {"train", "val"}:
            self.sets[name].normalize_targets(scaler)

    @property
    def num_train_samples(self):
        return len(self.labels)

    def train_dataloader(self):
        return SameSteps(self.sets["train"])

    def val_dataloader(self):
        return chemprop_data.build_dataloader(self.sets["val"], 512, shuffle=False) if "val" in self.sets else []

    def test_dataloader(self):
        return chemprop_data.build_dataloader(self.sets["test"], 512, shuffle=False) if "test" in self.sets else []


class SameSteps(DataLoader):
    """An epoch of STEPS batches of BATCH, or of all molecules where there are fewer, in orders drawn anew."""

    def __init__(self, dataset) -> None:
        size = min(BATCH, len(dataset))
        sampler = RandomSampler(dataset, num_samples=STEPS * size)
        super().__init__(dataset, batch_size=size, sampler=sampler, collate_fn=chemprop_data.collate_batch)


class Sites(Molecules):
    """The server's validation and test molecules, and the clients."""

    def __init__(self, data: MoleculeNetDataModule) -> None:
        packed, division = data.molecules.packed, data.division
        table = read_csv(data.raw_file())["smiles"]
        smiles, labels = [table[row] for row in packed.sample_id.tolist()], packed.y
        super().__init__(smiles, labels, {name: division.server[name] for name in ("val", "test")})
        self.trained = Molecules(smiles, labels, {"train": division.server["train"]})
        self.clients = [Molecules(smiles, labels, {"train": parts["train"]}) for parts in division.clients]

    def train_dataloader(self):
        """Of a central training."""
        return self.trained.train_dataloader()

    def client_datamodules(self):
        return self.clients


# ---- models -----------------------------------------------------------------------------------------------------------


class AgreedScale(nn.UnscaleTransform):
    """chemprop's output transform, filled before round 1 with what all clients' labels come to."""

    def __init__(self) -> None:
        super().__init__([0.0], [1.0])

    def use_statistics(self, agreed) -> None:
        mean, scale = label_scale(agreed["sums"]["labels"])
        self.mean.copy_(torch.tensor([mean]))
        self.scale.copy_(torch.tensor([scale]))


def chemprops() -> models.MPNN:
    message_passing = nn.BondMessagePassing()
    predictor = nn.RegressionFFN(input_dim=message_passing.output_dim, output_transform=AgreedScale())
    return models.MPNN(message_passing, nn.MeanAggregation(), predictor, metrics=[nn.RMSE()])


def ours(lr: float) -> LitMoleculePredictor:
    return LitMoleculePredictor(MPNN(), optimizer=lambda parameters: torch.optim.Adam(parameters, lr=lr, fused=True))


# ---- trainings --------------------------------------------------------------------------------------------------------


def federated(module: L.LightningModule, data: Any, fit: dict[str, Any]) -> dict[str, Any]:
    """Validation's best round and the last."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(
            num_rounds=ROUNDS, monitor="rmse", keep_last=1, trainer={**QUIET, **fit, "default_root_dir": folder}
        )
        trainer.fit(module, data)
        found = trainer.results
        if found["failures"]:
            raise RuntimeError(f"Not a whole run: {found['failures']}")
    last = found["last"]["test"]["global"]
    return {"val": found["val"]["global"], "test": found["test"]["global"], "last_test": last, "best": found["best_round"] + 1}


class Best(L.Callback):
    """Keeps the weights that were best in validation, in memory."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.weights: dict[str, torch.Tensor] = {}

    def on_validation_end(self, trainer, module) -> None:
        value = float(trainer.callback_metrics["val/rmse"])
        if value < min(self.values, default=float("inf")):
            self.weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        self.values.append(value)


def central(module: L.LightningModule, data: Any, fit: dict[str, Any]) -> dict[str, Any]:
    """The same with a stock Trainer, validated after as many steps."""
    best = Best()
    trainer = L.Trainer(**QUIET, **fit, callbacks=[best], enable_checkpointing=False, num_sanity_val_steps=0)
    trainer.fit(module, datamodule=data)
    if trainer.global_step != ROUNDS * EPOCHS * STEPS or len(best.values) != ROUNDS:
        raise RuntimeError(f"{trainer.global_step} steps and {len(best.values)} validations are not those of the federation.")
    last = trainer.test(module, datamodule=data, verbose=False)[0]["test/rmse"]
    module.load_state_dict(best.weights)
    test = trainer.test(module, datamodule=data, verbose=False)[0]["test/rmse"]
    return {"val": min(best.values), "test": test, "last_test": last, "best": best.values.index(min(best.values)) + 1}


def run(key: dict[str, Any], root: str) -> dict[str, Any]:
    """One training: its key, and what came out, in units of the labels."""
    begin, data, scale = processor_seconds(), esol(root, key["seed"]), 1.0
    schema, sizes = data.schema, [len(parts["train"]) for parts in data.division.clients]
    chemprop, alone = key["model"] == "chemprop", key["training"] == "central"
    L.seed_everything(key["seed"], verbose=False)
    module = chemprops() if chemprop else ours(key["lr"])
    if chemprop:
        data, scale = Sites(data), schema["label_std"][0]  # its validation is of standardised labels
    steps = EPOCHS * STEPS
    if alone:
        if chemprop:
            use(exchange(data.clients).agreed, data, data.trained, module)
            fit: dict[str, Any] = {"max_epochs": ROUNDS * EPOCHS, "check_val_every_n_epoch": EPOCHS}
        else:
            module.build(schema)
            fit = {"max_steps": ROUNDS * steps, "val_check_interval": steps, "check_val_every_n_epoch": None}
    else:
        fit = {"max_epochs": EPOCHS} if chemprop else {"max_steps": steps}
    fit = fit if chemprop else {**fit, "gradient_clip_val": 1.0}
    found = (central if alone else federated)(module, data, fit)
    return {
        **key, **found, "val": found["val"] * scale, "sizes": sizes, "cpu_seconds": round(processor_seconds() - begin, 1),
    }  # fmt: skip


def run_missing(asked: argparse.Namespace) -> None:
    for seed in asked.seeds:
        for model in asked.models:
            for training in ("federated", "central"):
                values = (model, training, seed, asked.lr if model == "ours" else None, ROUNDS, EPOCHS * STEPS)
                key = dict(zip(KEY, values, strict=True))
                if any(all(line[name] == key[name] for name in KEY) for line in read([asked.out])):
                    continue
                line = run(key, asked.root)
                with Path(asked.out).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown: mean ± sd over seeds of the RMSE."""
    text = ["| model | training | seeds | validation | test, chosen round | test, last round |", "|---|---|---|---|---|---|"]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["model"], line["lr"], line["training"]), []).append(line)
    for (model, lr, training), own in groups.items():
        scores = [mean_and_sd([line[part] for line in own]) for part in ("val", "test", "last_test")]
        seeds = ", ".join(str(line["seed"]) for line in own)
        text.append(f"| {model}{'' if lr is None else f', {lr:g}'} | {training} | {seeds} | {' | '.join(scores)} |")
    return "\n".join(text)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--root", required=True)
    running.add_argument("--out", required=True)
    running.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    running.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    running.add_argument("--lr", type=float, default=1e-3, help="Of our model.")
    showing = commands.add_parser("table")
    showing.add_argument("file")
    asked = parser.parse_args(arguments)
    if asked.command == "run":
        run_missing(asked)
    else:
        sys.stdout.write(table(read([asked.file])) + "\n")


if __name__ == "__main__":
    main()
