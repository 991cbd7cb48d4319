"""Resume: a run that was killed and went on is bit for bit the run that was not; what does not belong together is refused."""

import csv
import errno
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from federations import (
    CPU,
    Central,
    Deep,
    Linear,
    Table,
    assert_same_bits,
    checkpoint_tensors,
    clients,
    federate,
    last_checkpoint,
    without_times,
)

from fl_lightning import FedAvg, FederatedTrainer, LocalOnly
from fl_lightning.engine import InProcess, checkpoint
from fl_lightning.engine.ledger import is_ledger
from fl_lightning.engine.store import write_tensors
from fl_lightning.errors import ResumeError
from fl_lightning.strategies import Phase

SETTINGS = {"num_rounds": 5, "clients_per_round": 0.6, "carry_optimizer_state": True, "seed": 0}


class Killed(Deep):
    """Kills its process in the middle of a fit of round 2, if a file says so."""

    def __init__(self, orders=None):
        super().__init__()
        self.orders, self.fits = orders, 0

    def on_round_start(self, round, num_rounds):
        self.fits += round == 2
        super().on_round_start(round, num_rounds)

    def on_train_end(self):
        super().on_train_end()
        if self.fits == 2 and self.orders and Path(self.orders).exists():  # the second of round 2's three clients
            Path(self.orders).unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def data():
    return Central(*clients((12, 9, 20, 7, 17), batch_size=5))


def trainer(root, **more):
    return FederatedTrainer(
        trainer={**CPU, "logger": True, "default_root_dir": str(root), "max_epochs": 2}, **{**SETTINGS, **more}
    )


def run(root, orders=None, ckpt_path=None, **more):
    torch.manual_seed(0)
    fed = trainer(root, **more)
    fed.module = Killed(orders)
    fed.fit(fed.module, data(), ckpt_path)
    return fed


