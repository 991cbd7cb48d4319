"""Clients with next to nothing: trained or skipped as makes sense, reported, never NaN, never a hang."""

import json

import pytest
import torch
from federations import Central, Linear, Table, clients, federate
from torch.utils.data import DataLoader
from torch_geometric.data import Data

from datamodules import ClientGraphDataModule, SyntheticCitationDataModule
from fl_lightning import FedAvg, LocalOnly
from fl_lightning.reporting.monitor import is_better, selection_value
from fl_lightning.reporting.scores import summarise
from lit_models import GCN, GraphSAGE, LitNodeClassifier


def graph(n, classes=3, edges=True, train=None):
    """A ring of ``n`` nodes (or no edge at all); every fifth node validates, the next one tests."""
    generator = torch.Generator().manual_seed(n)
    nodes = torch.arange(n)
    ring = torch.stack([nodes, (nodes + 1) % n]) if edges and n > 1 else torch.zeros(2, 0, dtype=torch.long)
    role = nodes % 5
    return Data(
        x=torch.rand(n, 6, generator=generator),
        edge_index=torch.cat([ring, ring.flip(0)], 1),
        y=nodes % classes,
        train_mask=role < 3 if train is None else torch.full((n,), train),
        val_mask=role == 3,
        test_mask=role == 4,
        node_id=nodes,
        num_nodes=n,
    )


PLAIN, NO_EDGE, ONE_CLASS, ONE_NODE, EMPTY, NO_HELD_OUT = range(6)
GRAPHS = {
    PLAIN: graph(20),
    NO_EDGE: graph(10, edges=False),
    ONE_CLASS: graph(10, classes=1),
    ONE_NODE: graph(1),
    EMPTY: graph(10, train=False),
    NO_HELD_OUT: graph(3),
}


def odd_clients():
    schema = {"num_features": 6, "num_classes": 3}
    return [
        ClientGraphDataModule(data.clone(), schema=schema, batch_size=None, num_neighbors=(5, 5), eval_batch_size=None)
        for data in GRAPHS.values()
    ]


@pytest.mark.parametrize("strategy", [FedAvg, LocalOnly, lambda: FedAvg("uniform")])
@pytest.mark.parametrize("encoder", [GraphSAGE, GCN])
def test_odd_clients_train_or_are_skipped_and_nothing_is_nan(tmp_path, strategy, encoder):
    def module():
        made = LitNodeClassifier(encoder(hidden_channels=4))
        made.build({"num_features": 6, "num_classes": 3})
        return made

    fed = federate(tmp_path, module, odd_clients(), num_rounds=2, strategy=strategy())
    assert fed.results["failures"] == [] and fed.results["empty_clients"] == [EMPTY]
    for stage in ("val", "test"):
        scores = fed.results["last"][stage]["per_client"]
        assert [s is None for s in scores] == [c in (ONE_NODE, NO_HELD_OUT) for c in GRAPHS]
        assert fed.results["last"][stage]["undefined"] == 2
        known = [s for s in scores if s is not None]
        assert fed.results["last"][stage]["mean"] == pytest.approx(sum(known) / 4)
        assert fed.results["last"][stage]["worst"] == min(known)
    assert all(torch.isfinite(p).all() for p in fed.module.parameters())
    text = (fed.run_dir / "results.json").read_text() + (fed.run_dir / "metrics.csv").read_text()
    assert "NaN" not in text and "nan" not in text and "inf" not in text.replace("undefined", "")


def test_an_empty_client_is_asked_and_says_so_without_sending_a_model(tmp_path):
    fed = federate(tmp_path, data=clients((10, 0, 8)), num_rounds=1)
    lines = [json.loads(x) for x in (fed.run_dir / "ledger.jsonl").read_text().splitlines()]
    (reply,) = [x for x in lines if x["kind"] == "fit" and x["client"] == 1 and x["direction"] == "up"]
    assert reply["tensors"] == {} and fed.results["empty_clients"] == [1]
    two = [clients((10, 0, 8))[i] for i in (0, 2)]
    alone = federate(tmp_path / "two", data=two, num_rounds=1)
    assert torch.equal(fed.module.net.weight, alone.module.net.weight)


