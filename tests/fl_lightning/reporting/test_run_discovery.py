"""``report``: runs found in folders, with labels from a comparison or from what differs between them."""

import csv
import json
import os

import pytest
from fake_runs import results, write_run

from fl_lightning.comparison.commands import main
from fl_lightning.reporting.run_discovery import find_runs


def config(strategy="fl_lightning.strategies.FedAvg", objective=None, rounds=3, **data):
    model = {"class_path": "lit_models.LitNodeClassifier", "init_args": {"objective": objective and {"class_path": objective}}}
    arguments = {"name": "Cora", "root": "x", "seed": 0, **data}
    return {
        "federation": strategy and {"num_rounds": rounds, "strategy": {"class_path": strategy}},
        "trainer": {"max_epochs": 1, "max_steps": -1}, "model": model,
        "data": {"class_path": "datamodules.PlanetoidDataModule", "init_args": arguments},
    }  # fmt: skip


def test_settings_are_what_differs_and_methods_have_their_objective(tmp_path):
    write_run(tmp_path / "a", results(), config=config(num_clients=3))
    write_run(tmp_path / "b", results(seed=1), config=config(num_clients=3, seed=1, root="elsewhere"))
    write_run(tmp_path / "c", results(), config=config(num_clients=5))
    write_run(tmp_path / "d", results(), config=config(num_clients=5, objective="lit_models.objectives.FedProx"))
    write_run(tmp_path / "e", results("Central"), config=config(None, num_clients=5))
    runs, problems = find_runs([tmp_path])
    assert problems == []
    assert {(r.folder.name, r.method, r.seed, tuple(r.setting.items())) for r in runs} == {
        ("a", "FedAvg", 0, (("num_clients", "3"),)), ("b", "FedAvg", 1, (("num_clients", "3"),)),
        ("c", "FedAvg", 0, (("num_clients", "5"),)), ("d", "FedAvg FedProx", 0, (("num_clients", "5"),)),
        ("e", "Central", 0, (("num_clients", "5"),)),
    }  # fmt: skip


def test_central_runs_belong_to_every_number_of_rounds_and_what_follows_from_the_data_is_no_setting(tmp_path):
    cora = {"num_clients": 3, "partition": "louvain"}
    write_run(tmp_path / "a", results(), config=config(rounds=3, **cora))
    write_run(tmp_path / "b", results(), config=config(rounds=9, **cora))
    write_run(tmp_path / "central", results("Central"), config=config(None, **cora))
    other = config(rounds=3, name="molecules", partition="scaffold_lda")
    other["trainer"]["max_steps"] = 200
    write_run(tmp_path / "c", results(), config=other)
    runs, problems = find_runs([tmp_path])
    assert problems == []
    assert {(r.folder.name, tuple(r.setting.values())) for r in runs} == {
        ("a", ("Cora", "3")), ("b", ("Cora", "9")), ("central", ("Cora", "3")), ("central", ("Cora", "9")),
        ("c", ("molecules", "3")),
    }  # fmt: skip
    assert {tuple(r.setting) for r in runs} == {("data", "rounds")}
    fixed = {r.folder.name: r.fixed for r in runs}
    assert fixed["a"] == {"num_clients": "3", "partition": "louvain", "epochs": "1"}  # steps: -1 is no limit
    assert fixed["c"] == {"partition": "scaffold_lda", "epochs": "1", "steps": "200"}


def test_a_central_run_alone_has_its_own_setting(tmp_path):
    write_run(tmp_path / "a", results(), config=config(num_clients=3))
    write_run(tmp_path / "b", results("Central"), config=config(None, num_clients=5))
    assert {(r.method, r.setting["num_clients"]) for r in find_runs([tmp_path])[0]} == {("FedAvg", "3"), ("Central", "5")}


def test_runs_without_config_have_their_strategy(tmp_path):
    write_run(tmp_path / "x" / "version_0", results("FedPub"))
    (run,), problems = find_runs([tmp_path / "x" / "version_0"])
    assert (run.method, run.setting, problems) == ("FedPub", {}, [])


