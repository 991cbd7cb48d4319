"""Oracles for `lit_models.neighgen.losses`.

Graph Γ: nodes 0..5, edges 01 02 12 23 24 34 04, V^h = {3, 4} with x_3 = (1, 0), x_4 = (0, 1). V̄ = {0, 1, 2, 5} is
renumbered 0..3, n = (1, 0, 2, 0) and the pairs are (0, x_4), (2, x_3), (2, x_4). Every expected number is worked out by
hand in the comment beside it; the references are loops and distance matrices written from the equations.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from lit_models.neighgen.losses import (
    count_loss,
    cross_feature_loss,
    dense_rows,
    draw_slots,
    local_feature_loss,
    mend_counts,
    nearest_hidden,
    nearest_row,
    sample_rows,
    train_counts,
)

HIDDEN = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # x_3, x_4
PTR, TARGET = torch.tensor([0, 1, 1, 3, 3]), torch.tensor([1, 0, 1])
CANDIDATES = torch.tensor([[0.0, 0.5], [1.0, 0.5], [0.5, 0.5], [1.0, 0.2]])
OWNER = torch.tensor([0, 1, 2, 2])


def loop_local(candidates, owner, ptr, target, hidden_x, num_nodes):
    """The equation as a triple loop: candidates, targets, features."""
    total = candidates.new_zeros(())
    for row, v in zip(candidates, owner.tolist(), strict=True):
        distances = []
        for u in target[ptr[v] : ptr[v + 1]].tolist():
            distance = candidates.new_zeros(())
            for f in range(candidates.shape[1]):
                distance = distance + (row[f] - hidden_x[u, f]) ** 2
            distances.append(distance)
        if distances:
            total = total + min(distances)
    return total / num_nodes


def padded_local(candidates, owner, ptr, target, hidden_x, num_nodes):
    """The padded form: all targets in one block, those that are not the owner's at infinity."""
    degree = ptr.diff()
    width = max(int(degree.max()), 1)
    column = torch.arange(width)
    valid = column < degree[:, None]
    index = torch.where(valid, ptr[:-1, None] + column, 0)
    padded = hidden_x[torch.cat([target, target.new_zeros(1)])[index]]  # [N, K, F]
    distance = (candidates[:, None, :] - padded[owner]).square().sum(-1).masked_fill(~valid[owner], torch.inf)
    smallest = distance.amin(-1)
    return torch.where(degree[owner] > 0, smallest, 0.0).sum() / num_nodes


# ---- L^d (T1) --------------------------------------------------------------------------------------------------------


def test_t1_count_loss_by_hand():
    predicted, missing = torch.tensor([1.4, 0.6, 3.2, 0.0]), torch.tensor([1, 0, 2, 0])
    torch.testing.assert_close(count_loss(predicted, missing), torch.tensor(0.24))  # (.08 + .18 + .70 + 0) / 4
    torch.testing.assert_close(count_loss(predicted, missing, beta=0.0), torch.tensor(0.55))  # (.4 + .6 + 1.2 + 0) / 4


def test_count_loss_is_on_the_unrounded_prediction():
    predicted = torch.tensor([1.4, 0.6, 3.2, 0.25], requires_grad=True)
    count_loss(predicted, torch.tensor([1, 0, 2, 0])).backward()
    torch.testing.assert_close(predicted.grad, torch.tensor([0.1, 0.15, 0.25, 0.0625]))  # clip(error, -1, 1) / 4
    rounded = count_loss(predicted.round(), torch.tensor([1, 0, 2, 0]))  # mutant: (0 + .5 + .5 + 0) / 4
    assert abs(rounded.item() - 0.25) < 1e-6


def test_count_loss_without_nodes_is_zero():
    predicted = torch.zeros(0, requires_grad=True)
    count_loss(predicted, torch.zeros(0, dtype=torch.long)).backward()
    assert predicted.grad is not None


# ---- L^f local (T2, T4) ----------------------------------------------------------------------------------------------


def test_t2_local_loss_by_hand():
    # .25 (node 0 to x_4); 0 (node 1 has no target); .50 and .04 (node 2, nearest of x_3, x_4): 0.79 / 4
    loss = local_feature_loss(CANDIDATES, OWNER, PTR, TARGET, HIDDEN, num_nodes=4)
    torch.testing.assert_close(loss, torch.tensor(0.1975))
    # With truncation k = (1, 0, 2, 0): node 1 contributed nothing anyway.
    kept = torch.tensor([0, 2, 3])
    truncated = local_feature_loss(CANDIDATES[kept], OWNER[kept], PTR, TARGET, HIDDEN, num_nodes=4)
    torch.testing.assert_close(truncated, torch.tensor(0.1975))


