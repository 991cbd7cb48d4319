"""Molecules whose labels cannot both hold: where, which rows, and how far apart measurements may be."""

import numpy as np
import pytest
from molecule_fixtures import TableDataModule, many, ready

from datamodules.molecules.contradictions import limits


def contradictions(data):
    return {
        (f["kind"].removeprefix("contradicting_labels"), f["client"]): (f["count"], f["message"], f["remedy"])
        for f in data.report()["findings"]
        if f["kind"].startswith("contradicting_labels")
    }


def test_molecules_with_both_classes_are_told_by_place():
    """Ethane at one site, propane at two, butane with agreeing labels, pentane with a blank one."""
    smiles = ["CC", "CC", "CCC", "C(C)C", "CCCC", "CCCC", "CCCCC", "CCCCC", "CCCCCC"]
    y = np.array([[0, 1, 1, 0, 1, 1, 0, np.nan, 1], [1, 1, 0, 1, np.nan, 0, 0, 0, 0]]).T
    sites = {"site": list("aabababab")}
    options = {"partition": "column", "client_column": "site", "fractions": (1.0, 0.0, 0.0), "columns": sites}
    found = contradictions(ready(TableDataModule(smiles, y, task="classification", **options)))
    assert {where: count for where, (count, *_) in found.items()} == {("", 0): 1, ("_across_clients", None): 1}
    assert found["", 0][1] == (
        "1 molecule has contradicting labels, 0 and 1, at client 0: CC: `t0` is 0 (row 0) and 1 (row 1)."
    )
    assert "CCC: `t0` is 1 (row 2) and 0 (row 3)" in found["_across_clients", None][1]
    assert "leave these molecules out: the mean of 0 and 1 is no class" in found["", 0][2]
    findings = ready(TableDataModule(smiles, y, task="classification", **options)).report()["findings"]
    rows = {
        f["kind"]: [(r["row"], r["molecule"], r["task"], r["label"]) for r in f["rows"]]
        for f in findings
        if f["kind"].startswith("contradicting")
    }
    assert rows["contradicting_labels"] == [(0, "CC", "t0", 0), (1, "CC", "t0", 1)]
    assert rows["contradicting_labels_across_clients"] == [  # in both tasks
        (2, "CCC", "t0", 1), (3, "CCC", "t0", 0), (2, "CCC", "t1", 0), (3, "CCC", "t1", 1)]  # fmt: skip
    assert not any("verage" in f["remedy"] for f in findings)


def test_contradictions_with_the_servers_parts_are_told():
    smiles, y = many(40), np.arange(40.0) % 2
    parts = ready(TableDataModule(smiles, y, task="classification", num_clients=2)).partition_record()["server"]
    for stage, train in (("test", 0), ("val", 1)):
        row, other = parts[stage][0], parts["train"][train]
        smiles[other], y[other] = smiles[row], 1 - y[row]
    found = contradictions(ready(TableDataModule(smiles, y, task="classification", num_clients=2)))
    assert {where: count for where, (count, *_) in found.items()} == {("_train_test", None): 1, ("_train_val", None): 1}
    assert "in the training part and in the server's test part" in found["_train_test", None][1]


def test_measurements_of_one_molecule_far_apart_are_told():
    # Quartiles of -4 .. 4 (each thrice) are -2 and 2: a robust standard deviation is 4 / 1.349 = 2.965.
    y = np.repeat(np.arange(-4.0, 5.0), 3)
    assert limits(y[:, None], False).tolist() == pytest.approx([2.96516])
    assert limits(y[:, None], True).tolist() == [0]
    assert limits(np.array([[1.0], [1], [1], [1], [1], [3]]), False) == pytest.approx(np.sqrt(5 / 9))  # half of all equal
    assert limits(np.full((2, 1), np.nan), False).tolist() == [0]
    smiles = [f"{'C' * (i + 1)}O" for i in range(27)]
    near, far = (4, 10), (5, 14)  # -3 and -1; -3 and 0
    for first, second in (near, far):
        smiles[second] = smiles[first]
    data = ready(TableDataModule(smiles, y, num_clients=1, fractions=(1.0, 0.0, 0.0)))
    ((where, (count, message, remedy)),) = contradictions(data).items()
    assert where == ("", 0) and count == 1 and "CCCCCCO: `t0` is -3 (row 5) and 0 (row 14)" in message
    assert "farther apart than one standard deviation of the task (quartile distance / 1.349)" in message
    assert "average the others" in remedy
