"""``inspect``: exit codes, one self-contained page, and a forecast that the ledger of a real run confirms."""

import ast
import base64
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from federations import CPU

from datamodules import GraphCSVDataModule, MoleculeCSVDataModule, SyntheticCitationDataModule
from fl_lightning import FedAvg, FederatedTrainer
from fl_lightning.cli import STRICT_HELP
from fl_lightning.commands import main
from fl_lightning.reporting.clients import client_columns
from fl_lightning.reporting.forecast import forecast, readable
from fl_lightning.reporting.inspection import REMARKS, inspect_data
from fl_lightning.settings import FederationSettings
from fl_lightning.strategies import FedPub, FedSagePlus, LocalOnly
from lit_models import GCNMolecule, GraphSAGE, LitMoleculePredictor, LitNeighGen, LitNodeClassifier, MaskedGCN


class Tags(HTMLParser):
    """Collects tags and attributes, and fails on a tag that is not closed."""

    void = {"meta", "link", "img", "br"}

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read_page(path):
    tags = Tags()
    tags.feed(path.read_text(encoding="utf-8"))
    assert tags.open == []
    return tags


def check_self_contained(tags):
    assert "script" not in tags.tags and "iframe" not in tags.tags
    links = [value for name, value in tags.attributes if name in ("src", "href", "data", "action", "srcset")]
    assert links and all(value.startswith("data:") for value in links)
    for value in links:
        if value.startswith("data:image/svg+xml;base64,"):
            svg = base64.b64decode(value.split(",")[1]).decode()
            ElementTree.fromstring(svg)
            assert not re.search(r"(href|src)=\"(?!#|data:)", svg) and "<script" not in svg


def drawings(tags):
    return [base64.b64decode(v.split(",")[1]).decode() for n, v in tags.attributes if n == "src" and "svg" in v]


def pictures(tags):
    return [value.split(":")[0][:40] for name, value in tags.attributes if name == "alt"]


def test_the_page_of_a_graph(tmp_path):
    data = SyntheticCitationDataModule(num_nodes=150, num_classes=3, num_features=40, blocks_per_class=2, num_clients=3)
    said = []
    found = inspect_data(data, False, str(tmp_path / "p.html"), said.append, LitNodeClassifier(GraphSAGE(hidden_channels=4)),
                         FederationSettings(num_rounds=2, strategy=FedAvg()), "a graph <of mine>")  # fmt: skip
    tags = read_page(tmp_path / "p.html")
    check_self_contained(tags)
    assert not any("mathdefault" in drawn for drawn in drawings(tags))  # matplotlib notes each text beside its path
    assert [p.split()[0] for p in pictures(tags)] == ["Share", "Edges", "Forecast"]
    text = " ".join(tags.text)
    assert "a graph <of mine>" in text and all(f["message"] in text and f["remedy"] in text for f in found)
    assert any(line.startswith("forecast: parameters") for line in said)
    assert "forecast: Not counted: the plain values in messages, and the memory that a training step itself takes." in said


def test_the_page_of_molecules_of_several_sites(tmp_path):
    for site, start in (("north", 1), ("south", 3)):
        rows = "".join(f"{'C' * i}{'O' if i % 2 else '<'},{i}\n" for i in range(start, start + 12))
        (tmp_path / f"{site}.csv").write_text("smiles,y [nM]\n" + rows)
    data = MoleculeCSVDataModule(files=[str(tmp_path / f"{s}.csv") for s in ("north", "south")], cache_dir=None)
    inspect_data(data, False, str(tmp_path / "p.html"), lambda line: None, LitMoleculePredictor(GCNMolecule(hidden_channels=4)),
                 FederationSettings(num_rounds=2, strategy=FedAvg()))  # fmt: skip
    tags = read_page(tmp_path / "p.html")
    check_self_contained(tags)
    assert [p.split()[0] for p in pictures(tags)] == ["Mean", "How", "Molecules", "Forecast"]
    text = " ".join(tags.text)
    assert "north" in text and "CC<" in text and "invalid SMILES" in text and "mol/L" not in text and "nM" in text
    shared = data.report()["shared_molecules"]
    assert shared[0][0] == 0 and shared[0][1] == shared[1][0] > 0


