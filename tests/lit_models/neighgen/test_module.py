"""NeighGen as a module: phase 1, mending (T12), and the edge cases of the table, under a stock Trainer.

Bugs by number are those of the published codes (docs/papers/fedsage_plus.md#deviations).
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from neighgen_samples import neighgen, random_graph, reference_candidates, same
from torch_geometric.data import Data

from datamodules.impairing import ImpairedDataModule, impair
from datamodules.mending import mend
from lit_models.neighgen import LitNeighGen
from lit_models.neighgen.exchange import exchange_step, fgen_optimizer, make_query, train_fgen_alone
from lit_models.neighgen.generators import attach
from lit_models.neighgen.losses import count_loss, draw_slots, train_counts
from lit_models.neighgen.report import report_quality


def test_who_learns_from_which_loss():
    """θ^d learns from L^d alone, θ^f from L^f alone; all weights are registered (bug 9)."""
    batch = impair(random_graph(), 0.3, 0)
    for lambdas, learns in (((1.0, 0.0), {"dgen": True, "fgen": False}), ((0.0, 1.0), {"dgen": False, "fgen": True})):
        module = neighgen(lambda_d=lambdas[0], lambda_f=lambdas[1], calibrate=False)
        module.training_step(batch, 0).backward()
        for name, expected in (learns | {"encoder": True}).items():
            total = sum(p.grad.abs().sum() for p in getattr(module, name).parameters() if p.grad is not None)
            assert (float(total) > 0) == expected, (lambdas, name)
    optimised = {id(p) for group in module.configure_optimizers().param_groups for p in group["params"]}
    for part in (module.encoder, module.dgen, module.fgen):
        assert len(list(part.parameters())) >= 2 and {id(p) for p in part.parameters()} <= optimised


def test_training_loss_is_the_weighted_sum():
    batch = impair(random_graph(), 0.3, 0)
    module = neighgen(lambda_d=2.0, lambda_f=0.25)
    module.start(batch)
    terms = {}
    module.observe = terms.update
    loss = module.eval().training_step(batch, 0)
    assert torch.equal(terms["loss"], loss)
    torch.testing.assert_close(loss, 2.0 * terms["count_loss"] + 0.25 * terms["feature_loss"])
    error = (module(batch) - batch.missing_count).abs()
    smooth = torch.where(error < 1, 0.5 * error**2, error - 0.5)
    torch.testing.assert_close(terms["count_loss"], smooth.mean().detach())


@pytest.mark.parametrize(("profile", "lambdas"), [("seed", (1, 1, 0)), ("paper", (1, 1, 1)), ("balanced", (1, 1 / 6, 0))])
def test_profiles(profile, lambdas):
    module = neighgen(profile=profile)
    assert (module.lambda_d, module.lambda_f, module.lambda_c) == lambdas
    assert (module.classifier is not None) == (profile == "paper")
    if module.classifier is not None:
        local = module.classifier
        assert (local.hidden_channels, local.num_layers, local.dropout) == (64, 2, 0.5)
        assert local(torch.ones(2, 6), torch.zeros(2, 0, dtype=torch.long)).shape == (2, 3)
    assert neighgen(profile=profile, lambda_f=3.0).lambda_f == 3.0


def test_cold_start_has_a_signal_only_with_the_training_rule():
    batch = impair(random_graph(), 0.3, 0)
    signal = {}
    for rule in ("max", "predicted"):
        module = neighgen(train_count=rule, calibrate=False)
        torch.nn.init.constant_(module.dgen.linear.bias, -9.0)  # ñ = 0 everywhere
        module.training_step(batch, 0).backward()
        signal[rule] = float(sum(p.grad.abs().sum() for p in module.fgen.parameters()))
    assert signal["max"] > 0 and signal["predicted"] == 0


def test_sampling_rows_leaves_the_expected_loss():
    batch = impair(random_graph(), 0.3, 0)
    module = neighgen(sampler="prefix").eval()
    module.start(batch)
    with torch.no_grad():
        module.dgen.linear.weight.zero_()
        full = torch.stack([module.training_step(batch, 0) for _ in range(40)]).mean()
        module.max_rows = 9
        sampled = torch.stack([module.training_step(batch, 0) for _ in range(200)]).mean()
    assert abs(sampled - full) < 0.05 * full


def test_held_out_counts_and_pairs_give_no_gradient():
    """Changing every held-out target changes nothing in training."""
    batch = impair(random_graph(), 0.4, 0, holdout=0.4)
    changed = copy.copy(batch)
    changed.missing_count = torch.where(batch.count_mask, batch.missing_count, 999)
    changed.hidden_x = batch.hidden_x.clone()
    changed.hidden_x[batch.holdout_target] = torch.nan
    losses = []
    for graph in (batch, changed):
        module = neighgen()
        module.start(batch)
        torch.manual_seed(1)
        losses.append(module.training_step(graph, 0))
    assert batch.holdout_target.numel() > 0 and torch.equal(*losses)


def relabelled(batch, order):
    """The impaired graph with its nodes in another order: node ``order[k]`` becomes node k."""
    place = torch.argsort(order)
    pieces = [batch.pair_target[batch.pair_ptr[v] : batch.pair_ptr[v + 1]] for v in order.tolist()]
    other = Data(
        x=batch.x[order], edge_index=place[batch.edge_index], y=batch.y[order], num_nodes=len(order),
        pair_ptr=torch.tensor([0, *(len(piece) for piece in pieces)]).cumsum(0), pair_target=torch.cat(pieces),
        hidden_x=batch.hidden_x, missing_count=batch.missing_count[order], count_mask=batch.count_mask[order],
        train_mask=batch.train_mask[order],
    )  # fmt: skip
    return other, place


@pytest.mark.parametrize("seed", range(5))
def test_relabelling_nodes_permutes_the_outputs_and_leaves_all_losses(seed):
    """The whole module: encoder, counts, candidates, L^d, L^f and L^c, with the noise and the slots permuted too."""
    module = neighgen(seed, lambda_c=1.0).double()
    batch = impair(random_graph(seed=seed), 0.3, seed)
    batch.x, batch.hidden_x = batch.x.double(), batch.hidden_x.double()
    module.eval()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(batch.y), generator=generator)
    other, place = relabelled(batch, order)

    torch.testing.assert_close(module.embed(other), module.embed(batch)[order])
    predicted, again = module(batch), module(other)
    torch.testing.assert_close(again, predicted[order])
    torch.testing.assert_close(
        count_loss(again, other.missing_count.double()), count_loss(predicted, batch.missing_count.double())
    )

    counts = train_counts(predicted, batch.pair_ptr.diff(), 3)
    rows = counts.nonzero().squeeze(1)
    assert len(rows) > 5
    u = module.embed(batch)[rows] + torch.randn(len(rows), 8, generator=generator, dtype=torch.float64)
    slots = draw_slots(counts[rows], 3, "random", generator)
    shuffled = torch.randperm(len(rows), generator=generator)
    terms = module.generator_terms(batch, rows, u, slots, len(counts))
    moved = module.generator_terms(other, place[rows[shuffled]], u[shuffled], slots[shuffled], len(counts))
    assert terms.keys() == moved.keys() == {"feature_loss", "task_loss"}
    for name in terms:
        torch.testing.assert_close(moved[name], terms[name])
    wrong = module.generator_terms(other, rows, u, slots, len(counts))  # the owners of before: other nodes now
    assert not torch.isclose(wrong["feature_loss"], terms["feature_loss"])


def test_generate_is_in_eval_mode_and_reproducible():
    """Bug 12: the published codes mend with dropout on."""
    data = random_graph()
    module = neighgen()
    module.start(impair(data, 0.3, 0))
    module.train()
    rng = torch.get_rng_state()
    (counts, features), again, other = module.generate(data, 3), module.generate(data, 3), module.generate(data, 4)
    assert torch.equal(counts, again[0]) and torch.equal(features, again[1])
    assert torch.equal(counts, other[0]) and not torch.equal(features, other[1])
    assert module.encoder.training and torch.equal(torch.get_rng_state(), rng)
    assert torch.equal(counts, module.eval()(data).round().clamp(0, 3).long())
    mended = mend(data, counts, features)
    assert mended.num_nodes == 40 + int(counts.sum()) > 40 and not features.requires_grad


def test_generated_rows_are_ordered_by_owner():
    data, module = random_graph(), neighgen()
    module.start(impair(data, 0.3, 0))
    module.sampler, module.num_slots, module.fgen.num_slots = "prefix", 3, 3
    counts, features = module.generate(data, 0)
    rows = counts.nonzero().squeeze(1)
    noise = torch.randn(len(rows), 8, generator=torch.Generator().manual_seed(0))
    u = module.embed_eval(data)[rows] + noise
    candidates = reference_candidates(dict(module.fgen.named_parameters()), u, 3)
    expected = torch.cat([c[:k] for c, k in zip(candidates, counts[rows].tolist(), strict=True)])
    torch.testing.assert_close(features, expected.detach())


def task_gradient(module, batch):
    rows = (batch.missing_count > 0).nonzero().squeeze(1)
    u = torch.randn(len(rows), 8, generator=torch.Generator().manual_seed(0))
    slots = torch.ones(len(rows), 3, dtype=torch.bool)
    terms = module.generator_terms(batch, rows, u, slots, batch.num_nodes)
    gradients = torch.autograd.grad(terms["task_loss"], list(module.fgen.parameters()))
    return terms["task_loss"], sum(float(g.abs().sum()) for g in gradients)


def test_t12_the_task_loss_reaches_fgen(monkeypatch):
    batch = impair(random_graph(), 0.3, 0)
    module = neighgen(profile="paper").eval()
    assert task_gradient(module, batch)[1] > 1e-3

    def one_way(x, edge_index, candidates, owner):  # bug 2
        new_x, edges = attach(x, edge_index, candidates, owner)
        return new_x, edges[:, edges[0] < len(x)]

    monkeypatch.setattr("lit_models.neighgen.module.attach", one_way)
    assert task_gradient(module, batch)[1] == 0


def test_task_loss_reads_the_labels_of_its_own_rows():
    """Bug 8: labels of G_i, indexed by rows of the impaired graph, are shifted; and only training labels may count."""
    data = random_graph()
    batch = impair(data, 0.3, 0)
    module = neighgen(profile="paper").eval()
    loss, _ = task_gradient(module, batch)
    rows = (batch.missing_count > 0).nonzero().squeeze(1)
    u = torch.randn(len(rows), 8, generator=torch.Generator().manual_seed(0))
    candidates = reference_candidates(dict(module.fgen.named_parameters()), u, 3)
    counts = torch.zeros(batch.num_nodes, dtype=torch.long).index_fill(0, rows, 3)
    mended = mend(data.subgraph(batch.node_id), counts, candidates.reshape(-1, 6).detach())
    logits = module.classifier(mended.x, mended.edge_index)
    train = batch.train_mask.nonzero().squeeze(1)
    torch.testing.assert_close(loss, F.cross_entropy(logits[train], data.y[batch.node_id[train]]))
    shifted = F.cross_entropy(logits[train], data.y[train])  # mutant
    assert abs(float(shifted - loss)) > 1e-3
    poisoned = copy.copy(batch)
    poisoned.y = torch.where(batch.train_mask, batch.y, -100)
    assert torch.equal(task_gradient(module, poisoned)[0], loss)


EDGE_CASES = {
    "nothing hidden": (random_graph(), 0.0),
    "one node": (random_graph(1), 0.5),
    "two nodes": (random_graph(2, probability=1.0), 0.5),
    "no edges": (random_graph(12, probability=0.0), 0.3),
    "almost all hidden": (random_graph(12), 0.99),
    "complete graph, n > P": (random_graph(20, probability=1.0), 0.5),
    "sparse features": (random_graph(sparse=True), 0.3),
}


@pytest.mark.parametrize("name", EDGE_CASES)
@pytest.mark.parametrize("profile", ["seed", "paper"])
def test_edge_cases_are_finite(name, profile):
    data, share = EDGE_CASES[name]
    batch = impair(data, share, 0, holdout=0.2)
    module = neighgen(profile=profile)
    loss = module.training_step(batch, 0)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in module.parameters() if p.grad is not None)
    counts, features = module.generate(data, 0)
    assert features.shape == (int(counts.sum()), 6) and bool(torch.isfinite(features).all())
    assert mend(data, counts, features).num_nodes == data.num_nodes + len(features)
    assert all(value == value for value in report_quality(module, batch).values())
    train_fgen_alone(module)
    query = make_query(module, batch, seed=0)
    exchange_step(module, batch, query, None, fgen_optimizer(module))


def test_features_that_cannot_be_generated_are_an_error():
    batch = impair(random_graph(), 0.3, 0)
    batch.hidden_x[0, 0] = 3.0
    with pytest.raises(ValueError, match="go from 0 to 3, but `feature_range: sigmoid` .* `feature_range: identity`"):
        neighgen(feature_range="sigmoid").training_step(batch, 0)
    neighgen(feature_range="identity").training_step(batch, 0)
    batch.x[0] = torch.nan
    with pytest.raises(ValueError, match="needs finite features"):
        neighgen().training_step(batch, 0)


def test_wrong_choices_are_named():
    with pytest.raises(ValueError, match="`profile: papper` of LitNeighGen is unknown; use one of seed, paper"):
        neighgen(profile="papper")
    with pytest.raises(ValueError, match="`num_slots: 0`"):
        neighgen(num_slots=0)


class BlockClient:
    """A graph where a neighbour's features are predictable: two classes that link within, with different words."""

    schema = {"num_features": 20, "num_classes": 2}

    def __init__(self, num_nodes=120):
        generator = torch.Generator().manual_seed(0)
        y = torch.arange(num_nodes) % 2
        linked = torch.where(y[:, None] == y, 0.08, 0.004)
        adjacency = torch.triu(torch.rand(num_nodes, num_nodes, generator=generator) < linked, diagonal=1)
        pairs = adjacency.nonzero().T
        words = torch.where((torch.arange(20) % 2) == y[:, None], 0.6, 0.05)
        x = (torch.rand(num_nodes, 20, generator=generator) < words).float()
        mask = torch.ones(num_nodes, dtype=torch.bool)
        self.data = Data(
            x=x.to_sparse_csr(),
            edge_index=torch.cat([pairs, pairs.flip(0)], dim=1),
            y=y,
            train_mask=mask,
            val_mask=mask,
            test_mask=mask,
            node_id=torch.arange(num_nodes),
            num_nodes=num_nodes,
        )


