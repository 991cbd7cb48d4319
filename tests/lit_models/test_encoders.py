"""Encoders against hand values (docs/papers/fedsage.md#hand-values, T5), against plain PyG, and on degenerate graphs;
sparse equals dense."""

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

from lit_models import GAT, GCN, GIN, GraphSAGE

ENCODERS = [GraphSAGE, GCN, GAT, GIN]


def built(encoder_class, in_channels=12, out_channels=3, **arguments):
    encoder = encoder_class(**{"hidden_channels": 16, **arguments})
    encoder.build(in_channels, out_channels)
    return encoder


@pytest.mark.parametrize("sparse", [False, True])
def test_graphsage_layer_by_hand(sparse):
    # T5: path 0-1-2 and node 3 alone; phi = [[1,0,0,1],[0,-1,2,0]] on [own || mean of neighbours], no bias, ReLU.
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [1.0, -1.0]])
    edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    encoder = built(GraphSAGE, 2, 2, num_layers=1)
    with torch.no_grad():
        encoder.convs[0].lin_r.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
        encoder.convs[0].lin_l.weight.copy_(torch.tensor([[0.0, 1.0], [2.0, 0.0]]))
        encoder.convs[0].lin_l.bias.zero_()
    out = encoder(x.to_sparse_csr() if sparse else x, edge_index).relu()
    torch.testing.assert_close(out, torch.tensor([[2.0, 0.0], [1.0, 2.0], [3.0, 0.0], [1.0, 1.0]]))


def test_state_dict_names_are_those_of_plain_pyg():
    names = set(built(GraphSAGE).state_dict())
    layer = {"lin_l.weight", "lin_l.bias", "lin_r.weight"}
    assert names == {f"convs.{k}.{name}" for k in range(2) for name in layer}
    plain = {
        GCN: GCNConv(12, 16),
        GAT: GATConv(12, 2, 8),
        GIN: GINConv(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16))),
    }
    for encoder_class, conv in plain.items():
        built(encoder_class).convs[0].load_state_dict(conv.state_dict())


def plain_layers(encoder_class):
    def mlp(i, o):
        return nn.Sequential(nn.Linear(i, 16), nn.ReLU(), nn.Linear(16, o))

    return {
        GraphSAGE: [SAGEConv(12, 16), SAGEConv(16, 3)],
        GCN: [GCNConv(12, 16), GCNConv(16, 3)],
        GAT: [GATConv(12, 2, 8), GATConv(16, 3, 1)],
        GIN: [GINConv(mlp(12, 16)), GINConv(mlp(16, 3))],
    }[encoder_class]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("encoder_class", ENCODERS)
def test_values_and_gradients_equal_plain_pyg(graph, encoder_class, sparse):
    data, encoder = graph(sparse=sparse), built(encoder_class).eval()
    dense = data.x.to_dense() if sparse else data.x
    layers = nn.ModuleList(plain_layers(encoder_class))
    layers.load_state_dict({name.removeprefix("convs."): value for name, value in encoder.state_dict().items()})

    expected = layers[1](layers[0](dense, data.edge_index).relu(), data.edge_index)
    out = encoder(data.x, data.edge_index)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    target = torch.randn_like(out)
    (out * target).sum().backward()
    (expected * target).sum().backward()
    gradients = dict(layers.named_parameters())
    for name, parameter in encoder.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name.removeprefix("convs.")].grad, atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize("out_channels", [3, 40], ids=["project-first", "aggregate-first"])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("encoder_class", ENCODERS)
def test_sparse_equals_dense_at_any_depth(graph, encoder_class, num_layers, out_channels):
    data = graph(sparse=True)
    encoder = built(encoder_class, out_channels=out_channels, num_layers=num_layers)
    for training in (False, True):
        encoder.train(training)
        outputs = []
        for x in (data.x, data.x.to_dense()):
            torch.manual_seed(3)  # the same units dropped
            outputs.append(encoder(x, data.edge_index))
        if not (training and encoder_class is GAT):  # GAT also drops attention, in another order of draws
            torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("encoder_class", ENCODERS)
def test_gradient_reaches_dense_features(graph, encoder_class):
    data = graph()
    x = data.x.clone().requires_grad_()
    built(encoder_class)(x, data.edge_index).sum().backward()
    assert x.grad.isfinite().all() and x.grad.abs().sum() > 0


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("encoder_class", ENCODERS)
def test_one_isolated_node_is_finite(encoder_class, sparse):
    x = torch.ones(1, 12)
    encoder = built(encoder_class).train()
    out = encoder(x.to_sparse_csr() if sparse else x, torch.zeros(2, 0, dtype=torch.int64))
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize("sparse", [False, True])
def test_graphsage_isolated_node_sees_itself_only(sparse):
    encoder = built(GraphSAGE, num_layers=1)
    x = torch.rand(1, 12)
    out = encoder(x.to_sparse_csr() if sparse else x, torch.zeros(2, 0, dtype=torch.int64))
    conv = encoder.convs[0]
    torch.testing.assert_close(out, x @ conv.lin_r.weight.t() + conv.lin_l.bias)


@pytest.mark.parametrize("encoder_class", ENCODERS)
def test_relabelling_nodes_permutes_outputs(graph, encoder_class):
    data, encoder = graph(), built(encoder_class).eval()
    order = torch.randperm(data.num_nodes)
    moved = torch.argsort(order)[data.edge_index]
    out = encoder(data.x, data.edge_index)
    torch.testing.assert_close(encoder(data.x[order], moved), out[order], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("encoder_class", ENCODERS)
def test_embedding_is_the_input_of_the_last_layer(graph, encoder_class):
    data, encoder = graph(sparse=True), built(encoder_class).eval()
    h = encoder.embed(data.x, data.edge_index)
    assert h.shape == (data.num_nodes, 16)
    conv = plain_layers(encoder_class)[1]
    conv.load_state_dict(encoder.convs[1].state_dict())
    torch.testing.assert_close(conv(h, data.edge_index), encoder(data.x, data.edge_index), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_features_follow_the_models_precision(graph, sparse):
    data, encoder = graph(sparse=sparse), built(GraphSAGE).double().eval()
    assert encoder(data.x, data.edge_index).dtype == torch.float64


def test_build_twice():
    encoder = built(GraphSAGE)
    weight = encoder.convs[0].lin_l.weight
    encoder.build(12, 3)
    assert encoder.convs[0].lin_l.weight is weight and len(encoder.convs) == 2
    with pytest.raises(ValueError, match=r"was built for \(inputs, outputs\) \(12, 3\)"):
        encoder.build(12, 4)


def test_errors_name_the_yaml_key(graph):
    with pytest.raises(ValueError, match=r"model.init_args.encoder.init_args.dropout.* is 1.5"):
        GraphSAGE(dropout=1.5)
    with pytest.raises(ValueError, match="num_layers: 0"):
        GCN(num_layers=0)
    with pytest.raises(ValueError, match="hidden_channels: 10, heads: 4"):
        GAT(hidden_channels=10, heads=4)
    with pytest.raises(ValueError, match="no layers yet"):
        GIN()(graph().x, graph().edge_index)
    with pytest.raises(ValueError, match="built for 12 features, found 5"):
        built(GraphSAGE)(torch.ones(2, 5), torch.zeros(2, 0, dtype=torch.int64))
