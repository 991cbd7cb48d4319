"""Class prototypes by hand: five nodes, three classes, of which one has a single training node."""

import pytest
import torch
from torch_geometric.data import Data

from datamodules.prototypes import class_sums, expected_neighbours, prototypes

X = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [0.0, 4.0], [5.0, 5.0], [9.0, 9.0]])
Y = torch.tensor([0, 0, 1, 1, 2, 0])  # the last one is no training node
EDGES = torch.tensor([[0, 1, 0, 2, 1, 2, 2, 3, 3, 4, 0, 5], [1, 0, 2, 0, 2, 1, 3, 2, 4, 3, 5, 0]])


def graph(x=X):
    mask = torch.tensor([True, True, True, True, True, False])
    return Data(x=x, y=Y, train_mask=mask, edge_index=EDGES, num_nodes=6)


def test_sums_of_training_nodes_by_class_and_their_links():
    sums = class_sums(graph(), num_classes=4, min_nodes=1)
    assert sums["features"].tolist() == [[4, 0], [0, 6], [5, 5], [0, 0]] and sums["features"].dtype == torch.float64
    assert sums["nodes"].tolist() == [2, 2, 1, 0]
    # 0-1 and 1-0 within class 0; 0-2 and 1-2 to class 1, and back; 2-3 twice within class 1; 3-4 to class 2, and back
    assert sums["links"].tolist() == [[2, 2, 0, 0], [2, 2, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]


def test_a_class_of_too_few_training_nodes_is_left_out_with_its_links():
    sums = class_sums(graph(), num_classes=3, min_nodes=2)
    assert sums["nodes"].tolist() == [2, 2, 0] and sums["features"].tolist() == [[4, 0], [0, 6], [0, 0]]
    assert sums["links"].tolist() == [[2, 2, 0], [2, 2, 0], [0, 0, 0]]


def test_sparse_features_give_the_same_sums():
    dense, sparse = class_sums(graph(), 3, 1), class_sums(graph(X.to_sparse_csr()), 3, 1)
    assert all(torch.equal(dense[name], sparse[name]) for name in dense)


def test_an_unlabelled_training_node_and_a_graph_without_links_count_nowhere():
    data = graph()
    data.y = torch.where(torch.arange(6) == 1, -1, Y)
    data.edge_index = torch.empty(2, 0, dtype=torch.long)
    sums = class_sums(data, 3, 1)
    assert sums["nodes"].tolist() == [1, 2, 1] and sums["links"].sum() == 0


def test_labels_outside_training_change_nothing():
    data = graph()
    data.y = torch.where(data.train_mask, Y, 2)
    with_labels, permuted = class_sums(graph(), 3, 1), class_sums(data, 3, 1)
    assert all(torch.equal(with_labels[name], permuted[name]) for name in with_labels)


def test_prototypes_are_means_and_transitions_shares_of_links():
    features = torch.tensor([[4.0, 0.0], [0.0, 6.0], [5.0, 5.0]], dtype=torch.float64)
    links = torch.tensor([[2, 2, 0], [2, 2, 1], [0, 1, 0]])
    mu, transitions = prototypes(features, torch.tensor([2, 2, 1]), links)
    assert mu.tolist() == [[2, 0], [0, 3], [5, 5]]
    torch.testing.assert_close(transitions, torch.tensor([[0.5, 0.5, 0.0], [0.4, 0.4, 0.2], [0.0, 1.0, 0.0]]))


def test_a_class_without_links_stays_alone_and_an_unknown_one_is_followed_by_the_known():
    features = torch.tensor([[4.0], [6.0], [0.0]], dtype=torch.float64)
    links = torch.tensor([[0, 0, 0], [0, 4, 0], [0, 0, 0]])
    mu, transitions = prototypes(features, torch.tensor([2, 6, 0]), links)
    assert mu.tolist() == [[2], [1], [0]]
    assert transitions.tolist() == [[1, 0, 0], [0, 1, 0], [0.25, 0.75, 0]]


def test_the_expected_neighbour_is_the_mean_over_classes_of_the_node_and_of_what_is_next_to_them():
    mu, transitions = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    found = expected_neighbours(torch.tensor([[1.0, 0.0], [0.2, 0.8]]), mu, transitions)
    torch.testing.assert_close(found, torch.tensor([[0.75, 0.25], [0.55, 0.45]]))


@pytest.mark.parametrize("clients", [1, 3])
def test_the_sums_of_clients_are_those_of_their_graphs_together(clients):
    one = class_sums(graph(), 3, 1)
    mu, _ = prototypes(one["features"] * clients, one["nodes"] * clients, one["links"] * clients)
    torch.testing.assert_close(mu, torch.tensor([[2.0, 0.0], [0.0, 3.0], [5.0, 5.0]]))
