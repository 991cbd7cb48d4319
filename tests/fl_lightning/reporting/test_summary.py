"""Tables from runs whose scores are known: pairing, direction, joining, what is undefined; CSV, Markdown, LaTeX, HTML."""

import csv
import io
import re

import pytest
from fake_runs import make
from scipy import stats

from fl_lightning.reporting import formats
from fl_lightning.reporting.page import table as html_table
from fl_lightning.reporting.summary import summarise_runs

FED, LOCAL, CENTRAL = [0.8, 0.84, 0.83], [0.6, 0.7, 0.65], [0.9, 0.91, 0.88]


def study(tmp_path, mode="max", partitions=None, setting=None, tag=""):
    partitions = partitions or ["p0", "p1", "p2"]
    runs = []
    for seed in range(3):
        common = {
            "setting": setting or {"data": f"D{tag}"},
            "seed": seed,
            "mode": mode,
            "metric": "accuracy" if mode == "max" else "rmse",
        }
        runs += [
            make(tmp_path, "Central", strategy="Central", glob=CENTRAL[seed], per_client=(0.9, 0.92), partition=None, **common),
            make(tmp_path, "Fed", glob=FED[seed], per_client=(0.7 + seed / 100, 0.9), partition=f"p{seed}", **common),
            make(
                tmp_path, "Alone", strategy="LocalOnly", glob=None, each=[LOCAL[seed] - 0.1, LOCAL[seed] + 0.1],
                per_client=(0.6, 0.95), partition=partitions[seed], **common,
            ),
        ]  # fmt: skip
    return runs


def test_main_table_by_hand(tmp_path):
    fed, alone, central = summarise_runs(study(tmp_path)).table
    assert [r["method"] for r in (fed, alone, central)] == ["Fed", "Alone", "Central"]  # baselines last
    assert fed["mean"] == pytest.approx(sum(FED) / 3) and fed["difference"] is None and fed["reference"] == "Fed"
    assert alone["mean"] == pytest.approx(sum(LOCAL) / 3)  # the mean over the clients' models on the server's data
    wanted = stats.ttest_rel(LOCAL, FED).confidence_interval(0.95)
    assert (alone["difference low"], alone["difference high"]) == pytest.approx((wanted.low, wanted.high))
    assert alone["pairs"] == central["pairs"] == 3  # central records no partition: the seed is enough
    assert fed["worst client"] == pytest.approx((0.7 + 0.71 + 0.72) / 3) and alone["worst client"] == pytest.approx(0.6)
    assert (fed["MB up"], fed["MB down"], fed["seconds"], fed["score on"]) == (1.0, 2.0, 2.0, "global")


def test_another_partition_is_not_paired_and_that_is_said(tmp_path):
    summary = summarise_runs(study(tmp_path, partitions=["p0", "p1", "other"]))
    alone = summary.table[1]
    assert alone["pairs"] == 2 and alone["seeds"] == 3
    assert alone["difference"] == pytest.approx(((LOCAL[0] - FED[0]) + (LOCAL[1] - FED[1])) / 2)
    assert summary.notes == ["D: Alone: 1 seed(s) have another partition than Fed; not paired."]


def test_all_pairs_and_which_is_clearly_better(tmp_path):
    rows = {(r["method"], r["minus"]): r for r in summarise_runs(study(tmp_path)).differences}
    assert set(rows) == {("Fed", "Alone"), ("Fed", "Central"), ("Alone", "Central")}
    assert rows["Fed", "Alone"]["clearly better"] == "Fed" and rows["Alone", "Central"]["clearly better"] == "Central"
    lower = {(r["method"], r["minus"]): r for r in summarise_runs(study(tmp_path / "rmse", mode="min")).differences}
    assert lower["Fed", "Alone"]["difference"] == pytest.approx(rows["Fed", "Alone"]["difference"])
    assert lower["Fed", "Alone"]["clearly better"] == "Alone"


@pytest.mark.parametrize(("mode", "sign"), [("max", 1), ("min", -1)])
def test_should_i_join(tmp_path, mode, sign):
    summary = summarise_runs(study(tmp_path, mode))
    own, server = summary.joining
    assert own["tested on"] == "own data" and server["tested on"] == "server's data" and own["clients x seeds"] == 6
    gains = [[sign * (0.7 + s / 100 - 0.6), sign * (0.9 - 0.95)] for s in range(3)]
    assert own["mean gain"] == pytest.approx(sum(map(sum, gains)) / 6) and own["of them better off"] == 3
    assert own["worst gain"] == pytest.approx(min(map(min, gains)))
    assert server["mean gain"] == pytest.approx(sign * (sum(FED) - sum(LOCAL)) / 3)
    assert server["verdict"] == ("join" if sign == 1 else "stay alone")
    # Every seed draws other clients here, so that each is listed by seed, without an interval.
    rows = [r for r in summary.clients if r["tested on"] == "own data"]
    assert [(r["seed"], r["client"]) for r in rows] == [(str(s), c) for s in range(3) for c in range(2)]
    assert rows[0] | {"local": 0.6, "federated": 0.7, "central": 0.9, "verdict": "one run: no interval"} == rows[0]
    assert rows[1]["gain"] == pytest.approx(-0.05 * sign)


