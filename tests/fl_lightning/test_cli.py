"""Command line: fit, validate, test, predict, inspect, the central baseline; exit codes and messages."""

import csv
import json
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from federations import CPU

from datamodules import SyntheticCitationDataModule
from fl_lightning import FedAvg, FederatedTrainer
from fl_lightning.commands import main
from lit_models import GraphSAGE, LitNodeClassifier

CONFIG = """
seed_everything: 0
federation:
  num_rounds: 2
  strategy: {class_path: fl_lightning.strategies.FedAvg, init_args: {weighting: num_samples}}
trainer: {max_epochs: 2, accelerator: cpu}
model:
  class_path: lit_models.LitNodeClassifier
  init_args:
    encoder: {class_path: lit_models.GraphSAGE, init_args: {hidden_channels: 8}}
    optimizer: {class_path: torch.optim.Adam, init_args: {lr: 0.02}}
data:
  class_path: datamodules.SyntheticCitationDataModule
  init_args: {num_nodes: 150, num_classes: 3, num_features: 40, blocks_per_class: 2, num_clients: 3, partition: louvain}
"""


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs a command in a folder of its own; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(CONFIG)

    def run(command, *options, config="small.yaml"):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["fl-lightning"])
        try:
            code = main([command, "--config", config, *options])
        except SystemExit as end:  # of argparse, and of `inspect --strict`
            code = end.code
        out, err = capsys.readouterr()
        return code, out, err

    run.folder = tmp_path
    return run


def results(run_dir):
    return json.loads((run_dir / "results.json").read_text())


