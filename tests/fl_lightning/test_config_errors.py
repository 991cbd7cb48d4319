"""Mistakes in a config or on the command line: one sentence with the key, what was found, what is allowed, the nearest name."""

import importlib
import subprocess
import sys
from multiprocessing import spawn
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from jsonargparse import ArgumentError

from fl_lightning import __main__ as program
from fl_lightning.cli import FederatedCLI
from fl_lightning.commands import main
from fl_lightning.comparison import commands as comparing
from fl_lightning.comparison.changes import merged, nested
from fl_lightning.comparison.plan import read_plan
from fl_lightning.config_errors import sentence
from fl_lightning.config_files import check_plain, load_yaml
from fl_lightning.flower.yaml_config import read_keys

BASE = {
    "federation": {"num_rounds": 2, "strategy": {"class_path": "fl_lightning.strategies.FedAvg"}},
    "trainer": {"max_epochs": 1},
    "model": {
        "class_path": "lit_models.LitNodeClassifier",
        "init_args": {"encoder": {"class_path": "lit_models.GraphSAGE", "init_args": {"hidden_channels": 8}}},
    },
    "data": {"class_path": "datamodules.SyntheticCitationDataModule", "init_args": {"num_clients": 3}},
}
ENCODER = "model.init_args.encoder"


