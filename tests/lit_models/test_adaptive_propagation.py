"""AdaFGL's equations: hand values, and all of it once more in loops over nodes."""

import math

import pytest
import torch
import torch.nn.functional as F

from lit_models import GCN, AdaptivePropagation
from lit_models.adaptive_propagation import (
    MOST_NODES,
    Branches,
    Perceptron,
    View,
    alike,
    check_size,
    combine,
    homophily_confidence,
    hops,
    likeness,
    messages,
    mixed_topology,
    signed,
)

PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])  # 0 - 1 - 2


def rows(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


def test_who_is_alike_by_hand():
    # cosines: 1 with a multiple; (3, 4) with (4, 3) has 24 / 25
    p = rows([0.3, 0.4], [0.6, 0.8], [0.4, 0.3])
    torch.testing.assert_close(likeness(p), rows([0, 1, 0.96], [1, 0, 0.96], [0.96, 0.96, 0]))
    assert torch.equal(alike(p), rows([0, 1, 0], [1, 0, 0], [0, 0, 0]))
    assert torch.equal(alike(p, 0.95), 1 - torch.eye(3))
    # .999 is between the cosines of an angle of 2.5 and of 2.6 degrees
    near, far = ([math.cos(math.radians(d)), math.sin(math.radians(d))] for d in (2.5, 2.6))
    assert torch.equal(alike(rows([1.0, 0.0], near, dtype=torch.float64))[0], rows(0.0, 1.0, dtype=torch.float64))
    assert not alike(rows([1.0, 0.0], far, dtype=torch.float64)).any()


def test_the_mixed_topology_by_hand():
    # alpha 1/4, S links 0 and 2: matrix [[1, 1/4, 3/4], [1/4, 1, 1/4], [3/4, 1/4, 1]], sums 2, 3/2, 2
    s = rows([0, 0, 1], [0, 0, 0], [1, 0, 0])
    side = 0.25 / math.sqrt(3)
    expected = rows([0.5, side, 0.375], [side, 2 / 3, side], [0.375, side, 0.5])
    torch.testing.assert_close(mixed_topology(PATH, s, 0.25), expected)
    lonely = mixed_topology(torch.empty(2, 0, dtype=torch.int64), torch.zeros(2, 2), 0.05)
    assert torch.equal(lonely, torch.eye(2))


def test_hops_by_hand():
    matrix, x = rows([0, 2], [1, 0]), rows([1.0], [10.0])
    assert torch.equal(hops(x, matrix, 3), rows([1, 20, 2, 40], [10, 1, 20, 2]))
    assert hops(x, matrix, 0) is not x and torch.equal(hops(x, matrix, 0), x)


def test_signs_by_hand():
    # R: mean (2 * (6 + 2 + 1)) / 9 = 2; largest 6: (6 - 2) / 4 = 1, (2 - 2) = 0, (1 - 2) / 2 = -1/2
    r = rows([0, 6, 2], [6, 0, 1], [2, 1, 0])
    torch.testing.assert_close(signed(r), rows([1, 1, 0], [1, 1, -0.5], [0, -0.5, 1]))
    # least alike: -1
    torch.testing.assert_close(signed(rows([0, 3, 0], [3, 0, 0], [0, 0, 0]))[0], rows(1.0, 1.0, -1.0))


def test_a_graph_of_one_node_or_of_none_that_are_alike():
    assert torch.equal(signed(torch.zeros(1, 1)), torch.ones(1, 1))
    for n in (1, 3):
        e = torch.eye(n, 4).mul(500.0).requires_grad_()
        messages(e, torch.zeros(n, n), 1.0, torch.nn.PReLU()).sum().backward()
        assert bool(e.grad.isfinite().all())


def test_messages_against_loops():
    torch.manual_seed(0)
    n, c, beta, slope = 5, 3, 0.2, 0.25
    e, s = torch.randn(n, c, dtype=torch.float64), (torch.rand(n, n) > 0.5).double().fill_diagonal_(0.0)
    p = [[math.exp(v) / sum(math.exp(w) for w in row) for v in row] for row in e.tolist()]
    norm = [math.sqrt(sum(v * v for v in row)) for row in p]
    r = [[0.0] * n for _ in range(n)]
    for u in range(n):
        for v in range(n):
            if u != v:
                r[u][v] = (
                    beta * s[u, v].item() + (1 - beta) * sum(a * b for a, b in zip(p[u], p[v], strict=True)) / norm[u] / norm[v]
                )
    mean, top = sum(map(sum, r)) / n**2, max(map(max, r))
    result = torch.zeros(n, c, dtype=torch.float64)
    for u in range(n):
        parts = []
        for sign in (1, -1):
            total = torch.zeros(c, dtype=torch.float64)
            for v in range(n):
                t = 1.0 if u == v else (r[u][v] - mean) / (top - mean if r[u][v] > mean else mean)
                total += (sign * t if sign * t > 0 else slope * sign * t) * e[v]
            parts.append(total.softmax(-1))
        result[u] = (parts[0] - parts[1] + e[u]) / 2
    phi = torch.nn.PReLU(init=slope).double()
    torch.testing.assert_close(messages(e, s, beta, phi), result)


def test_the_output_by_hand():
    even, p = torch.zeros(1, 2), rows([1.0, 0.0])
    three = torch.log(rows([0.75, 0.25]))
    branches = Branches(even, three, three, even)  # Y_ho = (1/2 + 1) / 2; Y_he = (3/4 + 3/4 + 1/2) / 3
    torch.testing.assert_close(combine(branches, p, torch.tensor(0.5)), rows([0.5 * 0.75 + 0.5 * 2 / 3, 0.5 * 0.25 + 0.5 / 3]))
    torch.testing.assert_close(combine(branches, p, torch.tensor(1.0)), rows([0.75, 0.25]))


def test_perceptron():
    torch.manual_seed(0)
    mlp = Perceptron([50, 40, 30, 2], dropout=0.5).double()
    bound = math.sqrt(2) * math.sqrt(6 / 90)  # Xavier, uniform, with the gain of ReLU
    assert 0.95 * bound < mlp.layers[0].weight.abs().max() <= bound and not mlp.layers[0].bias.any()
    x, (a, b, c) = torch.randn(3, 50, dtype=torch.float64), (layer.weight for layer in mlp.layers)
    expected = F.leaky_relu(F.leaky_relu(x @ a.T, 0.25) @ b.T, 0.25) @ c.T
    torch.testing.assert_close(mlp.eval()(x), expected)
    assert not torch.equal(mlp.train()(x), expected)


def test_each_branch_sees_what_is_its_own():
    torch.manual_seed(0)
    heads = AdaptivePropagation(hidden_channels=4, hops=2, beta=0.4)
    heads.build(3, 2)
    heads.eval()
    view = View(torch.rand(5, 2).softmax(-1), torch.zeros(5, 5), torch.randn(5, 9))
    z, o, s, m = heads(view)
    assert torch.equal(z, heads.homophilous(view.x)) and torch.equal(s, heads.smoothed(view.x))
    assert torch.equal(o, heads.own(view.x[:, :3]))
    assert torch.equal(m, messages(heads.propagated(view.x), view.s, 0.4, heads.propagated.activation))
    assert [len(mlp.layers) for mlp in (heads.homophilous, heads.own, heads.smoothed, heads.propagated)] == [2, 3, 3, 3]


@pytest.mark.parametrize("sparse", [False, True])
def test_the_view_of_a_graph(sparse):
    """P in evaluation mode, from which S and X~ follow; computed once, and anew when the encoder's weights are others."""
    torch.manual_seed(0)
    encoder = GCN(4, dropout=0.9)
    encoder.build(6, 3)
    x = torch.rand(3, 6)
    given = x.to_sparse_csr() if sparse else x
    encoder.train()
    state = torch.get_rng_state()
    view = View.of(encoder, given, PATH, 0.05, 3)
    assert encoder.training and torch.equal(torch.get_rng_state(), state)
    assert not any(part.requires_grad for part in view)
    with torch.no_grad():
        expected = encoder.eval()(given, PATH).softmax(-1)
    assert torch.equal(view.p, expected) and torch.equal(view.s, alike(expected))
    torch.testing.assert_close(view.x, hops(x, mixed_topology(PATH, view.s, 0.05), 3))
    assert View.of(encoder, given, PATH, 0.05, 3) is view
    with torch.no_grad():
        next(encoder.parameters()).add_(1.0)
    assert not torch.equal(View.of(encoder, given, PATH, 0.05, 3).p, expected)


def dense_confidence(labels, given, asked, edge_index, classes):
    n = len(labels)
    a = torch.eye(n, dtype=torch.float64)
    a[edge_index[1], edge_index[0]] = 1.0
    a = a / a.sum(1).sqrt() / a.sum(1).sqrt()[:, None]
    y0 = torch.full((n, classes), 1 / classes, dtype=torch.float64)
    y0[given] = torch.eye(classes, dtype=torch.float64)[labels[given]]
    y = y0
    for _ in range(10):
        y = a @ y / 2 + y0 / 2
    return sum(int(y[v].argmax() == labels[v]) for v in asked) / len(asked)


def test_homophily_confidence_against_dense_matrices():
    torch.manual_seed(0)
    n, found = 24, set()
    for seed in range(6):
        links = torch.randint(n, (2, 40))
        links = links[:, links[0] != links[1]]
        links = torch.cat([links, links.flip(0)], dim=1).unique(dim=1)
        labels, known = torch.randint(3, (n,)), torch.rand(n) < 0.6
        torch.manual_seed(seed)
        got = homophily_confidence(labels, known, links, 3)
        torch.manual_seed(seed)
        order = known.nonzero().flatten()[torch.randperm(int(known.sum()))]
        half = len(order) // 2
        assert got.item() == pytest.approx(dense_confidence(labels, order[:half], order[half:], links, 3))
        found.add(got.item())
    assert len(found) > 2


def test_homophily_confidence_of_cliques_and_of_their_opposite():
    left, right = torch.meshgrid(torch.arange(12), torch.arange(12), indexing="ij")
    labels, known = torch.arange(12) % 2, torch.ones(12, dtype=torch.bool)
    inside = ((left - right) % 2 == 0) & (left != right)  # each class a clique
    across = (left - right) % 2 == 1  # links between the classes only
    torch.manual_seed(1)
    assert homophily_confidence(labels, known, torch.stack([left[inside], right[inside]]), 2) == 1.0
    torch.manual_seed(1)
    assert homophily_confidence(labels, known, torch.stack([left[across], right[across]]), 2) == 0.0


def test_no_half_to_learn_from():
    for number in (0, 1):
        assert homophily_confidence(torch.zeros(3, dtype=torch.int64), torch.arange(3) < number, PATH, 2) == 0.5


def test_what_is_refused(monkeypatch):
    check_size(MOST_NODES)
    with pytest.raises(ValueError, match=r"at most 8192 nodes, but a client has 8193. Cut .*`data.init_args.num_clients`"):
        check_size(MOST_NODES + 1)
    for options, text in (
        ({"hidden_channels": 0}, "hidden_channels of at least 1 and hops from 0, got 0 and 3"),
        ({"hops": -1}, "got 64 and -1"),
        ({"alpha": 1.5}, "alpha` must be from 0 to 1, got 1.5"),
        ({"beta": -0.1}, "beta` must be from 0 to 1, got -0.1"),
        ({"dropout": 1.0}, "dropout` must be 0 or more and below 1, got 1.0"),
    ):
        with pytest.raises(ValueError, match=f"model.init_args.personal.init_args.*{text}"):
            AdaptivePropagation(**options)
    monkeypatch.setattr("lit_models.adaptive_propagation.MOST_NODES", 2)
    with pytest.raises(ValueError, match="at most 2 nodes, but a client has 3"):
        View.of(GCN(4), torch.zeros(3, 6), PATH, 0.05, 3)
