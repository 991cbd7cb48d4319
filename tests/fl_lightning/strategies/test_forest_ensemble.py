"""ForestEnsemble: the weighted mean of the clients' forests, in process and in workers; what is refused and what leaves."""

import json

import pytest
import torch
from federations import CPU, assert_same_bits, checkpoint_tensors, last_checkpoint
from forest_samples import Assays, Chains

from fl_lightning import FedAvg, FederatedTrainer, ForestEnsemble, LocalOnly, load_model
from fl_lightning.engine import ClipNorm, WorkerProcesses
from fl_lightning.engine.messages import Payload
from fl_lightning.strategies.forest_ensemble import PREFIX
from lit_models import GINMolecule, LitMoleculeForest, LitMoleculePredictor
from lit_models.forest.arrays import LAYOUT

pytest.importorskip("sklearn", reason="needs the extra `fl-lightning[forest]`")


def federation(folder, strategy, trainer=None, **settings):
    root = {**CPU, "logger": False, "default_root_dir": str(folder)}
    return FederatedTrainer(seed=1, strategy=strategy, trainer={**root, **(trainer or {})}, **{"num_rounds": 1, **settings})


def fit(folder, strategy, data=None, **settings):
    fed = federation(folder, strategy, **settings)
    module = LitMoleculeForest(num_trees=4)
    results = fed.fit(module, data or Assays())
    return fed, module, results


def batch_of(data, name):
    data.setup()
    return data.part(name).molecules.collate(data.part(name).positions)


@pytest.mark.parametrize("weighting", ["num_samples", "uniform"])
def test_the_server_predicts_the_mean_of_the_sites_own_forests(tmp_path, weighting):
    fed, module, results = fit(tmp_path / "all", ForestEnsemble(weighting))
    data = Assays()
    batch = batch_of(data, "test")
    # By another way: LocalOnly with the same seed grows the same forests, each loaded apart.
    alone, *_ = fit(tmp_path / "alone", LocalOnly(score_on_global=False))
    own = [load_model(alone.run_dir, client=c, module=LitMoleculeForest(4))(batch) for c in (0, 1)]
    labels = torch.stack([c.packed.y[c.part("train").positions].isfinite().sum(0) for c in data.client_datamodules()]).double()
    assert (labels[:, 1] > 0).tolist() == [False, True] and labels[0, 0] != labels[1, 0]
    weight = labels if weighting == "num_samples" else (labels > 0).double()
    wanted = sum(w / weight.sum(0) * f for w, f in zip(weight, own, strict=True))
    torch.testing.assert_close(module(batch), wanted, rtol=0, atol=1e-12)
    assert not torch.equal(own[0][:, 0], own[1][:, 0]) and torch.equal(module(batch)[:, 1], own[1][:, 1])
    assert torch.equal(load_model(fed.run_dir, module=LitMoleculeForest(4))(batch), module(batch))
    assert results["last"]["test"]["global"] is not None and results["strategy"] == "ForestEnsemble"


@pytest.mark.slow
def test_the_same_bits_in_worker_processes(tmp_path):
    here, *_ = fit(tmp_path / "here", ForestEnsemble())
    there, *_ = fit(tmp_path / "there", ForestEnsemble(), engine=WorkerProcesses(num_workers=2))
    assert_same_bits(*(checkpoint_tensors(last_checkpoint(run.run_dir)) for run in (here, there)))


def test_the_ledger_names_all_that_leaves(tmp_path):
    fed, *_ = fit(tmp_path, ForestEnsemble())
    lines = [json.loads(line) for line in (fed.run_dir / "ledger.jsonl").read_text().splitlines()]
    up = [line for line in lines if line["kind"] == "fit" and line["direction"] == "up"]
    assert len(up) == 2 and all({PREFIX + name for name in LAYOUT} == set(line["tensors"]) for line in up)