def fit(tmp_path, max_epochs, **options):
    torch.manual_seed(0)
    module = LitNeighGen(**({"embedding_channels": 16, "hidden_channels": [32]} | options))
    data = ImpairedDataModule(BlockClient(), hide_portion=0.2, draws=10, holdout=0.3)
    trainer = Trainer(
        max_epochs=max_epochs,
        default_root_dir=tmp_path,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=max_epochs,
    )
    trainer.fit(module, datamodule=data)
    return module, trainer


def test_stock_trainer_learns_what_can_be_learnt(tmp_path):
    module, trainer = fit(tmp_path, max_epochs=15)
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert found["val/generator_error"] < 0.8 * found["val/mean_error"] < found["val/zero_error"]
    assert {"train/loss", "train/count_loss", "train/feature_loss", "val/count_mae", "val/count_saturation"} <= {*found}
    restored = LitNeighGen.load_from_checkpoint(
        next(tmp_path.rglob("*.ckpt")), embedding_channels=16, hidden_channels=[32], weights_only=True
    )
    data = BlockClient().data
    assert all(torch.equal(a, b) for a, b in zip(module.generate(data, 0), restored.generate(data, 0), strict=True))


def test_same_seed_same_weights(tmp_path):
    first, second = fit(tmp_path / "a", max_epochs=2)[0], fit(tmp_path / "b", max_epochs=2)[0]
    assert same(first.state_dict(), second.state_dict())


