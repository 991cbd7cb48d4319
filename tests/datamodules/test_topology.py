"""Edges, components and induced subgraphs against hand values and other implementations."""

import networkx as nx
import pytest
import torch
from graph_fixtures import edges, random_graph, small_graphs
from torch_geometric.data import Data

from datamodules import subgraph_of
from datamodules.sparse import csr_from_entries
from datamodules.topology import connected_components, largest_component, undirected_edges


def test_undirected_edges_by_hand():
    # a self loop, a repeat and both directions of 0-2 become one undirected edge each
    given = edges((2, 0), (0, 2), (1, 1), (1, 2), (1, 2))
    assert undirected_edges(given, 3).tolist() == [[0, 1, 2, 2], [2, 2, 0, 1]]
    assert undirected_edges(torch.zeros(2, 0), 3).shape == (2, 0)
    with pytest.raises(ValueError, match="names nodes 0 to 5, but the graph has nodes 0 to 2"):
        undirected_edges(edges((0, 5)), 3)


def test_components_agree_with_networkx():
    for _, edge_index, n in small_graphs(seed=4):
        graph = nx.Graph()
        graph.add_nodes_from(range(n))
        graph.add_edges_from(edge_index.T.tolist())
        expected = torch.empty(n, dtype=torch.long)
        for component in nx.connected_components(graph):
            expected[list(component)] = min(component)
        assert torch.equal(connected_components(edge_index, n), expected)


def test_largest_component_tie_goes_to_the_smallest_id():
    assert largest_component(edges((1, 4), (2, 3)), 5).tolist() == [1, 4]
    assert largest_component(edges((2, 3), (3, 4)), 5).tolist() == [2, 3, 4]


@pytest.mark.parametrize("sparse", [False, True])
def test_subgraph_remaps_every_node_level_tensor_together(sparse):
    graph = Data(
        x=torch.eye(5), y=torch.tensor([0, 1, 2, 3, 4]), node_id=torch.arange(10, 15), num_nodes=5,
        edge_index=torch.tensor([[0, 1, 1, 3, 3, 4], [1, 0, 3, 1, 4, 3]]), edge_attr=torch.arange(6.0),
        train_mask=torch.tensor([True, False, False, True, False]), num_classes=5,
    )  # fmt: skip
    if sparse:
        row = torch.arange(5)
        graph.x = csr_from_entries(row, row, torch.ones(5), (5, 5))
    part = subgraph_of(graph, torch.tensor([1, 3, 2]))
    assert part.y.tolist() == [1, 3, 2] and part.node_id.tolist() == [11, 13, 12] and part.num_nodes == 3
    assert part.edge_index.tolist() == [[0, 1], [1, 0]] and part.edge_attr.tolist() == [2.0, 3.0]
    assert part.train_mask.tolist() == [False, True, False]
    assert torch.equal(part.x.to_dense(), torch.eye(5)[[1, 3, 2]])


def test_trailing_isolated_nodes_are_kept():
    part = subgraph_of(random_graph(20, 3, seed=0), torch.tensor([17, 18, 19]))
    assert part.num_nodes == 3 == part.x.size(0)


def test_subgraph_refuses_repeated_and_foreign_ids():
    graph = random_graph(5, 2, seed=0)
    with pytest.raises(ValueError, match="distinct"):
        subgraph_of(graph, torch.tensor([1, 1]))
    with pytest.raises(ValueError, match="ids from 0 to 4, but got 2 to 7"):
        subgraph_of(graph, torch.tensor([2, 7]))
    assert subgraph_of(graph, torch.zeros(0)).num_nodes == 0
