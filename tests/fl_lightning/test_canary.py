"""The label canary is green for all that the library has, and red for planted faults."""

import contextlib
import copy
from pathlib import Path

import pytest
import torch
from federations import CPU, Linear, Table
from whole.test_recorded_bits import CASES, citation, nodes

import datamodules
from datamodules import GraphCSVDataModule, MoleculeCSVDataModule
from fl_lightning.canary import digests, first_difference, run_canary
from fl_lightning.cli import FederatedCLI
from fl_lightning.engine.client import ClientHalf
from fl_lightning.engine.messages import Payload
from fl_lightning.strategies import FedAvg, FedSagePlus
from fl_lightning.strategies.fedsage_client import FedSagePlusClient
from lit_models import GCNMolecule, GraphSAGE, LitMoleculePredictor, LitNodeClassifier, SchNet


def canary(module, data, strategy, **run):
    federation = {k: v for k, v in run.items() if k not in ("trainer", "num_rounds")}
    return run_canary(module, data, {**CPU, **run.get("trainer", {})}, {**federation, "strategy": strategy}, seed=1)


QUICK = (
    "LocalOnly",
    "Ditto",
    "FedPub",
    "FedGTA",
    "ForestEnsemble of classes",
    "AdaFGL",
    "FedSagePlus",
    "FedSagePrototype",
    "FLITPlus on nodes",
)