def test_fit_validate_test_predict_and_going_on(call):
    code, out, err = call("fit")
    assert (code, err) == (0, ""), err
    run = call.folder / "runs" / "small" / "version_0"
    assert {p.name for p in run.iterdir()} >= {
        "config.yaml", "metrics.csv", "ledger.jsonl", "checkpoints", "partition.json", "results.json",
    }  # fmt: skip
    found = results(run)
    assert found["name"] == "small" and found["rounds_run"] == 2 and found["weighting"] == "num_samples"
    assert f"{found['test']['global']:.4f}" in out and "runs/small/version_0" in out

    code, out, _ = call("test")
    assert code == 0 and json.loads(out)["test"]["global"] == found["test"]["global"]
    code, out, _ = call("validate", "--ckpt_path", "last")
    assert code == 0 and json.loads(out)["val"]["per_client"] == found["last"]["val"]["per_client"]

    code, out, _ = call("predict")
    with (run / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert code == 0 and [int(r["id"]) for r in rows] == list(range(150))
    members = json.loads((run / "partition.json").read_text())["membership"]
    for row in rows[:20]:
        chances = [float(row[f"probability_{c}"]) for c in range(3)]
        assert sum(chances) == pytest.approx(1, abs=1e-4) and chances[int(row["prediction"])] == max(chances)
        assert int(row["id"]) in members[int(row["client"])]

    code, _, err = call("fit", "--ckpt_path", "last", "--federation.num_rounds", "3")
    assert (code, err) == (0, "") and results(run)["rounds_run"] == 3
    code, _, err = call("fit", "--ckpt_path", "last", "--model.init_args.encoder.init_args.hidden_channels", "9")
    assert code == 1 and "hidden_channels: 8 -> 9" in err
    assert "not even `--federation.force true` can load the checkpoint, for entry `encoder." in err
    code, _, err = call("fit", "--ckpt_path", "last", "--trainer.max_epochs", "5")
    assert code == 1 and "max_epochs: 2 -> 5" in err
    code, _, err = call("fit", "--ckpt_path", "last", "--data.init_args.seed", "4")
    assert code == 1 and "data" in err
    assert [p.name for p in run.parent.iterdir()] == ["version_0"]


def test_the_saved_config_repeats_the_run_bit_for_bit(call):
    call("fit", "--federation.clients_per_round", "0.5")
    first = call.folder / "runs" / "small" / "version_0"
    code, _, err = call("fit", config=str(first / "config.yaml"))
    assert code == 0, err
    (second,) = [p.parent for p in (call.folder / "runs").rglob("results.json") if p.parent != first]
    assert results(first)["test"] == results(second)["test"] and results(first)["last"] == results(second)["last"]


def test_python_and_command_line_agree(call):
    call("fit")
    data = SyntheticCitationDataModule(
        num_nodes=150, num_classes=3, num_features=40, blocks_per_class=2, num_clients=3, partition="louvain"
    )
    fed = FederatedTrainer(
        trainer={**CPU, "max_epochs": 2, "logger": False}, num_rounds=2, strategy=FedAvg("num_samples"), seed=0
    )
    module = LitNodeClassifier(GraphSAGE(hidden_channels=8), optimizer=partial(torch.optim.Adam, lr=0.02))
    assert fed.fit(module, data)["test"] == results(call.folder / "runs" / "small" / "version_0")["test"]


def test_training_from_the_command_line_really_trains(call):
    # The trap: an optimiser bound to the template module, while copies are trained. Loss on training nodes falls.
    call("fit", "--federation.num_rounds", "12")
    with (call.folder / "runs" / "small" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["clients/0/train/loss"]) < 0.6 * float(rows[0]["clients/0/train/loss"])
    code, _, err = call("fit", "--optimizer", "torch.optim.SGD")
    assert code == 1 and "`model: LitNodeClassifier` has it" in err and "`model.init_args`" in err


def test_central_baseline(call):
    code, out, err = call("fit", "--federation", "null")
    assert code == 0, err
    (path,) = (call.folder / "runs").rglob("results.json")
    found = results(path.parent)
    assert found["strategy"] == "Central" and found["rounds_run"] == 4 and "2 rounds x 2 epochs = 4 epochs" in out
    assert found["test"]["global"] is not None and len(found["test"]["per_client"]) == 3
    assert found["bytes"] == {"up": 0, "down": 0, "by_kind": {}}
    assert (path.parent / "config.yaml").is_file()


def test_a_central_run_goes_on_from_its_last_epoch_and_never_anew(call):
    central = ("--federation", "null")
    code, _, err = call("fit", *central, "--ckpt_path", "last")
    assert code == 1 and "`--ckpt_path last`: no central run with a checkpoint in `runs/small_central`. Leave it out" in err
    assert not (call.folder / "runs").exists()
    call("fit", *central, "--trainer.max_epochs", "2")
    code, out, err = call("fit", *central, "--ckpt_path", "last", "--trainer.max_epochs", "3")
    runs = call.folder / "runs" / "small_central"
    (source,) = (runs / "version_0" / "checkpoints").glob("epoch=1-*.ckpt")
    assert code == 0 and f"central: goes on from {source.relative_to(call.folder)}" in out and err == ""
    assert results(runs / "version_1")["rounds_run"] == 3
    last = torch.load(next((runs / "version_1" / "checkpoints").glob("epoch=2-*.ckpt")), weights_only=True)
    assert last["global_step"] == 3 * torch.load(source, weights_only=True)["global_step"] / 2  # not 3 epochs anew
    code, out, err = call("test", *central, "--ckpt_path", "last")
    assert code == 0 and err == "" and f"{results(runs / 'version_1')['last']['test']['global']:.4f}"[:5] in out


def test_the_central_model_predicts_only_once_it_is_trained(call):
    code, _, err = call("predict", "--federation", "null")
    assert code == 1 and "no central run with a checkpoint in `runs/small_central`. Fit first" in err
    call("fit", "--federation", "null")
    code, out, err = call("predict", "--federation", "null")
    run = call.folder / "runs" / "small_central" / "version_0"
    assert code == 0 and "small_central/version_0/predictions.csv" in out, err
    with (run / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    data = SyntheticCitationDataModule(num_nodes=150, num_classes=3, num_features=40, blocks_per_class=2, num_clients=3)
    data.setup()
    right = [int(row["prediction"]) == label for row, label in zip(rows, data.data.y.tolist(), strict=True)]
    score = sum(ok for ok, test in zip(right, data.data.test_mask.tolist(), strict=True) if test) / data.num_test_samples
    assert score == pytest.approx(results(run)["test"]["global"])


def test_local_only_scores_each_on_the_whole_graph(call):
    code, out, err = call("fit", "--federation.strategy", "fl_lightning.strategies.LocalOnly")
    assert code == 0, err
    found = results(call.folder / "runs" / "small" / "version_0")
    assert found["test"]["global"] is None and len(found["test"]["each_on_global"]) == 3


@pytest.mark.parametrize(
    ("value", "kind"), [("1", int), ("2", int), ("0.5", float), ("1.0", float)]
)  # fmt: skip
def test_a_count_stays_a_count_and_a_fraction_a_fraction(call, value, kind):
    code, out, _ = call("fit", "--federation.clients_per_round", value, "--print_config")
    assert code == 0
    shown = yaml.safe_load(out)["federation"]
    shown = shown.get("init_args", shown)["clients_per_round"]
    assert type(shown) is kind and shown == kind(value)


def test_print_config_shows_every_section_and_trains_nothing(call):
    code, out, _ = call("fit", "--print_config")
    assert code == 0 and yaml.safe_load(out).keys() >= {"seed_everything", "federation", "trainer", "model", "data"}
    assert not (call.folder / "runs").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--federation.num_round", "3"], "num_round"),
        (["--federation.strategy", "fl_lightning.strategies.FedAwg"], "FedAwg"),
        (["--federation.strategy.init_args.tau", "3"], "tau"),
        (["--federation.num_rounds", "two"], "num_rounds"),
        (["--federation.clients_per_round", "0"], "`federation.clients_per_round`"),
        (["--federation.clients_per_round", "null"], "`federation.clients_per_round` must be a count of at least 1"),
        (["--federation.num_rounds", "0"], "`federation.num_rounds` must be at least 1"),
        (["--trainer.maximum", "3"], "maximum"),
        (["--trainer.max_epoch", "3"], "max_epoch"),
        (["--data.init_args.num_clients", "500"], "500"),
        (["--data.init_args.batch_size", "0"], "batch_size"),
        (["--model.init_args.num_classes", "2"], "`model.init_args.num_classes` is 2"),
        (["--federation.monitor", "auc"], "`federation.monitor` is `auc`, but `LitNodeClassifier` logs"),
        (["--ckpt_path", "last"], "no run with a checkpoint"),
        (["--trainer.callbacks", "lightning.pytorch.callbacks.ModelCheckpoint"], "ModelCheckpoint"),
    ],
)
def test_mistakes_end_with_a_message_in_the_users_names(call, options, text):
    code, _, err = call("fit", *options)
    assert code not in (0, None) and text in err and "Traceback" not in err


