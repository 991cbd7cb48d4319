"""Phase 2: the exchange of fGen's gradients (T9, T11), and what it must not give away.

References are written from the equations with `torch.cdist` and plain matrix products; mutants are the published codes'
bugs (numbers as in docs/papers/fedsage_plus.md#deviations), put back to show that the oracle tells them apart.
"""

import copy

import pytest
import torch
from neighgen_samples import SGD, neighgen, random_graph, reference_candidates, same, started

from datamodules.impairing import impair
from lit_models.neighgen.exchange import (
    check_finite,
    exchange_step,
    fgen_optimizer,
    fgen_weights,
    local_gradient,
    make_query,
    peer_gradient,
    train_fgen_alone,
)
from lit_models.neighgen.generators import FeatureGenerator
from lit_models.neighgen.losses import draw_slots, mend_counts, train_counts


@pytest.fixture
def client():
    """A started module in phase 2 and its impaired graph."""
    return started()


def ask(module, query, features, seed=7, alpha=0.5, **options):
    """What D_j computes from what crosses the border."""
    message = {"u": query.u[: query.sent].clone(), "counts": query.counts.clone()}
    options = {"num_nodes": query.num_nodes, "slot_seed": seed, "alpha": alpha, "min_batch": 1} | options
    return peer_gradient(neighgen(99).fgen, fgen_weights(module), features=features, **message, **options)


def test_t9_requests_are_pure(client):
    module, batch = client
    query = make_query(module, batch, seed=7)
    peer = neighgen(3)
    peer.train()
    for parameter in peer.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(peer.state_dict())
    features, rng = random_graph(30, 1).x, torch.get_rng_state()
    weights, arguments = fgen_weights(module), {"num_nodes": query.num_nodes, "slot_seed": 7, "min_batch": 1}
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
    query, features = make_query(module, batch, seed=7), random_graph(30, 1).x
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
    query = make_query(module, batch, seed=7)
    assert 0 < query.sent < len(query.rows)
    peers = [random_graph(30, 1).x.to(dtype), random_graph(25, 2).x.to(dtype)]
    weights = {name: value.requires_grad_() for name, value in fgen_weights(module).items()}
    loss = monolithic_loss(weights, batch, query, peers, 0.5, 3, seed=7)
    expected = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))

    as_stored = [x.to_sparse_csr() if layout == "csr" else x for x in peers]
    replies = [ask(module, query, x, chunk=7) for x in as_stored]
    summed = {name: sum(reply[name] for reply in replies) for name in expected}
    local = local_gradient(module, batch, query)
    scale = max(float(g.abs().max()) for g in expected.values())
    for name, gradient in expected.items():
        assert float((local[name] + summed[name] - gradient).abs().max()) < tolerance * scale

    exchange_step(module, batch, query, summed, fgen_optimizer(module))
    for name, parameter in module.fgen.named_parameters():
        stepped = weights[name].detach() - 0.1 * expected[name]
        torch.testing.assert_close(parameter.detach(), stepped, atol=tolerance, rtol=0)


def twice_stepped(module, batch, query, summed):
    """Bug 4: a local step, then another with local + cross, the cross gradient taken at the older weights."""
    optimizer = fgen_optimizer(module)
    exchange_step(module, batch, query, None, optimizer)
    exchange_step(module, batch, query, summed, optimizer)


def test_mutant_bug_4_steps_twice(client):
    module, batch = client
    module.optimizer = SGD
    query = make_query(module, batch, seed=7)
    summed = ask(module, query, random_graph(30, 1).x)
    start, local = fgen_weights(module), local_gradient(module, batch, query)
    broken = copy.deepcopy(module)
    exchange_step(module, batch, query, summed, fgen_optimizer(module))
    twice_stepped(broken, batch, query, summed)
    for name, parameter in module.fgen.named_parameters():
        torch.testing.assert_close(parameter.detach(), start[name] - 0.1 * (local[name] + summed[name]))
    moved = sum((a - b).abs().sum() for a, b in zip(module.fgen.parameters(), broken.fgen.parameters(), strict=True))
    assert float(moved) > 1e-3


def test_only_fgen_moves_in_phase_2(client):
    """Bug 14: "frozen" tensors in the optimiser moved."""
    module, batch = client
    before = {name: value.clone() for name, value in module.state_dict().items()}
    optimizer = fgen_optimizer(module)
    for step in range(3):
        query = make_query(module, batch, seed=step)
        exchange_step(module, batch, query, ask(module, query, random_graph(30, 1).x, seed=step), optimizer)
    for name, value in module.state_dict().items():
        assert torch.equal(before[name], value) != name.startswith("fgen.")
    assert not any(p.requires_grad for p in [*module.encoder.parameters(), *module.dgen.parameters()])


