"""Real files beside the checkout: published counts, equality with PyG, read-only roots, missing and tampered files."""

import pickle
import shutil
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from graph_fixtures import real_data

from datamodules import AmazonDataModule, CoauthorDataModule, PlanetoidDataModule
from datamodules.rawfiles import read_planetoid

COUNTS = [  # ../shared/data/README.md: nodes, edges in both directions, features, classes, train/val/test, isolated
    (PlanetoidDataModule, "Cora", 2708, 10556, 1433, 7, (140, 500, 1000), 0),
    (PlanetoidDataModule, "CiteSeer", 3327, 9104, 3703, 6, (120, 500, 1000), 48),
    (PlanetoidDataModule, "PubMed", 19717, 88648, 500, 3, (60, 500, 1000), 0),
    (AmazonDataModule, "Photo", 7650, 238162, 745, 8, None, 115),
    (AmazonDataModule, "Computers", 13752, 491722, 767, 10, None, 281),
    (CoauthorDataModule, "CS", 18333, 163788, 6805, 15, None, 0),
]
FAMILY = {PlanetoidDataModule: "planetoid", AmazonDataModule: "amazon", CoauthorDataModule: "coauthor"}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise URLError("no network in this test")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


@pytest.mark.parametrize("cls, name, nodes, edges, features, classes, public, isolated", COUNTS)
def test_published_counts(cls, name, nodes, edges, features, classes, public, isolated):
    root = real_data(FAMILY[cls], name)
    module = cls(root=root, name=name, partition="random", split="public" if public else "random_20_40_40")
    module.setup()
    graph, report = module.data, module.report()
    assert (graph.num_nodes, graph.edge_index.size(1)) == (nodes, edges)
    assert module.schema == {"num_features": features, "num_classes": classes}
    assert report["isolated_nodes"] == isolated and report["num_edges"] == edges // 2
    assert graph.x.layout == torch.sparse_csr and graph.x.dtype == torch.float32
    assert sum(report["client_sizes"]) == nodes and sum(report["labels_whole"]) == nodes
    if public:
        assert (module.num_train_samples, module.num_val_samples, module.num_test_samples) == public


def test_nodes_per_class():
    expected = {
        (AmazonDataModule, "Photo"): [369, 1686, 703, 915, 882, 823, 1941, 331],
        (CoauthorDataModule, "CS"): [708, 462, 2050, 429, 1394, 2193, 371, 924, 775, 118, 1444, 2033, 420, 4136, 876],
    }
    for (cls, name), counts in expected.items():
        y = cls(root=real_data(FAMILY[cls], name), name=name).load().y
        assert torch.bincount(y).tolist() == counts


def pyg_graph(cls, name, tmp_path):
    import torch_geometric.datasets as pyg

    source = Path(real_data(FAMILY[cls], name)) / FAMILY[cls] / name / "raw"
    shutil.copytree(source, tmp_path / name / "raw")
    for file in (tmp_path / name / "raw").iterdir():
        file.chmod(0o644)
    (tmp_path / name / "raw").chmod(0o755)
    return {PlanetoidDataModule: pyg.Planetoid, AmazonDataModule: pyg.Amazon}[cls](str(tmp_path), name)[0]


@pytest.mark.parametrize(
    "cls, name",
    [
        (PlanetoidDataModule, "Cora"),
        (PlanetoidDataModule, "CiteSeer"),
        pytest.param(PlanetoidDataModule, "PubMed", marks=pytest.mark.slow),
        (AmazonDataModule, "Photo"),
    ],
)
def test_equal_to_pyg(cls, name, tmp_path):
    expected = pyg_graph(cls, name, tmp_path)
    shutil.rmtree(tmp_path / name / "processed")
    ours = cls(root=str(tmp_path), name=name).load()
    assert torch.equal(ours.x.to_dense(), expected.x) and torch.equal(ours.y, expected.y)
    n = expected.num_nodes
    assert torch.equal(
        ours.edge_index[0] * n + ours.edge_index[1], (expected.edge_index[0] * n + expected.edge_index[1]).sort().values
    )
    for mask in ("train_mask", "val_mask", "test_mask"):
        if mask in expected:
            assert torch.equal(ours[mask], expected[mask])