def test_what_a_class_says_of_its_arguments_is_all_that_is_said(call):
    code, _, err = call("fit", "--data.init_args.batch_size", "0")
    assert code == 1 and err.startswith("fl-lightning: error: `data.init_args.batch_size` is 0, but must be at least 1")
    assert "Union" not in err and "Namespace" not in err


def test_a_missing_config_file(call):
    code, _, err = call("fit", config="nowhere.yaml")
    assert code not in (0, None) and "nowhere.yaml" in err


def test_a_failed_federation_has_an_exit_code_and_reasons(call):
    (call.folder / "broken.yaml").write_text(
        CONFIG.replace("lit_models.LitNodeClassifier", "federations.Linear").split("model:")[0]
        + "model: {class_path: federations.Linear}\n"
        + "data:"
        + CONFIG.split("data:")[1]
    )
    code, _, err = call("fit", config="broken.yaml")
    assert code == 1 and "Round 1, step `fit`: 0 client(s) answered" in err
    assert all(f"client {c}: " in err for c in range(3)) and not list(call.folder.rglob("results.json"))


def test_inspect(call):
    code, out, _ = call("inspect", "--json")
    report = json.loads(out)
    assert code == 0 and report.keys() >= {"client_sizes", "num_clients", "findings", "dropped_rows"}
    assert report["num_clients"] == 3 and sum(report["client_sizes"]) == 150
    assert all(f.keys() >= {"kind", "client", "count", "message", "remedy"} for f in report["findings"])
    code, out, _ = call("inspect")
    assert code == 0 and "client" in out
    code, _, _ = call("inspect", "--strict")
    assert code == (1 if report["findings"] else 0)


def test_default_root_dir_moves_the_runs_folder(call):
    code, out, _ = call("fit", "--trainer.default_root_dir", str(call.folder / "elsewhere"))
    assert code == 0 and (call.folder / "elsewhere" / "small" / "version_0" / "results.json").is_file()
    assert not (call.folder / "runs").exists()


def test_fast_dev_run_writes_nothing(call):
    code, _, err = call("fit", "--trainer.fast_dev_run", "true")
    assert (code, err) == (0, "")
    assert [p.name for p in call.folder.iterdir()] == ["small.yaml"]


