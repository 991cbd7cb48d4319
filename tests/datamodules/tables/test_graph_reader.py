"""A graph in tables as it is read: by hand, and from nothing but the files and the spec."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from datamodules.tables.graph_reader import read_graph
from datamodules.tables.graph_spec import GraphSpec, TrainedFeatures
from datamodules.tables.graph_tables import GraphTables
from datamodules.tables.nodes import NodeColumns

COLUMNS = NodeColumns("id", "label", "site", "part", ("f",))


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,f,label,site,part\na,1,x,A,train\n,2,x,A,\nb,3,y,B,val\nc,4,,,\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,a\nc,c\na,far\nnear,far\n")
    return GraphSpec(tmp_path, COLUMNS, clients="column", unknown_ids="drop")


def test_what_is_read_by_hand(spec):
    found = read_graph(spec)
    assert found.ids == ["a", "", "b", "c"] and found.rows.tolist() == found.graph.node_id.tolist() == [0, 2, 3]
    assert found.graph.x.to_dense().tolist() == [[1], [3], [4]] and found.graph.y.tolist() == [0, 1, -1]
    assert found.graph.edge_index.tolist() == [[0, 1, 2], [1, 0, 2]]  # as written: cleaning comes later
    assert found.graph.train_mask.tolist() == [True, False, False] and found.graph.val_mask.tolist() == [False, True, False]
    assert found.class_names == ["x", "y"] and found.client_names == ["A", "B"] and found.owner.tolist() == [0, 1, -1]
    assert found.row_clients == ["A", "A", "B", ""]
    assert found.features.names == ["f"] and found.features.matrices == []
    assert found.found_links.dangling.tolist() == [1, 0, 0] and found.link_counts["self_loops"] == 1
    assert [row["reason"] for row in found.list_unusable()] == [
        "no id", "no link: one end is no node", "no link: neither end is a node"]  # fmt: skip
    cut = [{"row": 0, "reason": "elsewhere"}]
    assert [row.get("id") for row in found.list_unusable(cut)] == ["a", "", None, None]
    assert found.spread_over_rows(torch.tensor([7, 8, 9]), -1).tolist() == [7, -1, 8, 9]


def test_the_same_spec_gives_the_same_tables(spec):
    one, two = read_graph(spec), read_graph(spec)
    assert torch.equal(one.graph.y, two.graph.y) and torch.equal(one.graph.edge_index, two.graph.edge_index)
    assert (one.ids, one.bad_rows, one.notices, one.link_counts) == (two.ids, two.bad_rows, two.notices, two.link_counts)
    np.testing.assert_array_equal(one.found_links.links.pairs, two.found_links.links.pairs)


def test_a_model_that_was_trained_on_other_features_is_told(spec):
    (spec.root / "x.csv").write_text("id,p\na,1\nb,2\nc,3\n")
    from_file = replace(spec, features="x.csv", columns=replace(COLUMNS, features=None))
    assert read_graph(replace(from_file, trained=TrainedFeatures(1, ("p",)))).graph.x.to_dense().tolist() == [[1], [2], [3]]
    with pytest.raises(ValueError, match="`x.csv` has the feature columns 'p' there, but the model learns from 'q'"):
        read_graph(replace(from_file, trained=TrainedFeatures(1, ("q",))))


def test_before_anything_is_read_there_is_nothing():
    empty = GraphTables()
    assert empty.ids == [] and empty.list_unusable() == [] and len(empty.owner) == 0