@pytest.mark.parametrize(
    ("strategy", "encoder", "options"),
    [
        (FedAvg(), GraphSAGE, {"clients_per_round": 2}),
        (FedAvg(), GraphSAGE, {"check_val_every_n_rounds": 2}),
        (LocalOnly(score_on_global=False), GraphSAGE, {}),
        (LocalOnly(), GraphSAGE, {"num_rounds": 1}),
        (FedAvg(), GraphSAGE, {"num_rounds": 1, "score_each_on_global": True}),
        (FedPub(), MaskedGCN, {}),
    ],
)
def test_the_ledger_confirms_the_forecast(tmp_path, strategy, encoder, options):
    data = SyntheticCitationDataModule(num_nodes=150, num_classes=3, num_features=300, blocks_per_class=2, num_clients=3)
    data.setup()
    module = LitNodeClassifier(encoder(hidden_channels=16))
    options = {"num_rounds": 6, "strategy": strategy, **options}
    told = forecast(module, data, FederationSettings(**options), 0)
    fed = FederatedTrainer(trainer={**CPU, "logger": False, "default_root_dir": str(tmp_path)}, seed=0, **options)
    sent = fed.fit(module, data)["bytes"]
    evaluation = told["bytes_down_per_round"] * 3 / options.get("clients_per_round", 3)  # the best round may be the last
    assert sent["up"] + sent["down"] - 20_000 <= told["bytes_total"] <= sent["up"] + sent["down"] + evaluation
    assert told["parameters"] == sum(p.numel() for p in module.parameters())


SMALL = {"hidden_channels": [8, 4], "embedding_channels": 8}
QUICK = {"pretrain_steps": 1, "draws": 1, "exchange_rounds": 2, "diagnostics": False, "min_batch": 4}


@pytest.mark.parametrize(
    ("options", "within"),
    [
        ({"hide_portion": 0.5}, 0.2),  # so many are missing that everybody asks
        ({"mending": "oracle"}, 0.02),
        ({"exchange_rounds": 0}, 0.02),
        ({"alpha": 0.0}, 0.02),
        ({"counts": "known", "mending": "mean"}, 0.02),
    ],
)
def test_the_ledger_confirms_what_the_phases_of_fedsage_plus_send(tmp_path, options, within):
    data = SyntheticCitationDataModule(num_nodes=120, num_classes=2, num_features=600, blocks_per_class=2, num_clients=3)
    data.setup()
    generator = LitNeighGen(GraphSAGE(hidden_channels=8, num_layers=2), **SMALL)
    options = {**QUICK, **options, "generator": generator}
    module, settings = LitNodeClassifier(GraphSAGE(hidden_channels=16)), {"num_rounds": 1, "strategy": FedSagePlus(**options)}
    told = forecast(module, data, FederationSettings(**settings), 0)
    fed = FederatedTrainer(trainer={**CPU, "logger": False, "default_root_dir": str(tmp_path)}, seed=0, **settings)
    sent = fed.fit(module, data)["bytes"]
    before = sum(sent["by_kind"].get(kind, 0) for kind in ("pretrain", "query", "peer_gradient", "exchange", "mend"))
    assert told["bytes_before_rounds"] == pytest.approx(before, rel=within, abs=3000)
    assert ("at most" in told["note"]) == (options.get("mending") is None)


def test_memory_counts_the_mended_graphs():
    data = SyntheticCitationDataModule(num_nodes=120, num_classes=2, num_features=600, blocks_per_class=2, num_clients=3)
    data.setup()
    module = LitNodeClassifier(GraphSAGE(hidden_channels=4))
    settings = [FederationSettings(num_rounds=1, strategy=FedSagePlus(mending=m)) for m in ("none", "generator")]
    none, some = (forecast(module, data, each, 10) for each in settings)
    assert none["memory_data"] == 10 and some["memory_data"] > 4 * 600 * 120
    assert some["memory_total"] - none["memory_total"] > some["memory_data"] - 10 + some["memory_clients"]


