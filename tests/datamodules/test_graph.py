"""The data seam on small graphs: contract fields, caching, inheritance of splits, records, findings, bad input."""

import copy
import json
import pickle

import pytest
import torch
from graph_fixtures import OwnGraph, edges, graph_of, random_graph
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser
from torch_geometric.data import Data

from datamodules import ClientGraphDataModule, PlanetoidDataModule, SyntheticCitationDataModule, cross_neighbours

PATH = edges((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))


def synthetic(**options):
    module = SyntheticCitationDataModule(num_nodes=120, num_classes=3, num_features=60, **options)
    module.setup()
    return module


def test_batches_have_the_fields_of_the_contract():
    module = synthetic(num_clients=4)
    for dm in (module, *module.client_datamodules()):
        for loader in (dm.train_dataloader(), dm.val_dataloader(), dm.test_dataloader(), dm.predict_dataloader()):
            (batch,) = loader
            assert batch is dm.data and loader.num_workers == 0
        n = batch.num_nodes
        assert batch.x.shape == (n, 60) and batch.x.layout == torch.sparse_csr
        assert batch.y.dtype == batch.node_id.dtype == batch.edge_index.dtype == torch.int64
        for stage in ("train", "val", "test"):
            assert batch[f"{stage}_mask"].dtype == torch.bool and batch[f"{stage}_mask"].shape == (n,)
        assert "num_nodes" in batch and dm.schema == {"num_features": 60, "num_classes": 3}
        both = set(map(tuple, batch.edge_index.T.tolist()))
        assert all((v, u) in both and u != v for u, v in both) and len(both) == batch.edge_index.size(1)


def test_nothing_is_rebuilt():
    module = synthetic(batch_size=8)
    graph, clients = module.data, module.client_datamodules()
    module.setup("fit")
    module.setup("test")
    assert module.data is graph and module.client_datamodules() is clients
    for dm in (module, clients[0]):
        assert dm.train_dataloader() is dm.train_dataloader() and dm.test_dataloader() is dm.test_dataloader()


def test_clients_inherit_the_split_and_the_whole_graph_is_untouched():
    module = synthetic(num_clients=5)
    whole = module.data.clone()  # CSR tensors cannot be deep-copied
    nodes = []
    for client in module.client_datamodules():
        data = client.data
        nodes += data.node_id.tolist()
        assert torch.equal(data.x.to_dense(), whole.x.to_dense()[data.node_id])
        for key in ("y", "train_mask", "val_mask", "test_mask"):
            assert torch.equal(data[key], whole[key][data.node_id])
        pairs = data.node_id[data.edge_index].T.tolist()
        inside = torch.zeros(120, dtype=torch.bool).index_fill_(0, data.node_id, True)
        kept = inside[whole.edge_index].all(dim=0)
        assert sorted(pairs) == sorted(whole.edge_index[:, kept].T.tolist())
    assert sorted(nodes) == list(range(120))
    assert torch.equal(module.data.x.to_dense(), whole.x.to_dense()) and whole.num_nodes == 120
    # docs/papers/fedsage.md#split: no test node is trained on by anyone
    assert not bool((whole.train_mask & whole.test_mask).any() or (whole.train_mask & whole.val_mask).any())


