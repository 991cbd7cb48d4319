"""A strategy with a memory at the server or the clients gives the same bits after a break, and with clients set up anew."""

from functools import partial

import pytest
import torch
from federations import CPU, Central, Deep, assert_same_bits, checkpoint_tensors, clients, federate, last_checkpoint
from forest_samples import Chains
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from datamodules import PlantedDataModule
from fl_lightning import (
    AdaFGL,
    Ditto,
    FedAdagrad,
    FedAdam,
    FedAux,
    FedAvgM,
    FedDF,
    FederatedTrainer,
    FedGTA,
    FedNova,
    FedPer,
    FedRep,
    FedYogi,
    ForestEnsemble,
    Scaffold,
)
from fl_lightning.engine import InProcess
from lit_models import GCN, AdaptivePropagation, LitAdaptiveNodeClassifier, LitMoleculeForest, LitNodeClassifier


class WithHead(Deep):
    """The head is private only where the algorithm says so."""

    private_entries = ()
    head_entries = ("head.*",)


class Valued(WithHead):
    output_kind = "values"


class Points(LightningDataModule):
    """Inputs that the server has."""

    def predict_dataloader(self):
        return DataLoader(torch.linspace(-1, 1, 15).view(5, 3), batch_size=2)


class WithProjection(Deep):
    """A head along a direction that the clients share and are compared by; the other head is private."""

    def __init__(self):
        super().__init__()
        self.projection = torch.nn.Parameter(torch.rand(4))

    def forward(self, x):
        h = self.net(x)
        return self.head(h) + (h @ self.projection).unsqueeze(-1)


class DeepSGD(Deep):
    """The same under plain SGD."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


STRATEGIES = {
    "FedAvgM": (FedAvgM, Deep),
    "FedAdagrad": (FedAdagrad, Deep),
    "FedAdam": (FedAdam, Deep),
    "FedYogi": (FedYogi, Deep),
    "FedPer": (FedPer, WithHead),
    "FedRep": (FedRep, WithHead),
    "Ditto": (Ditto, WithHead),
    "FedDF": (lambda: FedDF(Points(), steps=4, lr=0.05), Valued),
    "FedAux": (FedAux, WithProjection),
    "FedGTA": (FedGTA, partial(LitNodeClassifier, GCN(8))),
    "AdaFGL": (lambda: AdaFGL(shared_rounds=1), lambda: LitAdaptiveNodeClassifier(GCN(8), AdaptivePropagation(8))),
    "Scaffold": (Scaffold, DeepSGD),
    "FedNova": (FedNova, DeepSGD),
    "ForestEnsemble": (ForestEnsemble, partial(LitMoleculeForest, 3)),
}
SETTINGS = {"clients_per_round": 2, "seed": 0, "num_rounds": 3, "carry_optimizer_state": True}
WORK = {"ForestEnsemble": {"max_epochs": 1}}
USUAL = {"max_epochs": 2}  # FedRep: one of the head, one of the body


def data(name):
    if name == "ForestEnsemble":
        return Chains(num_clients=3)
    if name in ("FedGTA", "AdaFGL"):
        return PlantedDataModule(num_clients=3, nodes_per_client=20, num_features=12)
    return Central(*clients((12, 9, 7), batch_size=5))


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_same_bits_after_a_break_and_with_rebuilt_clients(name, tmp_path):
    strategy, module = STRATEGIES[name]
    work = WORK.get(name, USUAL)
    straight = federate(tmp_path / "straight", module, data(name), work, strategy=strategy(), **SETTINGS)
    wanted = checkpoint_tensors(last_checkpoint(straight.run_dir))
    assert any(tensor.startswith("server.pt/server/") for tensor in wanted) == bool(
        getattr(straight.settings.strategy, "server_state", {})
    )

    rebuilt = federate(
        tmp_path / "rebuilt", module, data(name), work, strategy=strategy(), engine=InProcess(rebuild_clients=True), **SETTINGS
    )
    assert_same_bits(wanted, checkpoint_tensors(last_checkpoint(rebuilt.run_dir)))

    first = federate(tmp_path / "broken", module, data(name), work, strategy=strategy(), **{**SETTINGS, "num_rounds": 2})
    root = {"default_root_dir": str(tmp_path / "broken"), "logger": False}
    again = FederatedTrainer(trainer={**CPU, **work, **root}, strategy=strategy(), **SETTINGS)
    torch.manual_seed(0)
    again.fit(module(), data(name), ckpt_path="last")
    assert again.run_dir == first.run_dir
    assert_same_bits(wanted, checkpoint_tensors(last_checkpoint(again.run_dir)))
