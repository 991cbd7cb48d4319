"""predictions.csv of one's own data: original ids in the original order, rows left out with the reason, which model."""

import csv
import json
import sys

import pytest
import torch

from datamodules import GraphCSVDataModule, MoleculeCSVDataModule
from fl_lightning.commands import main
from fl_lightning.reporting.predictions import SERVERS, write_apart, write_predictions

GRAPH = """
federation: {num_rounds: 1}
trainer: {accelerator: cpu}
model:
  class_path: lit_models.LitNodeClassifier
  init_args: {encoder: {class_path: lit_models.GraphSAGE, init_args: {hidden_channels: 4}}}
data:
  class_path: datamodules.GraphCSVDataModule
  init_args: {root: ., client_column: shop}
"""
MOLECULES = """
federation: {num_rounds: 1}
trainer: {accelerator: cpu, max_steps: 1}
model:
  class_path: lit_models.LitMoleculePredictor
  init_args: {encoder: {class_path: lit_models.GCNMolecule, init_args: {hidden_channels: 4, num_layers: 1}}}
data:
  class_path: datamodules.MoleculeCSVDataModule
  init_args: {files: sites, id_column: code, cache_dir: null, featurise_workers: 0}
"""


def own_config(folder):
    """Two rounds of one molecule client."""
    text = MOLECULES.replace("num_rounds: 1", "num_rounds: 2").replace("files: sites", "files: sites, num_clients: 1")
    (folder / "own.yaml").write_text(text)
    return "own.yaml"


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fl-lightning"])

    def call(config, *options, new=()):
        (tmp_path / "own.yaml").write_text(config)
        main(["fit", "--config", "own.yaml", *options])
        main(["predict", "--config", "own.yaml", *options, *new])
        name = f"predictions_{new[1].split('.')[0]}.csv" if new else "predictions.csv"
        return rows_of(tmp_path / "runs" / "own" / "version_0" / name)

    return call


def test_without_a_validation_sample_the_last_round_predicts(run, tmp_path):
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "a.csv").write_text("code,smiles,y\n1,CC,1\n2,CCC,2\n3,CCCC,3\n")
    rows = run(MOLECULES, "--data.init_args.fractions", "[1.0, 0.0, 0.0]", "--data.init_args.num_clients", "1")
    assert [row["id"] for row in rows] == ["1", "2", "3"] and all(row["prediction_y"] for row in rows)


@pytest.mark.parametrize("federation", [(), ("--federation", "null")])
@pytest.mark.parametrize("held_out", [0.25, 0.0])
def test_a_metric_that_is_nowhere_defined_stops_nothing(run, tmp_path, federation, held_out):
    """Labels of one class only: ROC-AUC is undefined in each part, and the last round (or epoch) is the best one."""
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "a.csv").write_text("code,smiles,toxic\n" + "".join(f"{i},{'C' * i},1\n" for i in range(1, 9)))
    fractions = f"[{1 - 2 * held_out}, {held_out}, {held_out}]"
    main(["fit", "--config", own_config(tmp_path), *federation, "--data.init_args.fractions", fractions])
    main(["predict", "--config", "own.yaml", *federation, "--data.init_args.fractions", fractions])
    run_dir = tmp_path / "runs" / ("own_central" if federation else "own") / "version_0"
    results = json.loads((run_dir / "results.json").read_text())
    assert results["metric"] == "auroc" and results["val"]["global"] is None and results["test"]["global"] is None
    assert results["best_round"] == results["rounds_run"] - 1
    assert all(row["probability_toxic"] for row in rows_of(run_dir / "predictions.csv"))


def test_nodes_by_the_global_model(run, tmp_path):
    ids = ["x 9", "b", "é", *(f"n{i}" for i in range(20, 2, -1))]
    lines = [f"{name},{i / 4},{'yes' if i % 2 else 'no'},{'north' if i % 3 else 'south'}" for i, name in enumerate(ids)]
    lines.insert(1, "broken,one,no,north")
    (tmp_path / "nodes.csv").write_text("id,f,label,shop\n" + "\n".join(lines), encoding="utf-8")
    links = "".join(f"{a},{b}\n" for a, b in zip(ids, ids[1:], strict=False)) + "?,b c\n"  # neither end is a node
    (tmp_path / "edges.csv").write_text("source,target\n" + links, encoding="utf-8")
    rows = run(GRAPH, "--data.init_args.unknown_ids", "drop")  # rows of links are none of `predictions.csv`
    assert [r["id"] for r in rows] == [ids[0], "broken", *ids[1:]]
    assert list(rows[0]) == ["id", "client", "model", "prediction", "probability_no", "probability_yes", "reason"]
    broken = rows.pop(1)
    assert broken["reason"] == "feature 'f': 'one' is not a number" and broken["probability_no"] == broken["model"] == ""
    for i, row in enumerate(rows):
        assert row["client"] == ("north" if i % 3 else "south") and row["model"] == "global" and row["reason"] == ""
        no, yes = float(row["probability_no"]), float(row["probability_yes"])
        assert row["prediction"] == ("yes" if yes > no else "no") and no + yes == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("strategy", ["FedAvg", "LocalOnly"])
