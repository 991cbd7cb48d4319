"""``normalize_labels`` from the data to the scores and predictions: standardised exactly once, and back to units."""

import lightning as L
import numpy as np
import pytest
import torch

from datamodules import MoleculeCSVDataModule
from lit_models import GCNMolecule, LitMoleculePredictor


@pytest.fixture
def data(tmp_path):
    (tmp_path / "m.csv").write_text("smiles,y\n" + "".join(f"{'C' * i}O,{100 + i * 0.5}\n" for i in range(1, 41)))
    data = MoleculeCSVDataModule(files=str(tmp_path / "m.csv"), num_clients=2, partition="iid", normalize_labels=True,
                                 cache_dir=None)  # fmt: skip
    data.setup()
    return data


def trainer(tmp_path):
    return L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                     enable_model_summary=False, default_root_dir=tmp_path)  # fmt: skip


def test_a_model_that_answers_zero_predicts_the_mean_of_the_training_labels(data, tmp_path):
    module = LitMoleculePredictor(GCNMolecule(hidden_channels=4, num_layers=1))
    module.build(data.schema)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    train, test = (100 + 0.5 * (1 + data.part(name).positions.numpy()) for name in ("train", "test"))
    mean, std = train.mean(), train.std()
    (scores,) = trainer(tmp_path).test(module, data, verbose=False)
    assert scores["test/rmse"] == pytest.approx(np.sqrt(((test - mean) ** 2).mean()), rel=1e-5)
    assert scores["test/loss"] == pytest.approx((((test - mean) / std) ** 2).mean(), rel=1e-5)
    batches = trainer(tmp_path).predict(module, data)
    torch.testing.assert_close(torch.cat([b["predictions"] for b in batches]), torch.full((40, 1), float(mean)))
