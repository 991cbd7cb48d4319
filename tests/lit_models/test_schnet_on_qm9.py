"""SchNet learns the twelve QM9 targets: on the 2,013-molecule subset its error falls below that of the training mean."""

from functools import partial
from pathlib import Path

import lightning as L
import pytest
import torch

from datamodules import QM9DataModule
from lit_models import LitMoleculePredictor, SchNet

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.mark.skipif(not (SHARED / "qm9").is_dir(), reason="no ../shared/data/qm9 beside the checkout")
def test_error_falls_below_the_mean_predictors(tmp_path):
    data = QM9DataModule(root=str(SHARED), normalize_labels=True, cache_dir=str(tmp_path))
    data.setup()
    train, test = (torch.cat([batch.y for batch in loader]) for loader in (data.train_dataloader(), data.test_dataloader()))
    of_mean = (test - train.mean(0)).abs().mean(0)  # computed here, from labels in their units
    L.seed_everything(0, verbose=False)
    encoder = SchNet(hidden_channels=32, num_filters=32, num_interactions=2)
    module = LitMoleculePredictor(encoder, optimizer=partial(torch.optim.Adam, lr=3e-3, fused=True))
    silent = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(max_steps=150, accelerator="cpu", limit_val_batches=0, gradient_clip_val=1.0, **silent)
    trainer.fit(module, datamodule=data)
    scores = trainer.test(module, datamodule=data, verbose=False)[0]
    assert scores["test/mae"] < 0.6 * of_mean.mean()
    assert all(scores[f"test/mae_{task}"] < of_mean[task] for task in range(12))
