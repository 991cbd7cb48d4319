"""Which columns are learnt where nobody has said it, by hand."""

import numpy as np
import pytest

from datamodules.molecules.own.targets import agreed_tasks, guess_tasks


def test_a_counter_is_one_over_all_sites_or_at_each(tmp_path):
    up = np.arange(1.0, 21.0)
    y = up / 3
    assert guess_tasks({"a": {"lot": up, "y": y}, "b": {"lot": up, "y": y}}).tasks == ["y"]  # at each
    assert guess_tasks({"a": {"lot": up[:5], "y": y}, "b": {"lot": up[5:], "y": y}}).tasks == ["y"]  # over both
    assert guess_tasks({"a": {"dose": up, "y": y}, "b": {"dose": y, "y": y}}).tasks == ["dose", "y"]  # at one alone
    one, sites = {"all": {"place": np.tile(up, 2), "y": np.tile(y, 2)}}, ["a"] * 20 + ["b"] * 20
    assert guess_tasks(one, {"all": sites}).tasks == ["y"] and guess_tasks(one).tasks == ["place", "y"]  # by column
    code = np.random.default_rng(0).permutation(20) * 4_000_037 + 31_000_001.0
    assert guess_tasks({"a": {"compound": code, "y": y}}).tasks == guess_tasks({"a": {"code": code, "y": y}}).tasks == ["y"]
    # Another writing of an id's name is no other task.
    assert guess_tasks({"a": {"CID": up, "y": y}, "b": {"cid": up[::-1], "y": y}}).tasks == ["y"]
    # What counts by its numbers alone is learnt where nothing else is there, and told.
    alone = guess_tasks({"a": {"num": up, "y": up}})
    assert alone.tasks == ["y"] and list(alone.left_out) == ["num"] and list(alone.doubtful) == ["y"]
    (_, told) = alone.findings()
    assert told["kind"] == "targets_doubtful" and "`y` (counts the rows (1 to 20, each once))" in told["message"]


def test_dates_and_batches_are_never_guessed():
    y, day = np.arange(1.0, 21.0) / 3, 20240101 + np.arange(20.0) % 9
    found = guess_tasks({"a": {"year": 2015 + day % 7, "when": day, "batch_no": day % 3, "y": y}})
    assert found.tasks == ["y"] and list(found.left_out) == ["year", "when", "batch_no"]
    assert "`year` (is a date or a batch by its name), `when` (has dates)" in found.findings()[0]["message"]
    assert guess_tasks({"a": {"when": day, "year": 1 + np.arange(20.0)}}).tasks == []  # also where nothing else is left


def test_two_spellings_of_a_task_are_told():
    assert agreed_tasks({"a": ["y", "z 1"], "b": ["z 1", "w"]}) == ["y", "z 1", "w"]
    with pytest.raises(ValueError, match="client 'b' calls a task 'Z_1', which others call 'z 1'"):
        agreed_tasks({"a": ["z 1"], "b": ["Z_1"]})
