"""Checkpoints as folders: which are complete, which are kept, which one a path means. Resuming: ``whole/test_resume.py``."""

import errno
import os
from pathlib import Path

import pytest
import torch

from fl_lightning.engine import checkpoint
from fl_lightning.engine.checkpoint import Checkpoints, difference, existing, find, name_of, read, run_of
from fl_lightning.engine.store import write_tensors
from fl_lightning.errors import ResumeError


class Engine:
    """Writes one client's file, as an engine does."""

    def __init__(self):
        self.calls = []

    def save(self, directory, previous):
        self.calls.append(None if previous is None else previous.name)
        (directory / "client_00000.pt").write_bytes(b"x")


def made(folder, name, best=None, **values):
    """A checkpoint folder without an engine."""
    (folder / name).mkdir(parents=True)
    values = {"format": 1, "best": {"checkpoint": best}, **values}
    write_tensors(folder / name / "server.pt", {"w": torch.ones(2)}, values)
    return folder / name


def names(folder):
    return [path.name for path in existing(folder)]


def test_saved_and_read(tmp_path):
    kept, engine = Checkpoints(tmp_path / "a" / "checkpoints", 2), Engine()
    path = kept.save("round_00000", {"w": torch.arange(3.0)}, {"state": {"round": 1}}, engine, None)
    tensors, values = read(path)
    assert tensors["w"].tolist() == [0.0, 1.0, 2.0] and values == {"state": {"round": 1}, "format": 1}
    assert path == tmp_path / "a" / "checkpoints" / "round_00000" and (path / "client_00000.pt").is_file()
    assert [p.name for p in kept.directory.iterdir()] == ["round_00000"]  # no draft is left


def test_the_last_ones_and_the_best_are_kept_and_engines_are_told_the_last(tmp_path):
    kept, engine = Checkpoints(tmp_path, 2), Engine()
    for round in range(5):
        kept.save(f"round_{round:05d}", {}, {}, engine, "round_00001")
    assert names(tmp_path) == ["round_00001", "round_00003", "round_00004"]
    assert engine.calls == [None, "round_00000", "round_00001", "round_00002", "round_00003"]
    kept.save("round_00004", {"w": torch.ones(1)}, {}, engine, "round_00003")  # again: replaced
    assert list(read(tmp_path / "round_00004")[0]) == ["w"] and names(tmp_path) == ["round_00003", "round_00004"]
    kept.forget_after("round_00003")
    assert names(tmp_path) == ["round_00003"]