def test_a_repeated_run_counts_once_and_that_is_said(tmp_path):
    old = write_run(tmp_path / "version_0", results(glob=0.1), config=config())
    write_run(tmp_path / "version_1", results(glob=0.9), config=config())
    os.utime(old / "results.json", (1, 1))
    (run,), (problem,) = find_runs([tmp_path])
    assert run.on_global == 0.9 and "version_0` left out" in problem
    write_run(tmp_path / "other", results(name="half"), config=config())  # a name tells them apart
    assert {r.method for r in find_runs([tmp_path])[0]} == {"FedAvg (fedavg)", "FedAvg (half)"}


def test_a_comparisons_labels_win_and_its_unchosen_trials_are_left_out(tmp_path):
    write_run(tmp_path / "runs" / "m" / "a", results())
    write_run(tmp_path / "runs" / "m" / "trials" / "t", results(glob=1.0))
    listed = [{"folder": "runs/m/a", "setting": {"alpha": "0.1"}, "method": "tuned", "seed": 4, "data": "runs/m/a.data.json"}]
    (tmp_path / "comparison.json").write_text(json.dumps({"runs": listed}))
    for place in (tmp_path, tmp_path / "runs" / "m"):
        (run,), _ = find_runs([place])
        assert (run.method, run.seed, run.setting) == ("tuned", 4, {"alpha": "0.1"})


def test_report_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, content in (("fed", results()), ("alone", results("LocalOnly", glob=None, each=[0.5, 0.6]))):
        write_run(tmp_path / "runs" / name / "version_0", content, "p", [(0.5, 0.4)], config())
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "results.json").write_text('{"strategy": "FedAvg"}')
    assert main(["report", "--glob", "runs/*", "--out", "out", "--title", "Mine & yours"]) == 0
    said = capsys.readouterr().out
    assert "broken/results.json` is not that of a run" in said and "out/report.html" in said
    with open("out/table.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(r["method"], r["mean"]) for r in rows] == [("FedAvg", "0.8"), ("LocalOnly", "0.55")]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<h1>Mine &amp; yours</h1>" in page and "broken/results.json" in page
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {"table.md", "table.tex", "clients.csv", "joining.csv", "figures"}
    assert main(["report", str(tmp_path / "runs" / "fed"), "--out", "one"]) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "Name run folders"),
        (["nowhere"], "`nowhere` does not exist"),
        (["--glob", "none/*"], "matches nothing"),
        (["."], "no finished run is in it"),
        ([".", "--scores"], "Unknown option `--scores`"),
    ],
)
def test_report_mistakes(tmp_path, monkeypatch, arguments, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=text):
        main(["report", *arguments])


