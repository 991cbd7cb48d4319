"""Planted federations: the grouping is where it was planted, and the seam of all graph data modules holds."""

import json

import pytest
import torch

from datamodules.planted import PlantedDataModule


def _ready(**options):
    data = PlantedDataModule(**options)
    data.setup()
    return data


@pytest.fixture(scope="module")
def planted():
    return _ready(num_clients=6, nodes_per_client=400, words_per_node=20, topic_share=0.6)


def _dense(x):
    return x.to_dense() if x.layout == torch.sparse_csr else x


def _favourite_topic(client, num_classes=4, num_features=200):
    """For each class the topic whose words its nodes use most, straight from the features."""
    x, y = _dense(client.data.x), client.data.y
    words = torch.stack([x[y == c].sum(0) for c in range(num_classes)])
    return words.view(num_classes, num_classes, num_features // num_classes).sum(2).argmax(1).tolist()


def test_each_group_reads_the_topics_in_its_own_way(planted):
    assert planted.groups == [0, 0, 0, 1, 1, 1]
    for client, group in zip(planted.client_datamodules(), planted.groups, strict=True):
        assert _favourite_topic(client) == [[0, 1, 2, 3], [1, 2, 3, 0]][group]  # topic = class + group


def test_each_group_has_its_own_classes(planted):
    # weights 4, 4, 1, 1 and 1, 1, 4, 4: 80 % of 400 nodes, five standard deviations are 40
    for client, group in zip(planted.client_datamodules(), planted.groups, strict=True):
        own = (client.data.y // 2 == group).sum().item()
        assert abs(own - 320) < 40
    balanced = _ready(num_clients=2, nodes_per_client=400, class_skew=1.0)
    for client in balanced.client_datamodules():
        assert abs((client.data.y < 2).sum().item() - 200) < 50


def test_degrees_are_as_asked(planted):
    same = other = 0
    for client in planted.client_datamodules():
        source, target = client.data.edge_index
        equal = client.data.y[source] == client.data.y[target]
        same, other = same + equal.sum().item(), other + (~equal).sum().item()
    nodes = 6 * 400
    assert same / nodes == pytest.approx(3.0, abs=0.25)  # (size - 1) / size of a class below 3, and chance
    # 1 / 400 for each node of another class: 1 - sum of squared shares = 1 - (2 * .16 + 2 * .01) = .66
    assert other / nodes == pytest.approx(0.66, abs=0.12)


def test_clients_are_whole_and_no_edge_is_lost(planted):
    record, report = planted.partition_record(), planted.report()
    assert record["membership"] == [list(range(400 * k, 400 * (k + 1))) for k in range(6)]
    assert record["method"] == record["requested"] == "planted" and record["groups"] == planted.groups
    assert record["lost_edges"] == 0 and report["client_sizes"] == [400] * 6 and report["groups"] == planted.groups
    edges = [client.data.edge_index.size(1) for client in planted.client_datamodules()]
    assert sum(edges) == planted.data.edge_index.size(1)
    json.dumps(record), json.dumps(report)


def test_seam(planted):
    assert planted.schema == {"num_features": 200, "num_classes": 4}
    clients = planted.client_datamodules()
    assert clients is planted.client_datamodules() and all(client.num_train_samples > 0 for client in clients)
    graph = planted.data
    planted.setup("fit")
    assert planted.data is graph
    batch = next(iter(clients[3].train_dataloader()))
    assert batch is next(iter(clients[3].train_dataloader())) and batch.node_id.tolist() == list(range(1200, 1600))


def test_seeds():
    first, again, other = _ready(num_clients=2), _ready(num_clients=2), _ready(num_clients=2, graph_seed=1)
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    split = _ready(num_clients=2, seed=1)
    assert torch.equal(_dense(split.data.x), _dense(first.data.x)) and torch.equal(split.data.y, first.data.y)
    assert not torch.equal(split.data.train_mask, first.data.train_mask)
    # a client's graph does not depend on how many others there are in its group
    more = _ready(num_clients=4)
    assert torch.equal(more.client_datamodules()[0].data.y, first.client_datamodules()[0].data.y)


def test_more_groups_odd_numbers_and_the_largest_component():
    data = _ready(num_clients=7, num_groups=3, num_classes=5, nodes_per_client=40)
    assert data.groups == [0, 0, 0, 1, 1, 2, 2] and len(data.client_datamodules()) == 7
    # the largest component lies in one client; the others are left without a node
    part = _ready(num_clients=3, num_groups=1, nodes_per_client=40, largest_component=True)
    sizes = [client.data.num_nodes for client in part.client_datamodules()]
    assert sum(size > 0 for size in sizes) == 1 and sum(sizes) == part.data.num_nodes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "metis"}, "leave out `data.init_args.partition`"),
        ({"num_groups": 5}, r"num_groups` is 5, but must be from 1 to the number of clients \(10\) and of classes"),
        ({"num_groups": 0}, "num_groups` is 0"),
        ({"nodes_per_client": 3}, "nodes_per_client` is 3, but must be at least 4"),
        ({"num_features": 2}, "num_features` is 2"),
        ({"words_per_node": 0}, "words_per_node` is 0"),
        ({"topic_share": 1.5}, "topic_share` is 1.5"),
        ({"class_skew": -1.0}, "class_skew` is -1.0"),
        ({"degree": (-1.0, 1.0)}, "degree` is"),
        ({"num_clients": 0}, "num_clients` is 0"),
    ],
)
def test_errors_in_the_users_names(options, message):
    with pytest.raises(ValueError, match=message):
        PlantedDataModule(**options)
