"""What FLIT and FLIT+ cost over FedAvg on ESOL; memory over rounds; featurising Tox21.

    python -m benchmarks.fedchem_steps --root DATA --json FILE [--turns 8] [--only steps memory featurise]

*steps*: local fits of one ESOL client under `ERM`, `FLIT` and `FLITPlus`, as a federation runs them, alternating in one
process with one thread. A fit of 60 steps less one of 20 gives the time of a step; what is left of the 20 is done once a
round (for FLIT and FLIT+: the received model's losses on all training molecules). ``round``: a whole fit of 333 steps over
FedAvg's. Processor time, medians.
*memory*: resident memory and open files of 150 rounds of FLIT+ with 4 clients.
*featurise*: wall time of turning Tox21's 7,831 SMILES into graphs and scaffolds, without a cache.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.memory import WatchedFedAvg
from datamodules import ChEMBLDataModule, MoleculeNetDataModule
from fl_lightning import FederatedTrainer
from fl_lightning.engine.local import LocalTrainer
from lit_models import MPNN, LitMoleculePredictor
from lit_models.objectives import ERM, FLIT, FLITPlus

OBJECTIVES = {"fedavg": ERM, "flit": FLIT, "flit_plus": FLITPlus}
FEW, MANY, ROUND = 20, 60, 333
TARGETS = {"flit": 1.3, "flit_plus": 4.0}


def steps(root: str, turns: int) -> dict[str, Any]:
    """Milliseconds of a step and of what is done once a round, and their ratios to FedAvg's."""
    data = MoleculeNetDataModule(root=root, name="ESOL", alpha=0.1)
    data.setup("fit")
    client = data.client_datamodules()[0]
    fits = {}
    for name, objective in OBJECTIVES.items():
        for number in (FEW, MANY):
            torch.manual_seed(0)
            module = LitMoleculePredictor(MPNN(), objective())
            module.build(data.schema)
            fits[name, number] = LocalTrainer(module, {"max_steps": number, "gradient_clip_val": 1.0, "accelerator": "cpu"})
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in fits}
    for turn in range(turns + 1):
        for key, local in fits.items():
            torch.manual_seed(turn)
            begin = time.process_time()
            local.fit(client)
            if turn:  # the first fit of each builds its Trainer
                seconds[key].append(time.process_time() - begin)
    step, once = {}, {}
    for name in OBJECTIVES:
        pairs = list(zip(seconds[name, FEW], seconds[name, MANY], strict=True))
        step[name] = median((many - few) / (MANY - FEW) for few, many in pairs)
        once[name] = median(few - FEW * (many - few) / (MANY - FEW) for few, many in pairs)
    whole = {name: ROUND * step[name] + once[name] for name in OBJECTIVES}
    return {
        "client": client.num_train_samples,
        "step_ms": {name: round(1e3 * value, 2) for name, value in step.items()},
        "once_a_round_ms": {name: round(1e3 * value, 1) for name, value in once.items()},
        "step_over_fedavg": {name: round(step[name] / step["fedavg"], 2) for name in TARGETS},
        "round_over_fedavg": {name: round(whole[name] / whole["fedavg"], 2) for name in TARGETS},
        "targets": TARGETS,
    }


def memory() -> dict[str, Any]:
    """Resident memory and open files at some rounds of FLIT+ on RDKit's molecules."""
    strategy = WatchedFedAvg()
    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(
            trainer={"max_steps": 2, "accelerator": "cpu", "default_root_dir": folder}, num_rounds=151, strategy=strategy
        )
        trainer.fit(LitMoleculePredictor(MPNN(), FLITPlus()), ChEMBLDataModule(cache_dir=None, batch_size=32))
    return {str(round): values for round, values in strategy.seen.items()}


def featurise(root: str) -> dict[str, Any]:
    """Wall seconds of loading Tox21 without a cache, with as many processes as the data module takes by default."""
    data = MoleculeNetDataModule(root=root, name="Tox21", cache_dir=None)
    begin = time.perf_counter()
    data.setup("fit")
    seconds = round(time.perf_counter() - begin, 1)
    return {"rows": 7831, "molecules": len(data.molecules.packed), "seconds": seconds, "target": 20}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="Folder that holds moleculenet/.")
    parser.add_argument("--json", required=True, help="File to write the figures to.")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=("steps", "memory", "featurise"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    parts = {"steps": lambda: steps(asked.root, asked.turns), "memory": memory, "featurise": lambda: featurise(asked.root)}
    report = {name: part() for name, part in parts.items() if not asked.only or name in asked.only}
    Path(asked.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
