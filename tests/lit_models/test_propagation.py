"""APPNP and GPR-GNN against dense matrices in closed form and against PyG's propagation; sparse equals dense."""

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.nn import APPNP as PyGAPPNP

from lit_models import APPNP, GPRGNN
from lit_models.propagation import start_gamma

BOTH = [APPNP, GPRGNN]


def built(encoder_class, **arguments):
    encoder = encoder_class(**{"hidden_channels": 16, **arguments})
    encoder.build(12, 3)
    return encoder.eval()


def dense_gcn(edge_index, num_nodes):
    """D^-1/2 (A + I) D^-1/2, element by element."""
    loops = torch.eye(num_nodes)
    for u, v in edge_index.t().tolist():
        loops[v, u] += 1.0
    scale = loops.sum(1).rsqrt()
    return scale[:, None] * loops * scale[None, :]


def mlp(encoder, x):
    first, second = encoder.convs
    return F.linear(F.linear(x, first.weight, first.bias).relu(), second.weight, second.bias)


def test_two_nodes_by_hand():
    # One link: every entry of A^ is 1/2, and A^ A^ = A^. H = (4, 0): A^ H = (2, 2) for every power.
    # alpha .1, K = 2: Z = .1 H + .9 .1 A^ H + .81 A^ H = (.4 + .18 + 1.62, .18 + 1.62) = (2.2, 1.8)
    x, edge_index = torch.tensor([[4.0], [0.0]]), torch.tensor([[0, 1], [1, 0]])
    for encoder_class in BOTH:
        encoder = encoder_class(num_layers=1, hops=2)
        encoder.build(1, 1)
        with torch.no_grad():
            encoder.convs[0].weight.fill_(1.0), encoder.convs[0].bias.zero_()
        torch.testing.assert_close(encoder(x, edge_index), torch.tensor([[2.2], [1.8]]))


def test_gamma_begins_as_the_paper_has_it():
    # K = 3, alpha .1: .1, .1 x .9, .1 x .81, and .9^3 for the last
    torch.testing.assert_close(start_gamma(3, 0.1), torch.tensor([0.1, 0.09, 0.081, 0.729]))
    torch.testing.assert_close(built(GPRGNN).gamma.detach(), start_gamma(10, 0.1))
    assert GPRGNN().hops == APPNP().hops == 10 and GPRGNN().alpha == APPNP().alpha == 0.1


def test_many_hops_of_appnp_are_personalised_pagerank(graph):
    # K -> infinity: Z = alpha (I - (1 - alpha) A^)^-1 H
    data, encoder = graph(), built(APPNP, hops=200, alpha=0.2)
    matrix = torch.eye(data.num_nodes) - 0.8 * dense_gcn(data.edge_index, data.num_nodes)
    expected = 0.2 * torch.linalg.solve(matrix, mlp(encoder, data.x))
    torch.testing.assert_close(encoder(data.x, data.edge_index), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("sparse", [False, True])
def test_appnp_values_and_gradients_equal_pygs(graph, sparse):
    data, encoder = graph(sparse=sparse), built(APPNP, hops=4, alpha=0.3)
    target = torch.randn(data.num_nodes, 3)
    (encoder(data.x, data.edge_index) * target).sum().backward()
    found = [p.grad.clone() for p in encoder.parameters()]
    encoder.zero_grad()
    dense = data.x.to_dense() if sparse else data.x
    expected = PyGAPPNP(K=4, alpha=0.3)(mlp(encoder, dense), data.edge_index)
    torch.testing.assert_close(encoder(data.x, data.edge_index), expected, atol=1e-5, rtol=1e-5)
    (expected * target).sum().backward()
    for mine, parameter in zip(found, encoder.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_gprgnn_is_the_weighted_sum_of_powers_and_gamma_learns(graph, sparse):
    data, encoder = graph(sparse=sparse), built(GPRGNN, hops=3)
    gamma = torch.tensor([0.5, -1.0, 2.0, 0.25])
    with torch.no_grad():
        encoder.gamma.copy_(gamma)
    matrix, h = dense_gcn(data.edge_index, data.num_nodes), mlp(encoder, data.x.to_dense() if sparse else data.x).detach()
    powers = [torch.linalg.matrix_power(matrix, k) @ h for k in range(4)]
    out = encoder(data.x, data.edge_index)
    torch.testing.assert_close(out, sum(g * p for g, p in zip(gamma, powers, strict=True)), atol=1e-5, rtol=1e-5)
    target = torch.randn_like(out)
    (out * target).sum().backward()
    torch.testing.assert_close(encoder.gamma.grad, torch.stack([(p * target).sum() for p in powers]), atol=1e-4, rtol=1e-4)


def test_gprgnn_begins_as_appnp(graph):
    data, one, other = graph(), built(GPRGNN), built(APPNP)
    other.convs.load_state_dict(one.convs.state_dict())
    torch.testing.assert_close(one(data.x, data.edge_index), other(data.x, data.edge_index), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("encoder_class", BOTH)
def test_sparse_equals_dense_at_any_depth(graph, encoder_class, num_layers):
    data, encoder = graph(sparse=True), built(encoder_class, num_layers=num_layers)
    for training in (False, True):
        encoder.train(training)
        outputs = []
        for x in (data.x, data.x.to_dense()):
            torch.manual_seed(3)  # the same units dropped
            outputs.append(encoder(x, data.edge_index))
        torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("encoder_class", BOTH)
def test_no_hop_is_the_mlp_and_one_isolated_node_is_finite(graph, encoder_class):
    data, encoder = graph(), built(encoder_class, hops=0)
    expected = mlp(encoder, data.x) * (1.0 if encoder_class is APPNP else encoder.gamma[0])
    torch.testing.assert_close(encoder(data.x, data.edge_index), expected)
    assert start_gamma(0, 0.1).tolist() == [1.0]
    alone = built(encoder_class).train()
    assert alone(torch.ones(1, 12), torch.zeros(2, 0, dtype=torch.int64)).isfinite().all()


@pytest.mark.parametrize("encoder_class", BOTH)
def test_embedding_is_the_input_of_the_mlps_last_layer(graph, encoder_class):
    data, encoder = graph(sparse=True), built(encoder_class)
    h = encoder.embed(data.x, data.edge_index)
    assert h.shape == (data.num_nodes, 16)
    last = encoder.convs[1](h)
    torch.testing.assert_close(last, mlp(encoder, data.x.to_dense()), atol=1e-5, rtol=1e-5)


def test_building_twice_keeps_gamma_and_errors_name_the_yaml_key():
    encoder = built(GPRGNN)
    gamma = encoder.gamma
    encoder.build(12, 3)
    assert encoder.gamma is gamma and next(iter(encoder.state_dict())) == "gamma"
    with pytest.raises(ValueError, match=r"was built for \(inputs, outputs\) \(12, 3\)"):
        encoder.build(12, 4)
    with pytest.raises(ValueError, match=r"`GPRGNN` needs .*`model.init_args.encoder.init_args` has hops: -1, alpha: 0.1"):
        GPRGNN(hops=-1)
    with pytest.raises(ValueError, match="`APPNP` needs .* alpha: 1.5"):
        APPNP(alpha=1.5)