def test_local_gradient_by_hand():
    candidates = CANDIDATES.clone().requires_grad_()
    local_feature_loss(candidates, OWNER, PTR, TARGET, HIDDEN, num_nodes=4).backward()
    # 2 (x̃ - x) / 4: node 0 (0, -.5)/2; node 1 none; second candidate of node 2 (0, .2)/2; the first is a tie, where the
    # smaller row x_3 is taken: (-.5, .5)/2.
    expected = torch.tensor([[0.0, -0.25], [0.0, 0.0], [-0.25, 0.25], [0.0, 0.1]])
    torch.testing.assert_close(candidates.grad, expected)


def last_listed_loss(candidates, owner, ptr, target, hidden_x, num_nodes):
    """The published codes' "min" (bug 1): a scalar is compared with F times another, so the last target wins."""
    total = candidates.new_zeros(())
    for row, v in zip(candidates, owner.tolist(), strict=True):
        best = None
        for u in target[ptr[v] : ptr[v + 1]].tolist():
            distance = (row - hidden_x[u]).square().sum()
            if best is None or distance < len(row) * best:
                best = distance
        total = total + (0.0 if best is None else best)
    return total / num_nodes


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_t4_the_minimum_is_a_minimum_in_any_order(order):
    hidden = torch.stack([torch.zeros(8), torch.ones(8)])
    arguments = (torch.full((1, 8), 0.3), torch.tensor([0]), torch.tensor([0, 2]), torch.tensor(order), hidden, 1)
    torch.testing.assert_close(local_feature_loss(*arguments), torch.tensor(0.72))  # 8 * .3^2, against 8 * .7^2 = 3.92
    broken = last_listed_loss(*arguments)
    assert broken.item() == pytest.approx(3.92 if order == [0, 1] else 0.72, abs=1e-5)


def test_all_targets_count_beyond_the_number_of_slots():
    # n_v = 3 > P = 1: the nearest is the third; a code that keeps only the first P targets answers 4.
    hidden = torch.tensor([[2.0], [3.0], [0.5]])
    pairs = torch.tensor([0, 3]), torch.tensor([0, 1, 2])
    loss = local_feature_loss(torch.zeros(1, 1), torch.tensor([0]), *pairs, hidden, num_nodes=1)
    assert loss.item() == 0.25


def test_scale_is_one_over_nodes_only():
    """Bug 19: the published codes divide by N * P * F."""
    wide, pairs = torch.ones(2, 50), (torch.tensor([0, 1, 1]), torch.tensor([0]))
    loss = local_feature_loss(wide, torch.tensor([0, 0]), *pairs, torch.zeros(1, 50), num_nodes=2)
    assert loss.item() == 50.0


# ---- L^f cross (T3) --------------------------------------------------------------------------------------------------

V_J, V_K = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0, 1.0]])


@pytest.mark.parametrize("layout", ["dense", "csr"])
def test_t3_cross_loss_by_hand(layout):
    to = (lambda x: x.to_sparse_csr()) if layout == "csr" else (lambda x: x)
    # V_j: .25 + .25 + .5 + .64 = 1.64;  V_k: .25 + 1.25 + .5 + 1.64 = 3.64;  alpha = .5, 4 nodes
    from_j = cross_feature_loss(CANDIDATES, to(V_J), num_nodes=4, alpha=0.5)
    from_k = cross_feature_loss(CANDIDATES, to(V_K), num_nodes=4, alpha=0.5)
    torch.testing.assert_close(from_j, torch.tensor(0.205))
    torch.testing.assert_close(from_k, torch.tensor(0.455))
    local = local_feature_loss(CANDIDATES, OWNER, PTR, TARGET, HIDDEN, num_nodes=4)
    torch.testing.assert_close(local + from_j + from_k, torch.tensor(0.8575))
    kept = torch.tensor([0, 2, 3])  # truncation: k_1 = 0 and its .25 + 1.25 is missing
    truncated = sum(cross_feature_loss(CANDIDATES[kept], to(x), 4, 0.5) for x in (V_J, V_K))
    torch.testing.assert_close(truncated, torch.tensor(0.4725))


def test_t3_cross_gradient_by_hand():
    gradients = []
    for features in (V_K, V_J):
        candidates = CANDIDATES.clone().requires_grad_()
        cross_feature_loss(candidates, features, num_nodes=4, alpha=0.5).backward()
        gradients.append(candidates.grad[0])
    torch.testing.assert_close(gradients[0], torch.tensor([0.0, -0.125]))
    torch.testing.assert_close(gradients[1], torch.tensor([0.0, 0.125]))


