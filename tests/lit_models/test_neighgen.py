"""NeighGen as a module: phase 1, the exchange of phase 2 (T9, T11), mending (T12), and the edge cases of the table.

References are written from the equations with `torch.cdist` and plain matrix products; mutants are the published codes'
bugs (numbers as in docs/papers/fedsage_plus.md#deviations), put back to show that the oracle tells them apart.
"""

import copy
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from torch_geometric.data import Data

from datamodules.impairing import ImpairedDataModule, impair
from datamodules.mending import mend
from lit_models.encoders import GCN, GraphSAGE
from lit_models.neighgen import LitNeighGen
from lit_models.neighgen_generators import CountGenerator, FeatureGenerator, attach, check_finite, peer_gradient
from lit_models.neighgen_losses import count_loss, draw_slots, mend_counts, train_counts
from lit_models.neighgen_start import mean_features, principal_directions, start_at_topics

SCHEMA = {"num_features": 6, "num_classes": 3}
SGD = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731


def random_graph(num_nodes=40, seed=0, probability=0.15, sparse=False):
    generator = torch.Generator().manual_seed(seed)
    adjacency = torch.triu(torch.rand(num_nodes, num_nodes, generator=generator) < probability, diagonal=1)
    pairs = adjacency.nonzero().T
    x = torch.rand(num_nodes, 6, generator=generator) * (torch.rand(num_nodes, 6, generator=generator) < 0.6)
    part = torch.arange(num_nodes) % 4
    return Data(
        x=x.to_sparse_csr() if sparse else x,
        edge_index=torch.cat([pairs, pairs.flip(0)], dim=1),
        y=torch.randint(0, 3, (num_nodes,), generator=generator),
        train_mask=part < 2,
        val_mask=part == 2,
        test_mask=part == 3,
        node_id=torch.arange(num_nodes),
        num_nodes=num_nodes,
    )


def neighgen(seed=0, **options):
    torch.manual_seed(seed)
    small = {"embedding_channels": 8, "num_slots": 3, "hidden_channels": [10, 10], "feature_range": "tanh"}
    module = LitNeighGen(**(small | options))
    module.build(SCHEMA)
    return module


@pytest.fixture
def client():
    """A started module in phase 2 and its impaired graph."""
    return started()


def started(**options):
    """Some nodes have a predicted count of 0 although they miss neighbours: they are in the local term alone."""
    module, batch = neighgen(**options), impair(random_graph(), 0.3, 0)
    module.start(batch)
    torch.nn.init.normal_(module.dgen.linear.weight, std=0.1)
    module.dgen.linear.bias.data -= 1.0
    module.freeze()
    return module, batch


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# ---- generators -----------------------------------------------------------------------------------------------------


def reference_candidates(weights, u, num_slots):
    """All P candidates of a tanh fGen with two hidden layers, shape (B, P, F), by plain matrix products."""
    h = (u @ weights["hidden.0.weight"].T + weights["hidden.0.bias"]).clamp(min=0)
    h = (h @ weights["hidden.1.weight"].T + weights["hidden.1.bias"]).clamp(min=0)
    return torch.tanh(h @ weights["out.weight"].T + weights["out.bias"]).reshape(len(u), num_slots, -1)


def test_only_the_drawn_slots_are_generated():
    torch.manual_seed(0)
    fgen, u = FeatureGenerator(4, 5, 3, (7, 6)), torch.randn(6, 4)
    slots = torch.rand(6, 3) < 0.5
    slots[2] = False
    candidates, owner = fgen(u, slots)
    slot, row = slots.T.nonzero(as_tuple=True)
    assert torch.equal(owner, row) and candidates.shape == (int(slots.sum()), 5)
    expected = reference_candidates(dict(fgen.named_parameters()), u, 3)[row, slot]
    torch.testing.assert_close(candidates, expected)


@pytest.mark.parametrize("feature_range", ["tanh", "sigmoid", "relu", "identity"])
def test_fgen_starts_near_the_mean_vector(feature_range):
    torch.manual_seed(0)
    fgen, mean = FeatureGenerator(4, 5, 2, (16,), feature_range), torch.tensor([0.0, 0.05, 0.1, 0.5, 0.9])
    fgen.start_at(mean)
    candidates, _ = fgen(torch.randn(200, 4), torch.ones(200, 2, dtype=torch.bool))
    assert (candidates.mean(0) - mean).abs().max() < 0.06