def test_one_client_holds_the_whole_graph():
    module = synthetic(num_clients=1)
    (client,) = module.client_datamodules()
    for key in ("edge_index", "y", "node_id", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(client.data[key], module.data[key])
    assert module.partition_record()["lost_edges"] == 0


def test_dense_and_sparse_features_are_the_same_numbers():
    dense, sparse = synthetic(sparse_features=False, normalize_features=True), synthetic(normalize_features=True)
    assert dense.data.x.layout == torch.strided
    torch.testing.assert_close(dense.data.x, sparse.data.x.to_dense())
    torch.testing.assert_close(dense.client_datamodules()[1].data.x, sparse.client_datamodules()[1].data.x.to_dense())


def test_one_seed_fixes_split_and_partition_independently():
    def state(**options):
        module = synthetic(**options)
        return module.data.train_mask.tolist(), module.partition_record()["membership"]

    assert state(seed=3) == state(seed=3)
    split_a, parts_a = state(seed=3)
    split_b, parts_b = state(seed=4)
    assert split_a != split_b and parts_a != parts_b
    assert state(seed=3, num_clients=5)[0] == split_a  # the split does not depend on the partition


def test_partition_record_is_json_and_complete():
    module = synthetic(num_clients=4, partition="overlapping")
    record = json.loads(json.dumps(module.partition_record()))
    assert {"method", "seed", "num_clients", "membership", "sha256", "lost_edges"} <= set(record)
    assert record["num_clients"] == 4 == len(record["membership"]) and len(record["sha256"]) == 64
    assert record["membership"] == [client.data.node_id.tolist() for client in module.client_datamodules()]
    assert module.partition_record() == synthetic(num_clients=4, partition="overlapping").partition_record()


def test_fingerprint_changes_with_content_only():
    base = synthetic().fingerprint()
    assert base == synthetic(batch_size=4).fingerprint() and len(base) == 64
    for other in (
        dict(seed=1),
        dict(graph_seed=1),
        dict(num_clients=4),
        dict(partition="random"),
        dict(normalize_features=True),
    ):
        assert synthetic(**other).fingerprint() != base
    graph = graph_of([0, 1, 0, 1, 0, 1], PATH)

    def own(graph: Data) -> str:
        module = OwnGraph(graph, num_clients=1)
        module.setup()
        return module.fingerprint()

    relabeled, rewired = copy.copy(graph), copy.copy(graph)
    relabeled.y, rewired.edge_index = torch.tensor([0, 1, 0, 1, 1, 1]), edges((0, 2), (1, 2), (2, 3), (3, 4), (4, 5))
    assert len({own(graph), own(relabeled), own(rewired)}) == 3


def test_report_by_hand():
    # path 0-1-2-3-4-5 with labels 0 0 0 1 1 -1 in two clients of a fixed membership {0,1,2} {3,4,5}
    module = OwnGraph(graph_of([0, 0, 0, 1, 1, -1], PATH, num_classes=2), num_clients=2)
    module.setup()
    module._partition = type(module._partition)([torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5])], "louvain")
    report = json.loads(json.dumps(module.report()))
    assert report["num_clients"] == 2 and report["client_sizes"] == [3, 3] and report["client_edges"] == [2, 2]
    assert report["labels"] == [[3, 0], [0, 2]] and report["labels_whole"] == [3, 2]
    assert report["label_distance"] == pytest.approx([0.4, 0.6])  # |1 - .6| and |1 - .4|
    assert report["lost_edges"] == 1 and report["lost_edges_share"] == 0.2 and report["dropped_rows"] == []
    kinds = {(finding["kind"], finding["client"]): finding for finding in report["findings"]}
    assert {("lost_edges", None), ("one_class", 0), ("one_class", 1), ("unlabeled_nodes", 1)} <= set(kinds)
    assert all(
        {"kind", "client", "count", "message", "remedy"} <= set(finding) and finding["remedy"] for finding in report["findings"]
    )
    assert "1 of 5 edges (20.0%)" in kinds["lost_edges", None]["message"]


def test_each_finding_appears():
    # one node per client: no edges left, one-node clients, some without training or test nodes
    module = OwnGraph(graph_of([0, 1, 0, 1, 0, 1], PATH), num_clients=6)
    module.setup()
    kinds = {finding["kind"] for finding in module.report()["findings"]}
    assert {
        "one_node",
        "no_edges",
        "no_train_nodes",
        "no_test_nodes",
        "no_val_nodes",
        "lost_edges",
        "one_class",
    } <= kinds
    samples = [client.num_train_samples for client in module.client_datamodules()]
    assert sum(samples) == module.num_train_samples and 0 in samples
    isolated = OwnGraph(graph_of([0, 1, 0, 1], edges((0, 1))), num_clients=1)
    isolated.setup()
    found = {finding["kind"]: finding for finding in isolated.report()["findings"]}
    assert found["isolated_nodes"]["count"] == 2 and isolated.report()["isolated_nodes"] == 2


