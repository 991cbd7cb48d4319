"""Sparse products against dense matrices, and the memory of constant products: right graph, no stale value, no leak."""

import gc
import pickle

import pytest
import torch

from lit_models import sparse
from lit_models.sparse import Graph, SparseInputLinear, SparseMatrix, expand_rows, remember, spmm


def dense_aggregation(name: str, edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
    adjacency = torch.zeros(num_nodes, num_nodes)
    for u, v in edge_index.t().tolist():
        adjacency[v, u] += 1.0
    if name == "sum":
        return adjacency
    if name == "mean":
        return adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    loops = adjacency + torch.eye(num_nodes)
    scale = loops.sum(1).rsqrt()
    return scale[:, None] * loops * scale[None, :]


def test_entries_of_chosen_rows_by_hand():
    # rows of 2, 0 and 3 entries; rows 2, 1, 0, 0 are asked for
    entry, owner = expand_rows(torch.tensor([0, 2, 2, 5]), torch.tensor([2, 1, 0, 0]))
    assert entry.tolist() == [2, 3, 4, 0, 1, 0, 1] and owner.tolist() == [0, 0, 0, 2, 2, 3, 3]


def test_product_and_gradient_by_hand():
    # [[1, 2], [0, 0], [0, 3]] @ [[1], [10]] = [[21], [0], [30]]; gradient of the sum: column sums [1, 5].
    matrix = SparseMatrix.from_entries(torch.tensor([2, 0, 0]), torch.tensor([1, 1, 0]), torch.tensor([3.0, 2.0, 1.0]), (3, 2))
    dense = torch.tensor([[1.0], [10.0]], requires_grad=True)
    out = spmm(matrix, dense)
    torch.testing.assert_close(out, torch.tensor([[21.0], [0.0], [30.0]]))
    out.sum().backward()
    torch.testing.assert_close(dense.grad, torch.tensor([[1.0], [5.0]]))


def test_second_order_gradient():
    matrix = SparseMatrix.from_csr((torch.rand(5, 4) < 0.5).double().to_sparse_csr())
    dense = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda d: spmm(matrix, d), dense)
    assert torch.autograd.gradgradcheck(lambda d: spmm(matrix, d).pow(3), dense)


@pytest.mark.parametrize("name", ["mean", "gcn", "sum"])
@pytest.mark.parametrize("call_cost", [8192, -(10**6)], ids=["aggregate-once", "project-first"])
def test_first_layer_equals_dense_in_both_orders(graph, name, call_cost, monkeypatch):
    monkeypatch.setattr(sparse, "_CALL_COST", call_cost)
    data = graph(sparse=True)
    weight = torch.randn(5, data.x.size(1), requires_grad=True)
    out = Graph(data.x, data.edge_index).aggregate_features(name, weight)
    constant = Graph(data.x, data.edge_index).aggregated(name)
    assert (constant is None) == (call_cost < 0), "the cost must choose the order"
    expected = dense_aggregation(name, data.edge_index, data.num_nodes) @ data.x.to_dense() @ weight.t()
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    (grad,) = torch.autograd.grad(out.pow(2).sum(), weight)
    (expected_grad,) = torch.autograd.grad(expected.pow(2).sum(), weight)
    torch.testing.assert_close(grad, expected_grad, atol=1e-4, rtol=1e-5)


def test_repeated_edges_count_as_in_pyg():
    edge_index = torch.tensor([[0, 0, 1], [2, 2, 2]])
    x = torch.tensor([[3.0], [6.0], [0.0]])
    torch.testing.assert_close(spmm(Graph(x, edge_index).mean(), x)[2], torch.tensor([4.0]))  # (3 + 3 + 6) / 3


def test_constant_product_is_computed_once(graph):
    data = graph(sparse=True)
    first = Graph(data.x, data.edge_index).aggregated("mean")
    assert Graph(data.x, data.edge_index).aggregated("mean") is first


def test_another_graph_or_an_edit_computes_anew(graph):
    data, other = graph(sparse=True, seed=0), graph(sparse=True, seed=1)
    weight = torch.randn(4, data.x.size(1))

    def check(x, edge_index):
        out = Graph(x, edge_index).aggregate_features("mean", weight)
        expected = dense_aggregation("mean", edge_index, x.size(0)) @ x.to_dense() @ weight.t()
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)

    check(data.x, data.edge_index)
    check(other.x, data.edge_index)  # same edges, other features
    check(other.x, other.edge_index)  # same features, other edges
    data.x.values().mul_(3.0)  # edited in place
    check(data.x, data.edge_index)
    data.edge_index[:, 0] = data.edge_index[:, 1].clone()
    check(data.x, data.edge_index)


def test_nothing_is_kept_of_graphs_that_are_gone(graph):
    gc.collect()
    before = len(sparse._memory)
    for seed in range(30):  # as neighbour-sampled batches come and go
        data = graph(sparse=True, seed=seed)
        Graph(data.x, data.edge_index).aggregate_features("mean", torch.randn(4, data.x.size(1)))
    del data
    assert len(sparse._memory) == before


def test_one_value_a_role_is_kept(graph):
    edge_index = graph().edge_index
    for seed in range(5):  # new features on one graph must not pile up
        x = graph(sparse=True, seed=seed).x
        Graph(x, edge_index).aggregate_features("mean", torch.randn(4, x.size(1)))
    assert len(sparse._memory[edge_index]) == 2  # what is of the edges alone, and of the edges with the last features


def test_remembered_in_validation_is_usable_in_training(graph):
    data = graph(sparse=True)
    weight = torch.randn(4, data.x.size(1), requires_grad=True)
    with torch.inference_mode():
        Graph(data.x, data.edge_index).aggregate_features("mean", weight)
    Graph(data.x, data.edge_index).aggregate_features("mean", weight).sum().backward()
    assert weight.grad.isfinite().all()


def test_inference_tensors_are_never_remembered():
    with torch.inference_mode():
        tensor = torch.zeros(2)
    calls = []
    for _ in range(2):
        remember("x", (tensor,), lambda: calls.append(1))
    assert len(calls) == 2


def test_sparse_features_survive_pickling(graph):
    data = graph(sparse=True)
    copy = pickle.loads(pickle.dumps(data))
    assert copy.x.layout is torch.sparse_csr
    torch.testing.assert_close(copy.x.to_dense(), data.x.to_dense())


def test_sparse_input_linear_equals_dense(graph):
    data = graph(sparse=True)
    layer = SparseInputLinear(data.x.size(1), 5, bias=True)
    torch.testing.assert_close(layer(data.x), layer(data.x.to_dense()), atol=1e-6, rtol=1e-5)