@pytest.fixture
def written(tmp_path):
    def write(change, name="c.yaml"):
        path = tmp_path / name
        path.write_text(yaml.safe_dump(merged(BASE, nested(change, "test"))))
        return str(path)

    return write


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"federation.strategy": {"class_path": "fl_lightning.strategies.FedAvgg"}},
            "`federation.strategy`: `fl_lightning.strategies` has no class `FedAvgg`. Did you mean `FedAvg`?",
        ),
        (
            {"federation.strategy": {"class_path": "FedPob"}},
            "`federation.strategy`: `FedPob` is no class. Did you mean `fl_lightning.strategies.FedPub`?",
        ),
        (
            {"federation.engine": {"class_path": "lit_models.GraphSAGE"}},
            "`federation.engine`: `lit_models.GraphSAGE` is no `Engine`. There are: fl_lightning.engine.InProcess, "
            "fl_lightning.engine.WorkerProcesses",
        ),
        (
            {f"{ENCODER}.init_args.hiden_channels": 4},
            "`model.init_args.encoder.init_args.hiden_channels`: no such key. Did you mean `hidden_channels`? There are: "
            "hidden_channels, num_layers, dropout.",
        ),
        (
            {"federation.strategy.init_args": {"tau": 3}},
            "`federation.strategy.init_args.tau`: no such key. There are: weighting.",
        ),
        (
            {"trainer.max_epoch": 3},
            "`trainer.max_epoch`: no such key. Did you mean `max_epochs`? There are: max_epochs, min_epochs, ",
        ),
        (
            {"model": {"class_path": "lit_models.LitNodeClassifier", "init_arg": {"encoder": {"class_path": "x"}}}},
            "`model.init_arg`: no such key. Did you mean `init_args`? There are: init_args, class_path. Arguments of the class",
        ),
        (
            {"model": {"class_path": "lit_models.LitNodeClassifier", "init_arg": {"encoder": {}}}},
            "`model.init_arg`: no such key. Did you mean `init_args`? There are: init_args, class_path. Arguments of the class",
        ),
        (
            {"federation.strategy": {"clas_path": "FedPub"}},
            "`federation.strategy.clas_path`: no such key. Did you mean `class_path`? There are: class_path, init_args.",
        ),
        (
            {"model": {"class_path": "lit_models.LitNodeClassifier", "weight": 3}},
            "`model.weight`: no such key. There are: class_path, init_args. Arguments of the class are below `init_args`.",
        ),
        (
            {"trainer.callbacks": [{"class_path": "lightning.pytorch.callbacks.Callback", "init_args": {"tau": 3}}]},
            "`trainer.callbacks.init_args.tau`: no such key. `lightning.pytorch.callbacks.Callback` takes no arguments.",
        ),
        ({"model": 3}, "`model` is `3`, but must name a class: `class_path`, and below `init_args` its arguments."),
        ({"federation.rounds": 4}, "`federation.rounds`: no such key. Did you mean `num_rounds`? There are: num_rounds, "),
        (
            {"model.init_args.optimizer": {"class_path": "torch.optim.SGD", "init_args": {"learning_rate": 1}}},
            "`model.init_args.optimizer.init_args.learning_rate`: no such key. There are: params, lr, momentum, ",
        ),
        ({"federation.num_rounds": "two"}, "`federation.num_rounds` is `two`, but must be a whole number."),
        ({"trainer.max_epochs": "many"}, "`trainer.max_epochs` is `many`, but must be a whole number or null."),
        ({"federation.clients_per_round": "all"}, "`federation.clients_per_round` is `all`, but must be a whole number or a"),
        ({"federation.monitor_mode": "maxi"}, "`federation.monitor_mode` is `maxi`, but must be `min`, `max` or null."),
        ({"federation.private": "head"}, "`federation.private` is `head`, but must be a list."),
        ({f"{ENCODER}.init_args.dropout": "a"}, "`model.init_args.encoder.init_args.dropout` is `a`, but must be a number."),
        (
            {"data": {"class_path": "own_pkg.Data"}},
            "`data`: there is no module `own_pkg`, neither installed nor in the current folder.",
        ),
        # `${...}` and its like, wherever they stand, also where a number belongs.
        (
            {"data": {"class_path": "datamodules.GraphCSVDataModule", "init_args": {"root": "${oc.env:HOME}/x"}}},
            "`data.init_args.root` is `${oc.env:HOME}/x`, but `${oc.env:HOME}` is not filled in here. Write it out (on the "
            'command line the shell does: --data.init_args.root "$HOME/data").',
        ),
        ({"federation.num_rounds": "${rounds}"}, "`federation.num_rounds` is `${rounds}`, but `${rounds}` is not filled in"),
        ({"federation.private": ["a.*", "${head}"]}, "`federation.private` is `${head}`, but `${head}` is not filled in here."),
        ({"trainer.default_root_dir": "$HOME/runs"}, "`trainer.default_root_dir` is `$HOME/runs`, but `$HOME/` is not filled"),
        ({"federation.name": "~/x"}, "`federation.name` is `~/x`, but `~/` is not filled in here."),
    ],
)
def test_mistakes_in_a_config(written, change, reason):
    with pytest.raises(ValueError) as error:
        FederatedCLI(["fit", "--config", written(change)])
    assert str(error.value).startswith(reason) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--trainer.max_epoch", "3"], "`--trainer.max_epoch`: no such key. Did you mean `--trainer.max_epochs`?"),
        (["--dat.init_args.root", "x"], "`--dat.init_args.root`: no such key. Did you mean `--data.init_args.root`?"),
        (["--surprise", "torch.optim.SGD"], "`--surprise`: no such key. Keys start with --seed_everything, --federation, "),
        (["stray"], "`stray` is no option; every value follows the name of its key, such as"),
        (["--trainer.accelerator"], "`--trainer.accelerator` needs a value."),
        (["--data.init_args.num_clients=${N}"], "`data.init_args.num_clients` is `${N}`, but `${N}` is not filled in here."),
        (["--seed_everything", "x"], "`seed_everything` is `x`, but must be true or false or a whole number."),
    ],
)
def test_mistakes_on_the_command_line(written, capsys, arguments, reason):
    code = main(["fit", "--config", written({}), *arguments])
    said = capsys.readouterr().err
    assert code == 1 and said.startswith(f"fl-lightning: error: {reason}") and len(said.splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("modle: 3\n", "`modle`: no such key. Did you mean `model`? There are: "),
        ("a: [1\nb: {", "c.yaml` is not YAML: line 2, column 2: "),
        ("dat:\n  class_path: x\n  init_args: {n: 3}\n", "`dat`: no such key. Did you mean `data`? There are: data, "),
        (
            "data:\n  init_args: {root: x,\n    n: ${N}}\n",
            "c.yaml` is not YAML: line 3, column 9: expected ',' or '}', but got '{'. `${...}` inside braces or brackets must",
        ),
        ("a: ${N}\nb: {c: d: e}", "c.yaml` is not YAML: line 2, column 9: expected ',' or '}', but got ':'."),
        ("- 1\n", "c.yaml` must hold `key: value` lines, but holds list."),
        ("federation: {}\n", "`model` is missing: give a config file that has it"),
    ],
)
def test_files_that_are_no_configs(tmp_path, text, reason):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ValueError) as error:
        FederatedCLI(["fit", f"--config={tmp_path / 'c.yaml'}"])
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_commands():
    with pytest.raises(
        ValueError, match="no command `fti`. Did you mean `fit`. There are: fit, .*inspect, canary, compare, report"
    ):
        FederatedCLI(["fti"])
    with pytest.raises(
        ValueError, match="name a command first: fl-lightning {fit,validate,test,predict,inspect,canary,compare,"
    ):
        FederatedCLI([])
    with pytest.raises(ValueError, match="`--config`: File does not exist: .*nowhere.yaml"):
        FederatedCLI(["fit", "--config", "nowhere.yaml"])