def test_molecules_by_the_global_model_or_the_clients_own(run, tmp_path, strategy):
    (tmp_path / "sites").mkdir()
    for site in ("beta", "alpha"):
        rows = "".join(f"{site[0]}{i},{'C' * i}O,{i / 2}\n" for i in range(1, 11))
        (tmp_path / "sites" / f"{site}.csv").write_text("code,smiles,logS\n" + rows + f"{site[0]}x,C1CC,3\n")
    rows = run(MOLECULES, "--federation.strategy", f"fl_lightning.strategies.{strategy}", "--data.init_args.client_holdout=0.5")
    assert [r["id"] for r in rows] == [f"{s}{i}" for s in "ab" for i in (*range(1, 11), "x")]  # files by name, rows as written
    assert list(rows[0]) == ["id", "client", "model", "prediction_logS", "reason"]
    left_out = [r for r in rows if r["id"] in ("ax", "bx")]
    assert all(r["reason"].startswith("invalid SMILES") and r["prediction_logS"] == "" for r in left_out)
    held = [r for r in rows if r["prediction_logS"]]
    assert [r["client"] for r in rows] == ["alpha"] * 11 + ["beta"] * 11  # whose rows these are, also of those left out
    if strategy == "FedAvg":
        assert len(held) == 20 and {r["model"] for r in held} == {"global"}
        return
    assert all(r["model"] == f"client {r['client']}" for r in held) and {r["client"] for r in held} == {"alpha", "beta"}
    rest = [r for r in rows if not r["prediction_logS"] and r not in left_out]
    assert len(held) + len(rest) == 20 and {r["reason"] for r in rest} == {SERVERS}  # its validation and test part


@pytest.mark.parametrize("strategy", ["FedAvg", "LocalOnly"])
def test_molecules_that_nobody_has_measured(run, tmp_path, capsys, strategy):
    """``predict_files``: the trained model meets a new table, without labels and clients."""
    (tmp_path / "sites").mkdir()
    for site in ("beta", "alpha"):
        rows = "".join(f"{site[0]}{i},{'C' * i}O,{i / 2}\n" for i in range(1, 11))
        (tmp_path / "sites" / f"{site}.csv").write_text("code,smiles,logS\n" + rows)
    (tmp_path / "new.csv").write_text("smiles;code\nCCN;n1\nno;n2\nCCCCO;n3\n")
    options = ("--federation.strategy", f"fl_lightning.strategies.{strategy}", "--data.init_args.client_holdout=0.5",
               "--data.init_args.normalize_labels=true")  # fmt: skip
    rows = run(MOLECULES, *options, new=("--data.init_args.predict_files", "new.csv"))
    assert "predictions_new.csv\n1 of 3 rows was left out: see `reason` there" in capsys.readouterr().out
    models = ["global"] if strategy == "FedAvg" else ["client alpha", "client beta"]
    assert [(r["id"], r["model"]) for r in rows] == [
        *(("n1", m) for m in models), ("n2", ""), *(("n3", m) for m in models)]  # fmt: skip
    assert {r["client"] for r in rows} == {""} and rows[len(models)]["reason"].startswith("invalid SMILES")
    main(["predict", "--config", "own.yaml", *options])  # the same molecule in the sites' tables has the same value
    known = {(r["id"], r["model"]): r for r in rows_of("runs/own/version_0/predictions.csv")}
    for row in rows[-len(models) :]:
        same = [known[name, row["model"]] for name in ("a4", "b4") if (name, row["model"]) in known]
        assert all(float(r["prediction_logS"]) == pytest.approx(float(row["prediction_logS"]), rel=1e-4) for r in same)
        assert same or strategy == "LocalOnly"


