"""Which file `--ckpt_path` means for a central run."""

import os

import pytest

from fl_lightning.central_checkpoints import find_central
from fl_lightning.errors import ResumeError


def touch(path, seconds=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (seconds, seconds))
    return path


@pytest.fixture
def runs(tmp_path):
    """Version 10 has kept its best epoch only, version 9 both; `old` is no version."""
    for place in ("version_2/checkpoints/epoch=7-step=16.ckpt", "version_9/checkpoints/best.ckpt",
                  "version_10/checkpoints/best.ckpt", "version_old/checkpoints/epoch=9-step=99.ckpt"):  # fmt: skip
        touch(tmp_path / place)
    touch(tmp_path / "version_9" / "checkpoints" / "epoch=3-step=8.ckpt")
    return tmp_path


def test_the_newest_run_that_has_it(runs):
    assert find_central("best", runs) == runs / "version_10" / "checkpoints" / "best.ckpt"
    assert find_central("last", runs) == runs / "version_9" / "checkpoints" / "epoch=3-step=8.ckpt"


def test_a_runs_folder_or_a_file_is_what_it_is(runs):
    assert find_central(str(runs / "version_2"), runs).name == "epoch=7-step=16.ckpt"
    assert find_central("any/where.ckpt", runs).as_posix() == "any/where.ckpt"


def test_the_last_is_what_is_called_so_else_of_the_highest_step_else_the_latest(tmp_path):
    kept = tmp_path / "checkpoints"
    for name, seconds in (("mine", 50), ("yours", 60), ("epoch=9-step=9", 40), ("epoch=10-step=10-v1", 30), ("last", 20)):
        newest = touch(kept / f"{name}.ckpt", seconds)  # each of a later kind than those before
        assert find_central(str(tmp_path), tmp_path) == newest


def test_where_there_is_none_the_files_that_there_are_are_told(tmp_path):
    with pytest.raises(ResumeError, match="`--ckpt_path last`: no central run with a checkpoint in .* Leave it out to begin"):
        find_central("last", tmp_path)
    with pytest.raises(ResumeError, match="`--ckpt_path best`: no central run with a checkpoint in .*Fit first"):
        find_central("best", tmp_path)
    touch(tmp_path / "version_0" / "checkpoints" / "best.ckpt")
    newer = touch(tmp_path / "version_1" / "checkpoints" / "best.ckpt")
    with pytest.raises(ResumeError, match=f"has kept its last epoch .*go on from the best one: `--ckpt_path {newer}`"):
        find_central("last", tmp_path)