def test_without_answer_the_step_is_local(client):
    """alpha = 0: phase 2 is local training of fGen."""
    module, batch = client
    other = copy.deepcopy(module)
    query = make_query(module, batch, seed=1)
    exchange_step(module, batch, query, ask(module, query, random_graph(9).x, alpha=0.0), fgen_optimizer(module))
    exchange_step(other, batch, query, None, fgen_optimizer(other))
    assert same(fgen_weights(module), fgen_weights(other))


def test_queries_are_reproducible_by_a_rebuilt_client(client):
    module, batch = client
    first = make_query(module, batch, seed=5)
    torch.randn(100)
    rebuilt = neighgen(77)
    rebuilt.load_state_dict(module.state_dict())
    train_fgen_alone(rebuilt)
    again, other = make_query(rebuilt, impair(random_graph(), 0.3, 0), seed=5), make_query(module, batch, seed=6)
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.u, other.u)


def test_noise_does_not_follow_from_the_public_seed(client):
    """Whoever knows the seed must not be able to subtract eps from U."""
    module, batch = client
    query = make_query(module, batch, seed=5)
    eps = query.u - module.embed_eval(batch)[query.rows]
    guesses = [torch.randn(eps.shape, generator=torch.Generator().manual_seed(5))]
    other = copy.copy(batch)
    other.x = batch.x.clone()
    other.x[0, 0] += 1e-3  # another client's data give another eps
    elsewhere = make_query(module, other, seed=5)
    guesses.append(elsewhere.u - module.embed_eval(other)[elsewhere.rows])
    for guess in guesses:
        assert (guess[: query.sent] - eps[: query.sent]).abs().mean() > 0.5
    assert abs(float(eps.std()) - 1) < 0.1 and abs(float(eps.mean())) < 0.1


def test_a_request_does_not_carry_the_missing_counts(client):
    """k_v as sent follows from ñ_v alone: other n_v, same message."""
    module, batch = client
    other = copy.copy(batch)
    other.pair_ptr, other.missing_count = torch.zeros_like(batch.pair_ptr), torch.zeros_like(batch.missing_count)
    other.pair_target = batch.pair_target[:0]
    first, second = make_query(module, batch, seed=5), make_query(module, other, seed=5)
    assert torch.equal(first.counts, second.counts) and first.sent == second.sent
    assert torch.equal(first.u[: first.sent], second.u[: second.sent])
    leaking = train_counts(module(batch), batch.pair_ptr.diff(), 3)[first.rows]  # mutant: the training rule
    assert not torch.equal(leaking[leaking > 0], first.counts)


def test_small_requests_are_refused(client):
    module, batch = client
    query = make_query(module, batch, seed=5)
    with pytest.raises(ValueError, match="fewer than `min_batch: 1000`"):
        ask(module, query, random_graph(9).x, min_batch=1000)


def test_one_vector_reveals_a_row_of_the_peer(client):
    """Why `min_batch` is there: from one (v, p), the last bias' gradient inverts to the nearest x_u exactly."""
    module, _ = client
    features, u = random_graph(30, 1).x, torch.randn(1, 8)
    arguments = {"num_nodes": 4, "slot_seed": 0, "alpha": 1.0, "sampler": "prefix", "min_batch": 1}
    weights = fgen_weights(module)
    answer = peer_gradient(module.fgen, weights, u, torch.tensor([1]), features, **arguments)
    candidate = reference_candidates(weights, u, 3)[0, 0]
    recovered = candidate - answer["out.bias"][:6] * 4 / (2 * (1 - candidate**2))
    assert (recovered - features).abs().amax(1).min() < 1e-4


def test_requests_that_cannot_be_answered(client):
    module, batch = client
    query = make_query(module, batch, seed=5)
    broken = copy.deepcopy(module)
    broken.fgen.out.bias.data[0] = torch.nan
    with pytest.raises(ValueError, match="not finite in fGen's"):
        ask(broken, query, random_graph(9).x)
    with pytest.raises(ValueError, match="do not fit this client's generator"):
        narrow = FeatureGenerator(8, 6, 3, (4,))
        arguments = {"num_nodes": 1, "slot_seed": 0, "min_batch": 1}
        peer_gradient(narrow, fgen_weights(module), query.u, query.counts, batch.x, **arguments)
    weights = fgen_weights(module)
    with pytest.raises(ValueError, match="gradient of a generator step"):
        broken = {name: w * torch.nan for name, w in weights.items()}
        exchange_step(module, batch, query, broken, fgen_optimizer(module))
    assert same(weights, fgen_weights(module))


