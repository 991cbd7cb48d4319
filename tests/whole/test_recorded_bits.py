"""One short run of every strategy, objective and encoder gives the bits that it gave when `recorded_bits.json` was written.

A change of structure must not change a result. The bits of float sums depend on the kind of processor and on the libraries:
where both are those of the record, the SHA-256 of all weights and scores must be equal; elsewhere the weights' norms, to 1e-3.

After a change that is meant to change results, say so in CHANGELOG.md and record anew, naming the cases that changed:
``python tests/whole/test_recorded_bits.py CASE...`` (all without names).
"""

import hashlib
import importlib.metadata
import json
import platform
import re
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `python FILE`
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lit_models"))

from federations import CPU, checkpoint_tensors, last_checkpoint
from forest_samples import Chains, Lengths

from datamodules import PlantedDataModule, SyntheticCitationDataModule
from datamodules.molecules import ChEMBLDataModule
from fl_lightning import FederatedTrainer
from fl_lightning.strategies import (
    AdaFGL,
    Ditto,
    FedAdagrad,
    FedAdam,
    FedAux,
    FedAvg,
    FedAvgM,
    FedDF,
    FedGTA,
    FedNova,
    FedPer,
    FedPub,
    FedRep,
    FedSagePlus,
    FedSagePrototype,
    FedYogi,
    ForestEnsemble,
    LocalOnly,
    Scaffold,
)
from lit_models import (
    APPNP,
    GAT,
    GCN,
    GIN,
    GPRGNN,
    MPNN,
    AdaptivePropagation,
    AuxiliaryProjection,
    GCNMolecule,
    GINMolecule,
    GraphSAGE,
    LitAdaptiveNodeClassifier,
    LitMoleculeForest,
    LitMoleculePredictor,
    LitNeighGen,
    LitNodeClassifier,
    MaskedGCN,
)
from lit_models.objectives import FLIT, MOON, FedFocal, FedProx, FedVAT, FLITPlus, MaskedProximal

RECORD = Path(__file__).with_name("recorded_bits.json")
LIBRARIES = ("torch", "lightning", "torch-geometric", "numpy", "rdkit", "networkx")


def citation():
    return SyntheticCitationDataModule(num_nodes=120, num_classes=3, num_features=30, num_clients=3, blocks_per_class=2)


def planted():
    return PlantedDataModule(num_clients=4, num_groups=2, split="random_20_40_40")


def molecules():
    return ChEMBLDataModule(num_clients=3, partition="scaffold_lda", client_holdout=0.2, cache_dir=None)


def nodes(encoder=GraphSAGE, objective=None, optimizer=None):
    return lambda: LitNodeClassifier(encoder(hidden_channels=8), objective, optimizer)


def projected(hidden_channels):
    return AuxiliaryProjection(GCN(hidden_channels=hidden_channels))


def adaptive():
    return LitAdaptiveNodeClassifier(GCN(hidden_channels=8), AdaptivePropagation(hidden_channels=8))


def bonds(encoder=GINMolecule, objective=None):
    return lambda: LitMoleculePredictor(encoder(hidden_channels=8), objective)


def generator():
    return FedSagePlus(pretrain_steps=3, exchange_rounds=2, draws=2, weighting="uniform", generator=LitNeighGen(profile="seed"))


