"""One's own graph: hand-made tables with known answers, and the awkward real files."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from graph_fixtures import real_data

from datamodules import GraphCSVDataModule
from datamodules.rawfiles import read_planetoid

NODES = """id,f1,f2,label,site,part
n-1,1,0,red,A,train
n-2,0,1,blue,A,train
n-3,1,1,,B,
n-4,0.5,0,blue,B,test
n-5,0,0.25,red,,val
"""
EDGES = "source,target\nn-1,n-2\nn-2,n-1\nn-2,n-3\nn-2,n-3\nn-3,n-3\nn-5,n-5\nn-4,n-3\nn-1,n-4\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "edges.csv").write_text(EDGES)
    return tmp_path


def own(folder, **options):
    options = {"sparse_features": False, **options}
    data = GraphCSVDataModule(root=str(folder), **options)
    data.setup()
    return data


def pairs(data):
    """Undirected links by original ids."""
    names = [data.original_ids[row] for row in data.data.node_id.tolist()]
    return {tuple(sorted((names[a], names[b]))) for a, b in data.data.edge_index.T.tolist()}


def by_id(data, values):
    return dict(zip((data.original_ids[row] for row in data.data.node_id.tolist()), values.tolist(), strict=True))


def test_classes_that_clients_write_apart_are_found(folder):
    nodes = [("red", "A"), ("Red", "B"), ("blue", "A"), ("blue", "B")] * 3
    rows = "".join(f"{i},{i % 3},{label},{site}\n" for i, (label, site) in enumerate(nodes))
    (folder / "nodes.csv").write_text("id,f,label,site\n" + rows)
    (folder / "edges.csv").write_text("source,target\n0,4\n1,5\n")
    kinds = [f["kind"] for f in own(folder, client_column="site").report()["findings"]]
    assert kinds.count("classes_alike") == 1 and "classes_apart" not in kinds


def test_a_table_of_nodes_and_links_by_hand(folder):
    data = own(folder, client_column="site", split_column="part")
    assert data.schema == {"num_features": 2, "num_classes": 2, "class_names": ["blue", "red"], "feature_names": ["f1", "f2"]}
    assert by_id(data, data.data.x)["n-4"] == [0.5, 0.0] and by_id(data, data.data.x)["n-5"] == [0.0, 0.25]
    assert by_id(data, data.data.y) == {"n-1": 1, "n-2": 0, "n-3": -1, "n-4": 0, "n-5": 1}
    assert by_id(data, data.data.train_mask) == {"n-1": True, "n-2": True, "n-3": False, "n-4": False, "n-5": False}
    assert pairs(data) == {("n-1", "n-2"), ("n-2", "n-3"), ("n-3", "n-4"), ("n-1", "n-4")}
    report = data.report()
    assert report["links"] == {"lines": 8, "self_loops": 2, "repeated": 1, "two_way": 2, "undirected": 4,
                               "only_self_loops": 1, "unknown": 0, "bad": 0, "of_dropped_nodes": 0}  # fmt: skip
    assert report["client_names"] == ["A", "B"] and report["client_sizes"] == [2, 2] and report["lost_edges"] == 2
    kinds = {f["kind"]: f for f in report["findings"]}
    assert kinds["no_client"]["count"] == 1 and kinds["self_loops"]["count"] == 2
    assert kinds["missing_classes"]["message"] == "Client 'B' has no node of 1 of 2 classes (red)."
    record = data.partition_record()
    assert record["method"] == "column" and record["membership"] == [[0, 1], [2, 3]] and record["split"] == "column"


def test_a_folder_per_client_with_links_between(tmp_path):
    for client, ids in (("north", (1, 2)), ("south", (3, 1))):
        place = tmp_path / client
        place.mkdir()
        columns = "id,a,b,label" if client == "north" else "label,b,id,a"  # the order of columns does not matter
        rows = {"north": "{0},{0},-{0},x", "south": "x,-{0},{0},{0}"}[client]
        (place / "nodes.csv").write_text(columns + "\n" + "".join(rows.format(i) + "\n" for i in ids))
        (place / "edges.csv").write_text(f"source,target\n{ids[0]},{ids[1]}\n")
    (tmp_path / "edges.csv").write_text("source,target\n2,3\n")
    data = own(tmp_path)
    assert data.partition_record()["method"] == "folder" and data.client_names == ["north", "south"]
    assert data.original_ids == ["1", "2", "3", "1"]
    assert data.data.edge_index.tolist() == [[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]
    assert data.data.x.tolist() == [[1, -1], [2, -2], [3, -3], [1, -1]]
    report = data.report()
    assert report["lost_edges"] == 1 and {f["kind"]: f["count"] for f in report["findings"]}["shared_ids"] == 1
    (tmp_path / "edges.csv").write_text("source,target\n2,3\n1,3\n")  # whose node 1?
    with pytest.raises(ValueError, match="1 of 4 links names an id that no node has: edges.csv row 1: '1' - '3'"):
        own(tmp_path)
    (tmp_path / "south" / "edges.csv").write_text("source,target\n3,9\n")
    with pytest.raises(ValueError, match="2 of 4 links name an id .* has: south/edges.csv row 0: '3' - '9'; edges.csv row 1"):
        own(tmp_path)


def test_rows_go_on_over_the_clients_folders_whatever_is_left_out(tmp_path):
    rows = {"north": "n1,1,x\nn2,oops,x\nn3,3,y\n", "south": "s1,,x\ns2,5,y\ns3,6,x\n"}
    for client, text in rows.items():
        (tmp_path / client).mkdir()
        (tmp_path / client / "nodes.csv").write_text("id,f,label\n" + text)
    (tmp_path / "south" / "edges.csv").write_text("source,target\ns3,s2\n")
    data = own(tmp_path, features=["f"])
    assert by_id(data, data.data.x) == {"n1": [1.0], "n3": [3.0], "s2": [5.0], "s3": [6.0]}
    assert pairs(data) == {("s2", "s3")} and data.partition_record()["membership"] == [[0, 2], [4, 5]]
    assert [(d["row"], d["id"]) for d in data.dropped_rows] == [(1, "n2"), (3, "s1")]


def test_a_client_with_other_columns_is_named(tmp_path):
    for client in ("north", "south", "west"):
        (tmp_path / client).mkdir()
        extra = ("c", ",7") if client == "south" else ("b", ",7")
        (tmp_path / client / "nodes.csv").write_text(f"id,label,a,{extra[0]}\n1,x,1{extra[1]}\n2,y,1{extra[1]}\n")
        (tmp_path / client / "edges.csv").write_text("source,target\n1,2\n")
    with pytest.raises(ValueError, match="2 of 3 clients have 2 of them, but client 'south' lacks 'b' and has also 'c'"):
        own(tmp_path)
    assert own(tmp_path, features=["a"]).schema["num_features"] == 1
    with pytest.raises(ValueError, match=r"classes` lists 1 classes, but there are other labels in 'north': 'y'; 'south'"):
        own(tmp_path, features=["a"], classes=["x"])
    for client in ("north", "south", "west"):
        sp.save_npz(tmp_path / client / "x.npz", sp.csr_matrix(np.ones((2, 3))))
    unnamed = own(tmp_path, features="x.npz")
    assert unnamed.schema["feature_names"] is None and unnamed.notices[-1].startswith(
        "`x.npz`: a matrix has no names of columns, so that only the number of the clients' (3) is compared"
    )
    for client, width in (("north", 3), ("south", 2), ("west", 3)):
        sp.save_npz(tmp_path / client / "x.npz", sp.csr_matrix(np.ones((2, width))))
    with pytest.raises(ValueError, match="2 of 3 clients have 3, but client 'south' has 2"):
        own(tmp_path, features="x.npz")


def test_a_client_without_the_column_of_labels_is_unlabelled(tmp_path):
    for client, column in (("north", "label"), ("south", "remark")):
        (tmp_path / client).mkdir()
        (tmp_path / client / "nodes.csv").write_text(f"id,f,{column}\n1,1,x\n2,2,y\n")
        (tmp_path / client / "edges.csv").write_text("source,target\n1,2\n")
    data = own(tmp_path, features=["f"])
    assert data.data.y.tolist() == [0, 1, -1, -1] and any("its nodes are not labelled" in note for note in data.notices)
    kinds = {(f["kind"], f["client"]) for f in data.report()["findings"]}
    assert {("missing_classes", 1), ("no_train_nodes", 1), ("unlabeled_nodes", 1)} <= kinds
    with pytest.raises(ValueError, match="`data.init_args.label_column` is 'label', but .* has no such column"):
        own(tmp_path / "south", features=["f"], num_clients=1)


def test_features_from_files_and_from_degrees(folder):
    wanted = own(folder).data.x
    x = sp.csr_matrix(wanted.numpy())
    sp.save_npz(folder / "sparse.npz", x)
    np.savez(folder / "dense.npz", x=wanted.numpy())
    lines = ["id;f1;f2", *(f"n-{i + 1};{a};{b}" for i, (a, b) in enumerate(wanted.tolist()))]
    (folder / "features.csv").write_text("\n".join([lines[0], *reversed(lines[1:])]).replace(".", ","))
    for file in ("sparse.npz", "dense.npz", "features.csv"):
        torch.testing.assert_close(own(folder, features=file).data.x, wanted)
    assert own(folder, features="sparse.npz", sparse_features=True).data.x.layout == torch.sparse_csr
    degree = own(folder, features="degree").data.x
    torch.testing.assert_close(degree[:, 1].expm1(), torch.tensor([2.0, 2, 2, 2, 0]))
    sp.save_npz(folder / "short.npz", x[:4])
    with pytest.raises(ValueError, match="has 4 rows of features, but .* has 5 rows of nodes"):
        own(folder, features="short.npz")
    (folder / "few.csv").write_text("id,f1\nn-1,1\n")
    with pytest.raises(ValueError, match="no usable row for 4 nodes .*: ids 'n-2'"):
        own(folder, features="few.csv")


def test_rows_and_links_that_cannot_be_used_are_counted_and_listed(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,f,label\na,1,x\na,2,y\n,3,x\nb,,x\nc,five,y\nd,6\ne,7,y\n")
    (tmp_path / "edges.csv").write_text("source,target\na,e\nb,e\na,\nzz,a\na,e,b\n")
    with pytest.raises(ValueError, match="1 of 5 links names an id that no node has: edges.csv row 3: 'zz' - 'a'"):
        own(tmp_path)
    data = own(tmp_path, unknown_ids="drop", num_clients=1)
    rows, links = ([d for d in data.dropped_rows if key in d] for key in ("id", "link"))
    assert [(d["row"], d["id"], d["reason"]) for d in rows] == [
        (1, "a", "the id is that of row 0, too"), (2, "", "no id"), (3, "b", "feature 'f' is blank"),
        (4, "c", "feature 'f': 'five' is not a number"), (5, "d", "2 fields instead of 3")]  # fmt: skip
    assert [(d["row"], d["link"], d["reason"]) for d in links] == [
        (1, "b - e", "no link: the row of a node at its end cannot be used"), (2, "a - ", "no link: an id is blank"),
        (3, "zz - a", "no link: one end is no node"), (4, " - ", "no link: 3 fields instead of 2")]  # fmt: skip
    assert {d["file"] for d in links} == {str(tmp_path / "edges.csv")}
    assert data.dropped_rows == rows + links and data.num_rows_read == 7 + 5
    assert data.row_counts == {"nodes": {"read": 7, "left_out": 5},
                               "links": {"read": 5, "left_out": 4, "leading_elsewhere": 1}}  # fmt: skip
    assert by_id(data, data.data.x) == {"a": [1.0], "e": [7.0]} and pairs(data) == {("a", "e")}
    links = data.report()["links"]
    assert (links["unknown"], links["bad"], links["of_dropped_nodes"]) == (1, 2, 1)
    with pytest.raises(ValueError, match=r"5 rows are no node: .*nodes.csv row 1 \(id 'a'\): the id is that of row 0"):
        own(tmp_path, unknown_ids="drop", invalid="raise")


def elsewhere(data):
    """``{original id: links that lead elsewhere}`` over all clients."""
    found = {}
    for client in data.client_datamodules():
        names = [data.original_ids[row] for row in client.data.node_id.tolist()]
        found |= dict(zip(names, client.links_elsewhere.tolist(), strict=True))
    return found


def test_a_client_knows_which_of_its_links_lead_elsewhere(tmp_path):
    """Whatever is written twice counts once; a row of nodes that is left out shifts nothing."""
    (tmp_path / "nodes.csv").write_text("id,f,label,site\nbad,,x,A\na,1,x,A\nb,2,y,A\nc,3,x,B\nd,4,y,B\n")
    links = "a,b\na,c\nc,a\na,zz\nzz,a\na,zz\na,yy\nd,zz\nd,bad\nzz,yy\nd,\n"
    (tmp_path / "edges.csv").write_text("source,target\n" + links)
    assert elsewhere(own(tmp_path, client_column="site", unknown_ids="drop")) == {"a": 3, "b": 0, "c": 1, "d": 1}
    before = own(tmp_path, client_column="site", unknown_ids="drop").fingerprint()
    (tmp_path / "edges.csv").write_text("source,target\n" + links + "b,yy\n")
    assert own(tmp_path, client_column="site", unknown_ids="drop").fingerprint() != before
    (tmp_path / "edges.csv").write_text("source,target\n" + links + "yy,a\n")  # said before
    assert own(tmp_path, client_column="site", unknown_ids="drop").fingerprint() == before
    part = own(tmp_path, client_column="site", unknown_ids="drop", largest_component=True)  # d has no link here
    assert elsewhere(part) == {"a": 3, "b": 0, "c": 1}


def test_a_folder_knows_links_to_nodes_of_other_folders(tmp_path):
    """In its own table (an unknown id there), in the table of links between clients, or in both."""
    for name, nodes, links in (("north", "a,1,x\nb,2,y\nm,5,x\n", "a,b\na,c\na,d\nb,q\na,m\n"),
                               ("south", "c,3,x\nd,4,y\nm,6,y\n", "c,d\nc,m\n")):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "nodes.csv").write_text("id,f,label\n" + nodes)
        (tmp_path / name / "edges.csv").write_text("source,target\n" + links)
    # a-c in both tables, a-d in the client's only, b-d in that between clients only; m is another node in each folder
    (tmp_path / "edges.csv").write_text("source,target\nc,a\nb,d\n")
    data = own(tmp_path, unknown_ids="drop")
    north, south = (client.links_elsewhere.tolist() for client in data.client_datamodules())
    assert north == [2, 2, 0] and south == [1, 1, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "column"}, "`data.init_args.partition: column` and `data.init_args.client_column` belong together"),
        ({"partition": "folder"}, "no folder below .* has a file `nodes.csv`"),
        ({"id_column": "key"}, "`data.init_args.id_column` is 'key', but .* Its columns are: 'id', 'f1'.*header: false"),
        ({"id_column": "ID"}, "`data.init_args.id_column` is 'ID', but .*. Write `data.init_args.id_column: id`"),
        (
            {"source_column": "a", "target_column": "b"},
            "`data.init_args.source_column` is 'a' and `.*target_column` is 'b', "
            "but .* has no such columns.*Set `.*source_column` and `.*target_column` to two of them, or .*edge_header: false",
        ),
        ({"source_column": "a", "edge_header": False, "target_column": "1"}, "'0', '1'.* to one of them\\.$"),
        ({"source_column": "a"}, "Its columns are: 'source', 'target'.*`data.init_args.edge_header: false`"),
        ({"nodes": "node.csv"}, r"node.csv` is no file \(`data.init_args.root`, .*It holds 'edges.csv', 'nodes.csv'"),
        ({"root": "nowhere"}, "no folder in `nowhere` has a `nodes.csv`. There is no such folder"),
        ({"features": "f1"}, r"`data.init_args.features` is 'f1', but .* is no file. .* `features: \[f1\]`"),
        ({"features": ["f1", "f9"]}, r"`data.init_args.features\[1\]` is 'f9'"),
        ({"label_column": "f1"}, "label '0.5' is a measurement"),
        ({"split_column": "site"}, "row 0: split 'A' is none of train, val, test or blank"),
        ({"source_column": "from"}, "`data.init_args.source_column` is 'from'"),
        ({"edges": "links.csv"}, "`data.init_args.edges` is 'links.csv', but .*links.csv` is no file.*source,target"),
        ({"classes": ["red"]}, "there are other labels in .*: 'blue'"),
        ({"separator": ",,"}, "`data.init_args.separator` must be one character"),
        ({"unknown_ids": "keep"}, "`data.init_args.unknown_ids` must be one of raise, drop"),
    ],
)
def test_mistakes_are_told_in_the_users_names(folder, options, message):
    with pytest.raises(ValueError, match=message):
        own(**{"folder": options.pop("root", folder), **options})


def test_without_columns_of_numbers_one_is_told_what_to_do(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,label,note\n1,a,hello\n2,b,you\n")
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n")
    with pytest.raises(ValueError, match="no column of numbers .*set it to `degree`"):
        own(tmp_path)
    assert own(tmp_path, features="degree", num_clients=1).schema["num_features"] == 2


def planetoid_cora():
    root = real_data("planetoid", "Cora", "raw")
    return read_planetoid(__import__("pathlib").Path(root, "planetoid", "Cora", "raw"), "Cora")


def refined(graph, rounds=8):
    """Colour refinement: equal colours only where neighbourhoods look alike."""
    colour = dict(graph.degree)
    for _ in range(rounds):
        colour = {v: hash((colour[v], tuple(sorted(colour[u] for u in graph[v])))) for v in graph}
    nx.set_node_attributes(graph, colour, "colour")
    return graph


def test_cora_cites_with_features_is_planetoids_cora(tmp_path):
    """Which paper is which node is found from the links alone; the features and labels that each paper gets must then
    come out beside the same neighbours."""
    cora = planetoid_cora()
    cites = real_data("awkward", "graphs") + "/awkward/graphs/cora.cites"
    links = [tuple(line.split()) for line in open(cites)]
    ours, theirs = nx.Graph(cora.edge_index.T.tolist()), nx.Graph(links)
    paper = nx.vf2pp_isomorphism(refined(ours), refined(theirs), node_label="colour")
    order = np.random.default_rng(0).permutation(2708).tolist()
    (tmp_path / "nodes.csv").write_text("id,label\n" + "".join(f"{paper[v]},{int(cora.y[v])}\n" for v in order))
    x = cora.x.to_dense()
    sp.save_npz(tmp_path / "x.npz", sp.csr_matrix(x[order].numpy()))
    data = own(tmp_path, edges=cites, edge_header=False, source_column="0", target_column="1", features="x.npz")
    assert data.report()["links"] == {"lines": 5429, "self_loops": 0, "repeated": 0, "two_way": 302, "undirected": 5278,
                                      "only_self_loops": 0, "unknown": 0, "bad": 0, "of_dropped_nodes": 0}  # fmt: skip
    to_node = torch.tensor(order)  # node of cora at each position
    torch.testing.assert_close(data.data.x, x[to_node])
    assert torch.equal(data.data.y, cora.y[to_node])
    back = to_node[data.data.edge_index]
    assert set(map(tuple, back.T.tolist())) == set(map(tuple, cora.edge_index.T.tolist()))


def test_citeseer_cites_is_reported_exactly_and_trains(tmp_path):
    from fl_lightning import FedAvg, FederatedTrainer
    from lit_models import GraphSAGE, LitNodeClassifier

    cites = real_data("awkward", "graphs") + "/awkward/graphs/citeseer.cites"
    ids = sorted({end for line in open(cites) for end in line.split()})
    (tmp_path / "nodes.csv").write_text("id,label\n" + "".join(f"{name},{name[0]}\n" for name in ids))
    options = {"edges": cites, "edge_header": False, "source_column": "0", "target_column": "1", "features": "degree"}
    data = own(tmp_path, num_clients=4, partition="random", **options)
    report = data.report()
    assert report["num_nodes"] == 3327 and sum(not name.isdigit() for name in data.original_ids) == 2304
    assert report["links"] == {"lines": 4732, "self_loops": 124, "repeated": 0, "two_way": 112, "undirected": 4552,
                               "only_self_loops": 48, "unknown": 0, "bad": 0, "of_dropped_nodes": 0}  # fmt: skip
    assert report["isolated_nodes"] == 48 and report["num_edges"] == 4552
    fed = FederatedTrainer(num_rounds=1, strategy=FedAvg(), seed=0,
                           trainer={"accelerator": "cpu", "logger": False, "default_root_dir": str(tmp_path)})  # fmt: skip
    results = fed.fit(LitNodeClassifier(GraphSAGE(hidden_channels=8)), data)
    assert results["failures"] == [] and results["test"]["global"] > 1 / 36


def test_tables_of_nodes_without_rows_or_labels_are_told(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target\n")
    (tmp_path / "nodes.csv").write_text("id,f,label\n")
    with pytest.raises(ValueError, match="nodes.csv` has no row below its first line"):
        own(tmp_path)
    (tmp_path / "nodes.csv").write_text("id,f,label\n1,1,\n2,2,\n")
    with pytest.raises(ValueError, match="`data.init_args.label_column` 'label' is blank for all 2 nodes"):
        own(tmp_path)


def test_links_that_touch_no_node_are_left_out_by_row_and_a_table_of_nothing_else_is_refused(tmp_path):
    """Whether links are named wrongly or not read rightly: a graph without links would train without a word."""
    (tmp_path / "nodes.csv").write_text("id,f,label\na,1,x\nb,,x\nc,3,y\n")
    (tmp_path / "edges.csv").write_text("source,target\na,c\n1,2\nb,9\nb,c\n")
    data = own(tmp_path, unknown_ids="drop", num_clients=1)
    assert [(d["row"], d["link"], d["reason"]) for d in data.dropped_rows if "link" in d] == [
        (1, "1 - 2", "no link: neither end is a node"), (2, "b - 9", "no link: neither end is a node"),
        (3, "b - c", "no link: the row of a node at its end cannot be used")]  # fmt: skip
    assert data.num_rows_read == 3 + 4
    for links in ("1,2\n3,4\n", "a;c\nc;a\n", "a,c,5\n"):
        (tmp_path / "edges.csv").write_text("source,target\n" + links)
        message = "None of the [12] lines of `data.init_args.edges: edges.csv` names a node: edges.csv row 0: .*`edge_header`"
        with pytest.raises(ValueError, match=message + " and `separator` right.*first line only: source,target"):
            own(tmp_path, unknown_ids="drop", num_clients=1)
    (tmp_path / "edges.csv").write_text("source,target\na,far\n")  # all that a site knows may lead elsewhere
    counts = own(tmp_path, unknown_ids="drop", num_clients=1).row_counts["links"]
    assert counts == {"read": 1, "left_out": 1, "leading_elsewhere": 1}


def test_a_list_of_links_as_snap_writes_it(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,label,f\n" + "".join(f"{i},{'xy'[i % 2]},{i / 8}\n" for i in range(6)))
    head = "# Directed graph: example.txt\r\n# Nodes: 6 Edges: 3\r\n# From\tTo\r\n"
    (tmp_path / "edges.txt").write_text(head + "0\t1\r\n4\t5\r\n0\t2\r\n")
    for options in ({"edge_header": False, "source_column": "0", "target_column": "1"},
                    {"source_column": "From", "target_column": "To"}):  # fmt: skip
        data = own(tmp_path, edges="edges.txt", num_clients=1, **options)
        assert pairs(data) == {("0", "1"), ("4", "5"), ("0", "2")} and data.dropped_rows == []
        assert any("edges.txt`: 3 leading line(s) with `#` or `%` are skipped" in note for note in data.report()["notices"])


def guessing(tmp_path, columns, label=lambda i: "abc"[i % 3], size=60, **options):
    """A graph with these columns of numbers."""
    names = ",".join(["id", "label", *columns])
    rows = "".join(",".join([f"n{i}", label(i), *(f"{column(i)}" for column in columns.values())]) + "\n" for i in range(size))
    (tmp_path / "nodes.csv").write_text(f"{names}\n{rows}")
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"n{i},n{i // 2}\n" for i in range(1, size)))
    return own(tmp_path, **{"num_clients": 1, "partition": "random", **options})


SUSPICIOUS = ("guessed_ids", "label_in_features", "feature_determines_label", "odd_labels", "rare_classes")


def suspicions(data):
    return {f["kind"]: f for f in data.report()["findings"] if f["kind"] in SUSPICIOUS}


def test_counters_ids_and_codes_of_the_class_are_no_features_unless_named(tmp_path):
    columns = {"label_code": lambda i: i % 3, "row_number": lambda i: i, "customer_id": lambda i: 7000 + 13 * (i // 2),
               "batch": lambda i: 4 - i % 3, "noise": lambda i: i * 37 % 11}  # fmt: skip
    data = guessing(tmp_path, columns)
    assert data.feature_names == ["noise"] and data.schema["num_features"] == 1
    found = suspicions(data)
    assert set(found) == {"guessed_ids", "label_in_features"}
    assert found["guessed_ids"]["message"] == (
        "'row_number', 'customer_id': no feature (`row_number` is a number of rows by its name; "
        "`customer_id` is an id by its name)."
    )
    assert found["label_in_features"]["message"] == (
        "'label_code', 'batch': no feature, since it is 'label' in other words (each value has nodes of one class only)."
    )
    assert all("Name the features in `data.init_args.features`" in f["remedy"] for f in found.values())
    named = guessing(tmp_path, columns, features=["label_code", "row_number"])
    assert named.data.x[4].tolist() == [1.0, 4.0] and suspicions(named) == {}
    with pytest.raises(ValueError, match=r"no column of numbers .* \(not taken: 'row_number', 'label_code', which count"):
        guessing(tmp_path, {name: columns[name] for name in ("label_code", "row_number")})


def test_a_feature_that_separates_two_classes_is_told_and_kept(tmp_path):
    data = guessing(tmp_path, {"age": lambda i: i % 2, "noise": lambda i: i * 37 % 11}, label=lambda i: "ab"[i % 2])
    assert data.feature_names == ["age", "noise"]
    told = suspicions(data)["feature_determines_label"]["message"]
    assert told.startswith("'age': a feature that determines 'label' by itself")
    slips = guessing(tmp_path, {"code": lambda i: 9 if i == 7 else i % 3 + 1, "noise": lambda i: i * 37 % 11}, size=90)
    assert slips.feature_names == ["noise"] and "other words (it tells" not in suspicions(slips)["label_in_features"]["message"]
    wrong = guessing(tmp_path, {"code": lambda i: 1 if i in (7, 8) else i % 3 + 1, "noise": lambda i: i * 37 % 11}, size=90)
    assert "other words (it tells the class of 88 of 90 nodes)" in suspicions(wrong)["label_in_features"]["message"]
    spread = guessing(tmp_path, {"age": lambda i: i % 2 + i % 20}, label=lambda i: "ab"[i % 2])  # 21 values: three nodes each
    assert suspicions(spread) == {}
    few = guessing(tmp_path, {"rare": lambda i: int(i < 4)}, label=lambda i: "ab"[i < 4])  # four nodes: chance may do it
    assert suspicions(few) == {}


def test_a_counter_at_one_client_is_no_feature_anywhere(tmp_path):
    for client, start in (("north", 0), ("south", 12)):
        (tmp_path / client).mkdir()
        rows = "".join(f"{start + i},{start + i},{i / 4},{'xy'[i % 2]}\n" for i in range(12))
        (tmp_path / client / "nodes.csv").write_text("id,place,f,label\n" + rows)
        (tmp_path / client / "edges.csv").write_text(f"source,target\n{start},{start + 1}\n")
    data = own(tmp_path)
    assert data.feature_names == ["f"] and suspicions(data)["guessed_ids"]["count"] == 1
    (tmp_path / "x.csv").write_text("id,place\n" + "".join(f"{i},{i}\n" for i in range(24)))
    for client, start in (("north", 0), ("south", 12)):
        (tmp_path / client / "x.csv").write_text("id,place\n" + "".join(f"{start + i},{i}\n" for i in range(12)))
    assert own(tmp_path, features="x.csv").feature_names == ["place"]  # a table that was given for nothing else


def test_numbers_of_customers_and_of_each_shops_rows_are_no_features(tmp_path):
    """One table of two shops, each with rows counted from 1; a customer has six digits and no name that says id."""
    columns = {"shop": lambda i: "ab"[i % 2], "place": lambda i: 1 + i // 2, "who": lambda i: 100_000 + i * 7919 % 899_981,
               "noise": lambda i: i * 37 % 11}  # fmt: skip
    data = guessing(tmp_path, columns, client_column="shop", partition="column")
    assert data.feature_names == ["noise"]
    assert suspicions(data)["guessed_ids"]["message"] == (
        "'place', 'who': no feature (`place` counts the rows (1 to 30, each once), at each client; `who` has whole numbers of "
        "6 digits, and each is there once, as ids are)."
    )


VALUES = ("sentinels", "outliers", "scale_differs", "sign_differs", "range_differs", "constant_labels")


def of_values(data):
    return {f["kind"]: f for f in data.report()["findings"] if f["kind"] in VALUES}


@pytest.mark.parametrize("sparse", [False, True])
def test_features_that_are_no_measurements_or_in_another_unit_are_told(tmp_path, sparse):
    random = np.random.default_rng(0)
    for client, scale in (("north", 1), ("south", 1000), ("web", 1)):
        (tmp_path / client).mkdir()
        values = scale * random.normal(5, 1, 20).round(2)
        values[3] = -999 if client == "web" else values[3]
        rows = "".join(f"{client}{i},{value},{i % 7},{'xy'[i % 2]}\n" for i, value in enumerate(values))
        (tmp_path / client / "nodes.csv").write_text("id,f,g,label\n" + rows)
        (tmp_path / client / "edges.csv").write_text(f"source,target\n{client}1,{client}2\n")
        np.savez(tmp_path / client / "x.npz", x=values[:, None])
    found = of_values(own(tmp_path, sparse_features=sparse))
    assert set(found) == {"sentinels", "scale_differs"} and found["scale_differs"]["client"] == 1
    assert found["scale_differs"]["message"].startswith("The values of `f` of client 'south' are about 9.7e+02 times")
    assert found["sentinels"]["message"].endswith(f"{tmp_path / 'web' / 'nodes.csv'} row 3 (id 'web3').")
    assert found["sentinels"]["rows"] == [{"row": 43, "id": "web3", "file": str(tmp_path / "web" / "nodes.csv"), "file_row": 3}]
    matrix = of_values(own(tmp_path, features="x.npz"))
    assert matrix["scale_differs"]["message"].startswith("The values in column 0 of `x.npz` of client 'south'")
    assert of_values(own(tmp_path, features="degree")) == of_values(own(tmp_path, normalize_features=True)) == {}


def test_a_graph_of_a_single_class_is_told(tmp_path):
    found = of_values(guessing(tmp_path, {"noise": lambda i: i * 37 % 11}, label=lambda i: "a"))
    assert found["constant_labels"]["message"] == "All 60 labelled nodes have the class 'a': there is nothing to learn."


def test_odd_labels_are_named_by_row(tmp_path):
    noise = {"noise": lambda i: i * 37 % 11}
    data = guessing(tmp_path, noise, label=lambda i: "7" if i == 41 else "ab"[i % 2])
    assert suspicions(data)["odd_labels"]["message"] == (
        "1 of 60 labels in 'label' is a number, the others names: '7' in row 41 (id 'n41')."
    )
    word = guessing(tmp_path, noise, label=lambda i: "error" if i == 41 else f"{i % 2}")
    assert suspicions(word)["odd_labels"]["count"] == 1
    assert suspicions(guessing(tmp_path, noise, label=lambda i: ("7", "a")[i % 2])) == {}  # as many of either kind
    message = r"row 41 \(id 'n41'\): label '0.5' is a measurement, as 1 of 60 labels are.*Correct them"
    with pytest.raises(ValueError, match=message):
        guessing(tmp_path, noise, label=lambda i: "0.5" if i == 41 else "ab"[i % 2])
    rare = guessing(tmp_path, noise, label=lambda i: "bule" if i == 41 else f"class-{i % 12}", size=1000)
    assert suspicions(rare)["rare_classes"]["message"] == (
        "1 of 13 classes has a single one of 1000 labelled nodes, which cannot be both trained and tested on: 'bule' in row 41 "
        "(id 'n41')."
    )
    few = guessing(tmp_path, noise, label=lambda i: "violet" if i == 41 else "ab"[i % 2])
    assert suspicions(few)["rare_classes"]["message"].startswith("1 of 3 classes has a single one of 60 labelled nodes")
    assert suspicions(guessing(tmp_path, noise, label=lambda i: "violet" if i in (40, 41) else "ab"[i % 2])) == {}


def test_na_and_null_and_nan_are_names_of_nodes_and_clients(tmp_path):
    """Namibia's code is NA."""
    (tmp_path / "nodes.csv").write_text("id,f,label,site\nNA,1.5,x,NA\nnull,2.5,y,nan\nnan,3.5,x,2\n,4.5,y,1\ne,5.5,y,\n")
    (tmp_path / "edges.csv").write_text("source,target\nNA,null\nnan,NA\n")
    data = own(tmp_path, client_column="site")
    assert data.client_names == ["2", "NA", "nan"] and [d["reason"] for d in data.dropped_rows] == ["no id"]
    assert pairs(data) == {("NA", "null"), ("NA", "nan")}
    assert data.partition_record()["membership"] == [[2], [0], [1]]
    pq = pytest.importorskip("pyarrow.parquet")
    from pyarrow import table

    rows = {"id": ["NA", "null", "nan", None], "f": [1.5, 2.5, 3.5, 4.5], "label": ["x", "y", "x", "y"],
            "site": ["NA", "nan", None, "1"]}  # fmt: skip
    pq.write_table(table(rows), tmp_path / "nodes.parquet")
    data = own(tmp_path, nodes="nodes.parquet", client_column="site")
    assert data.client_names == ["NA", "nan"] and data.partition_record()["membership"] == [[0], [1]]
    assert [(d["row"], d["reason"]) for d in data.dropped_rows] == [(3, "no id")]


