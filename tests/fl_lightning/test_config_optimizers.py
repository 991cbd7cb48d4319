"""`optimizer:` and `lr_scheduler:` at the top of a config: each client's copy has its own, on the run's clock."""

import copy
import json

import pytest
import torch
import yaml
from federations import Bare, Linear, assert_same_bits, checkpoint_tensors, last_checkpoint

from fl_lightning.commands import main
from fl_lightning.config_optimizers import FromConfig

SGD = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.9}}
STEP = {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 2, "gamma": 0.5}}
CONFIG = {
    "seed_everything": 0,
    "federation": {"num_rounds": 3, "strategy": "fl_lightning.strategies.FedAvg", "monitor": "loss"},
    "trainer": {"max_epochs": 1, "accelerator": "cpu"},
    "model": {"class_path": "federations.Bare"},
    "data": {"class_path": "federations.OfSizes", "init_args": {"sizes": [10, 16]}},
    "optimizer": SGD,
    "lr_scheduler": STEP,
}


@pytest.fixture
def fit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(name, *options, **changed):
        Bare.rates.clear()
        config = {key: value for key, value in {**CONFIG, **changed}.items() if value is not None}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))
        code = main(["fit", "--config", f"{name}.yaml", *options])
        return code, tmp_path / "runs" / name / "version_0", capsys.readouterr().err

    return run


def test_every_client_steps_with_its_own_and_the_schedule_goes_over_the_rounds(fit):
    code, run, _ = fit("config")
    assert code == 0 and json.loads((run / "results.json").read_text())["failures"] == []
    assert Bare.rates[-6:] == [0.1] * 4 + [0.05] * 2  # two clients in three rounds of one epoch


def test_same_bits_as_a_module_with_the_method_written_out(fit):
    written = {"class_path": "federations.Linear", "init_args": {"lr": 0.1}}  # plain SGD
    _, run, _ = fit("config", lr_scheduler=None, optimizer={**SGD, "init_args": {"lr": 0.1}})
    _, other, _ = fit("method", lr_scheduler=None, optimizer=None, model=written)
    assert_same_bits(checkpoint_tensors(last_checkpoint(run)), checkpoint_tensors(last_checkpoint(other)))


@pytest.mark.slow
def test_worker_processes_have_them_too(fit):
    _, run, _ = fit("here")
    federation = {**CONFIG["federation"], "engine": "fl_lightning.engine.WorkerProcesses"}
    code, other, _ = fit("there", federation=federation)
    assert code == 0
    assert_same_bits(checkpoint_tensors(last_checkpoint(run)), checkpoint_tensors(last_checkpoint(other)))


def test_central_training_takes_them_too(fit):
    code, _, _ = fit("config", "--federation", "null")
    assert code == 0 and Bare.rates[-3:] == [0.1, 0.1, 0.05]


def test_a_run_does_not_go_on_with_another_rate(fit):
    fit("config")
    code, _, error = fit("config", "--ckpt_path", "last", optimizer={**SGD, "init_args": {"lr": 0.2}})
    assert code == 1 and "optimizer.init_args.lr" in error


def test_a_schedule_alone_is_refused(fit):
    code, run, error = fit("config", optimizer=None)
    assert code == 1 and "`lr_scheduler:` at the top of a config needs an `optimizer:`" in error and not run.exists()


def test_a_copy_optimizes_itself():
    module = Bare()
    module.configure_optimizers = FromConfig(module, SGD, STEP)
    other = copy.deepcopy(module)
    (optimizer,), (scheduler,) = other.configure_optimizers()
    assert [p for group in optimizer.param_groups for p in group["params"]] == list(other.parameters())
    assert scheduler.optimizer is optimizer and optimizer.param_groups[0]["lr"] == 0.1


def test_a_module_with_a_method_of_its_own_is_refused():
    with pytest.raises(ValueError, match=r"`model: Linear` has it\. Leave one of them out.*`model\.init_args`"):
        FromConfig(Linear(), SGD, None)


def test_a_plateau_names_what_it_watches():
    plateau = {"class_path": "lightning.pytorch.cli.ReduceLROnPlateau", "init_args": {"monitor": "val_loss"}}
    found = FromConfig(Bare(), SGD, plateau)()
    assert found["lr_scheduler"]["monitor"] == "val_loss" and isinstance(found["optimizer"], torch.optim.SGD)
