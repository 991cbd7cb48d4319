"""FastNNConv against PyG's NNConv (outputs and all gradients), in both of its forms, and at its edges."""

import pytest
import torch
from molecule_samples import SMILES, batch_of, generated_smiles, molecule
from torch import nn
from torch_geometric.nn import NNConv

from lit_models.fast_nnconv import FastNNConv, bond_groups, grouped_matmul


def edge_network(width: int = 13, out: int = 64, hidden: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))


def pair_of_convs(root_weight: bool = False, **kwargs) -> tuple[NNConv, FastNNConv]:
    torch.manual_seed(0)
    reference = NNConv(8, 8, edge_network(), aggr="add", root_weight=root_weight)
    torch.manual_seed(0)
    fast = FastNNConv(8, 8, edge_network(), root_weight=root_weight, **kwargs)
    for (name, expected), (same_name, got) in zip(reference.named_parameters(), fast.named_parameters(), strict=True):
        assert name == same_name and torch.equal(expected, got)  # a drop-in also starts from the same weights
    return reference, fast


def outputs_and_gradients(conv, x, batch, edge_attr, steps: int = 3, **kwargs):
    x = x.clone().requires_grad_()
    out = x
    for _ in range(steps):
        out = torch.tanh(conv(out, batch.edge_index, edge_attr, **kwargs))
    wanted = [x, *conv.parameters()] + ([edge_attr] if edge_attr.requires_grad else [])
    return [out, *torch.autograd.grad((out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum(), wanted)]


@pytest.mark.parametrize("form", ["types given", "types found", "factorised", "unique rows"])
@pytest.mark.parametrize("root_weight", [False, True])
def test_equals_pyg(form, root_weight):
    reference, fast = pair_of_convs(root_weight, max_types=2 if form == "factorised" else 64)
    batch = batch_of(SMILES + generated_smiles(8), edge_type=True)
    # Not 0/1: types are found by comparing rows.
    edge_attr = batch.edge_attr * 0.7 if form == "unique rows" else batch.edge_attr
    x = torch.randn(batch.num_nodes, 8)
    kwargs = {"edge_type": batch.edge_type} if form == "types given" else {}
    expected = outputs_and_gradients(reference, x, batch, edge_attr)
    for got, want in zip(outputs_and_gradients(fast, x, batch, edge_attr, **kwargs), expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("given_types", [False, True])
def test_gradient_of_edge_features_is_that_of_each_edge(given_types):
    reference, fast = pair_of_convs()
    batch = batch_of(SMILES, edge_type=True)
    x = torch.randn(batch.num_nodes, 8)
    edge_attr = batch.edge_attr.clone().requires_grad_()
    kwargs = {"edge_type": batch.edge_type} if given_types else {}  # sharing a row per type would lose gradients
    got = outputs_and_gradients(fast, x, batch, edge_attr, **kwargs)
    for value, want in zip(got, outputs_and_gradients(reference, x, batch, edge_attr), strict=True):
        torch.testing.assert_close(value, want, atol=1e-5, rtol=1e-5)


def test_continuous_features_take_the_factorised_form_and_equal_pyg():
    reference, fast = pair_of_convs()
    batch = batch_of(generated_smiles(8))
    edge_attr = torch.rand(batch.edge_index.size(1), 13)
    assert bond_groups(batch.edge_index, edge_attr, batch.num_nodes) is None
    x = torch.randn(batch.num_nodes, 8)
    expected = outputs_and_gradients(reference, x, batch, edge_attr)
    for got, want in zip(outputs_and_gradients(fast, x, batch, edge_attr), expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_any_edge_network():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 64), nn.Tanh())  # does not end in a linear layer
    reference, fast = NNConv(8, 8, network, aggr="add", root_weight=False), FastNNConv(8, 8, network, max_types=1)
    fast.load_state_dict(reference.state_dict())
    batch = batch_of(SMILES)
    x, edge_attr = torch.randn(batch.num_nodes, 8), torch.rand(batch.edge_index.size(1), 1)
    torch.testing.assert_close(fast(x, batch.edge_index, edge_attr), reference(x, batch.edge_index, edge_attr))


def test_groups_of_one_molecule_by_hand():
    # CCO: 2 single bonds (4 directed edges) and 3 self-loops: types 2^0 + 2^6 (single, no stereo) = 65 and 2^12 = 4096.
    data = molecule("CCO", edge_type=True)
    assert sorted(data.edge_type.tolist()) == [65] * 4 + [4096] * 3
    groups = bond_groups(data.edge_index, data.edge_attr, 3, data.edge_type)
    assert groups.sizes == (3, 3)  # (bond, C), (bond, C), (bond, O) and three self-loops
    assert torch.equal(data.edge_attr[groups.representative], data.edge_attr[[0, 4]])


def test_grouped_matmul_and_its_derivatives():
    torch.manual_seed(0)
    x, weights = torch.randn(6, 2, dtype=torch.float64), torch.randn(3, 2, 4, dtype=torch.float64)
    sizes = (1, 3, 2)
    expected = torch.stack([row @ weights[k] for row, k in zip(x, [0, 1, 1, 1, 2, 2], strict=True)])
    torch.testing.assert_close(grouped_matmul(x, weights, sizes), expected)
    inputs = (x.requires_grad_(), weights.requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: grouped_matmul(a, b, sizes), inputs)
    assert torch.autograd.gradgradcheck(lambda a, b: grouped_matmul(a, b, sizes), inputs)


def test_no_edges_no_atoms_and_isolated_atoms():
    _, fast = pair_of_convs()
    none = torch.zeros(2, 0, dtype=torch.long)
    x = torch.randn(3, 8, requires_grad=True)
    torch.testing.assert_close(fast(x, none, torch.zeros(0, 13)), fast.bias.expand(3, 8))
    fast(x, none, torch.zeros(0, 13)).sum().backward()
    torch.testing.assert_close(x.grad, torch.zeros(3, 8))
    assert fast(torch.zeros(0, 8), none, torch.zeros(0, 13)).shape == (0, 8)
    edge = torch.tensor([[0], [1]])
    out = fast(x, edge, torch.ones(1, 13))
    torch.testing.assert_close(out[2], fast.bias)  # node 2 has no bond
    torch.testing.assert_close(out[1], x[0] @ fast.matrices(torch.ones(1, 13))[0] + fast.bias)


def test_errors():
    with pytest.raises(ValueError, match="aggr='add', found 'mean'"):
        FastNNConv(8, 8, edge_network(), aggr="mean")
    data = molecule("CCO")
    with pytest.raises(ValueError, match=r"`edge_type` needs one id per edge, shape \(7,\); found \(3,\)"):
        bond_groups(data.edge_index, data.edge_attr, 3, torch.zeros(3, dtype=torch.long))