def test_dead_relu_and_its_cures():
    """Bug 23: a ReLU count below zero for every node gets no gradient; a start at mean(n_v) or a softplus does."""

    def gradient(dgen):
        torch.manual_seed(0)
        F.smooth_l1_loss(dgen(0.1 * torch.randn(50, 4)), torch.ones(50)).backward()
        return dgen.linear.bias.grad.abs().item()

    dead, started, soft = CountGenerator(4, "relu"), CountGenerator(4, "relu"), CountGenerator(4, "softplus")
    for dgen in (dead, started, soft):
        torch.nn.init.constant_(dgen.linear.bias, -2.0)
    started.start_at(0.6)
    assert gradient(dead) == 0 and gradient(started) > 0 and gradient(soft) > 0
    soft.start_at(0.6)
    assert soft(torch.zeros(1, 4)).item() == pytest.approx(0.6, abs=1e-6)
    assert started(torch.zeros(1, 4)).item() == pytest.approx(0.6, abs=1e-6)


def test_calibration():
    batch = impair(random_graph(), 0.3, 0)
    module = neighgen(feature_range="identity")
    module.start(batch)
    torch.testing.assert_close(module._embed_eval(batch).norm(dim=1), torch.full((28,), 8.0))
    torch.testing.assert_close(module.dgen(torch.zeros(1, 8))[0], batch.missing_count.float().mean())
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    module.start(impair(random_graph(seed=5), 0.3, 0))  # only the first batch counts
    assert same(weights, module.state_dict())
    off = neighgen(calibrate=False)
    before = {name: value.clone() for name, value in off.state_dict().items()}
    off.start(batch)
    assert same(before | {"started": torch.tensor(True)}, off.state_dict())
    raw = neighgen(calibrate=False, embedding_norm=None).eval()
    torch.testing.assert_close(raw.embed(batch), raw.encoder(batch.x, batch.edge_index))


def test_principal_directions_are_those_of_the_svd():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 5, generator=generator) * torch.tensor([5.0, 4.0, 0.5, 0.4, 0.3]) + 2.0
    x[x < 1] = 0
    expected = torch.linalg.svd(x - x.mean(0))[2][:2]
    for stored in (x, x.to_sparse_csr()):
        found = principal_directions(stored, 2, iterations=60)
        torch.testing.assert_close(found @ found.T, torch.eye(2), atol=1e-5, rtol=0)
        torch.testing.assert_close(found.T @ found, expected.T @ expected, atol=1e-3, rtol=0)
    assert principal_directions(x[:2], 4).shape == (1, 5) and principal_directions(x[:1], 4).shape == (0, 5)


def test_encoder_starts_at_topics():
    batch = impair(random_graph(), 0.3, 0)
    module = neighgen(encoder=GraphSAGE(hidden_channels=4, dropout=0.0))
    module.start(batch)
    directions = principal_directions(batch.x, 2)
    mean, scores = batch.x.mean(0), (batch.x - batch.x.mean(0)) @ directions.T
    adjacency = torch.zeros(28, 28).index_put((batch.edge_index[1], batch.edge_index[0]), torch.tensor(1.0))
    neighbours = adjacency @ batch.x / adjacency.sum(1, keepdim=True).clamp(min=1)
    signed = (batch.x + neighbours - 2 * mean) @ directions.T / scores.std(0, correction=0).mean()
    found = module.encoder.embed(batch.x, batch.edge_index)
    torch.testing.assert_close(found, torch.cat([signed, -signed], dim=1).relu(), atol=1e-4, rtol=1e-4)


# ---- phase 1 --------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("profile", "lambdas"), [("seed", (1, 1, 0)), ("paper", (1, 1, 1)), ("balanced", (1, 1 / 6, 0))]
)
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


# ---- relabelling (property a) ----------------------------------------------------------------------------------------


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


# ---- phase 2: T9, T11 -----------------------------------------------------------------------------------------------


def ask(module, query, features, seed=7, alpha=0.5, **options):
    """What D_j computes from what crosses the border."""
    message = {"u": query.u[: query.sent].clone(), "counts": query.counts.clone()}
    options = {"num_nodes": query.num_nodes, "slot_seed": seed, "alpha": alpha, "min_batch": 1} | options
    return peer_gradient(neighgen(99).fgen, module.generator_weights(), features=features, **message, **options)


def test_t9_requests_are_pure(client):
    module, batch = client
    query = module.query(batch, seed=7)
    peer = neighgen(3)
    peer.train()
    for parameter in peer.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(peer.state_dict())
    features, rng = random_graph(30, 1).x, torch.get_rng_state()
    weights, arguments = module.generator_weights(), {"num_nodes": query.num_nodes, "slot_seed": 7, "min_batch": 1}
    answers = []
    for _ in range(3):  # copied at once: of answers that grow from request to request all three would be the last
        answer = peer_gradient(peer.fgen, weights, query.u[: query.sent], query.counts, features, **arguments)
        answers.append({name: gradient.clone() for name, gradient in answer.items()})
    assert same(answers[0], answers[1]) and same(answers[0], answers[2])
    assert sum(g.abs().sum() for g in answers[0].values()) > 0
    assert same(before, peer.state_dict()) and peer.training and torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in peer.parameters())
    assert all(not w.requires_grad and w.grad is None for w in weights.values())