SGD = partial(torch.optim.SGD, lr=0.1)
UNIFORM, SAMPLES = (lambda: FedAvg(weighting="uniform")), (lambda: FedAvg(weighting="num_samples"))
GRAPH_RUN = {"num_rounds": 3, "trainer": {"max_epochs": 2}, "clients_per_round": 2}
HELD = {"num_clients": 3, "client_holdout": 0.4}
FOREST_RUN = {"num_rounds": 2, "clients_per_round": 2, "trainer": {"max_epochs": 1}}
MOLECULE_RUN = {"num_rounds": 2, "trainer": {"max_steps": 3, "gradient_clip_val": 1.0}}
CASES = {
    "FedAvg uniform": (nodes(), citation, UNIFORM, GRAPH_RUN),
    "FedAvg num_samples": (nodes(), citation, SAMPLES, GRAPH_RUN),
    "FedAvg carried": (nodes(), citation, SAMPLES, {**GRAPH_RUN, "carry_optimizer_state": True}),
    **{made.__name__: (nodes(), citation, made, GRAPH_RUN) for made in (FedAvgM, FedAdagrad, FedAdam, FedYogi)},
    **{made.__name__: (nodes(optimizer=SGD), citation, made, GRAPH_RUN) for made in (Scaffold, FedNova)},
    "FedDF": (nodes(), citation, lambda: FedDF(steps=5, lr=0.01), GRAPH_RUN),
    "LocalOnly": (nodes(), citation, LocalOnly, GRAPH_RUN),
    "FedPer": (nodes(), citation, FedPer, GRAPH_RUN),
    "FedRep": (nodes(), citation, FedRep, GRAPH_RUN),
    "Ditto": (nodes(), citation, Ditto, GRAPH_RUN),
    "FedPub": (nodes(MaskedGCN, MaskedProximal(l1=1e-5, l2=1e-3)), planted, lambda: FedPub(tau=3.0), GRAPH_RUN),
    "FedAux": (nodes(projected), planted, FedAux, GRAPH_RUN),
    "FedGTA": (nodes(GCN), citation, FedGTA, GRAPH_RUN),
    "AdaFGL": (adaptive, citation, lambda: AdaFGL(shared_rounds=1), GRAPH_RUN),
    "FedSagePlus": (nodes(), citation, generator, GRAPH_RUN),
    "FedSagePrototype": (nodes(), citation, lambda: FedSagePrototype(every=1), GRAPH_RUN),
    "FedSagePrototype one": (nodes(), citation, lambda: FedSagePrototype(counts="one", every=1), GRAPH_RUN),
    "GCN": (nodes(GCN), citation, UNIFORM, GRAPH_RUN),
    "GAT": (nodes(GAT), citation, UNIFORM, GRAPH_RUN),
    "GIN": (nodes(GIN), citation, UNIFORM, GRAPH_RUN),
    "APPNP": (nodes(APPNP), citation, UNIFORM, GRAPH_RUN),
    "GPRGNN": (nodes(GPRGNN), citation, UNIFORM, GRAPH_RUN),
    **{
        f"ForestEnsemble of {what}": (lambda: LitMoleculeForest(num_trees=4), data, ForestEnsemble, FOREST_RUN)
        for what, data in (("classes", lambda: Chains(**HELD)), ("values", lambda: Lengths(**HELD)))
    },
    "MPNN": (lambda: LitMoleculePredictor(MPNN(8, 8)), molecules, SAMPLES, MOLECULE_RUN),
    "GCNMolecule": (bonds(GCNMolecule), molecules, SAMPLES, MOLECULE_RUN),
    **{
        f"{kind} on {what}": (make(objective=objective()), data, SAMPLES, run)
        for kind, objective in {
            "FedProx": lambda: FedProx(mu=0.1), "MOON": MOON, "FedFocal": FedFocal, "FedVAT": FedVAT, "FLIT": FLIT,
            "FLITPlus": FLITPlus,
        }.items()
        for what, make, data, run in (("nodes", nodes, citation, GRAPH_RUN), ("molecules", bonds, molecules, MOLECULE_RUN))
    },
}  # fmt: skip


def machine() -> dict:
    """What the bits of float sums depend on."""
    lines = dict(re.findall(r"^(vendor_id|cpu family|model)\s*:\s*(.*)$", _processor(), re.MULTILINE))
    return {
        "processor": [platform.machine(), torch.backends.cpu.get_cpu_capability(), *(lines[k] for k in sorted(lines))],
        "libraries": {name: importlib.metadata.version(name) for name in LIBRARIES},
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.is_file() else ""


def outcome(case: str, folder: Path) -> dict:
    """SHA-256 of the last checkpoint's tensors and of the test scores; the norm of each group of tensors."""
    module, data, strategy, run = CASES[case]
    torch.manual_seed(0)
    run = {**run, "trainer": {**CPU, "logger": False, "default_root_dir": str(folder), **run["trainer"]}}
    fed = FederatedTrainer(seed=1, strategy=strategy(), **run)
    results = fed.fit(module(), data())
    tensors = checkpoint_tensors(last_checkpoint(fed.run_dir))
    digest, norms = hashlib.sha256(), {}
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
        if tensor.is_floating_point():
            group = "/".join(name.split("/")[:2]) if name.startswith("client") else name.split("/")[0]
            norms[group] = norms.get(group, 0.0) + tensor.double().square().sum().item()
    scores = {stage: [results["last"][stage][key] for key in ("global", "per_client")] for stage in ("val", "test")}
    return {
        "weights": digest.hexdigest()[:24],
        "scores": hashlib.sha256(json.dumps(scores).encode()).hexdigest()[:24],
        "norms": {group: float(f"{value**0.5:.6g}") for group, value in sorted(norms.items())},
    }


@pytest.mark.parametrize("case", CASES)
def test_the_run_gives_the_recorded_bits(case, tmp_path):
    record = json.loads(RECORD.read_text())
    got, expected = outcome(case, tmp_path), record["cases"][case]
    if record["machine"] == machine():
        assert got == expected
    else:
        assert got["norms"] == pytest.approx(expected["norms"], rel=1e-3)


def test_every_case_is_recorded_and_no_other():
    assert set(json.loads(RECORD.read_text())["cases"]) == set(CASES)


if __name__ == "__main__":
    import tempfile

    old = json.loads(RECORD.read_text())["cases"] if RECORD.is_file() else {}
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as scratch:
            new = outcome(name, Path(scratch))
        print(f"{name}: {'as before' if old.get(name) == new else new}")
        old[name] = new
    content = {"machine": machine(), "cases": {name: old[name] for name in CASES if name in old}}
    RECORD.write_text(json.dumps(content, indent=1) + "\n")
