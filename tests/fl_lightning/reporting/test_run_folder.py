"""What a run leaves behind: the keys of results.json, the files, TensorBoard curves over rounds."""

import csv
import json

import pytest
import torch
import yaml
from federations import CPU, Central, Linear, clients, federate, without_times
from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from datamodules import SyntheticCitationDataModule
from fl_lightning import FedAvg, FederatedTrainer
from fl_lightning.reporting.run_folder import RunFolder, new_version
from fl_lightning.reporting.run_lock import RunLock
from lit_models import GraphSAGE, LitNodeClassifier

ROUNDS = 3


@pytest.fixture(scope="module")
def fed(tmp_path_factory):
    data = SyntheticCitationDataModule(num_nodes=120, num_classes=3, num_features=30, num_clients=3, blocks_per_class=2)
    fed = federate(
        tmp_path_factory.mktemp("run"), lambda: LitNodeClassifier(GraphSAGE(hidden_channels=8)), data,
        {"logger": True}, num_rounds=ROUNDS, name="sage", strategy=FedAvg("num_samples"),
    )  # fmt: skip
    fed.data = data
    return fed


def test_results_have_the_keys_of_the_design(fed):
    results = json.loads((fed.run_dir / "results.json").read_text())
    assert results.keys() >= {
        "name", "strategy", "seed", "num_clients", "rounds_run", "best_round", "metric", "mode", "weighting", "val", "test",
        "last", "bytes", "seconds", "peak_rss_mb", "failures", "dropped_rows", "versions",
    }  # fmt: skip
    assert (results["name"], results["strategy"], results["seed"], results["num_clients"]) == ("sage", "FedAvg", 0, 3)
    assert (results["metric"], results["mode"], results["weighting"]) == ("accuracy", "max", "num_samples")
    assert results["rounds_run"] == ROUNDS and 0 <= results["best_round"] < ROUNDS
    assert results["val"].keys() >= {"global", "mean", "worst", "per_client"}
    assert results["test"].keys() >= {"global", "mean", "worst", "per_client", "undefined", "each_on_global"}
    assert results["last"].keys() == {"val", "test"} and results["test"]["each_on_global"] is None
    assert results["bytes"].keys() == {"up", "down", "by_kind"} and results["bytes"]["by_kind"].keys() == {"fit", "evaluate"}
    assert results["seconds"].keys() == {"total", "train", "overhead"}
    assert results["seconds"]["total"] == pytest.approx(results["seconds"]["train"] + results["seconds"]["overhead"])
    assert results["failures"] == [] and results["dropped_rows"] == [] and results["peak_rss_mb"] > 50
    assert results["versions"]["torch"] == torch.__version__ and "lightning" in results["versions"]
    for stage in ("val", "test"):
        scores = results[stage]["per_client"]
        assert len(scores) == 3 and results[stage]["mean"] == pytest.approx(sum(scores) / 3)
        assert results[stage]["worst"] == min(scores) and 0 <= results[stage]["global"] <= 1


def test_files(fed):
    found = {p.name for p in fed.run_dir.iterdir() if not p.name.startswith(("events", "hparams"))}
    assert found == {".lock", "config.yaml", "metrics.csv", "ledger.jsonl", "checkpoints", "partition.json", "results.json"}
    assert len(list(fed.run_dir.glob("events*"))) == 1
    record = json.loads((fed.run_dir / "partition.json").read_text())
    assert sorted(v for members in record["membership"] for v in members) == list(range(120)) and len(record["sha256"]) == 64


def test_tensorboard_has_the_round_on_its_x_axis(fed):
    events = EventAccumulator(str(fed.run_dir))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert tags >= {"val/accuracy", "val/clients_mean", "val/clients_worst", "bytes/up", "bytes/down", "seconds/round"}
    assert tags >= {f"clients/{c}/val/accuracy" for c in range(3)} | {f"clients/{c}/train/loss" for c in range(3)}
    for tag in tags:
        assert [e.step for e in events.Scalars(tag)] == list(range(ROUNDS)), tag


def test_metrics_csv_agrees_with_tensorboard_and_results(fed):
    with (fed.run_dir / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(r["round"]) for r in rows] == list(range(ROUNDS))
    best = rows[fed.results["best_round"]]
    assert float(best["val/accuracy"]) == pytest.approx(fed.results["val"]["global"])
    assert float(best["val/accuracy"]) == max(float(r["val/accuracy"]) for r in rows)
    assert float(best["val/clients_mean"]) == pytest.approx(fed.results["val"]["mean"])


def test_bytes_of_a_round_are_those_of_the_ledger(fed):
    lines = [json.loads(x) for x in (fed.run_dir / "ledger.jsonl").read_text().splitlines()]
    with (fed.run_dir / "metrics.csv").open() as file:
        first = next(csv.DictReader(file))
    for way in ("up", "down"):
        kinds = [x for x in lines if x["round"] == 0 and x["direction"] == way][: 3 * 2]  # 3 fits, 3 validations
        assert sum(x["bytes"] for x in kinds) == int(first[f"bytes/{way}"])