def test_cross_term_counts_nodes_without_hidden_neighbours():
    """Bug 10: the published codes gate the cross term by n_v > 0 (node 1 here)."""
    without = cross_feature_loss(CANDIDATES[OWNER != 1], V_K, num_nodes=4)
    torch.testing.assert_close(cross_feature_loss(CANDIDATES, V_K, num_nodes=4) - without, torch.tensor(1.25 / 4))


# ---- counts and slots ------------------------------------------------------------------------------------------------


def test_mend_counts_round_half_to_even_and_clip():
    predicted = torch.tensor([1.4, 0.6, 3.2, 0.0, -0.2, 7.9])
    assert mend_counts(predicted, 2).tolist() == [1, 1, 2, 0, 0, 2]
    assert predicted.trunc().clamp(0, 2).tolist() == [1, 0, 2, 0, 0, 2]  # mutant: truncation loses node 1
    assert mend_counts(torch.tensor([0.5, 1.5, 2.5]), 5).tolist() == [0, 2, 2]


def test_train_counts_keep_nodes_with_targets():
    predicted, missing = torch.tensor([0.0, 0.0, 3.4, 9.0]), torch.tensor([0, 7, 1, 0])
    assert train_counts(predicted, missing, 5).tolist() == [0, 5, 3, 5]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_counts_that_are_not_finite_are_an_error(value):
    with pytest.raises(ValueError, match="1 neighbour counts that are not finite"):
        mend_counts(torch.tensor([1.0, value]), 5)


def test_prefix_takes_the_first_slots():
    assert draw_slots(torch.tensor([0, 2, 3]), 3, "prefix").tolist() == [[False] * 3, [True, True, False], [True] * 3]


def test_random_slots_are_uniform():
    counts = torch.tensor([2]).expand(6000)
    slots = draw_slots(counts, 5, "random", torch.Generator().manual_seed(0))
    assert torch.equal(slots.sum(1), counts)
    frequency, expected = slots.sum(0).float(), 6000 * 2 / 5
    # chi^2 over 5 slots; within a row the slots are negatively correlated, which only makes the statistic smaller.
    assert ((frequency - expected) ** 2 / expected).sum() < 18.5  # 99.9 % quantile of chi^2 with 4 degrees of freedom
    pairs = torch.bincount((slots.float() @ (2.0 ** torch.arange(5))).long(), minlength=32)
    drawn = pairs[pairs > 0].float()
    assert len(drawn) == 10  # every pair of slots occurs
    assert ((drawn - 600) ** 2 / 600).sum() < 27.9  # 99.9 %, 9 degrees of freedom
    prefix = draw_slots(counts, 5, "prefix").sum(0).float()  # mutant
    assert ((prefix - expected) ** 2 / expected).sum() > 1000


def test_slots_follow_the_generator_only():
    counts = torch.tensor([1, 2, 3])
    first = draw_slots(counts, 5, "random", torch.Generator().manual_seed(1))
    before = torch.get_rng_state()
    again = draw_slots(counts, 5, "random", torch.Generator().manual_seed(1))
    assert torch.equal(first, again) and torch.equal(before, torch.get_rng_state())


def test_unknown_sampler():
    with pytest.raises(ValueError, match="`sampler: first` is unknown; use `random`"):
        draw_slots(torch.tensor([1]), 2, "first")


# ---- properties ------------------------------------------------------------------------------------------------------