@pytest.mark.parametrize("case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES])
def test_no_label_outside_training_reaches_what_is_trained(case):
    """Every strategy, objective and encoder of the library, on graphs and molecules."""
    module, data, strategy, run = CASES[case]
    torch.manual_seed(0)
    verdict = canary(module(), data(), strategy(), **run)
    assert verdict.difference is None and verdict.compared > 10
    assert sum(verdict.changed.values()) > 20


def test_foreign_modules_and_data_modules():
    verdict = canary(Linear(), [Table(8, seed=c, batch_size=4) for c in range(2)], FedAvg())
    assert verdict.difference is None and all(verdict.changed.values())


class KeepsEqualEdges(FedSagePlusClient):
    """Planted: mended edges are kept where labels agree, those of test nodes included (as in TopFGL's code)."""

    def _mended(self, client):
        mended = super()._mended(client)
        graph, y = mended.data, client.datamodule.data.y
        if graph.num_nodes == len(y):
            return mended
        source, target = graph.edge_index
        inside = (source < len(y)) & (target < len(y))
        kept = ~inside | (y[source.clamp(max=len(y) - 1)] == y[target.clamp(max=len(y) - 1)])
        changed = copy.copy(graph)
        changed.edge_index = graph.edge_index[:, kept]
        return client.datamodule.with_data(changed)


class EqualEdges(FedSagePlus):
    def client_half(self):
        return KeepsEqualEdges(self)


class WeighsByTest(FedAvg):
    """Planted: clients weigh by their test score."""

    def aggregate(self, federation, round, replies):
        asked = {c: Payload(self.weights, {"stages": ["test"]}) for c in replies}
        scored = federation.call("evaluate", asked, round)
        for client, reply in replies.items():
            score = scored[client].values["test"]["accuracy"]
            reply.values["num_samples"] = 1 + int(1000 * score)
        super().aggregate(federation, round, replies)


class TellsLabels(ClientHalf):
    """Planted: a client's reply holds the mean of all its labels."""

    def fit(self, client, request):
        reply = super().fit(client, request)
        metrics = {**reply.values["metrics"], "mean_label": float(client.datamodule.data.y.float().mean())}
        first = float(client.datamodule.data.y[client.datamodule.data.test_mask][0])
        return Payload(reply.tensors, {**reply.values, "metrics": {**metrics, "first": first}})


class Tells(FedAvg):
    def client_half(self):
        return TellsLabels()


class TrainsOnTest(LitNodeClassifier):
    """Planted: test nodes train, too."""

    def training_step(self, batch, batch_idx):
        changed = copy.copy(batch)
        changed.train_mask = batch.train_mask | batch.test_mask
        return super().training_step(changed, batch_idx)


def edges_by_label():
    return EqualEdges(pretrain_steps=2, exchange_rounds=0, draws=2, mending="zero", counts="known")


@pytest.mark.parametrize(
    ("strategy", "module", "where"),
    [
        (edges_by_label, LitNodeClassifier, "step 0, reply of client 0, `mend`, value `pictures`"),
        (WeighsByTest, LitNodeClassifier, "step 1, request to client 0, `fit`, entry `encoder."),
        (Tells, LitNodeClassifier, "step 0, reply of client 0, `fit`, value `metrics`"),
        (FedAvg, TrainsOnTest, "step 0, reply of client 0, `fit`, entry `encoder."),
    ],
)
def test_planted_faults_are_caught_where_they_show_first(strategy, module, where):
    verdict = canary(module(GraphSAGE(hidden_channels=4)), citation(), strategy())
    assert verdict.difference is not None and verdict.difference.startswith(where)
    assert verdict.lines()[-1].startswith(
        "canary: a label outside the training part has reached training. First difference: step"
    )


def test_without_labels_outside_training_nothing_would_be_shown():
    with pytest.raises(ValueError, match="needs labels outside the training part, and found none that could be changed"):
        canary(Linear(), [Table(8, seed=c, held_out=0) for c in range(2)], FedAvg())


def test_data_and_module_of_the_caller_stay_as_they_are():
    data, module = citation(), nodes()()
    run_canary(module, data, CPU, {"strategy": FedAvg()}, rounds=1)
    assert data._graph is None and module.schema is None


def test_first_difference_in_words():
    a, b = torch.tensor([1.0]), torch.tensor([-0.0])
    assert first_difference([("x", digests({"w": a}))], [("x", digests({"w": a.clone()}))]) is None
    assert first_difference([("x", digests({"w": b}))], [("x", digests({"w": -b}))]) == "x, entry `w`"  # -0 is not 0
    assert first_difference([("x", digests({"w": a}))], [("x", digests({"w": a, "v": a}))]) == "x, entry `v`"
    assert first_difference([("x", {})], [("y", {})]) == "x in one run is y in the other"
    assert first_difference([("x", {})], []) == "1 messages more in one run"


@pytest.mark.parametrize(("module", "code"), [("lit_models.LitNodeClassifier", 0), (f"{__name__}.TrainsOnTest", 1)])
def test_on_the_command_line(module, code, capsys, tmp_path):
    encoder = "{class_path: lit_models.GraphSAGE, init_args: {hidden_channels: 4}}"
    (tmp_path / "c.yaml").write_text(
        f"model: {{class_path: {module}, init_args: {{encoder: {encoder}}}}}\n"
        "data:\n  class_path: datamodules.SyntheticCitationDataModule\n"
        "  init_args: {num_nodes: 60, num_classes: 3, num_features: 12, num_clients: 2}\n"
        "trainer: {accelerator: cpu, max_epochs: 1}\nfederation: {early_stopping: {patience: 1}}\n"
    )
    with contextlib.ExitStack() as stack:
        failure = stack.enter_context(pytest.raises(SystemExit)) if code else None
        FederatedCLI(["canary", "--config", str(tmp_path / "c.yaml"), "--rounds", "1"])
    said = capsys.readouterr().out
    assert "canary: labels outside the training part that differ between the two runs: " in said
    assert ("have the same bits: no such label trains" in said) == (code == 0)
    assert failure is None or failure.value.code == 1
    assert not list(tmp_path.glob("runs"))


def test_central_training_is_refused(tmp_path):
    with pytest.raises(ValueError, match="compares what crosses between server and clients: leave out `--federation null`"):
        FederatedCLI(["canary", "--config", "configs/demo.yaml", "--federation", "null"])


SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
GRAPHS = {
    "PlanetoidDataModule": {"name": "CiteSeer", "num_clients": 2},
    "AmazonDataModule": {"name": "Photo", "num_clients": 2},
    "CoauthorDataModule": {"name": "CS", "num_clients": 2},
}
MOLECULES = {
    "MoleculeNetDataModule": {"name": "freesolv", "num_clients": 2, "client_holdout": 0.2},
    "QM9DataModule": {"num_clients": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*GRAPHS, *MOLECULES])
def test_data_sets_from_files(kind):
    if not SHARED.is_dir():
        pytest.skip("needs the real data in ../shared/data")
    options = {**GRAPHS, **MOLECULES}[kind]
    data = getattr(datamodules, kind)(root=str(SHARED), **options)
    encoder = SchNet(8, 8, 1) if kind == "QM9DataModule" else GCNMolecule(hidden_channels=8)
    module = nodes()() if kind in GRAPHS else LitMoleculePredictor(encoder)
    verdict = run_canary(module, data, {**CPU, "max_steps": 1, "max_epochs": -1}, {"strategy": FedAvg()}, rounds=1)
    assert verdict.difference is None and any(verdict.changed.values())


def test_own_tables(tmp_path):
    for client in ("a", "b"):
        (tmp_path / client).mkdir()
        rows = [f"n{i},{(7 * i) % 11 / 10},{(5 * i) % 13 / 10},{'xyz'[i % 3]}" for i in range(24)]
        (tmp_path / client / "nodes.csv").write_text("\n".join(["id,f,g,label", *rows]))
        links = [f"n{i},n{(i + 1) % 24}" for i in range(24)]
        (tmp_path / client / "edges.csv").write_text("\n".join(["source,target", *links]))
    verdict = canary(nodes()(), GraphCSVDataModule(root=str(tmp_path)), FedAvg())
    assert verdict.difference is None and all(verdict.changed.values())


def test_own_molecules(tmp_path):
    for client in ("a", "b"):
        rows = [f"{'C' * (1 + i)}O,{(3 * i) % 17 / 10 + 0.05}" for i in range(20)]
        (tmp_path / f"{client}.csv").write_text("\n".join(["smiles,activity", *rows]))
    data = MoleculeCSVDataModule(files=str(tmp_path), client_holdout=0.4)
    verdict = canary(LitMoleculePredictor(GCNMolecule(hidden_channels=8)), data, FedAvg())
    assert verdict.difference is None and any(verdict.changed.values())