def accumulating_answers(fgen, u, counts, features, num_nodes, seed):
    """Bug 3: the peer's own module, without zero_grad."""
    slots = draw_slots(counts, fgen.num_slots, "random", torch.Generator().manual_seed(seed))
    candidates, _ = fgen(u, slots)
    (torch.cdist(candidates, features).square().amin(1).sum() / num_nodes).backward()
    return {name: p.grad.clone() for name, p in fgen.named_parameters()}


def test_mutant_bug_3_accumulates(client):
    module, batch = client
    query, features = module.query(batch, seed=7), random_graph(30, 1).x
    fgen = copy.deepcopy(module.fgen)
    arguments = (query.u[: query.sent], query.counts, features, query.num_nodes, 7)
    first, second = accumulating_answers(fgen, *arguments), accumulating_answers(fgen, *arguments)
    correct = ask(module, query, features, alpha=1.0)
    for name in correct:
        torch.testing.assert_close(first[name], correct[name], atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(second[name], 2 * correct[name], atol=1e-6, rtol=1e-4)


def monolithic_loss(weights, batch, query, peers, alpha, num_slots, seed):
    """L_i^f in one process: every X in sight, all P candidates, distance matrices."""
    candidates = reference_candidates(weights, query.u, num_slots)
    total = candidates.new_zeros(())
    for row, slots, v in zip(candidates, query.slots, query.rows.tolist(), strict=True):
        targets = batch.hidden_x[batch.pair_target[batch.pair_ptr[v] : batch.pair_ptr[v + 1]]].to(candidates)
        if len(targets):
            total = total + (row[slots][:, None] - targets).square().sum(-1).amin(1).sum()
    sent = draw_slots(query.counts, num_slots, "random", torch.Generator().manual_seed(seed))
    for features in peers:
        drawn = candidates[: query.sent][sent]
        distance = (drawn[:, None] - features.to(candidates)).square().sum(-1)
        total = total + alpha * distance.amin(1).sum()
    return total / batch.num_nodes


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("layout", ["dense", "csr"])
def test_t11_exchange_equals_one_process(dtype, tolerance, layout):
    module, batch = started(optimizer=SGD)
    module.to(dtype)
    query = module.query(batch, seed=7)
    assert 0 < query.sent < len(query.rows)
    peers = [random_graph(30, 1).x.to(dtype), random_graph(25, 2).x.to(dtype)]
    weights = {name: value.requires_grad_() for name, value in module.generator_weights().items()}
    loss = monolithic_loss(weights, batch, query, peers, 0.5, 3, seed=7)
    expected = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))

    as_stored = [x.to_sparse_csr() if layout == "csr" else x for x in peers]
    replies = [ask(module, query, x, chunk=7) for x in as_stored]
    summed = {name: sum(reply[name] for reply in replies) for name in expected}
    local = module.local_gradient(batch, query)
    scale = max(float(g.abs().max()) for g in expected.values())
    for name, gradient in expected.items():
        assert float((local[name] + summed[name] - gradient).abs().max()) < tolerance * scale

    module.exchange_step(batch, query, summed, module.exchange_optimizer())
    for name, parameter in module.fgen.named_parameters():
        stepped = weights[name].detach() - 0.1 * expected[name]
        torch.testing.assert_close(parameter.detach(), stepped, atol=tolerance, rtol=0)


def twice_stepped(module, batch, query, summed):
    """Bug 4: a local step, then another with local + cross, the cross gradient taken at the older weights."""
    optimizer = module.exchange_optimizer()
    module.exchange_step(batch, query, None, optimizer)
    module.exchange_step(batch, query, summed, optimizer)


def test_mutant_bug_4_steps_twice(client):
    module, batch = client
    module.optimizer = SGD
    query = module.query(batch, seed=7)
    summed = ask(module, query, random_graph(30, 1).x)
    start, local = module.generator_weights(), module.local_gradient(batch, query)
    broken = copy.deepcopy(module)
    module.exchange_step(batch, query, summed, module.exchange_optimizer())
    twice_stepped(broken, batch, query, summed)
    for name, parameter in module.fgen.named_parameters():
        torch.testing.assert_close(parameter.detach(), start[name] - 0.1 * (local[name] + summed[name]))
    moved = sum((a - b).abs().sum() for a, b in zip(module.fgen.parameters(), broken.fgen.parameters(), strict=True))
    assert float(moved) > 1e-3


def test_only_fgen_moves_in_phase_2(client):
    """Bug 14: "frozen" tensors in the optimiser moved."""
    module, batch = client
    before = {name: value.clone() for name, value in module.state_dict().items()}
    optimizer = module.exchange_optimizer()
    for step in range(3):
        query = module.query(batch, seed=step)
        module.exchange_step(batch, query, ask(module, query, random_graph(30, 1).x, seed=step), optimizer)
    for name, value in module.state_dict().items():
        assert torch.equal(before[name], value) != name.startswith("fgen.")
    assert not any(p.requires_grad for p in [*module.encoder.parameters(), *module.dgen.parameters()])