def test_bytes_to_be_read():
    shown = [readable(b) for b in (0, 999, 1000, 123456, 2.5e9, 1e13)]
    assert shown == ["0 B", "999 B", "1 kB", "123 kB", "2.5 GB", "10000 GB"]


def test_what_fit_would_refuse_is_a_finding():
    data = SyntheticCitationDataModule(num_nodes=150, num_classes=3, num_features=40, blocks_per_class=2, num_clients=3)
    module = LitNodeClassifier(GraphSAGE(hidden_channels=4))
    found = inspect_data(data, True, None, lambda line: None, module, FederationSettings(strategy=FedPub()))
    assert found[0]["kind"] == "configuration" and "FedPub" in found[0]["message"]
    assert not list(module.parameters())  # the user's model is as it was
    torch.manual_seed(0)


CONFIG = """
model:
  class_path: lit_models.LitNodeClassifier
  init_args: {encoder: {class_path: lit_models.GraphSAGE, init_args: {hidden_channels: 4}}}
data:
  class_path: datamodules.GraphCSVDataModule
  init_args: {root: ., num_clients: 1, features: [f], seed: 1}
"""


def test_exit_codes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fl-lightning"])
    rows = "".join(f"{i},{i},{'ab'[i % 2]}\n" for i in range(20))
    (tmp_path / "own.yaml").write_text(CONFIG)
    (tmp_path / "nodes.csv").write_text("id,f,label\n" + rows)
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"{i},{(i + 1) % 20}\n" for i in range(20)))

    def code(*options):
        try:
            return main(["inspect", "--config", "own.yaml", *options])
        except SystemExit as end:
            return end.code

    nothing = code("--strict")
    said = capsys.readouterr().out
    assert "no_features" not in said and nothing == (0 if "\n0 finding(s)" in said else 1)
    (tmp_path / "nodes.csv").write_text("id,f,label\n" + rows.replace("0,0,a", "0,1,a"))
    assert code("--strict") == 0 and "0 finding(s)" in capsys.readouterr().out
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"{i},{i}\n" for i in range(20)))
    assert code() == 0 and code("--strict", "--html", "p.html") == 1 and (tmp_path / "p.html").is_file()
    assert code("--html", "nowhere/p.html") == 1 and "`--html nowhere/p.html`: there is no folder" in capsys.readouterr().err
    capsys.readouterr()
    assert code("--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert {f["kind"] for f in report["findings"]} == {"self_loops", "no_edges"} and report["forecast"]["parameters"] > 0
    (tmp_path / "edges.csv").write_text("source,target\n1,nobody\n")
    assert code() == 1 and "`data.init_args.unknown_ids: drop`" in capsys.readouterr().err


def test_strict_fails_on_nothing_that_may_be_meant(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i},{i + 1},{'ab'[i % 2]}\n" for i in range(20))
    (tmp_path / "own.yaml").write_text(CONFIG)
    (tmp_path / "nodes.csv").write_text("id,f,label\n" + rows + "20,9,\n")
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"{i},{(i + 1) % 21}\n" for i in range(21)) + "3,4\n5,5\n")
    assert main(["inspect", "--config", "own.yaml", "--strict"]) == 0
    assert "3 finding(s), 3 of them with nothing to do if meant" in capsys.readouterr().out
    assert main(["inspect", "--config", "own.yaml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {(f["kind"], f["level"]) for f in found} == {
        ("self_loops", "remark"), ("repeated_links", "remark"), ("unlabeled_nodes", "remark")}  # fmt: skip


def test_what_strict_does_not_fail_on_is_listed():
    """In the sources each kind that asks for nothing, in `--help` and in the tutorials the same."""
    root, kinds = Path(__file__).resolve().parents[3], set()
    for path in (root / "datamodules").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                without = node.func.id == "tell_if" and len(node.args) < 4
                if (node.func.id == "remark" or without) and isinstance(node.args[0], ast.Constant):
                    kinds.add(node.args[0].value)
    assert kinds == set(REMARKS) and all(kind in STRICT_HELP for kind in kinds)
    told = "".join((root / "docs" / name).read_text(encoding="utf-8") for name in ("own_graph.md", "own_molecules.md"))
    assert all(f"`{kind}`" in told for kind in kinds)


def test_the_page_and_json_have_all_rows_that_a_finding_speaks_of(tmp_path):
    rows = "".join(f"m{i},{'C' * (i // 2 + 1)}c1ccccc1,{i % 2}\n" for i in range(40))  # each twice, with both classes
    (tmp_path / "m.csv").write_text("code,smiles,toxic\n" + rows)
    data = MoleculeCSVDataModule(files=str(tmp_path / "m.csv"), id_column="code", num_clients=1, cache_dir=None,
                                 fractions=(1.0, 0.0, 0.0))  # fmt: skip
    said = []
    inspect_data(data, False, str(tmp_path / "p.html"), said.append)
    (line,) = [line for line in said if "contradicting labels" in line]
    assert line.startswith("- client 0: 20 molecules have") and "; and 17 more (`inspect --json` and `--html` list all)" in line
    inspect_data(data, True, None, said.append)
    (found,) = [f for f in json.loads(said[-1])["findings"] if f["kind"] == "contradicting_labels"]
    assert [(row["file_row"], row["id"], row["label"]) for row in found["rows"]] == [(i, f"m{i}", i % 2) for i in range(40)]
    text = read_page(tmp_path / "p.html").text
    assert "Rows of contradicting_labels" in text and all(f"m{i}" in text for i in range(40)) and "40 rows." in text


def test_remedies_fit_clients_that_are_given(tmp_path):
    """Nobody can be told to use fewer clients or another partition where the owners are given."""
    for site in ("north", "south"):
        (tmp_path / f"{site}.csv").write_text("smiles,y\n" + "".join(f"{'C' * i}c1ccccc1,{i}\n" for i in range(1, 15)))
    rows = "".join(f"{i},1,{'ab'[i % 2]},{'xyx'[i % 3]}\n" for i in range(30))
    (tmp_path / "nodes.csv").write_text("id,f,label,shop\n" + rows)
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"{i},{i + 1}\n" for i in range(20)))
    sites = MoleculeCSVDataModule(files=[str(tmp_path / f"{s}.csv") for s in ("north", "south")], cache_dir=None)
    shops = GraphCSVDataModule(root=str(tmp_path), client_column="shop")
    for data in (sites, shops):
        found = inspect_data(data, True, None, lambda line: None)
        assert {f["kind"] for f in found} & {"small_client", "lost_edges"}
        assert not any(option in f["remedy"] for f in found for option in ("num_clients", "partition", "alpha", "min_client"))


def test_columns_of_the_table_have_the_names_of_clients_and_classes():
    report = {"num_clients": 2, "num_classes": 2, "client_sizes": [3, 4], "client_names": ["x", "y"], "class_names": ["a", "b"],
              "labels": [[1, 2], [2, 2]], "labels_whole": [3, 4], "client_edges": [5, 6], "findings": []}  # fmt: skip
    assert client_columns(report) == {"client": ["0", "1"], "name": ["x", "y"], "size": [3, 4], "class a": [1, 2],
                                      "class b": [2, 2], "edges": [5, 6]}  # fmt: skip


def test_numbers_of_tasks_are_no_columns_where_there_are_as_many_tasks_as_clients():
    report = {"num_clients": 2, "client_sizes": [3, 4], "label_mean": [7.4, 96.3], "label_std": [1.0, 2.0],
              "task_names": ["a", "b"], "schema": {"label_mean": [7.4, 96.3]},
              "client_samples": {"train": [1, 2], "val": [0, 1]}}  # fmt: skip
    assert client_columns(report) == {"client": ["0", "1"], "size": [3, 4], "train": [1, 2], "val": [0, 1]}