def test_a_known_number_of_missing_neighbours_replaces_the_predicted_one():
    data, module = random_graph(), neighgen()
    module.start(impair(data, 0.3, 0))
    missing = torch.arange(40) % 5  # up to 4, of 3 slots
    counts, features = module.generate(data, 0, missing)
    assert torch.equal(counts, missing.clamp(max=3)) and len(features) == int(counts.sum())


def test_the_task_loss_of_a_single_labelled_node_is_its_cross_entropy():
    batch, module = impair(random_graph(), 0.3, 0), neighgen(profile="paper").eval()
    node = int(batch.train_mask.nonzero()[0])
    for labelled, expected in ((1, None), (0, 0.0)):
        batch.y = torch.full_like(batch.y, -1)
        batch.y[node] = 1 if labelled else -1
        nothing = torch.zeros(0, dtype=torch.long)
        terms = module.generator_terms(batch, nothing, torch.zeros(0, 8), torch.zeros(0, 3, dtype=torch.bool), 1)
        if expected is None:
            expected = F.cross_entropy(module.classifier(batch.x, batch.edge_index)[[node]], torch.tensor([1])).item()
        assert terms["task_loss"].item() == pytest.approx(expected)


def test_defaults_are_the_documented_ones():
    module = LitNeighGen()
    names = ("embedding_channels", "num_slots", "hidden_channels", "feature_range", "count_activation", "calibrate",
             "embedding_norm", "profile", "count_beta", "train_count", "sampler", "dropout", "max_rows")  # fmt: skip
    assert [getattr(module, name) for name in names] == [
        128, 5, (128, 32), "sigmoid", "softplus", True, 8.0, "seed", 1.0, "max", "random", 0.0, None
    ]  # fmt: skip
    assert (module.encoder.hidden_channels, module.encoder.num_layers, module.encoder.dropout) == (64, 2, 0.5)
    assert module.optimizer([torch.nn.Parameter(torch.zeros(1))]).defaults["lr"] == 1e-3
    assert (module.monitor, module.monitor_mode, module.private_entries) == ("generator_error", "min", ("*",))
    for wrong in ({"num_slots": 0}, {"profile": "x"}, {"sampler": "x"}, {"train_count": "x"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            LitNeighGen(**wrong)
    assert LitNeighGen(num_slots=1).num_slots == 1


def test_the_task_loss_counts_with_its_lambda():
    terms = {"feature_loss": torch.tensor(2.0), "task_loss": torch.tensor(3.0)}
    module = neighgen(lambda_f=0.25, lambda_c=0.5)
    assert module.weigh(terms).item() == 2.0  # .25 x 2 + .5 x 3
    assert neighgen(lambda_f=0.25).weigh({"feature_loss": torch.tensor(2.0)}).item() == 0.5
    batch, seen = impair(random_graph(), 0.3, 0), {}
    module.start(batch)
    module.observe = seen.update
    loss = module.eval().training_step(batch, 0)
    parts = seen["count_loss"] + 0.25 * seen["feature_loss"] + 0.5 * seen["task_loss"]
    torch.testing.assert_close(loss.detach(), parts.detach())
    assert seen["task_loss"] > 0.1


@pytest.mark.parametrize("profile", ["seed", "paper"])
def test_whose_neighbours_are_generated_in_training(profile):
    """With a local classifier all that get a neighbour; without, only those with a target: one hidden neighbour is enough."""
    batch, module, given = impair(random_graph(), 0.3, 0), neighgen(profile=profile), []
    module.start(batch)
    module.eval()
    module.dgen.linear.weight.data.zero_()
    module.dgen.linear.bias.data.fill_(1.0)  # softplus(1) = 1.3: one neighbour for each, or as many as are hidden
    real = module.generator_terms
    module.generator_terms = lambda *arguments: given.append(arguments) or real(*arguments)
    torch.manual_seed(5)
    module.training_step(batch, 0)
    (_, rows, u, slots, num_nodes, dropout), targets = given[0], batch.pair_ptr.diff()
    assert bool((targets == 0).any()) and bool((targets == 1).any()) and (num_nodes, dropout) == (28, 0.0)
    assert rows.tolist() == (list(range(28)) if profile == "paper" else targets.nonzero().flatten().tolist())
    torch.manual_seed(5)
    torch.testing.assert_close(u, module.embed(batch)[rows] + torch.randn(len(rows), 8))
    assert torch.equal(slots.sum(1), targets.clamp(1, 3)[rows])
