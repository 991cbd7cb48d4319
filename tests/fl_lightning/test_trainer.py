"""FederatedTrainer: arguments, loggers, validation every n rounds, what is refused before round 1."""

import csv
import json
import math

import lightning as L
import pytest
import torch
from federations import CPU, Central, Linear, Table, clients, federate, last_checkpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn

from fl_lightning import FedAvg, FederatedTrainer
from fl_lightning.engine import InProcess


def rows(run_dir):
    with (run_dir / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


# ---- refused before round 1 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_rounds": 0}, "`federation.num_rounds` must be at least 1, got 0"),
        ({"min_clients": 0}, "`federation.min_clients` must be at least 1"),
        ({"check_val_every_n_rounds": 0}, "`federation.check_val_every_n_rounds` must be at least 1"),
        ({"keep_last": 0}, "`federation.keep_last` must be at least 1"),
        ({"client_timeout": 0}, "`federation.client_timeout` must be positive"),
        ({"client_timeout": -3.0}, "`federation.client_timeout` must be positive"),
        ({"clients_per_round": 0}, "`federation.clients_per_round` must be a count of at least 1 or a fraction"),
        ({"clients_per_round": 0.0}, "`federation.clients_per_round`"),
        ({"clients_per_round": 9}, "= 9, but there are 4 clients"),
        ({"min_clients": 3, "clients_per_round": 2}, "`federation.min_clients` = 3, but only 2 of 4 clients take part"),
        ({"strategy": FedAvg}, "`federation.strategy` must be a Strategy"),
        ({"engine": InProcess}, "`federation.engine` must be an Engine"),
        ({"private": ["nothing.*"]}, r"No entry of Linear matches `nothing\.\*`"),
    ],
)
def test_wrong_federation_arguments(tmp_path, arguments, text):
    with pytest.raises(ValueError, match=text):
        federate(tmp_path, **arguments)
    assert not list(tmp_path.iterdir())


def test_an_unknown_federation_argument_is_an_error():
    with pytest.raises(TypeError, match="`federation.num_round`: no such key. Did you mean `num_rounds`. There are: num_"):
        FederatedTrainer(num_round=3)
    with pytest.raises(ValueError, match="`federation.early_stopping.patienc`: no such key. Did you mean `patience`"):
        FederatedTrainer(early_stopping={"patienc": 3})


def test_an_unknown_argument_of_the_trainer_is_told_with_the_nearest():
    text = "^`trainer.max_epoch`: no such key. Did you mean `max_epochs`. There are: max_epochs, min_epochs, .*accelerator"
    with pytest.raises(ValueError, match=text):
        FederatedTrainer(trainer={"max_epoch": 1})


class NoStep(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class NoOptimizer(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).sum()


class NoLayersYet(Linear):
    def __init__(self):
        L.LightningModule.__init__(self)

    def setup(self, stage):
        self.net = nn.Linear(3, 1)


class AlwaysNewLayers(NoLayersYet):
    setup = L.LightningModule.setup

    def configure_model(self):
        self.net = nn.Linear(3, 1)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (NoStep, "`model: NoStep` has no `training_step`"),
        (NoOptimizer, "`model: NoOptimizer` has no `configure_optimizers`"),
        (NoLayersYet, "`model: NoLayersYet` has no parameters yet"),
        (AlwaysNewLayers, "`AlwaysNewLayers.configure_model` makes other layers when it is called again"),
    ],
)
def test_a_module_that_cannot_be_federated(tmp_path, module, text):
    with pytest.raises(ValueError, match=text):
        federate(tmp_path, module)


def test_data_that_cannot_be_federated(tmp_path):
    with pytest.raises(ValueError, match=r"`data: Table` has no `client_datamodules\(\)`.*list.*--federation null"):
        federate(tmp_path, data=Table(10, 1))
    with pytest.raises(ValueError, match="no clients: the list of data modules is empty"):
        federate(tmp_path, data=[])


