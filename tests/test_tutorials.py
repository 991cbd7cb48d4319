"""The tutorials for one's own data run as written: their Python makes the files, their YAML is the config, their commands run,
and what they say that `inspect` says, it says."""

import csv
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from fl_lightning.commands import main

DOCS = Path(__file__).resolve().parent.parent / "docs"


def run_tutorial(name, config, monkeypatch, capsys):
    """Runs all blocks in order; returns what each command printed."""
    monkeypatch.setattr(sys, "argv", ["fl-lightning"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.cwd() / "cache"))
    said = {}
    for language, block in re.findall(r"```(\w+)\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL):
        if language == "python":
            exec(compile(block, name, "exec"), {"__name__": "tutorial"})
        elif language == "yaml":
            Path(config).write_text(block)
        elif language == "bash":
            for line in block.strip().split("\n"):
                words = shlex.split(line)
                assert words[0] == "fl-lightning"
                capsys.readouterr()
                assert main(words[1:]) == 0
                said[words[1]] = capsys.readouterr().out
        elif language == "text":
            for line in block.strip().split("\n"):
                assert line in said["inspect"], line
    return said


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_consortium_of_sites(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_tutorial("own_molecules.md", "consortium.yaml", monkeypatch, capsys)
    rows = rows_of("runs/consortium/version_0/predictions_new.csv")
    assert [(r["id"], r["model"]) for r in rows] == [("N-1", "global"), ("N-2", "global")]
    assert all(abs(float(r["prediction_pIC50"]) - 6) < 4 for r in rows)
    rows = rows_of("runs/consortium/version_0/predictions.csv")
    assert len(rows) == 120 + 102 + 90 and {r["client"] for r in rows[:120]} == {"basel"}
    assert [r["id"] for r in rows if r["reason"]] == ["L-bad-1", "L-bad-2"]
    assert all(r["prediction_pIC50"] and r["model"] == "global" for r in rows if not r["reason"])
    results = json.loads(Path("runs/consortium/version_0/results.json").read_text())
    alone = json.loads(Path("runs/alone/version_0/results.json").read_text())
    assert results["num_clients"] == 3 and results["failures"] == [] and len(results["dropped_rows"]) == 2
    assert results["test"]["global"] < 2 and alone["test"]["mean"] is not None
    assert "<svg" not in Path("inspect.html").read_text() and "image/svg" in Path("inspect.html").read_text()


def test_a_graph_cut_among_owners(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_tutorial("own_graph.md", "shops.yaml", monkeypatch, capsys)
    rows = rows_of("runs/shops/version_0/predictions_next.csv")
    assert [(r["id"], r["model"]) for r in rows] == [("N-1", "global"), ("N-2", "global")]
    rows = rows_of("runs/shops/version_0/predictions.csv")
    assert [r["id"] for r in rows] == [f"C-{i:04d}" for i in range(300)] + ["C-0007"]
    assert rows[300]["reason"] == "the id is that of row 7, too"
    assert {r["client"] for r in rows[:300]} == {"north", "south", "web"}
    results = json.loads(Path("runs/shops/version_0/results.json").read_text())
    assert results["num_clients"] == 3 and results["test"]["global"] > 0.5  # chance: a third


@pytest.mark.parametrize("name", ["own_molecules.md", "own_graph.md"])
def test_options_in_the_tables_exist(name):
    from inspect import signature

    from datamodules import GraphCSVDataModule, GraphDataModule, MoleculeCSVDataModule, MoleculeDataModule

    known = {p for c in (GraphCSVDataModule, GraphDataModule, MoleculeCSVDataModule, MoleculeDataModule)
             for p in signature(c.__init__).parameters} | {"encoder"}  # fmt: skip
    rows = [line for line in (DOCS / name).read_text().split("\n") if line.startswith("| ") and "---" not in line]
    assert {option for line in rows[1:] for option in re.findall(r"`(\w+): ", line)} <= known and len(rows) >= 5