def test_runs_that_have_not_finished_and_broken_files_are_named(tmp_path):
    write_run(tmp_path / "good", results())
    half = write_run(tmp_path / "half", results(), curve=[(0.1, 0.1)])
    (half / "results.json").unlink()
    for name, text in (("cut", '{"strategy": '), ("number", "3"), ("list", "[]"), ("old", '{"val": 1, "test": {}}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(text)
    write_run(tmp_path / "config", results())
    (tmp_path / "config" / "config.yaml").write_text("a: [1")
    (tmp_path / "notes.txt").write_text("x")
    (run,), problems = find_runs([tmp_path, tmp_path / "notes.txt"])
    assert run.folder.name == "good"
    for text in (
        "half` has no results.json: the run has not finished", "cut/results.json` is no JSON", "it holds int",
        "list/results.json` is not that of a run: it holds list", "strategy, seed, metric, mode, val missing or wrong",
        "config/config.yaml` is not YAML", "notes.txt` is a file; name the run's folder",
    ):  # fmt: skip
        assert sum(text in p for p in problems) == 1, (text, problems)
    assert len(problems) == 7


def comparison(folder, method="m", **more):
    """A comparison with one run."""
    write_run(folder / "runs" / "a", results(glob=more.pop("glob", 0.8)))
    run = {"folder": "runs/a", "setting": {}, "method": method, "seed": 0, "data": "runs/a.data.json"}
    (folder / "comparison.json").write_text(json.dumps({"runs": [run], **more}))
    return folder


def test_a_comparisons_order_reference_score_and_trials_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = []
    for method in ("Second in the alphabet", "First", "Fed"):
        write_run(tmp_path / "c" / "runs" / method, results(per_client=(0.1, 0.3)))
        runs.append({"folder": f"runs/{method}", "setting": {}, "method": method, "seed": 0, "data": "x"})
    trials = [{"method": "First", "values": "lr 1", "validation": 0.5, "state": "finished", "chosen": "yes"}]
    manifest = {"runs": runs, "score": "clients", "reference": "Fed", "trials": trials}
    (tmp_path / "c" / "comparison.json").write_text(json.dumps(manifest))
    assert main(["report", "c", "--out", "out"]) == 0
    with open("out/table.csv") as file:
        rows = list(csv.DictReader(file))
    assert [r["method"] for r in rows] == ["Second in the alphabet", "First", "Fed"]
    assert {r["reference"] for r in rows} == {"Fed"} and {r["score on"] for r in rows} == {"clients"}
    assert "lr 1" in (tmp_path / "out" / "trials.csv").read_text()
    main(["report", "c", "--out", "out", "--reference", "First", "--score", "global"])
    with open("out/table.csv") as file:
        assert {(r["reference"], r["mean"]) for r in csv.DictReader(file)} == {("First", "0.8")}


def test_failures_of_a_comparison_are_not_forgotten_by_report(tmp_path):
    lines = {"failed": ["FAILED: x | seed 0: why"], "left": ["not finished (budget): y | seed 1"]}
    (run,), problems = find_runs([comparison(tmp_path / "c", **lines)])
    assert run.method == "m" and problems == lines["failed"] + lines["left"]


def test_the_same_run_of_two_comparisons_counts_once_and_that_is_said(tmp_path):
    older, newer = comparison(tmp_path / "a", glob=0.1), comparison(tmp_path / "b", glob=0.9)
    os.utime(older / "runs" / "a" / "results.json", (1, 1))
    (run,), (problem,) = find_runs([newer, older])
    assert run.on_global == 0.9 and "a/runs/a` left out" in problem


def test_a_foreign_comparison_json_is_named(tmp_path):
    comparison(tmp_path)
    (tmp_path / "comparison.json").write_text('{"runs": [{"folder": "x"}]}')
    runs, (problem,) = find_runs([tmp_path])
    assert runs == [] and "is not that of a comparison" in problem


def test_reference_that_no_run_has_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "r", results())
    with pytest.raises(ValueError, match="`--reference Fedavg` is no method of these runs; there are FedAvg"):
        main(["report", "r", "--reference", "Fedavg"])


def test_a_new_report_leaves_nothing_of_an_older_one_and_nothing_else_is_touched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "fed", results(), "p", [(0.5, 0.4)])
    write_run(tmp_path / "alone", results("LocalOnly", glob=None, each=[0.5, 0.6]))
    main(["report", "fed", "alone", "--out", "out"])
    (tmp_path / "out" / "mine.csv").write_text("x")
    (tmp_path / "out" / "figures" / "mine.svg").write_text("x")
    assert (tmp_path / "out" / "joining.csv").is_file() and (tmp_path / "out" / "figures" / "rounds_all_runs.svg").is_file()
    main(["report", "alone", "--out", "out"])
    left = {p.name for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert not {"joining.csv", "clients.csv", "differences.csv", "rounds_all_runs.svg", "partition_all_runs.svg"} & left
    assert {"mine.csv", "mine.svg", "table.csv", "report.html"} <= left


def test_two_data_sets_with_different_metrics_in_one_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, metric, mode in (("ESOL", "rmse", "min"), ("BACE", "auroc", "max")):
        write_run(tmp_path / name, results(metric=metric, mode=mode), "p", [(0.5, 0.4)], config(name=name))
    main(["report", "--glob", "*", "--out", "out"])
    with open("out/table.csv") as file:
        rows = {r["data"]: (r["metric"], r["better"], r["difference"]) for r in csv.DictReader(file)}
    assert rows == {"ESOL": ("rmse", "lower", ""), "BACE": ("auroc", "higher", "")}
    assert {p.name for p in (tmp_path / "out" / "figures").glob("bars_*")} == {"bars_rmse.svg", "bars_auroc.svg"}
    # Without a config nothing but the metric tells them apart: no figure may replace the other's.
    for name in ("ESOL", "BACE"):
        (tmp_path / name / "config.yaml").unlink()
    main(["report", "ESOL", "BACE", "--out", "out"])
    assert {p.name for p in (tmp_path / "out" / "figures").glob("rounds_*")} == {"rounds_all_runs.svg", "rounds_all_runs_2.svg"}
