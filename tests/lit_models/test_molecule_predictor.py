"""LitMoleculePredictor: masked losses, metrics against scikit-learn, divergences by hand, and a stock Trainer."""

import math

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from molecule_samples import SMILES, batch_of, generated_smiles, molecule
from sklearn.metrics import roc_auc_score
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader

from lit_models.gcn_molecule import GCNMolecule
from lit_models.gin_molecule import GINMolecule
from lit_models.molecule_predictor import LitMoleculePredictor, auroc, bernoulli_kl
from lit_models.mpnn import MPNN
from lit_models.schnet import SchNet

NAN = math.nan


def schema(task: str = "regression", num_tasks: int = 1, **more) -> dict:
    return {"task": task, "num_tasks": num_tasks, "atom_features": 74, "bond_features": 13, **more}


def predictor(task: str = "regression", num_tasks: int = 1, encoder=None, stats: dict | None = None, **kwargs):
    torch.manual_seed(0)
    module = LitMoleculePredictor(GCNMolecule() if encoder is None else encoder, **kwargs)
    module.build(schema(task, num_tasks, **(stats or {})))
    return module


class Molecules(pl.LightningDataModule):
    """~100 generated molecules; the label is the number of atoms or whether there is a nitrogen."""

    def __init__(self, task: str) -> None:
        super().__init__()
        self.schema = schema(task)
        smiles = [*generated_smiles(88), *SMILES]
        labels = [float(len(s)) / 10 if task == "regression" else float("N" in s or "n" in s) for s in smiles]
        self.graphs = [molecule(s, i, [y]) for i, (s, y) in enumerate(zip(smiles, labels, strict=True))]

    def train_dataloader(self):
        return DataLoader(self.graphs, batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.graphs, batch_size=50)

    test_dataloader = predict_dataloader = val_dataloader


def trainer(**kwargs) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **kwargs,
    )


# ---- losses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss, expected", [("mse", [[4.0, 1.0], [0.25, 9.0]]), ("l1", [[2.0, 1.0], [0.5, 3.0]])])
def test_unreduced_regression_losses_by_hand(loss, expected):
    module = predictor(num_tasks=2, loss=loss)
    batch = batch_of(["CCO", "C"], [[1.0, 2.0], [0.5, -1.0]])
    losses = module.losses(torch.tensor([[3.0, 1.0], [0.0, 2.0]]), batch)
    torch.testing.assert_close(losses.loss, torch.tensor(expected))
    assert losses.mask.all() and losses.ids.tolist() == [0, 1]


def test_losses_of_standardised_labels_by_hand():
    module = predictor(stats={"label_mean": [10.0], "label_std": [2.0]})
    losses = module.losses(torch.tensor([[0.0], [1.0]]), batch_of(["C", "CC"], [[14.0], [NAN]]))
    torch.testing.assert_close(losses.loss, torch.tensor([[4.0], [1.0]]))  # (0 - (14 - 10) / 2) ** 2
    assert losses.mask.tolist() == [[True], [False]]


def test_classification_losses_are_those_of_the_true_labels():
    # docs/papers/fedchem.md#hand-values, 12: true .126928 for (logit 2, y 1) and (-2, 0); official .664811 and 1.126928.
    batch, logits = batch_of(["CCO", "C"], [[1.0], [0.0]]), torch.tensor([[2.0], [-2.0]])
    true = predictor("classification").losses(logits, batch).loss
    torch.testing.assert_close(true, torch.full((2, 1), 0.126928), atol=1e-6, rtol=0)
    official = predictor("classification", variant="official").losses(logits, batch).loss
    torch.testing.assert_close(official, torch.tensor([[0.664811], [1.126928]]), atol=1e-6, rtol=0)


def test_missing_labels_are_masked_or_officially_negative():
    batch = batch_of(["CCO", "C"], [[1.0, NAN], [NAN, 0.0]])
    losses = predictor("classification", 2).losses(torch.zeros(2, 2), batch)
    assert losses.mask.tolist() == [[True, False], [False, True]] and bool(losses.loss.isfinite().all())
    official = predictor("classification", 2, variant="official").losses(torch.zeros(2, 2), batch)
    assert official.mask.all()
    torch.testing.assert_close(official.loss, torch.full((2, 2), math.log(2)))


