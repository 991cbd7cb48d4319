"""Molecules without labels: the features of the labelled ones, whatever other columns a file has."""

import pytest
import torch

from datamodules import UnlabelledMolecules


def test_it_reads_what_labelled_molecules_have_and_no_label(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("smiles;y\nCCO;1\nxyz;3\nc1ccccc1O;2\nCC;7\n")
    data = UnlabelledMolecules(str(path), batch_size=2)
    with pytest.raises(ValueError, match=r"has no data yet: call `setup\(\)` first"):
        data.predict_dataloader()
    data.setup()
    batches = list(data.predict_dataloader())
    assert [batch.num_graphs for batch in batches] == [2, 1]
    assert [batch.sample_id.tolist() for batch in batches] == [[0, 2], [3]]
    assert all(batch.y.shape == (batch.num_graphs, 0) for batch in batches)
    assert batches[0].x.shape == (3 + 7, data.schema["atom_features"]) and torch.isfinite(batches[0].x).all()


def test_errors(tmp_path):
    with pytest.raises(ValueError, match="`batch_size` must be at least 1, got 0"):
        UnlabelledMolecules(str(tmp_path), batch_size=0)
    path = tmp_path / "m.csv"
    path.write_text("molecule\nCCO\n")
    with pytest.raises(ValueError, match="smiles_column"):
        UnlabelledMolecules(str(path)).setup()