def test_what_nobody_foresaw_is_said_as_it_came():
    said = sentence(ArgumentError(None, "some\n  new message"), [], None)
    assert said == "some new message"


# ---- nothing is filled in: every other file of values --------------------------------------------------------------------


def test_comparisons_refuse_what_would_be_filled_in(tmp_path, written):
    written({"data": {"class_path": "datamodules.GraphCSVDataModule", "init_args": {"root": "${DATA}"}}}, "base.yaml")
    (tmp_path / "plan.yaml").write_text("base: base.yaml\nmethods: {A: {data.init_args.root: '${oc.env:HOME}/x'}}\n")
    with pytest.raises(ValueError, match=r"plan.yaml`: `methods.A.data.init_args.root` is `\$\{oc.env:HOME\}/x`, but "):
        read_plan(tmp_path / "plan.yaml")
    (tmp_path / "plan.yaml").write_text("base: base.yaml\nmethods: {A: {}}\n")
    with pytest.raises(ValueError, match=r"base.yaml`: `data.init_args.root` is `\$\{DATA\}`, but .* Write it out"):
        read_plan(tmp_path / "plan.yaml")
    with pytest.raises(ValueError, match=r"^`data.init_args.root` is `~/x`, but `~/` is not filled in here"):
        comparing.main(["compare", "--config", str(tmp_path / "plan.yaml"), "--data.init_args.root=~/x"])


def test_files_of_sites_and_servers_do_too(tmp_path):
    (tmp_path / "site.yaml").write_text("name: basel\ndata: {files: $HOME/a.csv}\n")
    with pytest.raises(ValueError, match=r"site.yaml`: `data.files` is `\$HOME/a.csv`, but `\$HOME/` is not filled .* out.$"):
        read_keys(tmp_path / "site.yaml", ("name",), ("data",))


def test_dollars_and_tildes_of_other_meaning_are_values(tmp_path):
    check_plain({"data": {"target": "price $", "columns": ["$usd", "a~b"], "sep": "~"}, "trainer": {"default_root_dir": "~/r"}})
    (tmp_path / "a.yaml").write_text("a: 1e-3\n")
    assert load_yaml(tmp_path / "a.yaml") == {"a": 0.001}


def test_home_in_the_runs_folder_is_the_home(tmp_path, monkeypatch):
    from fl_lightning.reporting.run_folder import RunFolder
    from fl_lightning.reporting.run_lock import RunLock

    monkeypatch.setenv("HOME", str(tmp_path))
    assert RunFolder("~/r", "a", False, RunLock()).path == tmp_path / "r" / "a" / "version_0"


# ---- classes of the current folder -----------------------------------------------------------------------------------------

OWN = """
from lit_models import GraphSAGE, LitNodeClassifier

class MyModel(LitNodeClassifier):
    def __init__(self):
        super().__init__(GraphSAGE(hidden_channels=4))
"""


def test_the_current_folder_is_the_first_place_of_classes_here_and_in_new_processes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.setattr(sys, "argv", ["fl-lightning", "fit"])
    monkeypatch.setattr("fl_lightning.__main__.run", lambda args: 0)
    for _ in range(2):
        with pytest.raises(SystemExit):
            program.main()
    assert sys.path[0] == str(tmp_path) and sys.path.count(str(tmp_path)) == 1
    assert str(tmp_path) in spawn.get_preparation_data("a worker")["sys_path"]
    (tmp_path / "own_pkg_here.py").write_text("X = 1\n")
    assert importlib.import_module("own_pkg_here").X == 1
    monkeypatch.setattr(sys, "flags", SimpleNamespace(safe_path=True))  # python -P
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(SystemExit):
        program.main()
    assert str(tmp_path.parent) not in sys.path


@pytest.mark.slow
def test_classes_of_the_current_folder_are_found_also_by_worker_processes(tmp_path):
    """As the console script does it: a process of its own, whose first path is the folder of the script."""
    (tmp_path / "own_pkg.py").write_text(OWN)
    config = merged(BASE, {"federation": {"engine": {"class_path": "fl_lightning.engine.WorkerProcesses"}, "num_rounds": 1}})
    config["model"] = {"class_path": "own_pkg.MyModel"}
    config["trainer"] = {"max_steps": 1, "accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    script = tmp_path / "bin" / "fl-lightning"
    script.parent.mkdir()
    script.write_text("import sys\nfrom fl_lightning.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())\n")
    root = str(Path(__file__).resolve().parents[2])
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys, runpy; sys.path[0] = {root!r}; sys.argv = ['fl-lightning', 'fit', '--config', "
         f"'c.yaml']; runpy.run_path({str(script)!r}, run_name='__main__')"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "runs" / "c" / "version_0" / "results.json").is_file()
