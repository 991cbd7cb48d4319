"""LitMoleculeForest under a stock Trainer: what it learns, when, what it scores and how it is kept."""

import lightning as L
import numpy as np
import pytest
import torch
from forest_samples import Chains
from sklearn.metrics import roc_auc_score

from lit_models import LitMoleculeForest
from lit_models.forest.growing import Growth, fitted

pytest.importorskip("sklearn", reason="needs the extra `fl-lightning[forest]`")


def trainer(**options):
    return L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        **{"max_epochs": 1, **options},
    )  # fmt: skip


def trained(data, **options):
    torch.manual_seed(0)
    module, run = LitMoleculeForest(num_trees=5), trainer(**options)
    run.fit(module, datamodule=data)
    return module, run


def part(data, name):
    chosen = data.part(name)
    return chosen.molecules.collate(chosen.positions)


def test_one_epoch_grows_scikit_learns_forest_of_each_task_and_scores_it():
    data = Chains(batch_size=7)
    module, run = trained(data)
    torch.manual_seed(0)
    seeds = module._seeds
    known, held = part(data, "train"), part(data, "val")
    order = known.sample_id.argsort()
    x, y = known.fingerprint[order].numpy().astype(np.float32), known.y[order].numpy()
    found = module(held)
    for task in (0, 1):
        rows = np.isfinite(y[:, task])
        theirs = fitted(x[rows], y[rows, task], True, Growth(5, None, 1, 1), seeds[task])
        assert np.array_equal(found[:, task].numpy(), theirs.predict_proba(held.fingerprint.numpy().astype(np.float32))[:, 1])
    assert found[:, 2].tolist() == [0.5] * len(held.y)
    scored = trainer().validate(module, datamodule=data, verbose=False)[0]
    wanted = [roc_auc_score(held.y[k, t], found[k, t]) for t in (0, 1) if len((k := held.y[:, t].isfinite()).nonzero()) > 1
              and held.y[k, t].unique().numel() == 2]  # fmt: skip
    assert scored["val/auroc"] == pytest.approx(np.mean(wanted)) and run.callback_metrics["val/auroc"] == scored["val/auroc"]


def test_batches_and_their_order_do_not_matter():
    states = [trained(Chains(batch_size=size))[0].state_dict() for size in (5, 64)]
    assert len(states[0]["forest.feature"]) > 20
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_second_epoch_and_validation_within_one_leave_a_forest_of_all_molecules():
    once = trained(Chains(batch_size=5))[0].state_dict()
    for options in ({"max_epochs": 2}, {"val_check_interval": 0.5}):
        again = trained(Chains(batch_size=5), **options)[0].state_dict()
        assert all(torch.equal(once[name], again[name]) for name in once)


def test_steps_are_refused_for_none_are_counted():
    with pytest.raises(ValueError, match="write `trainer.max_epochs: 1` without `trainer.max_steps`"):
        trained(Chains(), max_epochs=None, max_steps=3)


def test_a_checkpoint_of_lightning_is_read_without_the_data(tmp_path):
    module, run = trained(Chains())
    run.save_checkpoint(tmp_path / "kept.ckpt")
    again = LitMoleculeForest.load_from_checkpoint(tmp_path / "kept.ckpt", weights_only=True)
    batch = part(run.datamodule, "test")
    assert torch.equal(again(batch), module(batch)) and again(batch).unique().numel() > 2
    assert set(module.predict_step(batch, 0)) == {"sample_id", "predictions"}


def test_data_without_fingerprints_are_refused_by_name():
    with pytest.raises(ValueError, match="Write `data.init_args.fingerprint_size: 2048`"):
        LitMoleculeForest().build({"task": "regression", "num_tasks": 1})


@pytest.mark.parametrize(
    ("options", "said"),
    [({"num_trees": 0}, "num_trees"), ({"min_samples_leaf": 0}, "min_samples_leaf"), ({"max_features": 1.5}, "max_features"),
     ({"max_features": "auto"}, "max_features")],
)  # fmt: skip
def test_values_that_cannot_work(options, said):
    with pytest.raises(ValueError, match=f"`model.init_args.{said}` must be"):
        LitMoleculeForest(**options)