def test_whoever_is_there_in_a_later_round_is_asked_once(tmp_path):
    fed, *_ = fit(tmp_path, ForestEnsemble(), Chains(num_clients=3), num_rounds=4, clients_per_round=2)
    asked = [json.loads(line) for line in (fed.run_dir / "ledger.jsonl").read_text().splitlines()]
    asked = [line["client"] for line in asked if line["kind"] == "fit" and line["direction"] == "up"]
    last = checkpoint_tensors(last_checkpoint(fed.run_dir))
    assert sorted(asked) == [0, 1, 2] and last["server.pt/server/asked"].tolist() == asked
    assert last["server.pt/forest.forest_task"].tolist() == [0, 1] * 3


def test_each_alone_is_scored_on_the_servers_data(tmp_path):
    _, _, results = fit(tmp_path, LocalOnly())
    assert len(results["test"]["each_on_global"]) == 2 and min(results["test"]["each_on_global"]) > 0.4


def test_predictions_of_the_ensemble(tmp_path):
    fed, module, _ = fit(tmp_path, ForestEnsemble())
    found = federation(tmp_path, ForestEnsemble()).predict(LitMoleculeForest(4), Assays(), ckpt_path="last")
    batch = batch_of(Assays(), "predict")
    assert torch.equal(torch.cat([part["predictions"] for part in found[None]]), module(batch))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda t: federation(t, FedAvg()), "`federation.strategy: FedAvg` combines entries of one length"),
        (lambda t: federation(t, LocalOnly(), upload_transforms=[ClipNorm(1.0)]), "`federation.upload_transforms` change"),
        (lambda t: federation(t, ForestEnsemble(), private=["forest.value"]), "forest.value stay with the clients"),
        (lambda t: federation(t, ForestEnsemble(), {"max_epochs": 2}), "Write `trainer.max_epochs: 1`"),
        (lambda t: federation(t, ForestEnsemble(), {"max_steps": 5}), "leave `max_steps` out"),
        (lambda t: federation(t, ForestEnsemble("all")), "weighting` must be `uniform` or `num_samples`"),
    ],
)
def test_what_cannot_work_is_refused_before_round_1(tmp_path, make, said):
    with pytest.raises(ValueError, match=said):
        make(tmp_path).fit(LitMoleculeForest(4), Assays())


def test_another_module_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="Write `model: lit_models.LitMoleculeForest`"):
        federation(tmp_path, ForestEnsemble()).fit(LitMoleculePredictor(GINMolecule(8)), Assays())


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("feature", torch.full((3,), 64, dtype=torch.int32), "`feature` must be from -1 to 63"),
        ("forest_weight", torch.tensor([5.0], dtype=torch.float64), "above the number of molecules"),
        ("value", torch.zeros(3), "entry `forest.value` is float32"),
    ],
)
def test_a_client_that_sends_no_forest_is_named(name, content, said):
    strategy = ForestEnsemble()
    module = LitMoleculeForest()
    module.build({"task": "regression", "num_tasks": 1, "fingerprint_size": 64})
    strategy.check(module, [], None)
    strategy.start(module.state_dict(), ())
    lists = {"feature": [3, -1, -1], "threshold": [0.5, 0, 0], "left": [1, -1, -1], "right": [2, -1, -1], "value": [0, 1, 2],
             "tree_start": [0, 3], "forest_start": [0, 1], "forest_task": [0], "forest_weight": [4]}  # fmt: skip
    good = {PREFIX + n: torch.tensor(lists[n], dtype=t) for n, t in LAYOUT.items()}
    values = {"num_samples": 4, "metrics": {}}
    assert strategy.fit_reply().fault(Payload(good, values)) is None
    assert said in strategy.fit_reply().fault(Payload({**good, PREFIX + name: content}, values))
    twice = {**good, "forest.forest_task": torch.tensor([0, 0]), "forest.forest_weight": torch.ones(2).double(),
             "forest.tree_start": torch.tensor([0, 1, 3])}  # fmt: skip
    assert strategy.fit_reply().fault(Payload(twice, values)) is not None
    assert strategy.fit_reply().fault(Payload({}, {"num_samples": 0, "metrics": {}})) is None