@pytest.mark.parametrize(("code", "full"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_what_cannot_be_written_leaves_the_earlier_ones(tmp_path, code, full):
    kept, engine = Checkpoints(tmp_path, 1), Engine()
    kept.save("round_00000", {}, {}, engine, None)

    def fail(directory, previous):
        raise OSError(code, "no")

    engine.save = fail
    with pytest.raises(OSError, match="round_00001` could not be written: .*Earlier checkpoints are intact") as error:
        kept.save("round_00001", {}, {}, engine, None)
    assert error.value.errno == code and ("The disk is full." in str(error.value)) == full
    assert [p.name for p in tmp_path.iterdir()] == ["round_00000"]


def test_drafts_and_folders_without_a_server_file_are_none(tmp_path):
    made(tmp_path, "round_00002"), made(tmp_path, "phase1_00000"), made(tmp_path, ".writing_round_00003")
    (tmp_path / "round_00004").mkdir()
    assert names(tmp_path) == ["phase1_00000", "round_00002"]


def test_adopting_copies_the_checkpoint_and_the_best_beside_it(tmp_path):
    for number in (4, 2, 3):
        made(tmp_path / "old", f"round_{number:05d}", number=number)
    kept = Checkpoints(tmp_path / "new", 2)
    assert kept.adopt(tmp_path / "old" / "round_00004", "round_00004", "round_00002") == tmp_path / "new" / "round_00004"
    assert names(tmp_path / "new") == ["round_00002", "round_00004"]
    assert [read(path)[1]["number"] for path in existing(tmp_path / "new")] == [2, 4]
    unscored = Checkpoints(tmp_path / "unscored", 2)
    unscored.adopt(tmp_path / "old" / "round_00004", "round_00004", None)
    assert names(unscored.directory) == ["round_00004"]
    alone = Checkpoints(tmp_path / "alone", 2)
    copy = made(tmp_path, "a copy under another name")
    alone.adopt(copy, "round_00004", None)  # no best yet
    assert names(alone.directory) == ["round_00004"]
    alone.adopt(copy, "round_00004", "round_00009")  # there already, and the best is not to be had
    assert names(alone.directory) == ["round_00004"]


def test_another_format_or_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(ResumeError, match="is no checkpoint: it holds no server.pt"):
        read(tmp_path)
    with pytest.raises(ResumeError, match="has checkpoint format 7, this version reads 1"):
        read(made(tmp_path, "round_00000", format=7))


def test_which_checkpoint_a_path_means(tmp_path):
    for version, rounds in (("version_2", (0,)), ("version_10", (0, 1, 2)), ("version_x", (5,))):
        for round in rounds:
            made(tmp_path / version / "checkpoints", f"round_{round:05d}", best="round_00001")
    (tmp_path / "version_11").mkdir()  # a run without a checkpoint
    ten, two = tmp_path / "version_10", tmp_path / "version_2"
    assert find("last", tmp_path) == ten / "checkpoints" / "round_00002"
    assert find("best", tmp_path) == ten / "checkpoints" / "round_00001"
    assert find("last", tmp_path, newest=two) == two / "checkpoints" / "round_00000"
    assert find("last", tmp_path, newest=tmp_path / "version_11") == ten / "checkpoints" / "round_00002"
    assert find(str(ten), tmp_path) == ten / "checkpoints" / "round_00002"
    assert find(str(ten / "checkpoints" / "round_00000"), tmp_path) == ten / "checkpoints" / "round_00000"
    with pytest.raises(ResumeError, match="`--ckpt_path elsewhere`: neither a checkpoint"):
        find("elsewhere", tmp_path)
    with pytest.raises(ResumeError, match="`--ckpt_path last`: no run with a checkpoint"):
        find("last", tmp_path / "version_11")


def test_the_best_of_a_run_that_was_never_validated(tmp_path):
    last = made(tmp_path / "version_0" / "checkpoints", "round_00003")
    with pytest.raises(ResumeError, match="has not been validated yet"):
        find("best", tmp_path)
    (tmp_path / "version_0" / "results.json").write_text("{}")  # it has ended: there is nothing to validate on
    assert find("best", tmp_path) == last


def test_the_run_of_a_checkpoint(tmp_path, monkeypatch):
    inside = made(tmp_path / "run" / "checkpoints", "round_00000")
    assert run_of(inside) is None  # without a ledger it is no run
    (tmp_path / "run" / "ledger.jsonl").write_text("")
    assert run_of(inside) == tmp_path / "run"
    assert run_of(made(tmp_path / "run" / "saved", "round_00000")) is None
    monkeypatch.chdir(tmp_path)
    assert run_of(Path("run/checkpoints/round_00000")) == Path("run")  # as it was given
    monkeypatch.chdir(tmp_path / "run" / "checkpoints")
    assert run_of(Path("round_00000")) == tmp_path / "run"


def test_names_follow_from_the_state():
    state = {"phase": 1, "step": 3, "round": 0}
    assert name_of({"state": state}) == "phase1_00002" and name_of({"state": {**state, "round": 12}}) == "round_00011"


def test_differences_are_listed_by_key():
    old, new = {"a": {"b": 1, "c": [1]}, "d": 2, "gone": 0}, {"a": {"b": 3, "c": [1]}, "d": 2, "come": {"e": 1}}
    assert difference(old, new) == ["a.b: 1 -> 3", "come: None -> {'e': 1}", "gone: 0 -> None"]
    assert difference(1, 1) == [] and difference({}, {}) == []


def test_a_renamed_folder_is_made_durable(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(checkpoint, "sync_folder", synced.append)
    Checkpoints(tmp_path, 1).save("round_00000", {}, {}, Engine(), None)
    assert synced == [tmp_path]


def test_a_folder_is_made_durable_by_its_own_descriptor(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(checkpoint.os, "fsync", lambda descriptor: seen.append((descriptor, os.fstat(descriptor).st_ino)))
    checkpoint.sync_folder(tmp_path)
    ((descriptor, inode),) = seen
    assert inode == tmp_path.stat().st_ino
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)  # it is closed


def test_a_draft_that_a_killed_run_left_is_not_mixed_in(tmp_path):
    kept = Checkpoints(tmp_path, 1)
    draft = tmp_path / ".writing_round_00000"
    draft.mkdir()
    (draft / "client_00007.pt").write_bytes(b"old")
    path = kept.save("round_00000", {}, {}, Engine(), None)
    assert sorted(p.name for p in path.iterdir()) == ["client_00000.pt", "server.pt"]
    assert [p.name for p in tmp_path.iterdir()] == ["round_00000"]


def test_a_folder_that_is_gone_is_told_like_a_full_disk(tmp_path):
    kept = Checkpoints(tmp_path / "checkpoints", 1)
    kept.directory.rmdir()
    with pytest.raises(OSError, match="round_00000` could not be written: .*No such file") as error:
        kept.save("round_00000", {}, {}, Engine(), None)
    assert error.value.errno == errno.ENOENT


def test_the_best_of_a_run_that_has_ended_is_its_best(tmp_path):
    for round in (0, 1):
        made(tmp_path / "version_0" / "checkpoints", f"round_{round:05d}", best="round_00000")
    (tmp_path / "version_0" / "results.json").write_text("{}")
    assert find("best", tmp_path).name == "round_00000"


def test_the_first_round_has_the_number_zero():
    assert name_of({"state": {"phase": 1, "step": 3, "round": 1}}) == "round_00000"


def test_a_table_that_became_a_value_is_one_difference():
    assert difference({"a": {"b": 1}}, {"a": 2}) == ["a: {'b': 1} -> 2"]
    assert difference({"a": 2}, {"a": {"b": 1}}) == ["a: 2 -> {'b': 1}"]
