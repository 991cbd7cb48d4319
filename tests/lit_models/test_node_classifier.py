"""LitNodeClassifier: per-node losses and masks by hand, metrics against torchmetrics, stock Trainer runs."""

import math

import pytest
import torch
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

from lit_models import GAT, GCN, GIN, GraphSAGE, LitNodeClassifier
from lit_models.node_classifier import ClassificationScores

ENCODERS = [GraphSAGE, GCN, GAT, GIN]


def built(encoder=None, **arguments):
    return LitNodeClassifier(encoder or GraphSAGE(hidden_channels=8), num_classes=3, in_channels=12, **arguments)


def masked(batch, **masks):
    for stage, nodes in masks.items():
        mask = torch.zeros(batch.num_nodes, dtype=torch.bool)
        mask[nodes] = True
        batch[f"{stage}_mask"] = mask
    return batch


def test_losses_stay_unreduced_by_hand(graph):
    batch = masked(graph(), train=[4, 1, 7])
    batch.y[[1, 4, 7]] = torch.tensor([0, 2, -1])  # node 7 has no label
    logits = torch.zeros(batch.num_nodes, 3)
    logits[1] = torch.tensor([math.log(2.0), 0.0, 0.0])  # p = (1/2, 1/4, 1/4)
    losses = built().losses(logits, batch)
    torch.testing.assert_close(losses.loss, torch.tensor([[math.log(2.0)], [math.log(3.0)]]))
    assert losses.mask.dtype == torch.bool and losses.mask.shape == (2, 1) and losses.mask.all()
    assert losses.ids.tolist() == [1001, 1004]


def test_divergence_is_kl_by_hand(graph):
    batch = masked(graph(), train=[2])
    reference, outputs = torch.zeros(batch.num_nodes, 3), torch.zeros(batch.num_nodes, 3)
    reference[2] = torch.tensor([math.log(2.0), 0.0, 0.0])  # (1/2, 1/4, 1/4) against (1/3, 1/3, 1/3)
    expected = 0.5 * math.log(1.5) + 0.5 * math.log(0.75)
    torch.testing.assert_close(built().divergence(outputs, reference, batch), torch.tensor([[expected]]))
    assert built().divergence(outputs, outputs, batch).abs().max() == 0.0


@pytest.mark.parametrize("sparse", [False, True])
def test_replaced_features_are_used_and_give_a_gradient(graph, sparse):
    module, batch = built().eval(), graph(sparse=sparse)
    (name,) = inputs = module.perturbable(batch)
    x = inputs[name].clone().requires_grad_()
    torch.testing.assert_close(module(batch, **{name: x}), module(batch), atol=1e-5, rtol=1e-5)
    (grad,) = torch.autograd.grad(module(batch, x=x).sum(), x)
    assert grad.isfinite().all() and grad.abs().sum() > 0
    assert not torch.allclose(module(batch, x=x + 1.0), module(batch))


def test_labels_of_other_stages_cannot_reach_training(graph, data, trainer):
    def fit(poison):
        torch.manual_seed(0)
        batch = graph()
        if poison:
            batch.y[~batch.train_mask] = 10**6  # no class at all: an error wherever it is looked at
        module = built()
        trainer(max_epochs=3, limit_val_batches=0).fit(module, data(batch))
        return module.state_dict()

    clean, poisoned = fit(False), fit(True)
    for name, value in clean.items():
        assert torch.equal(poisoned[name], value)


@pytest.mark.parametrize("sparse", [False, True])
def test_no_training_node_gives_zero_loss_and_gradient(graph, sparse):
    module, batch = built(), masked(graph(sparse=sparse), train=[])
    loss = module.training_step(batch, 0)
    loss.backward()
    assert loss == 0.0
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in module.parameters())


def test_a_changed_mask_or_label_is_noticed(graph):
    module, batch = built(), masked(graph(), train=[0, 1])
    batch.y[:3] = 0
    logits = torch.randn(batch.num_nodes, 3)
    assert module.losses(logits, batch).ids.tolist() == [1000, 1001]
    batch.train_mask[2] = True  # in place
    assert module.losses(logits, batch).ids.tolist() == [1000, 1001, 1002]
    batch.y[1] = -1
    assert module.losses(logits, batch).ids.tolist() == [1000, 1002]
    masked(batch, train=[5])  # another tensor
    batch.y[5] = 1
    assert module.losses(logits, batch).ids.tolist() == [1005]


def test_a_label_outside_the_classes_is_an_error(graph, data, trainer):
    batch = graph()
    batch.y[4] = 9
    message = r"Node 1004 has label 9, but the model has 3 classes.*model.init_args.num_classes"
    with pytest.raises(ValueError, match=message):
        trainer().fit(built(), data(batch))


def test_arguments_that_contradict_the_data_are_an_error(graph, data, trainer):
    module = LitNodeClassifier(GraphSAGE(), num_classes=5)
    with pytest.raises(ValueError, match="`model.init_args.num_classes` is 5, but the data has num_classes: 3"):
        trainer().fit(module, data(graph()))
    with pytest.raises(ValueError, match="needs `num_features` in the data's schema.*LitMoleculePredictor"):
        LitNodeClassifier(GraphSAGE()).build({"num_classes": 3})