def test_without_answer_the_step_is_local(client):
    """alpha = 0: phase 2 is local training of fGen."""
    module, batch = client
    other = copy.deepcopy(module)
    query = module.query(batch, seed=1)
    module.exchange_step(batch, query, ask(module, query, random_graph(9).x, alpha=0.0), module.exchange_optimizer())
    other.exchange_step(batch, query, None, other.exchange_optimizer())
    assert same(module.generator_weights(), other.generator_weights())


def test_queries_are_reproducible_by_a_rebuilt_client(client):
    module, batch = client
    first = module.query(batch, seed=5)
    torch.randn(100)
    rebuilt = neighgen(77)
    rebuilt.load_state_dict(module.state_dict())
    rebuilt.freeze()
    again, other = rebuilt.query(impair(random_graph(), 0.3, 0), seed=5), module.query(batch, seed=6)
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.u, other.u)


def test_noise_does_not_follow_from_the_public_seed(client):
    """Whoever knows the seed must not be able to subtract eps from U."""
    module, batch = client
    query = module.query(batch, seed=5)
    eps = query.u - module._embed_eval(batch)[query.rows]
    guesses = [torch.randn(eps.shape, generator=torch.Generator().manual_seed(5))]
    other = copy.copy(batch)
    other.x = batch.x.clone()
    other.x[0, 0] += 1e-3  # another client's data give another eps
    elsewhere = module.query(other, seed=5)
    guesses.append(elsewhere.u - module._embed_eval(other)[elsewhere.rows])
    for guess in guesses:
        assert (guess[: query.sent] - eps[: query.sent]).abs().mean() > 0.5
    assert abs(float(eps.std()) - 1) < 0.1 and abs(float(eps.mean())) < 0.1


def test_a_request_does_not_carry_the_missing_counts(client):
    """k_v as sent follows from ñ_v alone: other n_v, same message."""
    module, batch = client
    other = copy.copy(batch)
    other.pair_ptr, other.missing_count = torch.zeros_like(batch.pair_ptr), torch.zeros_like(batch.missing_count)
    other.pair_target = batch.pair_target[:0]
    first, second = module.query(batch, seed=5), module.query(other, seed=5)
    assert torch.equal(first.counts, second.counts) and first.sent == second.sent
    assert torch.equal(first.u[: first.sent], second.u[: second.sent])
    leaking = train_counts(module(batch), batch.pair_ptr.diff(), 3)[first.rows]  # mutant: the training rule
    assert not torch.equal(leaking[leaking > 0], first.counts)


def test_small_requests_are_refused(client):
    module, batch = client
    query = module.query(batch, seed=5)
    with pytest.raises(ValueError, match="fewer than `min_batch: 1000`"):
        ask(module, query, random_graph(9).x, min_batch=1000)


def test_one_vector_reveals_a_row_of_the_peer(client):
    """Why `min_batch` is there: from one (v, p), the last bias' gradient inverts to the nearest x_u exactly."""
    module, _ = client
    features, u = random_graph(30, 1).x, torch.randn(1, 8)
    arguments = {"num_nodes": 4, "slot_seed": 0, "alpha": 1.0, "sampler": "prefix", "min_batch": 1}
    weights = module.generator_weights()
    answer = peer_gradient(module.fgen, weights, u, torch.tensor([1]), features, **arguments)
    candidate = reference_candidates(weights, u, 3)[0, 0]
    recovered = candidate - answer["out.bias"][:6] * 4 / (2 * (1 - candidate**2))
    assert (recovered - features).abs().amax(1).min() < 1e-4


def test_requests_that_cannot_be_answered(client):
    module, batch = client
    query = module.query(batch, seed=5)
    broken = copy.deepcopy(module)
    broken.fgen.out.bias.data[0] = torch.nan
    with pytest.raises(ValueError, match="not finite in fGen's"):
        ask(broken, query, random_graph(9).x)
    with pytest.raises(ValueError, match="do not fit this client's generator"):
        narrow = FeatureGenerator(8, 6, 3, (4,))
        arguments = {"num_nodes": 1, "slot_seed": 0, "min_batch": 1}
        peer_gradient(narrow, module.generator_weights(), query.u, query.counts, batch.x, **arguments)
    weights = module.generator_weights()
    with pytest.raises(ValueError, match="gradient of a generator step"):
        module.exchange_step(
            batch, query, {name: w * torch.nan for name, w in weights.items()}, module.exchange_optimizer()
        )
    assert same(weights, module.generator_weights())