@pytest.mark.parametrize("batch_size", [None, 2])
def test_awkward_clients_train_and_test_under_a_stock_trainer(batch_size):
    class Linear(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, 2)

        def training_step(self, batch, _):
            return (self.layer(batch.x.to_dense()) * batch.train_mask[:, None]).sum()

        def test_step(self, batch, _):
            self.log("seen", float(batch.test_mask.sum()), batch_size=1)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = OwnGraph(graph_of([0, 1, 0, 1, 0, 1], torch.zeros(2, 0)), num_clients=4, batch_size=batch_size)
    module.setup()
    for client in (module, *module.client_datamodules()):
        trainer = Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                          enable_model_summary=False, accelerator="cpu")  # fmt: skip
        trainer.fit(Linear(), datamodule=client)
        assert trainer.global_step == (0 if not client.data.train_mask.any() and batch_size else trainer.num_training_batches)
        trainer.test(Linear(), datamodule=client, verbose=False)
        if batch_size is None:  # the whole graph in one batch
            assert trainer.logged_metrics["seen"] == client.data.test_mask.sum()


def test_mended_graph_replaces_the_clients():
    client = synthetic().client_datamodules()[0]
    mended = copy.copy(client.data)
    other = client.with_data(mended)
    assert isinstance(other, ClientGraphDataModule) and other.data is mended and other.schema == client.schema
    assert next(iter(other.train_dataloader())) is mended


@pytest.mark.parametrize("partition", ["louvain", "overlapping"])
def test_links_elsewhere_are_the_degrees_that_the_partition_took(partition):
    data = SyntheticCitationDataModule(num_nodes=200, num_clients=4, partition=partition)
    data.setup()
    whole = torch.bincount(data.data.edge_index[0], minlength=200)
    for client in data.client_datamodules():
        own = torch.bincount(client.data.edge_index[0], minlength=client.data.num_nodes)
        assert torch.equal(own + client.links_elsewhere, whole[client.data.node_id])
        assert client.links_elsewhere.sum() > 0
        assert torch.equal(client.links_elsewhere, cross_neighbours(client.data, data.data)[0])  # written independently
        assert client.with_data(client.data).links_elsewhere is None  # of a mended graph nobody asks


def test_the_fingerprint_of_a_client_covers_what_it_knows_of_links_elsewhere():
    graph = Data(x=torch.eye(3), y=torch.zeros(3, dtype=torch.long), edge_index=torch.zeros(2, 0, dtype=torch.long),
                 node_id=torch.arange(3), num_nodes=3, **{f"{s}_mask": torch.ones(3, dtype=torch.bool)
                                                          for s in ("train", "val", "test")})  # fmt: skip
    schema = {"num_features": 3, "num_classes": 2}
    known = [None, torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])]
    assert len({ClientGraphDataModule(graph, schema, links_elsewhere=n).fingerprint() for n in known}) == 3


def test_data_modules_can_be_sent_to_a_worker_process():
    module = synthetic(batch_size=4)
    client = module.client_datamodules()[0]
    list(client.train_dataloader())
    again = pickle.loads(pickle.dumps(client))
    assert again.fingerprint() == client.fingerprint() and again.num_train_samples == client.num_train_samples


def test_copy_to_an_accelerator_is_made_once_and_leaves_the_graph(monkeypatch):
    client = ClientGraphDataModule(random_graph(8, 3, seed=0), {"num_features": 5, "num_classes": 3})
    meta = torch.device("meta")
    first = client.transfer_batch_to_device(client.data, meta, 0)
    assert first is client.transfer_batch_to_device(client.data, meta, 0) and first.x.device == meta
    assert client.data.x.device.type == "cpu" and client.data.train_mask.device.type == "cpu"
    assert client.transfer_batch_to_device(client.data, torch.device("cpu"), 0) is client.data


