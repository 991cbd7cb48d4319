"""The direction of imports, no pickle, no unsafe load, and what is installed."""

import ast
import configparser
import inspect
import re
from pathlib import Path

import pytest
from setuptools import find_packages

import fl_lightning
from fl_lightning import strategies

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fl_lightning", "lit_models", "datamodules")


def sources(package):
    return sorted((ROOT / package).rglob("*.py"))


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("lit_models", {"fl_lightning", "datamodules"}),
        ("datamodules", {"fl_lightning", "lit_models"}),
        ("fl_lightning/engine", {"lit_models", "datamodules"}),
        ("fl_lightning/reporting", {"lit_models", "datamodules"}),
    ],
)
def test_packages_do_not_know_each_other(package, forbidden):
    assert sources(package)
    for path in sources(package):
        wrong = {name for name in imports(path) if name.split(".")[0] in forbidden}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


@pytest.mark.parametrize(
    ("layer", "forbidden"),
    [
        ("engine", ("fl_lightning.strategies", "fl_lightning.trainer", "fl_lightning.cli", "fl_lightning.settings")),
        ("strategies", ("fl_lightning.trainer", "fl_lightning.cli", "fl_lightning.settings")),
        ("reporting", ("fl_lightning.trainer", "fl_lightning.cli", "fl_lightning.strategies")),
    ],
)
def test_cli_trainer_strategies_engine(layer, forbidden):
    for path in sources(f"fl_lightning/{layer}"):
        wrong = [name for name in imports(path) if name.startswith(forbidden)]
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_pickled_and_only_weights_are_loaded(package):
    for path in sources(package):
        if package != "datamodules":  # Planetoid's files are pickles; the unpickler there builds arrays and nothing else
            assert not {n.split(".")[0] for n in imports(path)} & {"pickle", "cloudpickle", "dill", "joblib", "shelve"}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "load_from_checkpoint"):
                options = {k.arg: ast.unparse(k.value) for k in node.keywords}
                assert options.get("weights_only") == "True", f"{path.relative_to(ROOT)}:{node.lineno}"


def test_no_assert_and_no_print_for_users():
    for package in PACKAGES:
        for path in sources(package):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
                assert not isinstance(node, ast.Assert), where
                assert not (isinstance(node, ast.Call) and ast.unparse(node.func) == "print"), where


def test_three_top_level_packages_are_installed():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert "jsonargparse[signatures]" in setup["options"]["install_requires"]  # LightningCLI does not say that it needs it
    include = setup["options.packages.find"]["include"].split()
    found = find_packages(str(ROOT), include=include)
    assert {name.split(".")[0] for name in found} == set(PACKAGES)
    for package in PACKAGES:
        folders = {str(p.parent.relative_to(ROOT)).replace("/", ".") for p in (ROOT / package).rglob("*.py")}
        assert folders <= set(found), "a folder without __init__.py would not be installed"


def test_the_constraints_are_asked_for_every_extra():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = ",".join(sorted(set(setup["options.extras_require"]) - {"chemprop"}))  # that one needs an rdkit of its own
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert '--dry-run -e ".[chemprop]"' in makefile
    assert f"EXTRAS := {extras}\n" in makefile and '--dry-run -e ".[$(EXTRAS)]"' in makefile
    assert "make constraints" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    wanted = "\n".join(setup["options.extras_require"].values()) + setup["options"]["install_requires"]
    assert {name.lower() for name in re.findall(r"^[\w-]+", wanted, re.M)} <= pinned


def test_only_the_trainer_the_strategies_and_loading_are_public():
    assert set(fl_lightning.__all__) == {"FederatedTrainer", "load_model"} | {
        name for name in strategies.__all__ if name not in ("Phase", "Strategy")
    }


def test_tests_are_no_packages():
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_every_public_class_is_documented():
    for name in fl_lightning.__all__:
        assert inspect.getdoc(getattr(fl_lightning, name))