# ---- monitor --------------------------------------------------------------------------------------------------------


def test_a_monitor_that_nobody_logs_lists_what_is_logged(tmp_path):
    with pytest.raises(ValueError, match="`federation.monitor` is `accuracy`, but `Linear` logs for `val` only: loss"):
        federate(tmp_path, monitor="accuracy")


@pytest.mark.parametrize("server", [False, True])
def test_a_wrong_monitor_is_found_before_anything_is_trained(tmp_path, monkeypatch, server):
    steps = []
    monkeypatch.setattr(Linear, "training_step", lambda self, batch, index: steps.append(index))
    with pytest.raises(ValueError, match="`federation.monitor` is `accuracy`, but `Linear` logs for `val` only: loss"):
        federate(tmp_path, data=Central(*clients()) if server else clients(), monitor="accuracy")
    assert steps == []


def test_a_monitor_that_is_named_changes_no_bit(tmp_path):
    named, guessed = (federate(tmp_path / str(monitor), monitor=monitor) for monitor in ("loss", None))
    assert torch.equal(named.module.net.weight, guessed.module.net.weight)
    assert named.results["val"] == guessed.results["val"] and named.results["best_round"] == guessed.results["best_round"]


class Scored(Linear):
    """Logs a score that grows with the round and a loss that does too."""

    monitor, monitor_mode = "score", "max"

    def on_round_start(self, round, num_rounds):
        self.at = round

    def validation_step(self, batch, batch_idx):
        self.log_dict({"val/score": float(self.at), "val/loss": float(self.at), "val/error": -float(self.at)})


@pytest.mark.parametrize(
    ("monitor", "mode", "best"),
    [
        (None, None, 2),
        ("loss", "min", 0),
        ("loss", "max", 2),
        ("error", "min", 2),
        ("score", "min", 0),
        ("loss", None, 0),  # the module's `max` is its score's
        ("val_loss", None, 0),
        ("val/score", None, 2),
    ],
)
def test_the_best_round_by_the_monitor(tmp_path, monitor, mode, best):
    fed = federate(tmp_path, Scored, num_rounds=3, monitor=monitor, monitor_mode=mode)
    assert fed.results["best_round"] == best
    assert fed.results["metric"] == {"val_loss": "loss", "val/score": "score", None: "score"}.get(monitor, monitor)


@pytest.mark.parametrize(("every", "validated"), [(1, [0, 1, 2, 3, 4]), (2, [1, 3, 4]), (3, [2, 4]), (9, [4])])
def test_validation_every_n_rounds_and_after_the_last(tmp_path, every, validated):
    fed = federate(tmp_path, num_rounds=5, check_val_every_n_rounds=every)
    found = rows(fed.run_dir)
    assert [int(r["round"]) for r in found] == [0, 1, 2, 3, 4]
    assert [int(r["round"]) for r in found if r.get("val/clients_mean")] == validated
    assert fed.results["best_round"] in validated


def test_a_seed_of_seed_everything_is_the_default(monkeypatch):
    assert FederatedTrainer().seed == 0
    monkeypatch.setenv("PL_GLOBAL_SEED", "17")
    assert FederatedTrainer().seed == 17 and FederatedTrainer(seed=3).seed == 3


# ---- Lightning's arguments ------------------------------------------------------------------------------------------


def test_fast_dev_run_is_one_round_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fed = federate(tmp_path, Linear, Central(*clients()), {"fast_dev_run": True, "logger": True}, num_rounds=50)
    assert fed.results["rounds_run"] == 1 and fed.run_dir is None
    assert list(tmp_path.iterdir()) == []


def test_bf16_mixed_over_rounds(tmp_path):
    fed = federate(tmp_path, trainer={"precision": "bf16-mixed"})
    assert fed.results["failures"] == [] and math.isfinite(fed.results["val"]["mean"])
    assert fed.module.net.weight.dtype == torch.float32