@pytest.mark.parametrize("strategy", ["FedAvg", "LocalOnly"])
def test_nodes_of_another_graph(run, tmp_path, strategy):
    """``predict_root``: the trained model meets a new graph, without labels and clients."""
    for place, size in ((tmp_path, 24), (tmp_path / "new", 3)):
        place.mkdir(exist_ok=True)
        more = [f",{'ab'[i % 2]},{('north', 'south')[i % 3 > 0]}" if size > 3 else "" for i in range(size)]
        rows = [f"v{i},{i % 5 if size > 3 or i != 1 else 'x'}{more[i]}\n" for i in range(size)]
        (place / "nodes.csv").write_text("id,f" + ",label,shop" * (size > 3) + "\n" + "".join(rows))
        (place / "edges.csv").write_text("source,target\n" + "".join(f"v{i},v{i - 1}\n" for i in range(1, size)))
    rows = run(GRAPH, "--federation.strategy", f"fl_lightning.strategies.{strategy}",
               new=("--data.init_args.predict_root", "new"))  # fmt: skip
    models = ["global"] if strategy == "FedAvg" else ["client north", "client south"]
    assert [(r["id"], r["model"]) for r in rows] == [*(("v0", m) for m in models), ("v1", ""), *(("v2", m) for m in models)]
    assert {r["client"] for r in rows} == {""} and "'x' is not a number" in rows[len(models)]["reason"]
    assert all(r["prediction"] in ("a", "b") for r in rows if not r["reason"])


OWN = """
from federations import Central, Linear, clients

class Own(Linear):
    def predict_step(self, batch, batch_idx):
        return self(batch[0])

class Trained(Central):
    def __init__(self):
        super().__init__(*clients((6, 8)))

class Asked(Trained):
    predict_dataloader = Central.val_dataloader

class Nothing(Trained):
    def predict_dataloader(self):
        return []
"""


@pytest.mark.parametrize("federation", [(), ("--federation", "null")])
def test_nothing_to_predict_on_is_an_error_and_no_file(tmp_path, monkeypatch, capsys, federation):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"own_data_{len(federation)}"
    (tmp_path / f"{name}.py").write_text(OWN)
    data = "data: {class_path: NAME.Trained}\n".replace("NAME", name)
    (tmp_path / "own.yaml").write_text("federation: {num_rounds: 1}\ntrainer: {accelerator: cpu, logger: false}\n"
                                       f"model: {{class_path: {name}.Own}}\n{data}")  # fmt: skip
    assert main(["fit", "--config", "own.yaml", *federation]) == 0
    (folder,) = tmp_path.glob("runs/*/version_0")
    for kind, said in (("Trained", " no `predict_dataloader`. Write `"), ("Nothing", "the loaders of `predict_data")):
        capsys.readouterr()
        more = ("--federation.force", "true") if not federation else federation
        assert main(["predict", "--config", "own.yaml", "--data", f"{name}.{kind}", *more]) == 1
        assert said in capsys.readouterr().err and not (folder / "predictions.csv").exists()
    assert main(["predict", "--config", "own.yaml", "--data", f"{name}.Asked", *more]) == 0
    assert len(rows_of(folder / "predictions.csv")) == 16


def test_every_output_meets_its_id(tmp_path):
    lines = "".join(f"m{i},{'C' * (i + 1)},{i % 2},\n" for i in range(10))
    (tmp_path / "m.csv").write_text("name,smiles,toxic,mutagen\n" + lines)
    data = MoleculeCSVDataModule(files=str(tmp_path / "m.csv"), id_column="name", targets=["toxic", "mutagen"],
                                 task="classification", num_clients=1, cache_dir=None)  # fmt: skip
    data.setup()
    order = torch.tensor([3, 1, 0, 2, 9, 8, 7, 5, 4, 6])  # whatever order batches come in
    values = torch.stack([order / 10, order / 100], dim=1)
    batches = [{"sample_id": order[:4], "predictions": values[:4]}, {"sample_id": order[4:], "predictions": values[4:]}]
    rows = rows_of(write_predictions(tmp_path / "p.csv", {None: batches}, data))
    assert [r["id"] for r in rows] == [f"m{i}" for i in range(10)]
    assert [float(r["probability_toxic"]) for r in rows] == pytest.approx([i / 10 for i in range(10)])
    assert [float(r["probability_mutagen"]) for r in rows] == pytest.approx([i / 100 for i in range(10)])