def test_both_layouts_of_root_and_nothing_is_written(tmp_path):
    real_data("planetoid", "Cora")
    source = Path(real_data("planetoid", "Cora")) / "planetoid" / "Cora"
    before = sorted(path.name for path in source.iterdir())
    graphs = [PlanetoidDataModule(root=str(root)).load() for root in (source.parents[1], source.parent, source)]
    assert len({graph.edge_index.size(1) for graph in graphs}) == 1
    assert sorted(path.name for path in source.iterdir()) == before


@pytest.mark.parametrize("k, sizes", [(10, (2485, 10138)), (5, (2485, 10138))])
def test_largest_component_of_cora(k, sizes):
    module = PlanetoidDataModule(
        root=real_data("planetoid", "Cora"), num_clients=k, partition="metis", largest_component=True,
        normalize_features=True, split="random_20_40_40",
    )  # fmt: skip
    module.setup()
    assert (module.data.num_nodes, module.data.edge_index.size(1)) == sizes
    assert (module.num_train_samples, module.num_val_samples, module.num_test_samples) == (497, 994, 994)
    assert len(module.report()["dropped_rows"]) == 2708 - 2485
    torch.testing.assert_close(module.data.x.to_dense().sum(1), torch.ones(2485))
    raw = module.load()
    assert torch.equal(module.data.y, raw.y[module.data.node_id])


def test_missing_files_are_named_with_their_place(tmp_path):
    folder = tmp_path / "Cora" / "raw"
    folder.mkdir(parents=True)
    (folder / "ind.cora.x").write_bytes(b"")
    with pytest.raises(ValueError) as error:
        PlanetoidDataModule(root=str(tmp_path)).setup()
    text = str(error.value)
    assert "`data.init_args.root`" in text and str(folder) in text and "no network in this test" in text
    assert "ind.cora.allx" in text and "ind.cora.test.index" in text and "ind.cora.x," not in text
    with pytest.raises(ValueError, match="amazon_electronics_photo.npz.*Photo/raw"):
        AmazonDataModule(root=str(tmp_path)).prepare_data()
    with pytest.raises(ValueError, match="ms_academic_cs.npz.*CS/raw"):
        CoauthorDataModule(root=str(tmp_path / "absent")).setup()
    assert not (tmp_path / "absent").exists()


def test_download_is_complete_or_absent(tmp_path, monkeypatch):
    import io

    fetched = []

    def serve(url, timeout):
        fetched.append((url, timeout))
        return io.BytesIO(b"content")

    monkeypatch.setattr(urllib.request, "urlopen", serve)
    module = AmazonDataModule(root=str(tmp_path), name="Photo")
    module.prepare_data()
    assert (tmp_path / "Photo/raw/amazon_electronics_photo.npz").read_bytes() == b"content"
    assert [path.name for path in (tmp_path / "Photo/raw").iterdir()] == ["amazon_electronics_photo.npz"]
    module.prepare_data()
    assert len(fetched) == 1 and fetched[0][0].endswith("/amazon_electronics_photo.npz") and fetched[0][1] <= 30


class Harmful:
    def __reduce__(self):
        return (Path.touch, (Path("harm"),))


def test_a_tampered_planetoid_file_runs_nothing(tmp_path, monkeypatch):
    source = Path(real_data("planetoid", "Cora")) / "planetoid" / "Cora" / "raw"
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "ind.cora.graph").write_bytes(pickle.dumps(Harmful()))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="ind.cora.graph` is not a Planetoid file .*Path"):
        read_planetoid(tmp_path, "Cora")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "cls, text",
    [(PlanetoidDataModule, "Cora, CiteSeer, PubMed"), (AmazonDataModule, "Photo"), (CoauthorDataModule, "CS")],
)
def test_unknown_name_lists_the_choices(cls, text):
    with pytest.raises(ValueError, match=f"`data.init_args.name` is 'cora2', but must be one of: {text}"):
        cls(name="cora2")


def test_no_published_split():
    module = AmazonDataModule(root=real_data("amazon", "Photo"), split="public")
    with pytest.raises(ValueError, match="without a published split"):
        module.setup()