def reference_scores(logits, labels):
    return {
        "accuracy": multiclass_accuracy(logits, labels, num_classes=3, average="micro"),
        "f1": multiclass_f1_score(logits, labels, num_classes=3, average="macro"),
        "loss": torch.nn.functional.cross_entropy(logits, labels),
    }


@pytest.mark.parametrize("labels", [[0, 1, 2, 2, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0], [1, 1, 2, 2, 1, 2, 1]])
def test_scores_equal_torchmetrics_over_uneven_batches(labels):
    labels, logits = torch.tensor(labels), torch.randn(7, 3)
    logits[:, 0] -= 100.0 * (labels.min() > 0)  # third case: class 0 neither present nor predicted
    scores = ClassificationScores(3)
    for part in ([0], [1, 2, 3, 4], [], [5, 6]):
        scores.update(logits[part], labels[part])
    values = scores.compute()
    for name, expected in reference_scores(logits, labels).items():
        torch.testing.assert_close(values[name], expected, msg=name)


def test_macro_f1_by_hand():
    # labels 0 0 1, predictions 0 1 1, class 2 absent: F1 = 2/3 and 2/3, mean over two classes.
    scores = ClassificationScores(3)
    scores.update(torch.eye(3)[[0, 1, 1]], torch.tensor([0, 0, 1]))
    torch.testing.assert_close(scores.compute()["f1"], torch.tensor(2 / 3))


def test_scores_add_up_over_processes():
    """What DDP's reduction does: the states of two ranks, summed, give the scores of all samples."""
    logits, labels = torch.randn(9, 3), torch.randint(0, 3, (9,))
    ranks = [ClassificationScores(3), ClassificationScores(3)]
    ranks[0].update(logits[:2], labels[:2])
    ranks[1].update(logits[2:], labels[2:])
    assert set(ranks[0]._reductions) == {"confusion", "loss"}
    for name, reduction in ranks[0]._reductions.items():
        setattr(ranks[0], name, reduction(torch.stack([getattr(rank, name) for rank in ranks])))
    for name, expected in reference_scores(logits, labels).items():
        torch.testing.assert_close(ranks[0].compute()[name], expected, msg=name)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("encoder_class", ENCODERS)
def test_stock_trainer_runs_everything(graph, data, trainer, encoder_class, sparse):
    batch = graph(sparse=sparse)
    module, datamodule = LitNodeClassifier(encoder_class(hidden_channels=16)), data(batch)
    run = trainer(max_epochs=2)
    run.fit(module, datamodule)
    assert set(run.callback_metrics) == {"train/loss", "val/accuracy", "val/f1", "val/loss"}

    module.eval()
    with torch.no_grad():
        logits = module(batch)
    for stage, evaluate in (("val", trainer().validate), ("test", trainer().test)):
        (logged,) = evaluate(module, datamodule, verbose=False)
        mask = batch[f"{stage}_mask"]
        expected = reference_scores(logits[mask], batch.y[mask])
        assert set(logged) == {f"{stage}/{name}" for name in expected}
        for name, value in expected.items():
            assert logged[f"{stage}/{name}"] == pytest.approx(float(value), rel=1e-4, abs=1e-5)

    (predicted,) = trainer().predict(module, datamodule)
    assert torch.equal(predicted["node_id"], batch.node_id)
    torch.testing.assert_close(predicted["probabilities"], logits.softmax(-1), atol=1e-5, rtol=1e-4)


def test_several_batches_are_pooled_not_averaged(graph, data, trainer):
    """Neighbour-sampled evaluation: batches with 1 and 9 seed nodes count by node."""
    batches = [masked(graph(), val=[0]), masked(graph(seed=1), val=list(range(3, 12)))]
    module = built().eval()
    with torch.no_grad():
        logits = torch.cat([module(b)[b.val_mask] for b in batches])
    labels = torch.cat([b.y[b.val_mask] for b in batches])
    (logged,) = trainer().validate(module, data(*batches), verbose=False)
    for name, value in reference_scores(logits, labels).items():
        assert logged[f"val/{name}"] == pytest.approx(float(value), rel=1e-4, abs=1e-6)
    (again,) = trainer().validate(module, data(*batches), verbose=False)
    assert again == logged  # and are reset between epochs


@pytest.mark.parametrize("why", ["no node", "no label"])
def test_undefined_metrics_are_not_logged(graph, data, trainer, why):
    batch = graph()
    if why == "no node":
        masked(batch, test=[])
    else:
        batch.y[batch.test_mask] = -1
    assert trainer().test(built(), data(batch), verbose=False) in ([], [{}])


def test_predict_mask_limits_predictions_to_seed_nodes(graph):
    batch = masked(graph(), predict=[3, 8])
    predicted = built().predict_step(batch, 0)
    assert predicted["node_id"].tolist() == [1003, 1008] and predicted["probabilities"].shape == (2, 3)


def test_it_learns(graph, data, trainer):
    batch = graph(num_nodes=60)
    batch.y = batch.x[:, :3].argmax(1)
    module = built(GraphSAGE(hidden_channels=16, dropout=0.0))
    trainer(max_epochs=100, limit_val_batches=0).fit(module, data(batch))
    mask = batch.train_mask
    assert (module.eval()(batch)[mask].argmax(1) == batch.y[mask]).float().mean() > 0.95
