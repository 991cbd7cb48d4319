"""With an unknown Lightning, or on request, clients have stock Trainers: the same bits, and nothing private is used."""

import functools
import json
import logging
import re
import sys
from pathlib import Path

import lightning as L
import pytest
import torch
from federations import (
    CPU,
    Central,
    Deep,
    Linear,
    assert_same_bits,
    checkpoint_tensors,
    clients,
    federate,
    last_checkpoint,
)  # fmt: skip

from fl_lightning import FederatedTrainer
from fl_lightning.engine import WorkerProcesses
from fl_lightning.engine.clock import Clock
from fl_lightning.engine.lightning_fast import trainers, versions
from fl_lightning.engine.trainers import Trainers
from fl_lightning.errors import FederationError

ROOT = Path(__file__).resolve().parents[4]
needs_a_proven_lightning = pytest.mark.skipif(not versions.is_proven(), reason="another Lightning: there is no short way")


@pytest.fixture
def future(monkeypatch):
    """A Lightning that nobody has tried."""
    versions._tell.cache_clear()
    monkeypatch.setattr(L, "__version__", "2.99.0")


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "fl_lightning"]


@pytest.mark.parametrize(("version", "proven"), [("2.6.0", True), ("2.6.17", True), ("2.60.0", False), ("2.5.6", False),
                                                 ("2.7.0.dev1", False), ("3.0.0", False)])  # fmt: skip
def test_the_minor_version_decides(monkeypatch, version, proven):
    monkeypatch.setattr(L, "__version__", version)
    assert versions.is_proven() is proven


def test_a_proven_lightning_is_not_worth_a_word(monkeypatch, caplog):
    versions._tell.cache_clear()
    monkeypatch.setattr(L, "__version__", f"{versions.PROVEN[0]}.3")
    versions.tell_if_unproven()
    assert told(caplog) == []


@needs_a_proven_lightning
def test_who_reuses_a_trainer():
    assert type(trainers({}, [], [], Clock())) is not Trainers
    assert type(trainers({}, [], [], Clock(), fast_loops=False)) is Trainers


SETTINGS = {"num_rounds": 2, "clients_per_round": 2, "carry_optimizer_state": True, "name": "deep"}


def run(folder, fast_loops=True, **settings):
    """Dropout, BatchNorm, shuffled mini-batches, a personal head, memory, Adam carried on, sampling."""
    data = Central(*clients((12, 9, 7), batch_size=5))
    return federate(folder, Deep, data, {"max_epochs": 2}, fast_loops=fast_loops, **{**SETTINGS, **settings})


@needs_a_proven_lightning
def test_an_unknown_lightning_says_so_once_before_round_one_and_gives_the_same_bits(tmp_path, future, caplog, monkeypatch):
    used = []
    real = L.Trainer.fit
    monkeypatch.setattr(L.Trainer, "fit", lambda self, *a, **k: (used.append((type(self), told(caplog))), real(self, *a, **k)))
    with caplog.at_level(logging.WARNING):
        stock = run(tmp_path / "unknown")
        run(tmp_path / "again", num_rounds=1)
    (line,) = told(caplog)
    assert re.match(r"lightning 2\.99\.0: the short way through the loops was proven with 2\.6\.\* only, so clients train in "
                    r"Lightning's own loops\. The results are the same.*`federation\.fast_loops: false`", line)  # fmt: skip
    assert {kind for kind, _ in used} == {L.Trainer} and used[0][1] == [line]
    monkeypatch.undo()
    fast = run(tmp_path / "known")
    assert stock.results["failures"] == fast.results["failures"] == []
    for fed in (stock, fast):
        assert len(list((fed.run_dir / "checkpoints").glob("round_*"))) == 2
    assert_same_bits(checkpoint_tensors(last_checkpoint(stock.run_dir)), checkpoint_tensors(last_checkpoint(fast.run_dir)))
    assert stock.results["last"] == fast.results["last"] and stock.results["val"] == fast.results["val"]