@pytest.mark.parametrize(
    "options, text",
    [
        (dict(num_clients=0), "`data.init_args.num_clients` is 0, but must be at least 1"),
        (dict(batch_size=0), "`data.init_args.batch_size` is 0, but must be at least 1, or null"),
        (dict(eval_batch_size=0), "`data.init_args.eval_batch_size` is 0"),
        (dict(partition="kmeans"), "`data.init_args.partition` is 'kmeans', but must be one of: louvain"),
        (
            dict(split="70/30"),
            "`data.init_args.split` is '70/30', but must be one of: stratified_60_20_20, random_20_40_40",
        ),
        (dict(num_neighbors=[0]), "`data.init_args.num_neighbors`"),
        (dict(num_nodes=2), "`data.init_args.num_nodes` is 2"),
        (dict(topic_share=2.0), "`data.init_args.topic_share`"),
    ],
)
def test_bad_values_are_refused_when_the_config_is_read(options, text):
    with pytest.raises(ValueError, match=text.replace("(", r"\(")):
        SyntheticCitationDataModule(**options)


@pytest.mark.parametrize(
    "graph, options, text",
    [
        (graph_of([0, 5, 1], edges((0, 1)), num_classes=2), {}, "node 1 has label 5, but labels must be 0 to 1, or -1"),
        (graph_of([0, -2, 1], edges((0, 1))), {}, "node 1 has label -2"),
        (graph_of([-1, -1], edges((0, 1))), {}, "no node has a label"),
        (graph_of([0, 1, 1], edges((0, 3))), {}, "names nodes 0 to 3, but the graph has nodes 0 to 2"),
        (
            graph_of([0, 1, 1], edges((0, 1))),
            dict(num_clients=4),
            "`data.init_args.num_clients` is 4, but the graph has only 3",
        ),
        (
            Data(x=torch.full((2, 2), float("nan")), y=torch.tensor([0, 1]), edge_index=edges((0, 1))),
            {},
            "NaN or infinite",
        ),
        (Data(x=torch.ones(3, 2), y=torch.tensor([0, 1]), edge_index=edges((0, 1))), {}, "3 rows and 2 labels"),
    ],
)
def test_bad_graphs_are_refused_by_setup(graph, options, text):
    with pytest.raises(ValueError, match=text):
        OwnGraph(graph, **{"num_clients": 1, **options}).setup()


def test_before_setup_the_error_says_what_to_call():
    module = SyntheticCitationDataModule()
    for use in (lambda: module.data, module.client_datamodules, module.fingerprint, module.report):
        with pytest.raises(ValueError, match=r"call `setup\(\)` first"):
            use()


def test_yaml_sees_all_options():
    parser = LightningArgumentParser()
    parser.add_lightning_class_args(PlanetoidDataModule, "data")
    config = parser.parse_args(
        ["--data.name=PubMed", "--data.partition=metis", "--data.num_neighbors=[5,3]", "--data.batch_size=null"]
    )
    module = parser.instantiate_classes(config).data
    assert module.name == "PubMed" and module.partition == "metis" and module.num_neighbors == (5, 3)


def test_synthetic_graph_is_seeded_and_as_described():
    module = SyntheticCitationDataModule()
    graph, again = module.load(), SyntheticCitationDataModule(seed=9).load()
    assert torch.equal(graph.edge_index, again.edge_index) and torch.equal(graph.x.to_dense(), again.x.to_dense())
    assert not torch.equal(graph.y, SyntheticCitationDataModule(graph_seed=1).load().y)
    module.setup()
    graph = module.data
    source, target = graph.edge_index
    degree = graph.edge_index.size(1) / graph.num_nodes
    assert degree == pytest.approx(2.6 + 0.5 + 0.7, rel=0.1)
    assert float((graph.y[source] == graph.y[target]).float().mean()) == pytest.approx(3.1 / 3.8, abs=0.05)
    assert graph.x.values().unique().tolist() == [1.0]
    assert graph.x.values().numel() / graph.num_nodes == pytest.approx(12, abs=0.6)  # a few words are drawn twice
    assert torch.bincount(graph.y).tolist() == pytest.approx([1000 / 6] * 6, abs=6)