@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("make", [MPNN, GINMolecule, GCNMolecule])
def test_a_fully_masked_molecule_changes_neither_loss_nor_gradient(task, make):
    module = predictor(task, 2, encoder=make())
    labels = [[1.0, 0.0], [0.0, NAN]]
    results = []
    for smiles, rows in ((["CCO", "c1ccccc1O"], labels), (["CCO", "c1ccccc1O", "C#N"], [*labels, [NAN, NAN]])):
        loss = module.training_step(batch_of(smiles, rows), 0)
        results.append([loss, *torch.autograd.grad(loss, list(module.parameters()))])
    for got, want in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)


def test_a_batch_without_any_label_gives_zero_loss_and_zero_gradient():
    module = predictor("classification", 2)
    loss = module.training_step(batch_of(["CCO", "C"], [[NAN, NAN]] * 2), 0)
    assert float(loss.detach()) == 0.0
    loss.backward()
    assert all(float(p.grad.abs().sum()) == 0.0 for p in module.parameters())


# ---- metrics --------------------------------------------------------------------------------------------------------


def test_regression_scores_by_hand_and_in_the_labels_unit():
    stats = {"label_mean": [10.0, 0.0], "label_std": [2.0, 1.0]}
    module = predictor(num_tasks=2, stats=stats)
    scores = module.make_scores()
    batches = [
        (["CCO", "C"], [[10.0, NAN], [12.0, 3.0]], [[1.0, 5.0], [1.0, 1.0]]),
        (["CC"], [[14.0, NAN]], [[4.0, 0.0]]),
    ]
    for smiles, labels, outputs in batches:
        module.forward = lambda batch, outputs=outputs: torch.tensor(outputs)
        module.update_scores(scores, batch_of(smiles, labels), "val")
    values = {name: float(value) for name, value in scores.compute().items()}
    # Task 0: labels 0, 1, 2 when standardised, errors 1, 0, 2, in the label's unit twice that; task 1: one label,
    # error 2. Losses are of standardised values: 1, 0, 4 and 4.
    assert values == pytest.approx(
        {
            "rmse_0": math.sqrt((4 + 0 + 16) / 3),
            "rmse_1": 2.0,
            "rmse": (math.sqrt(20 / 3) + 2) / 2,
            "mae_0": 2.0,
            "mae_1": 2.0,
            "mae": 2.0,
            "loss": 9 / 4,
            "undefined_tasks": 0.0,
        },
        abs=1e-6,
    )
    predicted = module.predict_step(batch_of(["CC"]), 0)
    torch.testing.assert_close(predicted["predictions"], torch.tensor([[18.0, 0.0]]))


def test_auroc_is_scikit_learns_over_defined_tasks_only():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(40, 4)).round(1).astype(np.float32) * 30  # ties, and sigmoids that saturate to ties
    labels = (rng.random((40, 4)) < 0.4).astype(np.float32)
    labels[rng.random((40, 4)) < 0.3] = np.nan
    labels[:, 2] = np.where(np.isnan(labels[:, 2]), np.nan, 1.0)  # one class
    labels[:, 3] = np.nan  # no label
    module = predictor("classification", 4)
    scores = module.make_scores()
    for rows in (slice(0, 16), slice(16, 40)):
        module.forward = lambda batch, rows=rows: torch.from_numpy(logits[rows])
        module.update_scores(scores, batch_of(["C"] * len(logits[rows]), labels[rows].tolist()), "val")
    expected = [roc_auc_score(labels[ok, t], logits[ok, t]) for t in (0, 1) for ok in [~np.isnan(labels[:, t])]]
    values = {name: float(value) for name, value in scores.compute().items() if name != "loss"}
    assert values == pytest.approx(
        {"auroc_0": expected[0], "auroc_1": expected[1], "auroc": np.mean(expected), "undefined_tasks": 2.0}, abs=1e-6
    )
    assert math.isnan(float(auroc(torch.tensor([0.0, NAN]), torch.tensor([0, 1]))))


@pytest.mark.parametrize("task, metric", [("regression", "rmse"), ("classification", "auroc")])
def test_scores_without_labels_are_undefined_and_said_to_be(task, metric):
    module = predictor(task)
    scores = {k: float(v) for k, v in module.make_scores().compute().items()}
    assert scores.pop("undefined_tasks") == 1.0 and scores.keys() == ({"auroc"} if metric == "auroc" else {"rmse", "mae"})
    assert all(map(math.isnan, scores.values()))
    loader = DataLoader([molecule("CCO", 0, [NAN]), molecule("C", 1, [NAN])], batch_size=2)
    run = trainer()
    run.validate(module, loader, verbose=False)
    assert math.isnan(run.callback_metrics[f"val/{metric}"]) and "val/loss" not in run.callback_metrics
    assert float(run.callback_metrics["val/undefined_tasks"]) == 1.0