# ---- mending: T12, bug 12 -------------------------------------------------------------------------------------------


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
    u = module._embed_eval(data)[rows] + noise
    candidates = reference_candidates(dict(module.fgen.named_parameters()), u, 3)
    expected = torch.cat([c[:k] for c, k in zip(candidates, counts[rows].tolist(), strict=True)])
    torch.testing.assert_close(features, expected.detach())


def test_attach_is_the_same_graph_as_mend():
    data, counts = random_graph(10), torch.tensor([0, 2, 0, 1, 0, 0, 0, 0, 0, 3])
    features = torch.rand(6, 6)
    mended = mend(data, counts, features)
    for x in (data.x, data.x.to_sparse_csr()):
        attached_x, edges = attach(x, data.edge_index, features, torch.repeat_interleave(counts))
        assert torch.equal(attached_x, mended.x) and torch.equal(edges, mended.edge_index)


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

    monkeypatch.setattr("lit_models.neighgen.attach", one_way)
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


# ---- edge cases, Trainer --------------------------------------------------------------------------------------------

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
    assert all(value == value for value in module.report(batch).values())
    module.freeze()
    query = module.query(batch, seed=0)
    module.exchange_step(batch, query, None, module.exchange_optimizer())


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


# ---- what a mutation changed without a test that noticed -------------------------------------------------------------


def test_z_is_centred_where_it_started_and_has_length_r():
    batch, module = impair(random_graph(), 0.3, 0), neighgen(embedding_norm=3.0)
    module.start(batch)
    module.eval()
    raw = module.encoder(batch.x, batch.edge_index)
    assert raw.mean(0).abs().max() > 1e-2
    torch.testing.assert_close(module.z_shift, raw.mean(0).detach())
    centred = raw - raw.mean(0)
    torch.testing.assert_close(module.embed(batch), 3.0 * centred / centred.norm(dim=1, keepdim=True))


def test_counts_start_at_the_mean_of_those_to_train_on():
    batch, module = impair(random_graph(), 0.4, 0, holdout=0.4), neighgen()
    module.start(batch)
    known = batch.missing_count[batch.count_mask].float().mean()
    assert abs(float(known - batch.missing_count.float().mean())) > 1e-2
    torch.testing.assert_close(module.dgen(torch.zeros(1, 8))[0], known)


def test_lambda_f_weighs_the_local_and_the_cross_term_alike():
    """theta - lr lambda_f (grad L^f local + g): with lr .1, lambda_f .25 and g = 4, the cross term moves each weight by .1."""
    module, batch = started(optimizer=SGD, lambda_f=0.25)
    plain, _ = started()
    query = module.query(batch, seed=7)
    start, local = module.generator_weights(), plain.local_gradient(batch, query)
    module.exchange_step(batch, query, {n: torch.full_like(w, 4.0) for n, w in start.items()}, module.exchange_optimizer())
    for name, parameter in module.fgen.named_parameters():
        torch.testing.assert_close(parameter.detach(), start[name] - 0.1 * 0.25 * local[name] - 0.1)


def test_the_optimiser_of_phase_2_holds_fgen_alone(client):
    """Weight decay, and whatever else an optimiser does without a gradient, must not reach encoder and dGen."""
    module, _ = client
    held = [p for group in module.exchange_optimizer().param_groups for p in group["params"]]
    assert [id(p) for p in held] == [id(p) for p in module.fgen.parameters()]