@st.composite
def problems(draw):
    """Random candidates and hidden pairs in float64, some nodes without a target."""
    seed = draw(st.integers(0, 10_000))
    generator = torch.Generator().manual_seed(seed)
    num_nodes, num_hidden, width = draw(st.integers(1, 6)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    degree = torch.randint(0, num_hidden + 1, (num_nodes,), generator=generator)
    targets = [torch.randperm(num_hidden, generator=generator)[:d] for d in degree.tolist()]
    count = draw(st.integers(1, 9))
    return {
        "candidates": torch.randn(count, width, generator=generator, dtype=torch.float64),
        "owner": torch.randint(0, num_nodes, (count,), generator=generator),
        "ptr": torch.cat([torch.zeros(1, dtype=torch.long), degree.cumsum(0)]),
        "target": torch.cat([torch.zeros(0, dtype=torch.long), *targets]),
        "hidden_x": torch.randn(num_hidden, width, generator=generator, dtype=torch.float64),
        "num_nodes": num_nodes,
    }


def value_and_gradient(loss, problem, **options):
    candidates = problem["candidates"].clone().requires_grad_()
    arguments = [candidates, *[problem[name] for name in ("owner", "ptr", "target", "hidden_x", "num_nodes")]]
    value = loss(*arguments, **options)
    (gradient,) = torch.autograd.grad(value, candidates, allow_unused=True) if value.requires_grad else (None,)
    return value.detach(), torch.zeros_like(candidates) if gradient is None else gradient


@given(problems(), st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_segment_equals_padded_equals_loop(problem, chunk):
    expected = value_and_gradient(loop_local, problem)
    segment = value_and_gradient(local_feature_loss, problem, chunk=chunk)
    for found in (segment, value_and_gradient(padded_local, problem)):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)


@given(problems(), st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_cross_equals_distance_matrix(problem, chunk):
    candidates, features = problem["candidates"], problem["hidden_x"]
    expected = 0.3 * torch.cdist(candidates, features).square().amin(1).sum() / 4
    for x in (features, features.to_sparse_csr()):
        torch.testing.assert_close(cross_feature_loss(candidates, x, 4, 0.3, chunk), expected, atol=1e-10, rtol=1e-9)


@given(problems(), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_invariances_of_the_local_loss(problem, seed):
    generator = torch.Generator().manual_seed(seed)
    value, gradient = value_and_gradient(local_feature_loss, problem)
    assert value >= 0
    # order of the hidden neighbours, and each of them listed twice
    rows = [problem["target"][a:b] for a, b in zip(problem["ptr"][:-1], problem["ptr"][1:], strict=True)]
    shuffled = [torch.cat([r, r])[torch.randperm(2 * len(r), generator=generator)] for r in rows]
    changed = problem | {"target": torch.cat([torch.zeros(0, dtype=torch.long), *shuffled]), "ptr": 2 * problem["ptr"]}
    torch.testing.assert_close(value_and_gradient(local_feature_loss, changed), (value, gradient))
    # translation and rotation leave it, scaling by s multiplies by s^2
    width = problem["hidden_x"].shape[1]
    rotation = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0]
    moved = problem | {name: 3.0 * (problem[name] @ rotation + 0.7) for name in ("candidates", "hidden_x")}
    torch.testing.assert_close(value_and_gradient(local_feature_loss, moved)[0], 9.0 * value)
    # relabelling nodes
    order = torch.randperm(problem["num_nodes"], generator=generator)
    relabelled = problem | {
        "owner": torch.argsort(order)[problem["owner"]],
        "ptr": torch.cat([torch.zeros(1, dtype=torch.long), problem["ptr"].diff()[order].cumsum(0)]),
        "target": torch.cat([torch.zeros(0, dtype=torch.long), *[rows[i] for i in order.tolist()]]),
    }
    torch.testing.assert_close(value_and_gradient(local_feature_loss, relabelled), (value, gradient))
    # one more target for the last node that has any cannot make it larger
    if rows[-1].numel():
        more = problem | {"target": torch.cat([problem["target"], torch.tensor([0])]), "ptr": problem["ptr"].clone()}
        more["ptr"][-1] += 1
        assert value_and_gradient(local_feature_loss, more)[0] <= value + 1e-12
    # one more candidate adds what it costs alone, never less than zero
    extra = problem | {
        "candidates": torch.cat([problem["candidates"], torch.ones(1, width, dtype=torch.float64)]),
        "owner": torch.cat([problem["owner"], torch.tensor([0])]),
    }
    alone = extra | {"candidates": extra["candidates"][-1:], "owner": extra["owner"][-1:]}
    added = value_and_gradient(local_feature_loss, alone)[0]
    assert added >= 0
    torch.testing.assert_close(value_and_gradient(local_feature_loss, extra)[0], value + added)
    # zero exactly where each candidate is one of its targets
    has = problem["ptr"].diff()[problem["owner"]] > 0
    exact = problem | {"candidates": problem["candidates"].clone()}
    exact["candidates"][has] = problem["hidden_x"][problem["target"][problem["ptr"][problem["owner"][has]]]]
    assert value_and_gradient(local_feature_loss, exact)[0] == 0


def test_gradcheck_away_from_ties():
    generator = torch.Generator().manual_seed(3)
    candidates = torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    hidden = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    ptr, target, owner = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 2, 3]), torch.tensor([0, 0, 1, 1])
    assert torch.autograd.gradcheck(lambda c: local_feature_loss(c, owner, ptr, target, hidden, 2), candidates)
    assert torch.autograd.gradcheck(lambda c: cross_feature_loss(c, hidden, 2, 0.5, 3), candidates)