def test_words_that_are_taken_for_blanks_are_told_and_may_be_classes(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n")
    rows = "".join(f"{i},{i},{('none', 'mild', '')[i % 3]},{('NA', 'EU')[i % 2]}\n" for i in range(1, 7))
    (tmp_path / "nodes.csv").write_text("id,f,label,region\n" + rows)
    data = own(tmp_path, client_column="region")
    assert data.class_names == ["mild"] and data.client_names == ["EU", "NA"]
    told = [note.split("`: ")[1] for note in data.notices if "blank" in note]
    remedy = "list it in `data.init_args.classes` if it is a class"
    assert told == [f"2 times 'none' in column 'label' is taken for a blank; {remedy}."]
    data = own(tmp_path, num_clients=1, classes=["none", "mild"])
    assert by_id(data, data.data.y) == {"1": 1, "2": -1, "3": 0, "4": 1, "5": -1, "6": 0}
    assert not any("label" in note for note in data.notices)


def test_measurements_are_no_classes_whatever_their_decimal_mark(tmp_path):
    (tmp_path / "edges.csv").write_text("source;target\n1;2\n")
    (tmp_path / "nodes.csv").write_text("id;f;label\n1;1,5;0,25\n2;2,5;1,0\n")
    with pytest.raises(ValueError, match="label '0,25' is a measurement"):
        own(tmp_path)
    (tmp_path / "nodes.csv").write_text("id;f;label\n1;1,5;3,0\n2;2,5;1,0\n")
    assert own(tmp_path, num_clients=1).class_names == ["1", "3"]
    (tmp_path / "nodes.csv").write_text("id;f;label\n" + "".join(f"{i};{i};{i * 1000}\n" for i in range(1, 9)))
    found = {f["kind"]: f for f in own(tmp_path, num_clients=1).report()["findings"]}
    assert found["many_classes"]["message"] == "8 labelled nodes have 8 different labels."


def test_owners_that_are_written_in_two_ways_and_what_programs_leave_are_no_more_owners(tmp_path):
    for client in ("north", "north~", ".trash"):
        (tmp_path / client).mkdir()
        (tmp_path / client / "nodes.csv").write_text("id,f,label\n" + "".join(f"{i},{i / 4},{'xy'[i % 2]}\n" for i in range(8)))
        (tmp_path / client / "~$edges.csv").write_text("junk")
    data = own(tmp_path)
    assert data.client_names == ["north"] and "no clients, by their names: the folders '.trash', 'north~'." in data.notices
    assert "no links are read for clients without `edges.csv`: 'north'." in data.notices
    rows = "".join(f"{i},{i / 4},{'xy'[i % 2]},{('East', ' east ', 'west')[i % 3]}\n" for i in range(12))
    (tmp_path / "nodes.csv").write_text("id,f,label,site\n" + rows)
    (tmp_path / "edges.csv").write_text("source,target\n0,3\n1,4\n")
    found = {f["kind"]: f for f in own(tmp_path, client_column="site").report()["findings"]}
    assert "'East', 'east'. Is it one client?" in found["clients_alike"]["message"]


def test_one_decimal_point_among_commas_costs_its_own_row_alone(tmp_path):
    (tmp_path / "edges.csv").write_text("source;target\n1;2\n")
    rows = "".join(f"{i};{f'{i},5' if i != 7 else '7.25'};{i / 4};{i};{'ab'[i % 2]}\n" for i in range(1, 13))
    (tmp_path / "nodes.csv").write_text("id;f;point;whole;label\n" + rows)
    data = own(tmp_path, num_clients=1, features=["f", "point", "whole"])
    (dropped,) = data.dropped_rows
    assert (dropped["id"], dropped["reason"]) == (
        "7", "feature 'f': '7.25' is not a number with the decimal mark `,` (`data.init_args.decimal`)")  # fmt: skip
    assert data.data.x[0].tolist() == [1.5, 0.25, 1] and any("decimal mark of `f`." in n for n in data.notices)


def test_what_lies_beside_the_clients_folders_is_told(tmp_path):
    for client, name in (("north", "nodes.csv"), ("south", "node.csv"), ("west", "nodes.csv")):
        (tmp_path / client).mkdir()
        (tmp_path / client / name).write_text(f"id,f,label\n{client}1,1,x\n{client}2,2,y\n")
    (tmp_path / "west" / "edges.csv").write_text("source,target\nwest1,west2\n")
    told = own(tmp_path).notices
    assert "no clients, since they have no `nodes.csv`: the folders 'south'." in told
    assert "no links are read for clients without `edges.csv`: 'north'." in told
    (tmp_path / "north" / "links.txt").write_text("source,target\nnorth1,north2\n")
    data = own(tmp_path)
    asked = ("no links are read for clients without `edges.csv`: 'north'. There is 'links.txt': is it that "
             "(`data.init_args.edges`)?")  # fmt: skip
    found = {f["kind"]: f for f in data.report()["findings"] if f["client"] in (None, 0)}
    assert asked in data.notices and found["unread_links"]["remedy"].endswith("`data.init_args.edges: links.txt`.")
    assert found["unread_links"]["message"].startswith("'north': no links are read, since there is no `edges.csv`, but")
    assert "see `unread_links`" in found["no_edges"]["remedy"]
    with pytest.raises(ValueError, match="`data.init_args.edges` is 'edges.csv', but .* Is it 'links.txt', which lies there"):
        own(tmp_path / "north", num_clients=1)
    (tmp_path / "nodes.csv").write_text("id,f,label\n1,1,x\n2,2,y\n")
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n")
    assert any("and the folders 'north', 'west' are not" in note for note in own(tmp_path, num_clients=1).notices)


@pytest.mark.parametrize("features", [None, "x.csv", "x.npz", "degree"])
def test_another_graph_is_predicted_with_the_same_features(folder, features):
    new = folder / "new"
    new.mkdir()
    (new / "nodes.csv").write_text("f2;f1;id\n0,5;2;a\n;3;broken\n1;4;b\n")  # its own way of writing, no labels
    (new / "edges.csv").write_text("source,target\nb,a\n")
    (folder / "x.csv").write_text("id,f1,f2\n" + "".join(f"n-{i},{i},0\n" for i in range(1, 6)))
    (new / "x.csv").write_text("f2,id,f1\n1,b,4\n0.5,a,2\n9,broken,9\n")
    sp.save_npz(folder / "x.npz", sp.csr_matrix(np.ones((5, 2))))
    sp.save_npz(new / "x.npz", sp.csr_matrix(np.array([[2, 0.5], [3, 3], [4, 1.0]])))
    data = own(folder, client_column="site", features=features, predict_root=str(new))
    asked = next(iter(data.predict_dataloader()))
    kept = [0, 2] if features is None else [0, 1, 2]
    assert asked.node_id.tolist() == kept and data.predicted_rows.ids == ["a", "broken", "b"]
    assert [d["row"] for d in data.predicted_rows.dropped] == [row for row in range(3) if row not in kept]
    if features != "degree":
        assert asked.x[[0, -1]].tolist() == [[2, 0.5], [4, 1]]
    assert asked.edge_index.tolist() == ([[0, 1], [1, 0]] if features is None else [[0, 2], [2, 0]])
    assert all(next(iter(client.predict_dataloader())) is asked for client in data.client_datamodules())
    assert data.data.num_nodes == 5 and data.fingerprint() == own(folder, client_column="site", features=features).fingerprint()


def test_the_folder_of_another_graph_is_no_client(tmp_path):
    for client in ("north", "south", "new"):
        (tmp_path / client).mkdir()
        (tmp_path / client / "nodes.csv").write_text(f"id,f,label\n{client}1,1,x\n{client}2,2,y\n")
        (tmp_path / client / "edges.csv").write_text(f"source,target\n{client}1,{client}2\n")
    data = own(tmp_path, predict_root=str(tmp_path / "new"))
    assert data.client_names == ["north", "south"] and data.predicted_rows.ids == ["new1", "new2"]
    assert not any("new" in note for note in data.notices)


def test_another_graph_with_other_features_is_refused(folder):
    new = folder / "new"
    new.mkdir()
    (new / "nodes.csv").write_text("id,f1\na,2\nb,4\n")
    (new / "edges.csv").write_text("source,target\nb,a\n")
    with pytest.raises(ValueError, match=r"features\[1\]` is 'f2', but .*new/nodes.csv` has no such column"):
        own(folder, predict_root=str(new))
    for place, names in ((folder, ("n-1", "n-2", "n-3", "n-4", "n-5")), (new, ("a", "b"))):
        width = 3 if place is folder else 2
        sp.save_npz(place / "x.npz", sp.csr_matrix(np.ones((len(names), width))))
        columns, values = ("id,p,q", "1,2") if place is folder else ("id,p", "1")
        (place / "x.csv").write_text("".join(f"{line}\n" for line in (columns, *(f"{name},{values}" for name in names))))
    with pytest.raises(ValueError, match="`data.init_args.predict_root`: `x.npz` has 2 features there, but the model .* 3"):
        own(folder, features="x.npz", predict_root=str(new))
    with pytest.raises(ValueError, match="`x.csv` has the feature columns 'p' there, but the model learns from 'p', 'q'"):
        own(folder, features="x.csv", predict_root=str(new))


def test_a_client_whose_nodes_all_belong_to_another_is_named(tmp_path):
    rows = "".join(f"{i},{i},x,north\n" for i in range(6)) + "2,9,x,south\n3,9,x,south\n,9,x,\n"
    (tmp_path / "nodes.csv").write_text("id,f,label,site\n" + rows)
    (tmp_path / "edges.csv").write_text("source,target,weight\n1,2,0.5\n")
    data = own(tmp_path, client_column="site")
    found = {f["kind"]: f for f in data.report()["findings"]}
    assert data.client_names == ["north"] and found["client_without_nodes"]["message"].startswith("'south': no usable row")
    assert any("edges.csv`: not used: 'weight'." in note for note in data.notices)
    assert data.lost_clients == ["south"]


def test_a_class_with_a_typographic_minus_is_that_with_a_plain_one(tmp_path):
    labels = ["-1", "\u22121", "\u22121.0", "1", "x\u22121"]
    rows = "".join(f"{i},\u2212{i}.5,{label}\n" for i, label in enumerate(labels))
    (tmp_path / "nodes.csv").write_text("id,f,label\n" + rows)
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n")
    data = own(tmp_path, num_clients=1)
    assert data.class_names == ["-1", "1", "x\u22121"] and data.data.x.flatten().tolist() == [-0.5, -1.5, -2.5, -3.5, -4.5]


def test_a_folder_whose_rows_are_all_unusable_is_an_empty_client(tmp_path):
    for client, value in (("north", "1"), ("south", "?")):
        (tmp_path / client).mkdir()
        rows = "".join(f"{client}{i},{value},{'xy'[i % 2]}\n" for i in range(9))
        (tmp_path / client / "nodes.csv").write_text("id,f,label\n" + rows)
        (tmp_path / client / "edges.csv").write_text(f"source,target\n{client}1,{client}2\n")
    data = own(tmp_path, features=["f"])
    report = data.report()
    assert report["client_sizes"] == [9, 0] and data.row_counts["nodes"]["left_out"] == 9
    assert ("no_train_nodes", 1) in {(f["kind"], f["client"]) for f in report["findings"]}
