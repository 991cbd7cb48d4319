"""Own molecules as they are read: by hand, and from nothing but the files and the spec."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from datamodules.molecules.own.reader import read_molecules, read_predicted
from datamodules.molecules.own.spec import MoleculeSpec


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "a.csv").write_text("name,smiles,y,site\nA1,CCO,1.5,p\nA2,C1CC,2,p\nA3,CC,,q\nA4,C,2.5,\nA5,CCC,-1,q\n")
    return MoleculeSpec((tmp_path / "a.csv",), targets=("y",), id_column="name", client_column="site", workers=0)


def test_what_is_read_by_hand(spec):
    found = read_molecules(spec)
    assert found.ids == ["A1", "A2", "A3", "A4", "A5"] and found.owner == ["p", "p", "q", "", "q"]
    assert found.molecules.packed.sample_id.tolist() == [0, 2, 4] and found.molecules.columns == {"client": ["p", "q", "q"]}
    torch.testing.assert_close(found.molecules.packed.y, torch.tensor([[1.5], [np.nan], [-1]]), equal_nan=True)
    assert [(d["row"], d["id"]) for d in found.molecules.dropped_rows] == [(1, "A2"), (3, "A4")]
    assert (found.task, found.metric, found.clients, found.guessed) == ("regression", "rmse", {"p", "q"}, None)
    assert found.notices[0].startswith("task regression: there are labels other than 0 and 1")


def test_the_same_spec_gives_the_same_molecules(spec):
    one, two = read_molecules(spec), read_molecules(spec)
    assert one.molecules.canonical == two.molecules.canonical and one.notices == two.notices


def test_what_is_given_is_not_found_out(spec):
    assert spec.task_is_given is False and replace(spec, metric="mae").task_is_given is True
    found = read_molecules(replace(spec, metric="mae", client_column=None, by_file=True))
    assert (found.task, found.metric, found.clients, found.notices) == ("regression", "mae", {"a"}, [])


def test_molecules_to_predict_need_neither_labels_nor_clients(spec, tmp_path):
    (tmp_path / "new.csv").write_text("smiles,name\nCCCC,N1\nC1CC,N2\n")
    molecules, rows = read_predicted(spec, [tmp_path / "new.csv"], ["y", "z"])
    assert rows.ids == ["N1", "N2"] and [d["row"] for d in rows.dropped] == [1]
    assert molecules.packed.y.shape == (1, 2) and bool(molecules.packed.y.isnan().all())