def test_float64(tmp_path):
    fed = federate(tmp_path, lambda: Linear().double(), trainer={"precision": "64-true"})
    assert fed.results["failures"] == [] and fed.module.net.weight.dtype == torch.float64


def test_no_logger_leaves_only_our_own_files(tmp_path):
    fed = federate(tmp_path)
    assert not list(tmp_path.rglob("events*")) and (fed.run_dir / "metrics.csv").is_file()
    assert fed.run_dir == tmp_path / "FedAvg" / "version_0"


def test_the_default_is_tensorboard_and_a_second_run_is_a_new_version(tmp_path):
    for version in range(2):
        fed = federate(tmp_path, trainer={"logger": True}, name="mine")
        assert fed.run_dir == tmp_path / "mine" / f"version_{version}" and list(fed.run_dir.glob("events*"))


def test_without_a_root_runs_go_to_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fed = FederatedTrainer(trainer={**CPU, "logger": False}, num_rounds=1)
    fed.fit(Linear(), clients())
    assert fed.run_dir.resolve() == tmp_path / "runs" / "FedAvg" / "version_0"


@pytest.mark.parametrize("many", [False, True])
def test_another_logger_gets_the_scalars_and_its_folder_is_the_runs(tmp_path, many):
    mine = CSVLogger(str(tmp_path / "logs"), name="csv")
    logger = [mine, TensorBoardLogger(str(tmp_path / "tb"))] if many else mine
    fed = federate(tmp_path, trainer={"logger": logger})
    assert fed.run_dir == tmp_path / "logs" / "csv" / "version_0"
    assert (fed.run_dir / "results.json").is_file() and last_checkpoint(fed.run_dir).name == "round_00001"
    with (tmp_path / "logs" / "csv" / "version_0" / "metrics.csv").open() as file:
        assert "val/clients_mean" in file.readline()
    assert bool(list((tmp_path).rglob("events*"))) == many
    stock = FederatedTrainer(trainer={**CPU, "logger": CSVLogger(str(tmp_path / "logs"), name="csv")}, num_rounds=2, seed=0)
    assert stock.test(Linear(), clients())["mean"] == fed.results["test"]["mean"]


def test_a_trainer_may_fit_twice(tmp_path):
    fed = federate(tmp_path)
    first = fed.run_dir
    fed.fit(Linear(), clients())
    assert fed.run_dir != first and fed.results["rounds_run"] == 2


def test_on_start_sees_the_folder_before_round_one(tmp_path):
    seen = []
    fed = FederatedTrainer(trainer={**CPU, "logger": False, "default_root_dir": str(tmp_path)}, num_rounds=1)
    fed.fit(Linear(), clients(), on_start=lambda folder: seen.append((folder, list(folder.rglob("round_*")))))
    assert seen == [(fed.run_dir, [])]


def test_results_are_those_of_the_file(tmp_path):
    fed = federate(tmp_path)
    assert json.loads((fed.run_dir / "results.json").read_text()) == fed.results


def test_predictions_of_the_global_model_and_of_the_clients(tmp_path):
    class WithPrediction(Table):
        def predict_dataloader(self):
            return self.val_dataloader()

    class CentralWithPrediction(Central):
        def predict_dataloader(self):
            return self.val_dataloader()

    tables = [WithPrediction(10, 1), WithPrediction(16, 2)]
    fed = federate(tmp_path, data=tables)
    found = fed.predict(fed.module, tables)
    for client, table in enumerate(tables):
        with torch.no_grad():
            torch.testing.assert_close(found[client][0]["output"], fed.module(table.held.tensors[0]))
    central = CentralWithPrediction(*tables)
    fed = federate(tmp_path, data=central)
    (batch,) = fed.predict(fed.module, central)[None]
    with torch.no_grad():
        torch.testing.assert_close(batch["output"], fed.module(next(iter(central.val_dataloader()))[0]))


def test_threads_are_given_back(tmp_path):
    torch.set_num_threads(2)
    federate(tmp_path)
    assert torch.get_num_threads() == 2
