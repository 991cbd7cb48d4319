"""A module without an optimiser is known by what Lightning puts in its place."""

import lightning as L
import torch
from federations import CPU, Linear, Table
from lightning.pytorch.core import optimizer as lightnings

from fl_lightning.engine.lightning_fast.no_optimizer import stands_for_none


class Without(Linear):
    def configure_optimizers(self):
        return None


def test_only_what_lightning_puts_in_the_place_of_none(tmp_path, monkeypatch):
    found = []
    for kind in (Without, Linear):
        quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
        trainer = L.Trainer(**CPU, **quiet, default_root_dir=tmp_path)
        trainer.fit(kind(), datamodule=Table(8, seed=1))
        found.append([stands_for_none(one) for one in trainer.optimizers])
    assert found == [[True], [False]]
    assert not stands_for_none(torch.optim.SGD(Linear().parameters(), lr=0.1))
    mock = lightnings._MockOptimizer()
    monkeypatch.delattr(lightnings, "_MockOptimizer")
    assert not stands_for_none(mock)