@needs_a_proven_lightning
def test_without_fast_loops_there_are_stock_trainers_and_no_word(tmp_path, caplog, future, monkeypatch):
    kinds = set()
    real = L.Trainer.__init__

    @functools.wraps(real)
    def noted(self, *args, **kwargs):
        kinds.add(type(self))
        real(self, *args, **kwargs)

    monkeypatch.setattr(L.Trainer, "__init__", noted)
    with caplog.at_level(logging.WARNING):
        stock = run(tmp_path / "asked", fast_loops=False)
    assert kinds == {L.Trainer} and told(caplog) == []
    monkeypatch.undo()
    fast = run(tmp_path / "fast")
    assert_same_bits(checkpoint_tensors(last_checkpoint(stock.run_dir)), checkpoint_tensors(last_checkpoint(fast.run_dir)))
    assert stock.results["last"] == fast.results["last"]


@pytest.mark.slow
def test_worker_processes_are_told_and_give_the_same_bits(tmp_path):
    """`Watched` fails in the reused Trainer."""
    stock = run(tmp_path / "stock", fast_loops=False, engine=WorkerProcesses(2))
    fast = run(tmp_path / "fast", engine=WorkerProcesses(2))
    assert_same_bits(checkpoint_tensors(last_checkpoint(stock.run_dir)), checkpoint_tensors(last_checkpoint(fast.run_dir)))
    assert not federate(tmp_path / "watched", Watched, engine=WorkerProcesses(1), fast_loops=False).results["failures"]
    if versions.is_proven():
        with pytest.raises(FederationError, match="not a stock Trainer"):
            federate(tmp_path / "reused", Watched, engine=WorkerProcesses(1))


class Watched(Linear):
    def on_train_start(self):
        if type(self.trainer) is not L.Trainer:
            raise RuntimeError("not a stock Trainer")


def test_a_run_that_was_fast_goes_on_in_stock_loops(tmp_path):
    """The bits are the same, so that it is the same run."""
    first = run(tmp_path / "begun", num_rounds=1)
    args = {**CPU, "max_epochs": 2, "default_root_dir": str(tmp_path / "begun"), "logger": False}
    torch.manual_seed(0)
    resumed = FederatedTrainer(trainer=args, seed=0, fast_loops=False, **SETTINGS)
    resumed.fit(Deep(), Central(*clients((12, 9, 7), batch_size=5)), ckpt_path="last")
    assert resumed.run_dir == first.run_dir
    whole = run(tmp_path / "whole")
    assert_same_bits(checkpoint_tensors(last_checkpoint(resumed.run_dir)), checkpoint_tensors(last_checkpoint(whole.run_dir)))


def test_the_setting_is_no_part_of_what_the_weights_depend_on(tmp_path):
    settings = [federate(tmp_path / str(fast), num_rounds=1, fast_loops=fast).settings.describe() for fast in (True, False)]
    assert settings[0] == settings[1] and "fast_loops" not in json.dumps(settings)


# ---- one home -------------------------------------------------------------------------------------------------------


def test_private_parts_of_lightning_are_imported_in_one_folder_only():
    """Of attributes ruff takes care (SLF)."""
    private = re.compile(r"^\s*from lightning\S* import .*\b_\w+|^\s*(from|import) lightning\S*\._", re.MULTILINE)
    found = [
        str(path.relative_to(ROOT))
        for package in ("fl_lightning", "lit_models", "datamodules")
        for path in (ROOT / package).rglob("*.py")
        if private.search(path.read_text(encoding="utf-8")) and path.parent.name != "lightning_fast"
    ]
    assert found == []


def test_an_unknown_lightning_may_lack_what_the_short_way_imports(future, monkeypatch):
    short = [f"fl_lightning.engine.lightning_fast.{name}" for name in ("reused_trainer", "short_runs")]
    for name in short:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    trainers({}, [], [], Clock()).take(training=True)
    at_the_top = re.compile(r"^(from|import) \S*lightning_fast(\.| import )(reused_trainer|short_runs)", re.MULTILINE)
    found = [path.name for path in (ROOT / "fl_lightning").rglob("*.py") if at_the_top.search(path.read_text())]
    assert found == ["reused_trainer.py"]
