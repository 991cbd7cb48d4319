"""What labels are, by hand: classes or measurements, slips of the pen, another unit."""

import numpy as np
import pytest

from datamodules.molecules.own.labels import apart_findings, class_findings, guess_task


def test_a_client_with_labels_of_another_type_is_named():
    y = np.array([[0.0], [1.0], [1.0], [0.7], [np.nan]])
    with pytest.raises(ValueError, match=r"the labels 0 and 1 at 2 of 3 clients, but client 'c' has others \(row 3: 0.7"):
        guess_task(y, ["a", "b", "b", "c", "c"], ["tox"], row)
    assert guess_task(y[:3], ["a", "b", "b"], ["tox"], row)[0] == "classification"
    assert guess_task(y, ["a"] * 5, ["tox"], row)[0] == "regression"
    assert guess_task(y[3:], ["c", "c"], ["tox"], row)[0] == "regression"


def row(position):
    return f"row {position}"


def test_a_few_odd_labels_make_no_regression():
    """A twentieth of the labels, at most, are mistakes; no task is a measurement."""
    y = np.array([0.0, 1.0] * 20)[:, None]
    y[7] = 0.5
    with pytest.raises(
        ValueError,
        match=r"39 of 40 labels are 0 or 1, but 1 are not: row 7 has 0.5 for `tox`. Correct them or "
        "leave them blank, or set `data.init_args.task: regression`",
    ):
        guess_task(y, ["a"] * 40, ["tox"], row)
    assert guess_task(y[:19], ["a"] * 19, ["tox"], row)[0] == "regression"  # one in 19
    with pytest.raises(ValueError, match="19 of 20 labels"):
        guess_task(y[:20], ["a"] * 20, ["tox"], row)
    both = np.hstack([y, np.linspace(-2, 2, 40)[:, None]])
    assert guess_task(both, ["a"] * 40, ["tox", "logS"], row)[0] == "regression"  # it is one without the odd label, too


def test_measurements_that_look_like_classes_are_told():
    y = np.array([[0, 0.5, 0, 3, 0], [1, 0.1, 1, 1, 0], [0, 2.2, 0.5, 2, 0], [np.nan, 1, 1, 1, 0.3]], dtype=np.float32)
    found = class_findings(y, ["tox", "logS", "mixed", "grade", "one"], row)
    assert [(f["kind"], f["count"]) for f in found] == [("classes_as_numbers", 3), ("mostly_classes", 1), ("coded_classes", 4)]
    assert "3 of 4 labels of `mixed` are 0 or 1, and 1 are not: row 2 has 0.5." in found[1]["message"]
    assert "`data.init_args.targets: [tox]`" in found[0]["remedy"]


def test_one_measurement_under_two_names_is_asked_for():
    y = np.full((6, 4), np.nan)
    y[:2, 0], y[2:4, 1], y[4:, 2] = (5.1, 6.2), (5.3, 4.4), (0, 1)
    y[::2, 3] = 1.5
    owner, clients, names = np.array([0, 0, 1, 1, 2, 2]), ["a", "b", "c"], ["pAct", "activity", "toxic", "logS"]
    (found,) = apart_findings(y, owner, clients, names)  # logS is everywhere, and a class is no measurement
    assert (
        found["kind"] == "tasks_apart"
        and found["count"] == 1
        and found["message"]
        == ("No row and no client has both `pAct` ('a') and `activity` ('b'): is it one measurement under two names?")
    )
    y[1, 1] = 6
    assert apart_findings(y, owner, clients, names) == []