def test_the_module_runs_as_a_program(monkeypatch):
    from fl_lightning import __main__ as program

    called = []
    monkeypatch.setattr("fl_lightning.cli.main", lambda args: called.append(args) or 3)
    monkeypatch.setattr(sys, "argv", ["fl-lightning", "fit", "--config", "configs/demo.yaml"])
    with pytest.raises(SystemExit) as end:
        program.main()
    (args,) = called
    assert end.value.code == 3 and args[:2] == ["fit", "--config"] and Path(args[2]).is_file()  # the package's own


# ---- central, by the federation's rules -----------------------------------------------------------------------------


def test_central_training_reads_what_the_config_says_of_the_federation(call):
    (call.folder / "small.yaml").write_text(CONFIG.replace("num_rounds: 2", "num_rounds: 2\n  monitor: loss"))
    code, out, err = call("fit", "--federation", "null")
    run = call.folder / "runs" / "small_central" / "version_0"
    assert code == 0 and (results(run)["metric"], results(run)["mode"], results(run)["rounds_run"]) == ("loss", "min", 4), err
    head = (run / "config.yaml").read_text().split("\n")[0]
    assert head == "# fl-lightning fit --config config.yaml --federation.monitor loss --federation null"
    arguments = head.split()[5:]
    code, out, err = call("fit", *arguments, config=str(run / "config.yaml"))  # the file repeats the run
    again = call.folder / "runs" / "config_central" / "version_0"
    assert code == 0 and results(again)["test"] == results(run)["test"] and results(again)["metric"] == "loss", err


def test_central_training_reads_what_the_command_line_says_of_the_federation(call):
    options = ("--federation.monitor=loss", "--federation.num_rounds", "1", "--federation", "null")
    code, out, err = call("fit", *options, "--trainer.max_epochs=1")
    found = results(call.folder / "runs" / "small_central" / "version_0")
    assert code == 0 and found["metric"] == "loss" and found["rounds_run"] == 1, err
    code, out, _ = call("fit", *options)
    assert "1 rounds x 2 epochs = 2 epochs" in out
    code, _, err = call("fit", "--federation.monitor", "auc", "--federation", "null")
    assert code == 1 and "`federation.monitor` is `auc`, but `LitNodeClassifier` logs for `val` only: accuracy" in err


def test_the_arguments_of_the_program_that_calls_us_are_not_read(call, monkeypatch):
    foreign = ["my_script.py", "--trainer.max_epochs", "7", "--federation.monitor", "auc", "--config", "other.yaml"]
    for own, epochs in ((["--trainer.max_epochs", "1"], 1), ([], 4)):
        monkeypatch.setattr(sys, "argv", foreign)
        main(["fit", "--config", "small.yaml", "--federation", "null", *own])
        newest = max((call.folder / "runs" / "small_central").iterdir())
        assert results(newest)["rounds_run"] == epochs and results(newest)["metric"] == "accuracy"


def test_central_commands_leave_the_current_folder_alone(call):
    (call.folder / "config.yaml").write_text(CONFIG)
    for command in ("fit", "test"):
        code, _, err = call(command, "--federation", "null", "--trainer.logger", "false", config="config.yaml")
        assert code == 0, err
    assert (call.folder / "config.yaml").read_text() == CONFIG
    assert sorted(p.name for p in call.folder.iterdir()) == ["config.yaml", "runs", "small.yaml"]


# ---- where predictions go -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("federation", [(), ("--federation", "null")])
def test_predictions_of_a_lone_checkpoint_need_a_file(call, federation):
    call("fit", *federation, "--federation.num_rounds", "1") if not federation else call("fit", *federation)
    checkpoints = next((call.folder / "runs").rglob("checkpoints"))
    place = call.folder / "my" / "checkpoints"
    shutil.copytree(checkpoints, place)
    (call.folder / "my" / "predictions.csv").write_text("mine")
    lone = str(place / ("best.ckpt" if federation else "round_00000"))
    code, _, err = call("predict", *federation, "--ckpt_path", lone)
    assert code == 1 and "lies in no run's folder, where the predictions would be written. Name a file: `--output FILE" in err
    code, out, err = call("predict", *federation, "--ckpt_path", lone, "--output", "out.csv")
    assert code == 0 and "predictions: out.csv" in out and len((call.folder / "out.csv").read_text().split("\n")) == 152, err
    assert (call.folder / "my" / "predictions.csv").read_text() == "mine"