def test_the_global_score_is_on_the_original_graph(fed):
    # The clients' subgraphs have lost edges; the server's graph has all of them.
    inside = sum(c.data.edge_index.shape[1] for c in fed.data.client_datamodules())
    assert inside < fed.data.data.edge_index.shape[1]
    assert sum(int(c.data.test_mask.sum()) for c in fed.data.client_datamodules()) == int(fed.data.data.test_mask.sum())


def test_a_client_that_logs_new_values_later_gets_a_new_column(tmp_path):
    folder = RunFolder(str(tmp_path), "run", False, RunLock())
    folder.log({"a": 1.0}, 0)
    folder.log({"a": 2.0, "b": 3.0}, 1)
    folder.log({"b": 4.0, "c": None}, 2)
    folder.close()
    with (tmp_path / "run" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"round": "0", "a": "1.0", "b": ""}, {"round": "1", "a": "2.0", "b": "3.0"}, {"round": "2", "a": "", "b": "4.0"},
    ]  # fmt: skip


def test_versions_are_never_used_twice(tmp_path):
    for name in ("version_3", "version_x", "version_1", "other"):
        (tmp_path / name).mkdir()
    assert new_version(tmp_path).name == "version_4" and new_version(tmp_path / "none").name == "version_0"
    assert new_version(tmp_path).name == "version_5" and (tmp_path / "version_5").is_dir()


def test_results_are_written_aside_and_renamed(tmp_path, monkeypatch):
    folder = RunFolder(str(tmp_path), "run", False, RunLock())
    folder.write_json("results.json", {"a": 1})

    def cut(*args, **kwargs):
        raise OSError("the disk is full")

    monkeypatch.setattr("os.replace", cut)
    with pytest.raises(OSError, match="full"):
        folder.write_json("results.json", {"a": 2})
    assert json.loads((folder.path / "results.json").read_text()) == {"a": 1}


def test_nothing_outside_the_runs_folder_is_touched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("kept")
    (tmp_path / "lightning_logs").mkdir()
    fed = federate(tmp_path / "runs", Linear, Central(*clients()))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lightning_logs", "mine.txt", "runs"]
    assert not list((tmp_path / "lightning_logs").iterdir()) and without_times(fed.results)


@pytest.mark.parametrize("there", ["results.json", "metrics.csv", "checkpoints"])
def test_a_loggers_folder_with_files_that_a_run_would_overwrite_is_refused(tmp_path, there):
    mine = tmp_path / "logs" / "csv" / "mine"
    (mine / there).mkdir(parents=True)
    with pytest.raises(ValueError, match=f"`trainer.logger` writes into `.*mine`, where there is `{there}`.*--ckpt_path"):
        federate(tmp_path, trainer={"logger": CSVLogger(str(tmp_path / "logs"), name="csv", version="mine")})
    assert [p.name for p in mine.iterdir()] == [there]


def test_what_is_undefined_is_not_logged(tmp_path):
    folder = RunFolder(str(tmp_path), "run", False, RunLock())
    folder.log({"a": float("nan"), "b": float("inf"), "c": None, "d": 1.0}, 0)
    folder.close()
    assert (folder.path / "metrics.csv").read_text().split() == ["round,d", "0,1.0"]


@pytest.mark.parametrize("save", [True, False])
def test_hyperparameters_are_logged_once(tmp_path, save):
    class Noted(CSVLogger):
        noted = []

        def log_hyperparams(self, params=None):
            self.noted.append(dict(params))

    class Model(Linear):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters({"loss": torch.nn.MSELoss()}, logger=save)

    logger = Noted(str(tmp_path / "logs"), name="csv")
    fed = federate(tmp_path, Model, trainer={"logger": logger})
    loss = {"class_path": "torch.nn.modules.loss.MSELoss", "init_args": {"reduction": "mean"}}
    assert logger.noted == ([{"lr": 0.05, "features": 3, "loss": loss}] if save else [])
    again = FederatedTrainer(num_rounds=3, seed=0, force=True, trainer={**CPU, "logger": logger})
    again.fit(Model(), clients(), ckpt_path=str(fed.run_dir))
    assert len(logger.noted) == int(save) and again.run_dir == fed.run_dir  # not again on resuming


def test_a_run_from_python_writes_what_it_was_given(fed):
    config = yaml.safe_load((fed.run_dir / "config.yaml").read_text())
    assert config.keys() == {"seed_everything", "federation", "trainer", "model", "data"} and config["seed_everything"] == 0
    assert config["federation"]["num_rounds"] == ROUNDS and config["federation"]["name"] == "sage"
    assert config["federation"]["strategy"]["class_path"] == "fl_lightning.strategies.fedavg.FedAvg"
    assert config["federation"]["strategy"]["init_args"]["weighting"] == "num_samples"
    assert config["trainer"]["accelerator"] == "cpu" and config["data"]["init_args"]["num_nodes"] == 120
    assert config["model"]["class_path"].endswith("LitNodeClassifier")


def test_scores_of_every_client_by_every_metric(fed):
    scores = fed.results["test"]["per_client_metrics"]
    assert [s["accuracy"] for s in scores] == fed.results["test"]["per_client"]
    assert all(s.keys() == fed.results["test"]["global_metrics"].keys() >= {"accuracy", "loss"} for s in scores)