def test_the_gradient_of_a_step_is_gone_afterwards(client):
    """Else the next step would take it again."""
    module, batch = client
    query = module.query(batch, seed=1)
    module.exchange_step(batch, query, None, module.exchange_optimizer())
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize("chunk", [1, 3, 6, 9, 1000])
def test_an_answer_does_not_depend_on_how_many_vectors_are_compared_at_once(client, chunk):
    """Parts of a request add up: none is counted twice, as it is where gradients of earlier parts are not set to zero."""
    module, batch = client
    query, features = module.query(batch, seed=7), random_graph(30, 1).x
    whole = ask(module, query, features)
    for name, gradient in ask(module, query, features, chunk=chunk).items():
        torch.testing.assert_close(gradient, whole[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("feature_range", "mean", "end"), [("tanh", [-1.0, 0.0, 1.0], 3.800201), ("sigmoid", [0.0, 0.5, 1.0], 9.210240)]
)
def test_features_that_are_always_at_the_end_of_their_range_give_a_finite_start(feature_range, mean, end):
    """A word that each or no node has: atanh and logit of it are infinite. Those of .999 and of 1e-4 are the end."""
    fgen = FeatureGenerator(4, 3, 2, (5,), feature_range)
    fgen.start_at(torch.tensor(mean))
    candidates, _ = fgen(torch.zeros(1, 4), torch.ones(1, 2, dtype=torch.bool))
    torch.testing.assert_close(fgen.out.bias.detach(), torch.tensor([-end, 0.0, end] * 2), atol=1e-3, rtol=0)
    assert (candidates - torch.tensor(mean)).abs().max() < 0.1


def test_a_known_number_of_missing_neighbours_replaces_the_predicted_one():
    data, module = random_graph(), neighgen()
    module.start(impair(data, 0.3, 0))
    missing = torch.arange(40) % 5  # up to 4, of 3 slots
    counts, features = module.generate(data, 0, missing)
    assert torch.equal(counts, missing.clamp(max=3)) and len(features) == int(counts.sum())


def test_at_most_max_rows_are_drawn_in_order_with_a_divisor_in_proportion():
    module, rows = neighgen(max_rows=4), torch.arange(0, 20, 2)
    chosen, divisor = module._sample(rows, 25, None)
    assert len(chosen) == 4 and chosen.tolist() == sorted(set(chosen.tolist())) and set(chosen.tolist()) <= set(rows.tolist())
    assert divisor == 10  # 25 * 4 / 10
    assert module._sample(torch.arange(100), 10, None)[1] == 1  # .4, at least 1
    assert len({tuple(module._sample(rows, 25, None)[0].tolist()) for _ in range(20)}) > 5
    state, order = torch.get_rng_state(), np.random.default_rng(3).permutation(10)  # a query draws from its own stream
    assert module._sample(rows, 25, np.random.default_rng(3))[0].tolist() == rows[sorted(order[:4])].tolist()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for few in (rows[:4], rows[:3]):  # all of them, and nothing is drawn
        assert module._sample(few, 25, None) == (few, 25)
    module.max_rows = None
    assert module._sample(rows, 25, None) == (rows, 25) and torch.equal(torch.get_rng_state(), before)


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


def test_the_report_by_hand():
    """ñ = .6, 3.2, 3.6, 0 and n = 2, 0, 6, 5, of which the last two are held out; P = 3."""
    module = neighgen(embedding_norm=None)
    said = torch.tensor([0.6, 3.2, 3.6, 0.0])
    module.dgen.forward = lambda z: said
    module.encoder.forward = lambda x, edges: torch.zeros(4, 8)
    hidden = torch.tensor([[1.0, 0, 0, 0, 0, 0], [0, 2.0, 0, 0, 0, 0]])
    batch = Data(
        x=torch.full((4, 6), 0.5), edge_index=torch.zeros(2, 0, dtype=torch.long), hidden_x=hidden,
        missing_count=torch.tensor([2, 0, 6, 5]), count_mask=torch.tensor([True, True, False, False]),
        pair_ptr=torch.tensor([0, 2, 2, 2, 2]), pair_target=torch.tensor([0, 1]),
        holdout_ptr=torch.tensor([0, 0, 0, 1, 1]), holdout_target=torch.tensor([1]), num_nodes=4,
    )  # fmt: skip
    found = module.report(batch)
    close = lambda name, value: torch.testing.assert_close(found[name], value, atol=1e-5, rtol=0)  # noqa: E731
    close("count_mae", (2.4 + 5.0) / 2)
    close("mean_count_mae", (5.0 + 4.0) / 2)  # mean n of those trained on: 1
    close("count_saturation", 0.25)  # 4 > 3, but not 3 > 3
    close("generated_per_node", (1 + 3 + 3 + 0) / 4)
    close("missing_per_node", 13 / 4)
    close("zero_error", 4.0)
    close("train_zero_error", 1.0)  # the nearer of both
    close("mean_error", 5 * 0.25 + 1.5**2)
    close("train_mean_error", 6 * 0.25)
    for name, targets in (("generator_error", hidden[1:]), ("train_generator_error", hidden)):  # z = 0, all slots
        u = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
        candidates = reference_candidates(dict(module.fgen.named_parameters()), u, 3)[0].detach()
        close(name, float(torch.cdist(candidates, targets).square().amin(1).mean()))
    assert module.report(batch) == found and module.report(batch, seed=1)["generator_error"] != found["generator_error"]
    for value in (True, False):  # nothing held out, or nothing else
        batch.count_mask = torch.full((4,), value)
        assert "count_mae" not in module.report(batch)
    module.dgen.forward, nothing = lambda z: torch.zeros(0), torch.zeros(0, dtype=torch.long)
    module.encoder.forward = lambda x, edges: torch.zeros(0, 8)
    pointers = {f"{part}_{what}": torch.zeros(1, dtype=torch.long) if what == "ptr" else nothing
                for part in ("pair", "holdout") for what in ("ptr", "target")}  # fmt: skip
    empty = Data(x=torch.zeros(0, 6), edge_index=batch.edge_index, hidden_x=hidden[:0], missing_count=nothing,
                 count_mask=nothing.bool(), num_nodes=0, **pointers)  # fmt: skip
    assert module.report(empty) == {}


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


@pytest.mark.parametrize(
    ("feature_range", "good", "bad"),
    [("sigmoid", (0.0, 1.0), (-0.1, 1.1)), ("tanh", (-1.0, 1.0), (-1.1, 1.1)), ("relu", (0.0, 9.0), (-0.1, -1.0)),
     ("identity", (-9.0, 9.0), ())],
)  # fmt: skip
def test_the_ends_of_the_range_can_be_generated_and_nothing_beyond(feature_range, good, bad):
    module = neighgen(feature_range=feature_range)
    module.check_features(torch.tensor([[0.0, 0.5], list(good)]))
    module.check_features(torch.tensor([list(good)]).to_sparse_csr())
    for value in bad:
        with pytest.raises(ValueError, match="Features go from .* but `feature_range"):
            module.check_features(torch.tensor([[0.5, value]]))
    for value in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match="needs finite features"):
            module.check_features(torch.tensor([[0.5, value]]))