def test_a_client_without_a_node_has_no_prediction(tmp_path):
    batch = {"node_id": torch.tensor([1]), "probabilities": torch.tensor([[0.9, 0.1]]), "depth": torch.tensor([2.0])}
    nothing = {name: value[:0] for name, value in batch.items()}
    rows = rows_of(write_predictions(tmp_path / "p.csv", {0: [nothing], 1: [batch]}, object()))
    assert [(r["id"], r["model"], r["probability_0"], r["depth_0"]) for r in rows] == [("1", "client 1", "0.9", "2")]


def test_nodes_outside_the_largest_component_are_there_with_the_reason(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,f,label\na,1,x\nb,2,y\nc,3,x\n")
    (tmp_path / "edges.csv").write_text("source,target\na,c\n")
    data = GraphCSVDataModule(root=str(tmp_path), num_clients=1, largest_component=True)
    data.setup()
    batch = {"node_id": data.data.node_id, "probabilities": torch.tensor([[0.9, 0.1], [0.2, 0.8]])}
    rows = rows_of(write_predictions(tmp_path / "p.csv", {None: [batch]}, data))
    assert [(r["id"], r["prediction"], r["reason"]) for r in rows] == [
        ("a", "x", ""), ("b", "", "outside the largest connected component"), ("c", "y", "")]  # fmt: skip


@pytest.mark.parametrize("own", ["folder", "column"])
def test_nodes_that_cannot_be_used_keep_their_client(tmp_path, own):
    rows = [("a", 1, "x", "north"), ("b", "?", "y", "north"), ("c", 3, "x", "south"), ("c", 4, "y", "south"), ("d", 5, "y", "")]
    for name in ("north", "south") if own == "folder" else ("",):
        (tmp_path / name).mkdir(exist_ok=True)
        kept = [",".join(map(str, row)) for row in rows if name in ("", row[3])]
        (tmp_path / name / "nodes.csv").write_text("\n".join(["id,f,label,shop", *kept]))
        (tmp_path / name / "edges.csv").write_text("source,target\n")
    data = GraphCSVDataModule(root=str(tmp_path), features=["f"], client_column="shop" if own == "column" else None)
    data.setup()
    batch = {"node_id": data.data.node_id, "depth": torch.zeros(int(data.data.num_nodes))}
    written = rows_of(write_predictions(tmp_path / "p.csv", {None: [batch]}, data))
    found = [(row["id"], row["client"], bool(row["reason"])) for row in written]
    assert found[:4] == [("a", "north", False), ("b", "north", True), ("c", "south", False), ("c", "south", True)]
    assert found[4:] == ([("d", "", False)] if own == "column" else [])


def test_other_predictions_are_never_overwritten(tmp_path):
    path = tmp_path / "predictions_new.csv"
    assert write_apart(path, lambda draft: draft.write_text("first")) == path
    second = write_apart(path, lambda draft: draft.write_text("second"))
    assert (second.name, path.read_text(), second.read_text()) == ("predictions_new_2.csv", "first", "second")
    assert write_apart(path, lambda draft: draft.write_text("second")) == second  # the same again is no third
    assert write_apart(path, lambda draft: draft.write_text("first")) == path
    assert sorted(p.name for p in tmp_path.iterdir()) == ["predictions_new.csv", "predictions_new_2.csv"]


@pytest.mark.parametrize("federation", [(), ("--federation", "null")])
def test_fit_ends_with_the_number_of_rows_left_out_and_stops_where_they_are_most(tmp_path, monkeypatch, capsys, federation):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()

    def fit(good, bad, *options):
        rows = [f"g{i},{'C' * i}O,{i / 2}\n" for i in range(1, good + 1)] + [f"b{i},C(,1\n" for i in range(bad)]
        (tmp_path / "sites" / "a.csv").write_text("code,smiles,logS\n" + "".join(rows))
        code = main(["fit", "--config", own_config(tmp_path), "--federation.num_rounds=1", *options, *federation])
        return (code, *capsys.readouterr())

    code, out, err = fit(10, 2)
    assert code == 0 and "2 of 12 rows were left out: see `dropped_rows` in results.json" in out and "left out" not in err
    code, _, err = fit(8, 10)
    assert code == 1 and "10 of 18 rows of the data cannot be used" in err and "10 x invalid SMILES" in err
    assert "10 of 18 rows were left out" in fit(8, 10, "--federation.max_dropped_share", "1.0")[1]