def test_the_same_clients_under_every_seed_get_one_row_each(tmp_path):
    runs = [make(tmp_path, "Fed", s, partition="same", per_client=(0.7 + s / 100, 0.8)) for s in range(3)]
    runs += [
        make(tmp_path, "Alone", s, partition="same", strategy="LocalOnly", glob=None, per_client=(0.6, 0.8 + s / 10))
        for s in range(3)
    ]
    rows = summarise_runs(runs).clients
    assert [(r["seed"], r["client"], r["verdict"]) for r in rows] == [("all", 0, "join"), ("all", 1, "no clear difference")]
    wanted = stats.t.interval(0.95, 2, loc=0.11, scale=stats.sem([0.1, 0.11, 0.12]))
    assert (rows[0]["low"], rows[0]["high"]) == pytest.approx(wanted) and rows[0]["gain"] == pytest.approx(0.11)


def test_score_is_the_clients_mean_where_one_method_has_no_global_model(tmp_path):
    runs = [
        make(tmp_path, "FED-PUB", 0, strategy="FedPub", glob=None),
        make(tmp_path, "FedAvg", 0, glob=0.99, per_client=(0.2, 0.4)),
    ]
    rows = summarise_runs(runs).table
    assert {r["score on"] for r in rows} == {"clients"} and [r["mean"] for r in rows] == pytest.approx([0.8, 0.3])
    assert rows[0]["sd"] is None  # one seed


def test_undefined_scores_are_left_out_and_counted(tmp_path):
    runs = [make(tmp_path, "A", s, glob=None, per_client=(None, None) if s == 1 else (0.5, 0.5)) for s in range(3)]
    summary = summarise_runs(runs)
    assert summary.table[0]["seeds"] == 2 and summary.table[0]["mean"] == 0.5
    assert summary.notes == ["A: the score is undefined in 1 of 3 runs; left out."]


def test_a_mean_that_leaves_clients_out_is_said_to(tmp_path):
    runs = [make(tmp_path, "A", s, per_client=(0.5, None, 0.7) if s else (0.5, 0.6, 0.7)) for s in range(3)]
    (note,) = summarise_runs(runs).notes
    assert note.startswith("A: the client mean leaves some clients out in 2 of 3 runs: their score is undefined")


def test_a_method_without_validation_data_is_said_to_be_tested_at_its_last_round(tmp_path):
    """FedChem's clients have no validation molecules: LocalOnly has nothing to choose its round by."""
    runs = [make(tmp_path, "A", 0), make(tmp_path, "Alone", 0, strategy="LocalOnly", glob=None, each=[0.5, 0.6], val=None)]
    (note,) = summarise_runs(runs).notes
    assert note.startswith("Alone: no validation score, so that the last round was tested and not the best")


def test_a_missing_seed_is_said(tmp_path):
    summary = summarise_runs([make(tmp_path, "A", 0), make(tmp_path, "A", 1), make(tmp_path, "B", 1)])
    assert summary.notes == ["all runs: not every method has every seed; compare by the paired differences, not the means."]


def test_csv_has_every_digit_and_html_the_same_cells(tmp_path):
    rows = summarise_runs(study(tmp_path)).table
    back = list(csv.DictReader(io.StringIO(formats.to_csv(rows))))
    assert float(back[1]["difference low"]) == rows[1]["difference low"] and back[0]["difference"] == ""
    cells = re.findall(r'data-value="([^"]*)"', html_table(rows, "t"))
    assert cells == [v for row in back for v in row.values()]


def test_names_cannot_break_out(tmp_path):
    name = 'A<script>&"|_%'
    summary = summarise_runs([make(tmp_path, "x", 0)])
    summary.table[0]["method"] = summary.groups[0].setting["data"] = name
    assert "<script>" not in html_table(summary.table, "t") and "A&lt;script&gt;&amp;&quot;" in html_table(summary.table, "t")
    assert "\\|" in formats.to_markdown(*formats.paper_rows(summary.groups, summary.table))
    assert r"A<script>\&" in formats.to_latex(summary.groups, summary.table, "a_b") and r"\caption{a\_b}" in formats.to_latex(
        summary.groups, summary.table, "a_b"
    )


def test_markdown_and_latex_rows(tmp_path):
    runs = study(tmp_path) + [make(tmp_path, "Worse", s, {"data": "D"}, glob=0.5, partition=f"p{s}") for s in range(3)]
    summary = summarise_runs(runs)
    text = formats.to_markdown(*formats.paper_rows(summary.groups, summary.table))
    assert "| D | Fed | accuracy (global) | 0.8233 ± 0.0208 |  |" in text and "minus Fed (paired)" in text
    tex = formats.to_latex(summary.groups, summary.table, "T")
    assert r"\textbf{0.8233 $\pm$ 0.0208}" in tex and tex.count(r"\textbf") == 1  # Central is higher, but a baseline
    assert tex.count("&") == (len(summary.table) + 1) * 9 and r"\bottomrule" in tex