def test_an_encoder_of_constant_features_keeps_its_random_start():
    """There is no direction, and no spread to divide by."""
    encoder = GraphSAGE(hidden_channels=4)
    encoder.build(3, 2)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    for x in (torch.ones(5, 3), torch.ones(5, 3).to_sparse_csr(), torch.ones(1, 3)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the deviation of nothing would warn
            start_at_topics(encoder, x)
        assert same(before, encoder.state_dict())


def test_defaults_of_the_generators():
    fgen = FeatureGenerator(4, 3)
    assert (fgen.num_slots, fgen.feature_range, [layer.out_features for layer in fgen.hidden]) == (5, "tanh", [256, 256])
    assert CountGenerator(4).activation == "softplus"
    counts, u, x = torch.full((8,), 4), torch.randn(8, 4), torch.rand(6, 3)
    weights = dict(fgen.named_parameters())
    arguments = {"features": x, "num_nodes": 9, "slot_seed": 1}
    said = {"alpha": 1.0, "sampler": "random", "min_batch": 32}
    by_default = peer_gradient(fgen, weights, u, counts, **arguments)
    assert same(by_default, peer_gradient(fgen, weights, u, counts, **arguments, **said))
    with pytest.raises(ValueError, match="fewer than `min_batch: 32`"):
        peer_gradient(fgen, weights, u, torch.tensor([3, 4, 4, 4, 4, 4, 4, 4]), **arguments)
    with pytest.raises(ValueError, match="count_activation: x` is unknown; use one of softplus, relu."):
        CountGenerator(4, "x")
    with pytest.raises(ValueError, match="feature_range: x` is unknown"):
        FeatureGenerator(4, 3, feature_range="x")


def test_counts_start_where_their_inverse_is_finite():
    """softplus(b) = mean: log(expm1(mean)), at least a thousandth; the ReLU's bias is the mean itself."""
    for mean, bias in ((0.0, -6.907255), (1e-3, -6.907255), (1.0, 0.541325), (5.0, 4.993239)):
        dgen = CountGenerator(3)
        dgen.start_at(mean)
        assert float(dgen.linear.bias) == pytest.approx(bias, abs=1e-5)
    dgen = CountGenerator(3, "relu")
    dgen.start_at(0.25)
    assert float(dgen.linear.bias) == 0.25


def test_a_start_scales_the_last_layer_down_to_a_tenth():
    torch.manual_seed(0)
    fgen = FeatureGenerator(4, 3, 2, (5,), "identity")
    before = fgen.out.weight.detach().clone()
    fgen.start_at(torch.tensor([0.1, 0.2, 0.3]))
    torch.testing.assert_close(fgen.out.weight.detach(), 0.1 * before)
    torch.testing.assert_close(fgen.out.bias.detach(), torch.tensor([0.1, 0.2, 0.3, 0.1, 0.2, 0.3]))


def test_mean_features_of_both_layouts():
    x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 4.0]])
    for stored in (x, x.to_sparse_csr()):
        torch.testing.assert_close(mean_features(stored), torch.tensor([0.5, 0.0, 3.0]))


def test_units_left_over_keep_their_random_start():
    """Two directions of two features in a layer of seven: rows 0 to 3 are +V and -V, the rest is untouched."""
    torch.manual_seed(0)
    encoder = GraphSAGE(hidden_channels=7)
    encoder.build(2, 2)
    before = encoder.convs[0].lin_r.weight.detach().clone()
    start_at_topics(encoder, torch.randn(20, 2))
    layer = encoder.convs[0]
    for weight in (layer.lin_r.weight, layer.lin_l.weight):
        torch.testing.assert_close(weight[:2], -weight[2:4])
        torch.testing.assert_close((weight[:2] @ weight[:2].T)[0, 1], torch.tensor(0.0), atol=1e-5, rtol=0)
    assert torch.equal(layer.lin_r.weight[4:], before[4:]) and torch.equal(layer.lin_r.weight[:4], layer.lin_l.weight[:4])


