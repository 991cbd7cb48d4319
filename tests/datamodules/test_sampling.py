"""Neighbour sampling: exact with full fan-outs, else within them; seeds once per epoch; fixed by torch's stream."""

import pytest
import torch
from graph_fixtures import edges, graph_of, random_graph
from torch_geometric.nn import GCNConv, SAGEConv

from datamodules import ClientGraphDataModule
from datamodules.sampling import NeighborSampler
from datamodules.sparse import csr_from_entries

SCHEMA = {"num_features": 5, "num_classes": 3}


def two_layers(graph, first, second):
    return second(first(graph.x, graph.edge_index).relu(), graph.edge_index)


@pytest.mark.parametrize("fanout", [-1, 60])
def test_full_fanout_gives_the_full_graphs_logits_at_the_seeds(fanout):
    torch.manual_seed(0)
    graph = random_graph(60, 6, seed=1)
    layers = SAGEConv(5, 8), SAGEConv(8, 3)
    full = two_layers(graph, *layers)
    seeds = torch.tensor([3, 59, 0, 17])
    batch = NeighborSampler(graph, [fanout, fanout])(seeds)
    assert batch.node_id[:4].tolist() == (seeds + 1000).tolist() and batch.batch_size == 4
    torch.testing.assert_close(two_layers(batch, *layers)[:4], full[seeds], atol=1e-6, rtol=1e-5)


def test_one_hop_too_few_is_noticed():
    torch.manual_seed(0)
    graph = random_graph(60, 6, seed=1)
    layers = SAGEConv(5, 8), SAGEConv(8, 3)
    batch = NeighborSampler(graph, [-1])(torch.tensor([3, 59]))
    assert (two_layers(batch, *layers)[:2] - two_layers(graph, *layers)[[3, 59]]).abs().max() > 1e-3


def test_evaluation_batches_are_exact_even_for_degree_normalised_layers():
    torch.manual_seed(0)
    graph = random_graph(50, 5, seed=2)
    layers = GCNConv(5, 8), GCNConv(8, 3)
    module = ClientGraphDataModule(graph, SCHEMA, batch_size=4, num_neighbors=[2, 2], eval_batch_size=7)
    full, seen = two_layers(graph, *layers), []
    for batch in module.test_dataloader():
        chosen = batch.test_mask.nonzero().view(-1)
        nodes = batch.node_id[chosen] - 1000
        torch.testing.assert_close(two_layers(batch, *layers)[chosen], full[nodes], atol=1e-6, rtol=1e-5)
        seen += nodes.tolist()
    assert sorted(seen) == graph.test_mask.nonzero().view(-1).tolist()
    assert next(iter(module.predict_dataloader())) is graph


def test_fanout_bounds_and_draws_without_replacement():
    star = graph_of([0] * 9, edges(*((0, v) for v in range(1, 9)), *((v, 0) for v in range(1, 9))))
    star.node_id = torch.arange(9)
    for name in ("train_mask", "val_mask", "test_mask"):
        star[name] = torch.ones(9, dtype=torch.bool)
    sampler = NeighborSampler(star, [3])
    drawn = torch.zeros(9)
    torch.manual_seed(0)
    for _ in range(800):
        batch = sampler(torch.tensor([0]))
        assert batch.num_nodes == 4 and batch.edge_index[1].tolist() == [0, 0, 0]
        assert batch.train_mask.tolist() == [True, False, False, False]
        drawn[batch.node_id] += 1
    assert drawn[0] == 800
    # each leaf is in 3/8 of the samples: 300 of 800, standard deviation sqrt(800 * 3/8 * 5/8) = 13.7
    assert (drawn[1:] - 300).abs().max() < 5 * 13.7


def test_each_training_node_is_a_seed_once_per_epoch_and_the_short_batch_is_kept():
    graph = random_graph(47, 4, seed=3)
    module = ClientGraphDataModule(graph, SCHEMA, batch_size=5, num_neighbors=[3, 3])
    expected = (graph.train_mask.nonzero().view(-1) + 1000).tolist()
    orders = []
    for _ in range(2):
        batches = list(module.train_dataloader())
        assert [batch.batch_size for batch in batches] == [5] * (len(expected) // 5) + [len(expected) % 5] * (
            len(expected) % 5 > 0
        )
        seeds = [int(node) for batch in batches for node in batch.node_id[batch.train_mask]]
        assert sorted(seeds) == expected
        orders.append(seeds)
    assert orders[0] != orders[1]


def test_torch_seed_fixes_order_and_draws():
    graph = random_graph(40, 6, seed=4)
    module = ClientGraphDataModule(graph, SCHEMA, batch_size=6, num_neighbors=[2, 2])

    def epoch():
        return [(batch.node_id.tolist(), batch.edge_index.tolist()) for batch in module.train_dataloader()]

    torch.manual_seed(7)
    first = epoch()
    second = epoch()
    torch.manual_seed(7)
    assert epoch() == first != second


def test_sparse_features_follow_the_nodes():
    graph = random_graph(30, 4, seed=5)
    dense = graph.x
    row, col = dense.nonzero(as_tuple=True)
    graph.x = csr_from_entries(row, col, dense[row, col], tuple(dense.shape))
    batch = NeighborSampler(graph, [2, 2])([4, 9])
    assert batch.x.layout == torch.sparse_csr and torch.equal(batch.x.to_dense(), dense[batch.node_id - 1000])


def test_no_training_node_and_no_edge_are_legal():
    graph = random_graph(6, 0, seed=6)
    graph.train_mask[:] = False
    module = ClientGraphDataModule(graph, SCHEMA, batch_size=2)
    assert module.num_train_samples == 0 and list(module.train_dataloader()) == []
    batch = NeighborSampler(graph, [2, 2])([5])
    assert batch.num_nodes == 1 and batch.edge_index.shape == (2, 0)


@pytest.mark.parametrize("fanouts", [[], [5, 0], [-2]])
def test_bad_fanouts(fanouts):
    with pytest.raises(ValueError, match="`data.init_args.num_neighbors`"):
        ClientGraphDataModule(random_graph(5, 2, seed=0), SCHEMA, num_neighbors=fanouts)
