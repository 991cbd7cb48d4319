"""FED-PUB's server equations: hand values O1, O2, O7, closed forms and properties (docs/papers/fedpub.md#hand-values)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.strategies.fedpub import proxy_graph
from fl_lightning.strategies.mixtures import cosine_similarity, personal_average, similarity_weights

H = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
LN2 = math.log(2.0)


def test_alpha_by_hand_o1():
    torch.testing.assert_close(cosine_similarity(H), torch.tensor([[1.0, 0, 1], [0, 1, 0], [1, 0, 1]]))
    alpha = similarity_weights(H, tau=LN2)
    torch.testing.assert_close(alpha, torch.tensor([[0.4, 0.2, 0.4], [0.25, 0.5, 0.25], [0.4, 0.2, 0.4]]))


def test_personal_weights_by_hand_o2():
    theta = torch.tensor([[1.0], [10.0], [100.0]])
    personal = personal_average(similarity_weights(H, LN2), theta)
    torch.testing.assert_close(personal, torch.tensor([[42.4], [30.25], [42.4]]))


def test_alpha_of_orthogonal_clients():
    # cos = identity, tau = log 3  =>  exp(tau cos) = [[3, 1], [1, 3]], divided by the row sum 4.
    alpha = similarity_weights(torch.tensor([[2.0, 0.0], [0.0, 5.0]]), tau=math.log(3.0))
    torch.testing.assert_close(alpha, torch.tensor([[0.75, 0.25], [0.25, 0.75]]))


def test_opposite_clients():
    # cos = -1: exp(2 tau) = 4 times less than itself.
    alpha = similarity_weights(torch.tensor([[3.0, 4.0], [-3.0, -4.0]]), tau=LN2)
    torch.testing.assert_close(alpha, torch.tensor([[0.8, 0.2], [0.2, 0.8]]))


def test_a_zero_row_is_orthogonal_to_all_others_and_finite():
    alpha = similarity_weights(torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]), tau=LN2)
    torch.testing.assert_close(alpha, torch.tensor([[1 / 3] * 3, [0.2, 0.4, 0.4], [0.2, 0.4, 0.4]]))


def test_one_client_keeps_its_weights_bit_for_bit():
    theta = torch.randn(1, 7)
    assert torch.equal(personal_average(similarity_weights(torch.randn(1, 3), 3.0), theta), theta)


def test_large_tau_takes_the_most_similar():
    embeddings, theta = torch.randn(4, 8), torch.randn(4, 5)
    torch.testing.assert_close(personal_average(similarity_weights(embeddings, 1e6), theta), theta)
    twins = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    alpha = similarity_weights(twins, 1e6)
    torch.testing.assert_close(alpha, torch.tensor([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]]))


def _embeddings(seed, clients):
    return torch.randn(clients, 5, generator=torch.Generator().manual_seed(seed))


cases = given(seed=st.integers(0, 10**6), clients=st.integers(1, 12), tau=st.floats(-20, 20))


@cases
@settings(max_examples=50, deadline=None)
def test_rows_are_distributions(seed, clients, tau):
    alpha = similarity_weights(_embeddings(seed, clients), tau)
    assert alpha.shape == (clients, clients) and (alpha >= 0).all()
    torch.testing.assert_close(alpha.sum(1), torch.ones(clients))


@cases
@settings(max_examples=50, deadline=None)
def test_permuting_clients_permutes_alpha_and_scaling_changes_nothing(seed, clients, tau):
    embeddings = _embeddings(seed, clients)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(clients, generator=generator)
    alpha = similarity_weights(embeddings, tau)
    torch.testing.assert_close(similarity_weights(embeddings[order], tau), alpha[order][:, order])
    scale = torch.rand(clients, 1, generator=generator) * 100 + 1e-3
    torch.testing.assert_close(similarity_weights(embeddings * scale, tau), alpha)


@cases
@settings(max_examples=50, deadline=None)
def test_similarity_is_symmetric_with_diagonal_one_and_agrees_with_scipy(seed, clients, tau):
    from scipy.spatial.distance import cosine

    embeddings = _embeddings(seed, clients)
    similarity = cosine_similarity(embeddings)
    assert torch.equal(similarity, similarity.T)
    torch.testing.assert_close(similarity.diagonal(), torch.ones(clients))
    expected = [[1 - cosine(a, b) for b in embeddings.double().numpy()] for a in embeddings.double().numpy()]
    torch.testing.assert_close(similarity, torch.tensor(expected, dtype=torch.float32), atol=1e-6, rtol=0)


def test_tau_zero_is_the_plain_mean_and_so_are_identical_embeddings():
    theta = torch.randn(6, 9)
    mean = theta.mean(0).expand(6, 9)
    torch.testing.assert_close(personal_average(similarity_weights(torch.randn(6, 4), 0.0), theta), mean)
    same = personal_average(similarity_weights(torch.randn(1, 4).expand(6, 4), 5.0), theta)
    torch.testing.assert_close(same, mean)
    assert all(torch.equal(row, same[0]) for row in same)


def test_tiny_and_huge_embeddings_stay_finite():
    for scale in (1e-30, 1e30):
        alpha = similarity_weights(H * scale, LN2)
        torch.testing.assert_close(alpha, torch.tensor([[0.4, 0.2, 0.4], [0.25, 0.5, 0.25], [0.4, 0.2, 0.4]]))


def test_average_is_summed_in_double():
    # 1e8 + 1 - 1e8 in float32 is 0; the true mean of the three is 1/3.
    theta = torch.tensor([[1e8], [1.0], [-1e8]])
    average = personal_average(torch.full((1, 3), 1 / 3, dtype=torch.float64), theta)
    assert average.dtype == torch.float32 and average.item() == pytest.approx(1 / 3, rel=1e-6)


def test_fewer_receivers_than_senders():
    alpha = torch.tensor([[0.5, 0.25, 0.25]])
    torch.testing.assert_close(personal_average(alpha, torch.eye(3)), alpha)


def test_proxy_graph_o7():
    proxy = proxy_graph(16, seed=42)
    source, target = proxy.edge_index
    assert proxy.num_nodes == 500 and proxy.x.shape == (500, 16)
    assert torch.equal(source // 100, target // 100)  # p_out = 0: no edge between blocks
    assert (source != target).all()
    edges = {(int(a), int(b)) for a, b in proxy.edge_index.T}
    assert len(edges) == proxy.edge_index.shape[1] and edges == {(b, a) for a, b in edges}
    assert abs(len(edges) / 2 - 2475) <= 236  # 5 blocks * C(100, 2) * .1, five standard deviations
    assert set(torch.bincount(source // 100, minlength=5).tolist()) - {0}
    # N(0, 1): 8000 draws, five standard errors
    assert abs(proxy.x.mean()) < 5 / math.sqrt(8000) and abs(proxy.x.var() - 1) < 5 * math.sqrt(2 / 8000)


def test_proxy_graph_of_networkx_seed_42():
    import networkx

    if networkx.__version__ != "3.6.1":
        pytest.skip(f"the count 2475 was taken with networkx 3.6.1, here is {networkx.__version__}")
    assert proxy_graph(1, seed=42).edge_index.shape[1] == 2 * 2475


def test_proxy_graph_is_seeded_and_leaves_the_global_generator_alone():
    state = torch.random.get_rng_state()
    first, again, other = proxy_graph(8, seed=1), proxy_graph(8, seed=1), proxy_graph(8, seed=2)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.x, again.x) and torch.equal(first.edge_index, again.edge_index)
    assert not torch.equal(first.x, other.x)
    assert first.edge_index.shape != other.edge_index.shape or not torch.equal(first.edge_index, other.edge_index)
    # one generator per purpose: other probabilities, same features
    assert torch.equal(proxy_graph(8, p_in=0.9, seed=1).x, first.x)


def test_proxy_graph_extremes():
    assert proxy_graph(2, num_blocks=2, block_size=3, p_in=0.0).edge_index.shape == (2, 0)
    full = proxy_graph(2, num_blocks=2, block_size=3, p_in=1.0, p_out=1.0)
    assert full.edge_index.shape == (2, 30)


def test_errors():
    with pytest.raises(ValueError, match="shape"):
        similarity_weights(torch.zeros(3), 1.0)
    for alpha, stacked in [((2, 2), (3, 2)), ((2,), (2, 2)), ((2, 2, 2), (2, 2)), ((2, 2), (2,)), ((2, 2), (2, 2, 2))]:
        with pytest.raises(ValueError, match="do not fit"):
            personal_average(torch.ones(alpha), torch.ones(stacked))
    with pytest.raises(ValueError, match="floating-point"):
        personal_average(torch.eye(2), torch.ones(2, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="probabilities"):
        proxy_graph(3, p_in=1.5)
    with pytest.raises(ValueError, match="at least one feature"):
        proxy_graph(0)