def test_the_task_loss_counts_with_its_lambda():
    terms = {"feature_loss": torch.tensor(2.0), "task_loss": torch.tensor(3.0)}
    module = neighgen(lambda_f=0.25, lambda_c=0.5)
    assert module._weighted(terms).item() == 2.0  # .25 x 2 + .5 x 3
    assert neighgen(lambda_f=0.25)._weighted({"feature_loss": torch.tensor(2.0)}).item() == 0.5
    batch, seen = impair(random_graph(), 0.3, 0), {}
    module.start(batch)
    module.observe = seen.update
    loss = module.eval().training_step(batch, 0)
    parts = seen["count_loss"] + 0.25 * seen["feature_loss"] + 0.5 * seen["task_loss"]
    torch.testing.assert_close(loss.detach(), parts.detach())
    assert seen["task_loss"] > 0.1


def test_an_encoder_of_one_layer_keeps_its_random_start():
    """Its only layer is as wide as z, not a layer of topics."""
    module = neighgen(encoder=GraphSAGE(hidden_channels=8, num_layers=1))
    before = {name: value.clone() for name, value in module.encoder.state_dict().items()}
    module.start(impair(random_graph(), 0.3, 0))
    assert same(before, module.encoder.state_dict()) and bool(module.started)


def test_eight_iterations_find_the_directions_unless_others_are_asked_for():
    x = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    found = principal_directions(x, 2)
    assert torch.equal(found, principal_directions(x, 2, iterations=8))
    assert not torch.equal(found, principal_directions(x, 2, iterations=9))


@pytest.mark.parametrize("stored", ["dense", "sparse"])
def test_of_one_row_or_of_no_feature_there_is_no_direction(stored):
    for x, width in ((torch.rand(1, 3), 3), (torch.rand(4, 3)[:, :0], 0)):
        x = x if stored == "dense" else x.to_sparse_csr()
        assert principal_directions(x, 2).shape == (0, width)


def test_one_direction_is_enough_to_start_at():
    """Two rows, or one feature: units 0 and 1 are +V and -V, of unit deviation."""
    for x in (torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([[1.0], [3.0], [8.0]])):
        torch.manual_seed(0)
        encoder = GraphSAGE(hidden_channels=4)
        encoder.build(x.shape[1], 2)
        start_at_topics(encoder, x)
        weight = encoder.convs[0].lin_r.weight
        assert torch.equal(weight[0], -weight[1])
        torch.testing.assert_close((x @ weight[0]).std(correction=0), torch.tensor(1.0))
        torch.testing.assert_close(encoder.convs[0].lin_l.bias[:2], -2 * weight[:2] @ x.mean(0))


def test_one_value_that_is_not_finite_is_named():
    good = torch.tensor([1.0, -2.0])
    check_finite({"out.bias": good, "nothing": good[:0]}, "of a test")
    for bad in (torch.nan, torch.inf, -torch.inf):
        with pytest.raises(ValueError, match="The gradient of a test is not finite in fGen's `out.weight`; nothing was"):
            check_finite({"out.bias": good, "out.weight": torch.tensor([1.0, bad])}, "of a test")


@pytest.mark.parametrize("training", [True, False])
def test_a_start_leaves_the_encoders_mode_and_takes_the_mean_features(training):
    batch, module = impair(random_graph(), 0.3, 0), neighgen(feature_range="identity").train(training)
    module.start(batch)
    assert module.encoder.training == training
    torch.testing.assert_close(module.fgen.out.bias.detach(), batch.x.mean(0).repeat(3))


def test_an_encoder_that_is_no_graph_sage_keeps_its_random_start():
    module = neighgen(encoder=GCN(hidden_channels=8))
    before = {name: value.clone() for name, value in module.encoder.state_dict().items()}
    module.start(impair(random_graph(), 0.3, 0))
    assert same(before, module.encoder.state_dict()) and module.z_shift.abs().max() > 0


def test_without_a_known_count_they_start_near_zero():
    batch, module = impair(random_graph(), 0.3, 0), neighgen()
    batch.count_mask = torch.zeros_like(batch.count_mask)
    module.start(batch)
    assert module.dgen(torch.zeros(1, 8)).item() == pytest.approx(1e-3, rel=1e-3)


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


def test_a_query_asks_for_the_predicted_and_keeps_the_training_counts(client):
    """Sent are all nodes with a predicted neighbour, one is enough; in the local term are also those that miss some."""
    module, batch = client
    query, predicted = module.query(batch, seed=7), module(batch)
    asked, local = mend_counts(predicted, 3), train_counts(predicted, batch.pair_ptr.diff(), 3)
    assert 1 in query.counts.tolist()
    assert query.rows[: query.sent].tolist() == asked.nonzero().flatten().tolist()
    assert sorted(query.rows.tolist()) == local.nonzero().flatten().tolist()
    assert torch.equal(query.counts, asked[query.rows[: query.sent]])
    assert torch.equal(query.slots.sum(1), local[query.rows]) and query.num_nodes == 28