def test_ties_take_the_smallest_row():
    same = torch.tensor([[1.0], [-1.0], [1.0]])
    for order in ([0, 1, 2], [2, 1, 0]):
        nearest = nearest_hidden(torch.zeros(1, 1), torch.tensor([0]), torch.tensor([0, 3]), torch.tensor(order), same)
        assert nearest.tolist() == [0]
    assert nearest_row(torch.zeros(1, 1), same).tolist() == [0]


# ---- edge cases of the table -----------------------------------------------------------------------------------------


def test_no_targets_at_all_gives_zero_with_a_zero_gradient():
    candidates = torch.randn(3, 2, requires_grad=True)
    none = torch.zeros(0, dtype=torch.long)
    pairs = torch.zeros(3, dtype=torch.long), none
    local_feature_loss(candidates, torch.tensor([0, 1, 1]), *pairs, torch.zeros(0, 2), num_nodes=2).backward()
    assert torch.equal(candidates.grad, torch.zeros(3, 2))


def test_no_candidates_gives_zero():
    weight = torch.ones(2, requires_grad=True)
    none = torch.zeros(0, dtype=torch.long)
    for features in (V_J, V_J.to_sparse_csr(), V_J[:0]):
        empty = weight * torch.zeros(0, 2)
        loss = local_feature_loss(empty, none, PTR, TARGET, HIDDEN, 4) + cross_feature_loss(empty, features, 4)
        loss.backward()
        assert loss.item() == 0 and torch.equal(weight.grad, torch.zeros(2))


def test_peer_with_one_node_and_no_edges():
    assert cross_feature_loss(torch.zeros(2, 3), torch.ones(1, 3), num_nodes=1).item() == 6.0
    candidates = torch.ones(2, 3, requires_grad=True)
    nothing = cross_feature_loss(candidates, torch.zeros(0, 3), num_nodes=1)
    nothing.backward()
    assert nothing.item() == 0.0 and torch.equal(candidates.grad, torch.zeros(2, 3))


def test_defaults_of_the_cross_term():
    assert cross_feature_loss(CANDIDATES, V_J, 4).item() == pytest.approx(1.64 / 4)  # alpha = 1


def test_a_candidate_whose_owner_has_no_target_has_none():
    assert nearest_hidden(CANDIDATES, OWNER, PTR, TARGET, HIDDEN).tolist() == [1, -1, 0, 0]


def test_nan_candidate_gives_a_nan_loss_not_an_index_error():
    candidates = torch.tensor([[float("nan"), 0.0]])
    assert local_feature_loss(candidates, torch.tensor([0]), PTR, TARGET, HIDDEN, 4).isnan()


def test_dense_rows_of_sparse_features():
    x = F.dropout(torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), 0.6)
    x[3] = 0
    index = torch.tensor([5, 3, 3, 0])
    assert torch.equal(dense_rows(x.to_sparse_csr(), index), x[index])
    with pytest.raises(ValueError, match="dense or sparse CSR"):
        dense_rows(x.to_sparse_coo(), index)


def test_count_loss_without_nodes_is_zero_for_every_beta():
    for beta in (0.0, 1.0):  # the mean of nothing would be NaN
        predicted = torch.zeros(0, requires_grad=True)
        loss = count_loss(predicted, torch.zeros(0, dtype=torch.long), beta)
        assert loss.item() == 0.0 and torch.autograd.grad(loss, predicted)[0].shape == (0,)


def test_at_most_so_many_rows_are_drawn_in_order_with_a_divisor_in_proportion():
    rows = torch.arange(0, 20, 2)
    chosen, divisor = sample_rows(rows, 25, 4, None)
    assert len(chosen) == 4 and chosen.tolist() == sorted(set(chosen.tolist())) and set(chosen.tolist()) <= set(rows.tolist())
    assert divisor == 10  # 25 * 4 / 10
    assert sample_rows(torch.arange(100), 10, 4, None)[1] == 1  # .4, at least 1
    assert len({tuple(sample_rows(rows, 25, 4, None)[0].tolist()) for _ in range(20)}) > 5
    state, order = torch.get_rng_state(), np.random.default_rng(3).permutation(10)  # a query draws from its own stream
    assert sample_rows(rows, 25, 4, np.random.default_rng(3))[0].tolist() == rows[sorted(order[:4])].tolist()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for few in (rows[:4], rows[:3]):  # all of them, and nothing is drawn
        assert sample_rows(few, 25, 4, None) == (few, 25)
    assert sample_rows(rows, 25, None, None) == (rows, 25) and torch.equal(torch.get_rng_state(), before)