def test_a_round_in_which_only_empty_clients_were_drawn_keeps_the_model(tmp_path):
    fed = federate(tmp_path, data=clients((10, 0, 0, 0, 0)), num_rounds=6, clients_per_round=1)
    assert fed.results["rounds_run"] == 6 and fed.results["failures"] == []


def test_nothing_to_train_on_anywhere_is_an_error_before_round_one(tmp_path):
    with pytest.raises(ValueError, match="No client has a training sample"):
        federate(tmp_path, data=clients((0, 0)))
    assert not list(tmp_path.iterdir())


def test_one_sample_and_no_validation_data_at_all(tmp_path):
    fed = federate(tmp_path, data=clients((1, 1), held_out=0), num_rounds=2)
    assert fed.results["best_round"] == 1 and fed.results["failures"] == []
    assert fed.results["val"] == {
        "global": None, "mean": None, "worst": None, "per_client": [None, None], "global_metrics": None,
        "per_client_metrics": [{}, {}], "undefined": 2,
    }  # fmt: skip
    assert fed.results["test"]["undefined"] == 2


@pytest.mark.parametrize("number", [1, 2, 3, 7, 25])
def test_any_number_of_clients(tmp_path, number):
    data = SyntheticCitationDataModule(num_nodes=60, num_classes=2, num_features=10, num_clients=number, partition="random")
    fed = federate(tmp_path, lambda: LitNodeClassifier(GraphSAGE(hidden_channels=4)), data, num_rounds=1)
    assert fed.results["num_clients"] == number and len(fed.results["test"]["per_client"]) == number


class NanMetric(Linear):
    """Its metric is NaN where there are only three samples, and on the server."""

    def validation_step(self, batch, batch_idx):
        n = len(batch[0])
        self.log("val_loss", float("nan") if n in (3, 16) else float(n))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", float("inf") if len(batch[0]) in (3, 16) else 1.0)


def test_a_metric_that_is_nan_is_undefined_never_a_score(tmp_path):
    data = Central(Table(10, 1, held_out=8), Table(10, 2, held_out=3), Table(10, 3, held_out=6))
    fed = federate(tmp_path, NanMetric, data, trainer={"logger": True})
    assert fed.results["val"] == {
        "global": None, "mean": 7.0, "worst": 8.0, "per_client": [8.0, None, 6.0], "global_metrics": {"loss": None},
        "per_client_metrics": [{"loss": 8.0}, {"loss": None}, {"loss": 6.0}], "undefined": 1,
    }  # fmt: skip
    assert fed.results["test"]["per_client"] == [1.0, None, 1.0] and fed.results["test"]["undefined"] == 1
    assert "nan" not in (fed.run_dir / "metrics.csv").read_text()


def test_summary_by_hand():
    found = summarise("a", "max", {"a": 0.9}, [{"a": 0.5}, None, {"b": 1.0}, {"a": None}, {"a": float("nan")}, {"a": 0.8}])
    assert found == {
        "global": 0.9, "mean": 0.65, "worst": 0.5, "per_client": [0.5, None, None, None, None, 0.8], "undefined": 4,
        "global_metrics": {"a": 0.9},
        "per_client_metrics": [{"a": 0.5}, None, {"b": 1.0}, {"a": None}, {"a": None}, {"a": 0.8}],
    }  # fmt: skip
    assert summarise("a", "min", None, [{"a": 0.5}, {"a": 0.8}])["worst"] == 0.8
    assert selection_value(found) == 0.9 and selection_value({"global": None, "mean": 0.6}) == 0.6


def test_the_first_of_equal_rounds_is_the_best():
    assert not is_better(0.5, 0.5, "max") and is_better(0.6, 0.5, "max") and is_better(0.4, 0.5, "min")
    assert is_better(0.0, None, "max") and not is_better(None, None, "max")


class Shuffled(Table):
    """As users write it: torch refuses to shuffle nothing."""

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=4, shuffle=True)


def test_an_empty_client_of_a_shuffled_loader_is_named_and_takes_no_part(tmp_path, caplog):
    fed = federate(tmp_path, Linear, [Shuffled(8, 1), Shuffled(0, 2), Shuffled(9, 3)], num_rounds=1)
    assert fed.results["empty_clients"] == [1] and fed.results["failures"] == []
    assert "No training sample: client 1. They are served and scored, and teach nothing." in caplog.messages