def test_the_monitored_metric_follows_loss_and_task():
    assert (predictor().monitor, predictor().monitor_mode) == ("rmse", "min")
    assert predictor(stats={"metric": "mae"}).loss == "l1"  # QM9's schema
    assert (predictor(loss="l1").monitor, predictor(loss="l1").monitor_mode) == ("mae", "min")
    module = predictor("classification")
    assert (module.monitor, module.monitor_mode, module.loss) == ("auroc", "max", "bce")


# ---- what objectives use --------------------------------------------------------------------------------------------


def test_divergence_by_hand():
    # docs/papers/fedchem.md#hand-values, 11: KL(.5 || .731059) = .120115, KL(.731059 || .5) = .110944.
    one, zero = torch.tensor([[1.0]]), torch.tensor([[0.0]])
    batch = batch_of(["C"])
    module = predictor("classification")
    torch.testing.assert_close(module.divergence(one, zero, batch), torch.tensor([[0.120115]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(module.divergence(zero, one, batch), torch.tensor([[0.110944]]), atol=1e-6, rtol=0)
    assert float(module.divergence(one, one, batch)) == 0.0
    official = predictor("classification", variant="official").divergence
    torch.testing.assert_close(official(zero, zero, batch), torch.tensor([[0.693147]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(official(one, one, batch), torch.tensor([[0.582203]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(predictor().divergence(one, 4 * one, batch), torch.tensor([[9.0]]))
    official = predictor(loss="l1", variant="official").divergence
    torch.testing.assert_close(official(one, 4 * one, batch), torch.tensor([[3.0]]))


def test_kl_of_extreme_logits_is_finite_with_finite_gradient():
    reference = torch.tensor([80.0, -80.0, 0.0])
    outputs = torch.tensor([-80.0, 80.0, 200.0], requires_grad=True)
    kl = bernoulli_kl(reference, outputs)
    torch.testing.assert_close(kl, torch.tensor([80.0, 80.0, 100.0 - math.log(2)]), atol=1e-3, rtol=1e-5)
    assert bool(torch.autograd.grad(kl.sum(), outputs)[0].isfinite().all())


def test_perturbed_forward_embedding_and_batch_of_one():
    module = predictor(encoder=MPNN(perturb=["vertex", "edge"]))
    batch = batch_of(SMILES)
    inputs = module.perturbable(batch)
    assert set(inputs) == {"vertex", "edge"} and module.embed(batch).shape == (len(SMILES), 128)
    torch.testing.assert_close(module(batch, **inputs), module(batch), atol=1e-6, rtol=1e-5)
    for smiles in ("CCO", "C"):
        loss = module.training_step(Batch.from_data_list([molecule(smiles, 7, [1.0])]), 0)
        loss.backward()
        assert bool(loss.isfinite()) and all(bool(p.grad.isfinite().all()) for p in module.parameters())


def test_schnet_in_the_predictor():
    torch.manual_seed(0)
    module = LitMoleculePredictor(SchNet(), loss="l1")
    module.build({"task": "regression", "num_tasks": 12})
    batch = Batch.from_data_list([molecule("CCO", 3, [0.0] * 12), molecule("C", 5, [1.0] * 12)])
    batch.z, batch.pos = torch.tensor([6, 6, 8, 6]), torch.randn(4, 3)
    losses = module.losses(module(batch), batch)
    assert losses.loss.shape == (2, 12) and losses.ids.tolist() == [3, 5] and list(module.perturbable(batch)) == ["pos"]


# ---- stock Trainer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task, metric", [("regression", "rmse"), ("classification", "auroc")])
def test_learns_under_a_stock_trainer(task, metric):
    pl.seed_everything(0)
    data = Molecules(task)
    module = LitMoleculePredictor(MPNN(), optimizer=lambda params: torch.optim.Adam(params, lr=3e-3))
    run = trainer(max_epochs=15, gradient_clip_val=1.0, check_val_every_n_epoch=15)
    run.validate(module, data, verbose=False)
    before = float(run.callback_metrics[f"val/{metric}"])
    run.fit(module, data)
    run.test(module, data, verbose=False)
    after = float(run.callback_metrics[f"test/{metric}"])
    assert after < 0.5 * before if task == "regression" else after > 0.9
    outputs = run.predict(module, data)
    assert torch.cat([o["sample_id"] for o in outputs]).tolist() == list(range(97))
    if task == "classification":
        assert all(bool(((o["predictions"] >= 0) & (o["predictions"] <= 1)).all()) for o in outputs)


@pytest.mark.parametrize("encoder", [MPNN, GCNMolecule, GINMolecule])
def test_a_task_without_any_label_keeps_its_outputs(encoder):
    """Adam makes of weight decay alone a full step towards zero, at each step: a client would wear down what others learnt."""

    class ThreeTasks(Molecules):
        def __init__(self) -> None:
            super().__init__("regression")
            self.schema = schema(num_tasks=3)
            for graph in self.graphs[:40]:
                graph.y = torch.tensor([[float(graph.y), NAN, NAN]])
            for graph in self.graphs[40:]:
                graph.y = torch.tensor([[float(graph.y), NAN, 1.0]])

    pl.seed_everything(0)
    module = LitMoleculePredictor(encoder(), optimizer=lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1))
    data = ThreeTasks()
    module.build(data.schema)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trainer(max_epochs=2).fit(module, data)
    after = module.state_dict()
    for name in ("encoder.head.2.weight", "encoder.head.2.bias"):
        kept = [row.equal(was) for row, was in zip(after[name], before[name], strict=True)]
        assert kept == [False, True, False]
    assert not after["encoder.head.0.weight"].equal(before["encoder.head.0.weight"])


def test_checkpoint_round_trip(tmp_path):
    data = Molecules("regression")
    data.schema = {**data.schema, "label_mean": [1.5], "label_std": [0.5]}
    module = LitMoleculePredictor(GINMolecule())
    run = trainer(max_steps=1)
    run.fit(module, data)
    run.save_checkpoint(tmp_path / "m.ckpt")
    loaded = LitMoleculePredictor.load_from_checkpoint(tmp_path / "m.ckpt", encoder=GINMolecule(), weights_only=True)
    assert not any("label" in name for name in module.state_dict())  # statistics belong to the data, not to the weights
    batch = next(iter(data.val_dataloader()))
    expected = module.eval().predict_step(batch, 0)["predictions"]
    torch.testing.assert_close(loaded.eval().predict_step(batch, 0)["predictions"], expected)
    torch.testing.assert_close(expected, module(batch) * 0.5 + 1.5)


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_errors():
    with pytest.raises(ValueError, match=r"`model.init_args.loss` must be one of .'bce', 'l1', 'mse'. or null, fou"):
        LitMoleculePredictor(MPNN(), loss="x")
    with pytest.raises(ValueError, match="`model.init_args.variant` must be 'paper' or 'official', found 'old'"):
        LitMoleculePredictor(MPNN(), variant="old")
    with pytest.raises(ValueError, match="encoder` of LitMoleculePredictor must be a molecule encoder .* Linear"):
        LitMoleculePredictor(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="`model.init_args.loss: bce` is for classification, but the data's task is"):
        LitMoleculePredictor(MPNN(), loss="bce").build(schema())
    with pytest.raises(ValueError, match="needs `task: regression` or `task: classification` in the data's schema"):
        LitMoleculePredictor(MPNN()).build({"num_features": 3, "num_classes": 2})
    with pytest.raises(ValueError, match="has 1 entries of `label_mean` for 2 tasks"):
        predictor(num_tasks=2, stats={"label_mean": [0.0]})
    module = predictor("classification", 2)
    with pytest.raises(ValueError, match="Molecule 1 has label -1.0 for task 0; classification needs 0, 1 or missing"):
        module.losses(torch.zeros(2, 2), batch_of(["C", "CC"], [[1.0, 0.0], [-1.0, 1.0]]))
    with pytest.raises(ValueError, match=r"Labels `y` need shape \(2, 2\) .* found \(2, 1\)"):
        module.losses(torch.zeros(2, 2), batch_of(["C", "CC"], [[1.0], [0.0]]))
    batch = batch_of(["C", "CC"], [[1.0, 0.0]] * 2)
    batch.sample_id = None
    with pytest.raises(ValueError, match="needs `sample_id`, one int64 id for each"):
        module.losses(torch.zeros(2, 2), batch)