def rows(run_dir):
    with (run_dir / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """(uninterrupted run, run that was killed by SIGKILL in the middle of round 2 and went on with ``last``)."""
    straight = run(tmp_path_factory.mktemp("straight"))
    root = tmp_path_factory.mktemp("killed")
    orders = root / "die"
    orders.touch()
    pid = os.fork()
    if pid == 0:
        try:
            run(root, str(orders))
        finally:
            os._exit(7)  # never reached: the run kills itself
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    (run_dir,) = (root / "FedAvg").glob("version_*")
    assert last_checkpoint(run_dir).name == "round_00001" and not (run_dir / "results.json").exists()
    torn = run_dir / "checkpoints" / ".writing_round_00002"  # as if it had died while writing
    torn.mkdir()
    (torn / "server.pt").write_bytes(b"half")
    time.sleep(1.1)  # TensorBoard orders files by the second in which they were begun
    resumed = run(root, str(orders), ckpt_path="last")
    assert resumed.run_dir == run_dir
    return straight, resumed


def test_weights_and_private_states_are_the_same(killed):
    straight, resumed = killed
    for round in ("round_00003", "round_00004"):
        mine, other = (checkpoint_tensors(fed.run_dir / "checkpoints" / round) for fed in killed)
        assert any("optimizer" in name for name in mine) and any("objective" in name for name in mine)
        assert_same_bits(mine, other)
    assert_same_bits(straight.module.state_dict(), resumed.module.state_dict())


def test_results_ledger_and_metrics_are_the_same(killed):
    straight, resumed = killed
    assert without_times(straight.results) == without_times(resumed.results)
    assert rows(straight.run_dir) == rows(resumed.run_dir)
    ledgers = [(fed.run_dir / "ledger.jsonl").read_text() for fed in killed]
    assert ledgers[0] == ledgers[1]
    assert straight.results["bytes"]["up"] > 0


def test_time_before_the_kill_is_counted(killed):
    _, resumed = killed
    assert resumed.results["seconds"]["total"] > resumed.results["seconds"]["train"] > 0


def test_tensorboard_has_every_round_once_after_resuming(killed):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for fed in killed:
        events = EventAccumulator(str(fed.run_dir))
        events.Reload()
        for tag in ("val/clients_mean", "clients/0/val/loss", "bytes/up", "seconds/round"):
            assert [e.step for e in events.Scalars(tag)] == [0, 1, 2, 3, 4]
        values = [e.value for e in events.Scalars("val/clients_mean")]
        assert values == pytest.approx([float(r["val/clients_mean"]) for r in rows(fed.run_dir)])


def test_checkpoints_hold_tensors_and_json_only(killed):
    for path in (killed[0].run_dir / "checkpoints").rglob("*.pt"):
        content = torch.load(path, weights_only=True)
        assert content.keys() == {"tensors", "values"}
        assert all(isinstance(t, torch.Tensor) for t in content["tensors"].values())
        json.loads(content["values"])


def test_last_k_and_the_best_are_kept(tmp_path):
    class GetsWorse(Linear):
        """Best in round 1."""

        def on_round_start(self, round, num_rounds):
            self.at = round

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", float(abs(getattr(self, "at", 0) - 1)))

    fed = federate(tmp_path, GetsWorse, num_rounds=6, keep_last=2)
    assert [p.name for p in sorted((fed.run_dir / "checkpoints").glob("round_*"))] == [
        "round_00001", "round_00004", "round_00005",
    ]  # fmt: skip
    assert fed.results["best_round"] == 1


def test_the_best_round_is_what_is_tested_and_left_in_the_module(tmp_path):
    fed = federate(tmp_path, lambda: Linear(lr=1.2), Central(*clients((10, 16))), num_rounds=4, keep_last=9)
    best = fed.results["best_round"]  # lr 1.2 diverges, so the first round is the best
    assert best < 3 and fed.results["val"]["global"] < fed.results["last"]["val"]["global"]
    saved = checkpoint.read(fed.run_dir / "checkpoints" / f"round_{best:05d}")[0]
    assert_same_bits(saved, dict(fed.module.state_dict()))


def test_unchanged_memories_are_links_and_changed_ones_are_not(tmp_path):
    fed = federate(tmp_path, Deep, clients((8,) * 6), num_rounds=3, clients_per_round=1, keep_last=9)
    folders = sorted((fed.run_dir / "checkpoints").glob("round_*"))
    inodes = [{p.name: p.stat().st_ino for p in f.glob("client_*")} for f in folders]
    for before, after in zip(inodes, inodes[1:], strict=False):
        same = [name for name in before if before[name] == after[name]]
        assert len(same) >= len(before) - 1 and len(after) - len(same) == 1  # only the one that took part is written


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("finished")
    return run(root, num_rounds=2), root


def slower():
    module = Killed()
    module.hparams.lr = 0.1
    return module


CHANGES = {
    "seed": ({"seed": 5}, None, None, "seed: 0 -> 5"),
    "sampling": ({"clients_per_round": 2}, None, None, r"federation.clients_per_round: 0.6 -> 2"),
    "strategy": ({"strategy": FedAvg("uniform")}, None, None, "federation.strategy.weighting: num_samples -> uniform"),
    "class": ({"strategy": LocalOnly(), "name": "FedAvg"}, None, None, "federation.strategy.class: .*FedAvg -> .*LocalOnly"),
    "moments": ({"carry_optimizer_state": False}, None, None, "federation.carry_optimizer_state: True -> False"),
    "threads": ({"engine": InProcess(threads=2)}, None, None, "federation.threads: 1 -> 2"),
    "model": ({}, slower, None, "config.hparams.lr: 0.05 -> 0.1"),
    "count": ({}, None, lambda: Central(*clients((12, 9))), "clients: 5 -> 2"),
    "data": ({}, None, lambda: Central(*clients((12, 9, 20, 7, 18), batch_size=5)), r"data: \[.*17\] -> \[.*18\]"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_run_is_refused_with_the_difference(finished, change):
    settings, module, other, text = change
    _, root = finished
    fed = trainer(root, **settings)
    with pytest.raises(ResumeError, match=rf"(?s)another configuration.*{text}.*--federation.force true"):
        fed.fit((module or Killed)(), (other or data)(), ckpt_path="last")


class Wider(Killed):
    """Its layers have another shape."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("verb", ["fit", "test", "predict"])
def test_force_is_not_advised_where_it_cannot_help(finished, force, verb):
    fed = trainer(finished[1], force=force)
    with pytest.raises(ResumeError) as refused:
        getattr(fed, verb)(Wider(), data(), ckpt_path="last")
    said = str(refused.value)
    assert "config.state.net.0.weight: ['torch.float32', [8, 3]] -> ['torch.float32', [16, 3]]" in said
    assert said.endswith(
        "\nUse the same, or begin a new run: not even `--federation.force true` can load the checkpoint, for entry "
        "`net.0.weight` is float32[8, 3] there and float32[16, 3] now."
    )


def test_the_content_of_data_with_a_fingerprint_is_compared(tmp_path):
    class Marked(Table):
        mark = "a"

        def fingerprint(self):
            return self.mark

    def go(mark, ckpt_path=None, **more):
        tables = [Marked(10, 1), Marked(16, 2)]
        tables[1].mark = mark
        fed = FederatedTrainer(trainer={**CPU, "logger": False, "default_root_dir": str(tmp_path)}, num_rounds=1, **more)
        torch.manual_seed(0)
        return fed.fit(Linear(), tables, ckpt_path)

    go("a")
    with pytest.raises(ResumeError, match=r"data: \['a', 'a'\] -> \['a', 'b'\]"):
        go("b", "last")
    assert go("b", "last", force=True)["rounds_run"] == 1


def test_force_goes_on_all_the_same(finished, tmp_path):
    _, root = finished
    shutil.copytree(root, tmp_path / "copy")
    fed = run(tmp_path / "copy", ckpt_path="last", num_rounds=3, clients_per_round=2, force=True)
    assert fed.results["rounds_run"] == 3


def test_more_rounds_another_engine_and_name_are_no_change(finished, tmp_path):
    _, root = finished
    shutil.copytree(root / "FedAvg", tmp_path / "copy" / "other")
    more = {"num_rounds": 3, "engine": InProcess(rebuild_clients=True), "name": "other", "keep_last": 5}
    fed = run(tmp_path / "copy", ckpt_path="last", **more)
    straight = run(tmp_path / "straight", num_rounds=3)
    assert_same_bits(checkpoint_tensors(last_checkpoint(fed.run_dir)), checkpoint_tensors(last_checkpoint(straight.run_dir)))


def test_a_finished_run_resumed_changes_nothing(finished):
    first, root = finished
    again = run(root, ckpt_path="last", num_rounds=2)
    assert without_times(first.results) == without_times(again.results)


def test_going_on_from_an_earlier_checkpoint_forgets_the_later_ones(tmp_path):
    first = run(tmp_path, num_rounds=4, keep_last=9)
    before = checkpoint_tensors(last_checkpoint(first.run_dir))
    again = run(
        tmp_path, num_rounds=4, keep_last=2, ckpt_path=str(first.run_dir / "checkpoints" / "round_00000")
    )  # fmt: skip
    assert_same_bits(before, checkpoint_tensors(last_checkpoint(again.run_dir)))
    assert [r["round"] for r in rows(again.run_dir)] == ["0", "1", "2", "3"]
    assert without_times(first.results) == without_times(again.results)


def somebody_elses(folder):
    """Files of another project, which bear the names of ours."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("results.json", "metrics.csv", "predictions.csv", "partition.json"):
        (folder / name).write_text("mine")
    later = folder / "checkpoints" / "round_00009"
    later.mkdir(parents=True)
    (later / "server.pt").write_bytes(b"mine, too")


@pytest.mark.parametrize("place", ["backup/x", "checkpoints/round_00001", "checkpoints/kept"])
def test_a_checkpoint_that_lies_in_no_run_goes_on_in_a_new_one(tmp_path, caplog, place):
    first = run(tmp_path / "runs", num_rounds=3)
    my = tmp_path / "my"
    somebody_elses(my)
    shutil.copytree(first.run_dir / "checkpoints" / "round_00001", my / place)
    before = {p: p.read_bytes() for p in my.rglob("*") if p.is_file()}
    again = run(tmp_path / "runs", num_rounds=3, ckpt_path=str(my / place))
    assert again.run_dir != first.run_dir and again.source_dir is None and "lies in no run's folder" in caplog.text
    assert {p: p.read_bytes() for p in my.rglob("*") if p.is_file()} == before
    assert [r["round"] for r in rows(again.run_dir)] == ["2"] and (again.run_dir / "ledger.jsonl").stat().st_size > 0
    assert_same_bits(*(checkpoint_tensors(last_checkpoint(fed.run_dir)) for fed in (first, again)))
    assert first.results["bytes"] == again.results["bytes"] and again.results["rounds_run"] == 3


def test_the_best_round_beside_a_lone_checkpoint_comes_along(tmp_path):
    fed = federate(tmp_path, lambda: Linear(lr=1.2), Central(*clients((10, 16))), num_rounds=2, keep_last=9)
    shutil.copytree(fed.run_dir / "checkpoints", tmp_path / "kept")
    torch.manual_seed(0)
    again = FederatedTrainer(trainer={**CPU, "logger": False, "default_root_dir": str(tmp_path)}, num_rounds=3, seed=0)
    again.fit(Linear(lr=1.2), Central(*clients((10, 16))), str(tmp_path / "kept" / "round_00001"))
    assert again.results["best_round"] == 0 and (again.run_dir / "checkpoints" / "round_00000").is_dir()


def test_a_copied_run_goes_on_where_it_now_is_also_from_inside_of_it(tmp_path, monkeypatch):
    first = run(tmp_path / "runs", num_rounds=2)
    copy = shutil.copytree(first.run_dir, tmp_path / "elsewhere")
    monkeypatch.chdir(copy / "checkpoints")
    again = run(tmp_path / "runs", num_rounds=3, ckpt_path="round_00001")
    assert again.run_dir == copy and len(rows(copy)) == 3 and len(rows(first.run_dir)) == 2


def test_a_ledger_is_known_by_its_lines(tmp_path):
    path = tmp_path / "ledger.jsonl"
    assert not is_ledger(path)
    for text, ours in (("", True), ("[]\n", False), ("cash: 3\n", False), ('{"direction": "up"}\n', False)):
        path.write_text(text)
        assert is_ledger(path) is ours
    fed = federate(tmp_path, num_rounds=1)
    assert is_ledger(fed.run_dir / "ledger.jsonl")


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/b", "..", "", "x/"])
def test_a_name_is_that_of_one_folder(name):
    with pytest.raises(ValueError, match="`federation.name` is the name of one folder, got .*trainer.default_root_dir"):
        FederatedTrainer(name=name)


def test_going_on_from_a_checkpoint_whose_best_is_gone(tmp_path):
    first = run(tmp_path, num_rounds=3, keep_last=9)
    folder = first.run_dir / "checkpoints" / "round_00001"
    tensors, values = checkpoint.read(folder)
    values["best"] = values["state"]["best"] = {"round": 0, "value": -1e9, "checkpoint": "round_00000", "val": {}}
    write_tensors(folder / "server.pt", tensors, values)
    shutil.rmtree(folder.parent / "round_00000")
    assert run(tmp_path, num_rounds=3, ckpt_path=str(folder)).results["rounds_run"] == 3


@pytest.mark.parametrize(
    ("path", "text"),
    [("last", "no run with a checkpoint in"), ("best", "no run with a checkpoint"), ("/nowhere", "neither a checkpoint")],
)
def test_nothing_to_go_on_from(tmp_path, path, text):
    with pytest.raises(ResumeError, match=text):
        trainer(tmp_path).fit(Killed(), data(), ckpt_path=path)


def test_folders_of_other_names_do_not_disturb(finished, tmp_path):
    _, root = finished
    shutil.copytree(root, tmp_path / "copy")
    other = tmp_path / "copy" / "FedAvg" / "version_old" / "checkpoints" / "round_00000"
    other.mkdir(parents=True)
    (other / "server.pt").touch()
    assert checkpoint.find("last", tmp_path / "copy" / "FedAvg").parent.parent.name == "version_0"


def test_a_newer_format_is_refused(finished, tmp_path):
    fed, _ = finished
    shutil.copytree(last_checkpoint(fed.run_dir), tmp_path / "round_00001")
    path = tmp_path / "round_00001" / "server.pt"
    content = torch.load(path, weights_only=True)
    torch.save({**content, "values": json.dumps({**json.loads(content["values"]), "format": 99})}, path)
    with pytest.raises(ResumeError, match="checkpoint format 99"):
        trainer(tmp_path).fit(Killed(), data(), ckpt_path=str(tmp_path / "round_00001"))


def test_a_full_disk_keeps_earlier_checkpoints_and_says_so(tmp_path, monkeypatch):
    real, calls = checkpoint.write_tensors, []

    def full(path, *args):
        calls.append(path)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, *args)

    monkeypatch.setattr(checkpoint, "write_tensors", full)
    with pytest.raises(OSError, match="round_00002` could not be written.*disk is full.*--ckpt_path last"):
        federate(tmp_path, num_rounds=5)
    monkeypatch.undo()
    (run_dir,) = (tmp_path / "FedAvg").iterdir()
    assert sorted(p.name for p in (run_dir / "checkpoints").iterdir()) == ["round_00000", "round_00001"]
    torch.manual_seed(0)
    fed = FederatedTrainer(trainer={**CPU, "logger": False, "default_root_dir": str(tmp_path)}, num_rounds=5, seed=0)
    assert fed.fit(Linear(), clients(), ckpt_path="last")["rounds_run"] == 5


class Warm(FedAvg):
    """Counts in a phase before the rounds; may be told to die in one step of it."""

    def __init__(self, die_at=None):
        super().__init__()
        self._die_at = die_at

    def phases(self):
        return [Phase("warm-up", 4, self._step)]

    def _step(self, federation, index):
        if index == self._die_at:
            raise KeyboardInterrupt
        self.weights = {n: t + 1 for n, t in self.weights.items()}
        return {"steps": index}


@pytest.mark.parametrize("die_at", [0, 2])
def test_phases_are_checkpointed_and_go_on_where_they_stopped(tmp_path, die_at):
    def go(root, die_at=None, ckpt_path=None):
        torch.manual_seed(0)
        args = {**CPU, "logger": False, "default_root_dir": str(root)}
        fed = FederatedTrainer(trainer=args, num_rounds=2, strategy=Warm(die_at), seed=0, keep_last=9)
        fed.fit(Linear(), clients(), ckpt_path)
        return fed

    straight = go(tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut", die_at)
    if die_at == 0:
        with pytest.raises(ResumeError, match="no run with a checkpoint"):
            go(tmp_path / "cut", ckpt_path="last")
        return
    resumed = go(tmp_path / "cut", ckpt_path="last")
    assert_same_bits(
        checkpoint_tensors(last_checkpoint(straight.run_dir)), checkpoint_tensors(last_checkpoint(resumed.run_dir))
    )
    assert without_times(straight.results) == without_times(resumed.results)


def test_rows_of_phases_survive_resuming_in_a_round(tmp_path):
    def go(rounds, ckpt_path=None):
        torch.manual_seed(0)
        args = {**CPU, "logger": False, "default_root_dir": str(tmp_path)}
        fed = FederatedTrainer(trainer=args, num_rounds=rounds, strategy=Warm(), seed=0)
        fed.fit(Linear(), clients(), ckpt_path)
        return [r["warm-up/steps"] for r in rows(fed.run_dir) if r["warm-up/steps"]]

    assert go(1) == go(2, "last") == ["0", "1", "2", "3"]


def test_validate_test_and_predict_use_the_best_checkpoint_and_write_nothing(tmp_path):
    fed = federate(tmp_path, lambda: Linear(lr=1.2), Central(*clients((10, 16))), num_rounds=3)
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    stock = FederatedTrainer(trainer={**CPU, "logger": False, "default_root_dir": str(tmp_path)}, num_rounds=3, seed=0)
    for used in (fed, stock):
        module = Linear(lr=1.2)
        own = Central(*clients((10, 16)))
        assert used.validate(module, own)["global"] == fed.results["val"]["global"]
        assert used.test(module, own)["per_client"] == fed.results["test"]["per_client"]
        assert used.test(module, own, ckpt_path="last")["global"] == fed.results["last"]["test"]["global"]
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before
    assert fed.run_dir is not None and fed.run_dir.is_dir()