def test_lambda_f_weighs_the_local_and_the_cross_term_alike():
    """theta - lr lambda_f (grad L^f local + g): with lr .1, lambda_f .25 and g = 4, the cross term moves each weight by .1."""
    module, batch = started(optimizer=SGD, lambda_f=0.25)
    plain, _ = started()
    query = make_query(module, batch, seed=7)
    start, local = fgen_weights(module), local_gradient(plain, batch, query)
    exchange_step(module, batch, query, {n: torch.full_like(w, 4.0) for n, w in start.items()}, fgen_optimizer(module))
    for name, parameter in module.fgen.named_parameters():
        torch.testing.assert_close(parameter.detach(), start[name] - 0.1 * 0.25 * local[name] - 0.1)


def test_the_optimiser_of_phase_2_holds_fgen_alone(client):
    """Weight decay, and whatever else an optimiser does without a gradient, must not reach encoder and dGen."""
    module, _ = client
    held = [p for group in fgen_optimizer(module).param_groups for p in group["params"]]
    assert [id(p) for p in held] == [id(p) for p in module.fgen.parameters()]


def test_the_gradient_of_a_step_is_gone_afterwards(client):
    """Else the next step would take it again."""
    module, batch = client
    query = make_query(module, batch, seed=1)
    exchange_step(module, batch, query, None, fgen_optimizer(module))
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize("chunk", [1, 3, 6, 9, 1000])
def test_an_answer_does_not_depend_on_how_many_vectors_are_compared_at_once(client, chunk):
    """Parts of a request add up: none is counted twice, as it is where gradients of earlier parts are not set to zero."""
    module, batch = client
    query, features = make_query(module, batch, seed=7), random_graph(30, 1).x
    whole = ask(module, query, features)
    for name, gradient in ask(module, query, features, chunk=chunk).items():
        torch.testing.assert_close(gradient, whole[name], atol=1e-6, rtol=1e-4)


def test_one_value_that_is_not_finite_is_named():
    good = torch.tensor([1.0, -2.0])
    check_finite({"out.bias": good, "nothing": good[:0]}, "of a test")
    for bad in (torch.nan, torch.inf, -torch.inf):
        with pytest.raises(ValueError, match="The gradient of a test is not finite in fGen's `out.weight`; nothing was"):
            check_finite({"out.bias": good, "out.weight": torch.tensor([1.0, bad])}, "of a test")


def test_a_query_asks_for_the_predicted_and_keeps_the_training_counts(client):
    """Sent are all nodes with a predicted neighbour, one is enough; in the local term are also those that miss some."""
    module, batch = client
    query, predicted = make_query(module, batch, seed=7), module(batch)
    asked, local = mend_counts(predicted, 3), train_counts(predicted, batch.pair_ptr.diff(), 3)
    assert 1 in query.counts.tolist()
    assert query.rows[: query.sent].tolist() == asked.nonzero().flatten().tolist()
    assert sorted(query.rows.tolist()) == local.nonzero().flatten().tolist()
    assert torch.equal(query.counts, asked[query.rows[: query.sent]])
    assert torch.equal(query.slots.sum(1), local[query.rows]) and query.num_nodes == 28


def test_defaults_of_an_answer():
    fgen = FeatureGenerator(4, 3)
    counts, u, x = torch.full((8,), 4), torch.randn(8, 4), torch.rand(6, 3)
    weights = dict(fgen.named_parameters())
    arguments = {"features": x, "num_nodes": 9, "slot_seed": 1}
    said = {"alpha": 1.0, "sampler": "random", "min_batch": 32}
    by_default = peer_gradient(fgen, weights, u, counts, **arguments)
    assert same(by_default, peer_gradient(fgen, weights, u, counts, **arguments, **said))
    with pytest.raises(ValueError, match="fewer than `min_batch: 32`"):
        peer_gradient(fgen, weights, u, torch.tensor([3, 4, 4, 4, 4, 4, 4, 4]), **arguments)


def test_a_query_is_of_at_most_max_rows_that_a_rebuilt_client_draws_again():
    (module, batch), (again, _) = started(max_rows=5), started(max_rows=5)
    whole, query = make_query(started()[0], batch, seed=7), make_query(module, batch, seed=7)
    assert len(query.rows) == 5 < len(whole.rows) and set(query.rows.tolist()) <= set(whole.rows.tolist())
    assert query.num_nodes == max(1, round(28 * 5 / len(whole.rows)))
    torch.randn(10)
    assert torch.equal(make_query(again, batch, seed=7).u, query.u)
