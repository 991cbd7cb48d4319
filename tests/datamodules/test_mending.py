"""Mending: graph Γ by hand (T7), that generated nodes are heard (T12, first half), and the controls."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from datamodules.mending import constant_features, cross_neighbours, mend
from datamodules.topology import links_elsewhere


def graph(num_nodes, edges):
    pairs = torch.tensor(edges).T
    mask = torch.arange(num_nodes) % 2 == 0
    return Data(
        x=torch.arange(2.0 * num_nodes).reshape(num_nodes, 2),
        edge_index=torch.cat([pairs, pairs.flip(0)], dim=1),
        y=torch.arange(num_nodes) % 3,
        train_mask=mask,
        val_mask=~mask,
        test_mask=torch.zeros(num_nodes, dtype=torch.bool),
        node_id=10**12 + 7 * torch.arange(num_nodes).flip(0),  # names, not rows
        num_nodes=num_nodes,
    )


GAMMA = graph(6, [(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 4), (0, 4)])
COUNTS = torch.tensor([1, 1, 2, 0, 0, 2])  # from ñ = (1.4, .6, 3.2, 0, -.2, 7.9) with P = 2
FEATURES = torch.arange(12.0).reshape(6, 2) + 50


def test_t7_gamma_by_hand():
    mended = mend(GAMMA, COUNTS, FEATURES)
    assert mended.num_nodes == 12 and mended.edge_index.shape[1] == 26  # 6 + 6 nodes, 7 + 6 edges, both directions
    degree = torch.bincount(mended.edge_index[0], minlength=12)
    assert degree[6:].tolist() == [1] * 6
    assert torch.equal(degree, torch.bincount(mended.edge_index[1], minlength=12))
    owners = mended.edge_index[1][mended.edge_index[0] >= 6]
    assert owners.tolist() == [0, 1, 2, 2, 5, 5]
    assert torch.equal(mended.x[6:], FEATURES)
    for name in ("train_mask", "val_mask", "test_mask"):
        assert torch.equal(mended[name][:6], GAMMA[name]) and not bool(mended[name][6:].any())
    assert torch.equal(mended.y[:6], GAMMA.y) and mended.y[6:].tolist() == [-1] * 6
    assert torch.equal(mended.node_id[:6], GAMMA.node_id) and mended.node_id[6:].tolist() == [-1] * 6
    assert torch.equal(mended.x[:6], GAMMA.x) and torch.equal(mended.edge_index[:, :14], GAMMA.edge_index)
    assert mended.generated.tolist() == [False] * 6 + [True] * 6
    assert GAMMA.num_nodes == 6 and GAMMA.edge_index.shape[1] == 14 and "generated" not in GAMMA


def one_way_mend(data, counts, features):
    """Bug 2 of the published codes: only the edge from the node to its generated neighbour."""
    mended = mend(data, counts, features)
    towards_real = (mended.edge_index[0] >= data.num_nodes) & (mended.edge_index[1] < data.num_nodes)
    mended.edge_index = mended.edge_index[:, ~towards_real]
    return mended


def test_t12_generated_neighbours_reach_their_owner():
    torch.manual_seed(0)
    layer = SAGEConv(2, 3)  # mean over neighbours
    before = layer(GAMMA.x, GAMMA.edge_index)
    counts, features = torch.tensor([0, 0, 1, 0, 0, 0]), torch.tensor([[40.0, -7.0]])
    mended, broken = mend(GAMMA, counts, features), one_way_mend(GAMMA, counts, features)
    after = layer(mended.x, mended.edge_index)[:6]
    moved = (after - before).abs().amax(1) > 1e-6
    assert moved.tolist() == [False, False, True, False, False, False]
    assert torch.equal(layer(broken.x, broken.edge_index)[:6], before)  # the oracle sees the bug


def test_no_new_node_leaves_the_very_same_tensors():
    mended = mend(GAMMA, torch.zeros(6, dtype=torch.long), torch.zeros(0, 2))
    for name in ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask", "node_id"):
        assert mended[name] is GAMMA[name]
    assert mended.num_nodes == 6 and not bool(mended.generated.any())


def test_sparse_features_become_dense_and_keep_their_values():
    sparse = GAMMA.clone()
    sparse.x = GAMMA.x.to_sparse_csr()
    mended = mend(sparse, COUNTS, FEATURES)
    assert torch.equal(mended.x, mend(GAMMA, COUNTS, FEATURES).x)
    assert sparse.x.layout == torch.sparse_csr
    assert mend(sparse, COUNTS * 0, FEATURES[:0]).x is sparse.x


def test_gradient_reaches_the_generated_rows():
    features = FEATURES.clone().requires_grad_()
    mend(GAMMA, COUNTS, features).x.sum().backward()
    assert torch.equal(features.grad, torch.ones(6, 2))


def test_refusals():
    with pytest.raises(ValueError, match="`counts` must be 6 integers >= 0"):
        mend(GAMMA, COUNTS.float(), FEATURES)
    with pytest.raises(ValueError, match="`counts` must be 6 integers >= 0"):
        mend(GAMMA, torch.tensor([1, 1, 2, 0, -1, 2]), FEATURES)
    with pytest.raises(ValueError, match=r"shape \(6, 2\); got \(5, 2\)"):
        mend(GAMMA, COUNTS, FEATURES[:5])
    weighted = GAMMA.clone()
    weighted.edge_weight = torch.ones(14)
    with pytest.raises(ValueError, match="`edge_weight`"):
        mend(weighted, COUNTS, FEATURES)


def test_constant_features():
    assert constant_features(GAMMA.x, COUNTS, "zero").tolist() == [[0.0, 0.0]] * 6
    # columns 0, 2, .., 10 and 1, 3, .., 11
    assert constant_features(GAMMA.x, COUNTS, "mean").tolist() == [[5.0, 6.0]] * 6
    assert constant_features(GAMMA.x.to_sparse_csr(), COUNTS, "mean").tolist() == [[5.0, 6.0]] * 6
    with pytest.raises(ValueError, match="use one of zero, mean"):
        constant_features(GAMMA.x, COUNTS, "median")


@pytest.mark.parametrize("layout", ["dense", "csr"])
def test_oracle_by_hand(layout):
    # Client {0, 1, 5} of Γ: lost edges 0-2, 0-4, 1-2.
    whole = graph(6, [(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 4), (0, 4)])
    if layout == "csr":
        whole.x = whole.x.to_sparse_csr()
    members, edges = torch.tensor([5, 0, 1]), torch.tensor([[1, 2], [2, 1]])
    local = Data(x=GAMMA.x[members], node_id=whole.node_id[members], edge_index=edges, num_nodes=3)
    counts, features = cross_neighbours(local, whole)
    assert counts.tolist() == links_elsewhere(whole, members).tolist() == [0, 2, 1]
    assert sorted(features[:2].tolist()) == [[4.0, 5.0], [8.0, 9.0]] and features[2].tolist() == [4.0, 5.0]
    mended = mend(local, counts, features)
    assert mended.num_nodes == 6 and mended.edge_index.shape[1] == 2 + 6


def test_oracle_of_a_client_that_lost_nothing():
    whole = graph(3, [(0, 1)])
    local = Data(x=whole.x, node_id=whole.node_id, edge_index=whole.edge_index, num_nodes=3)
    counts, features = cross_neighbours(local, whole)
    assert counts.tolist() == [0, 0, 0] and features.shape == (0, 2)
