"""A report is written over an older report, and over nothing else; its page says at once what was found."""

import re

import pytest
from fake_runs import make, results, write_run

from fl_lightning.comparison.commands import main
from fl_lightning.reporting import formats
from fl_lightning.reporting.drawing import Figure
from fl_lightning.reporting.page import page
from fl_lightning.reporting.report import write_report


def test_files_that_no_report_has_written_are_not_overwritten(tmp_path):
    run = write_run(tmp_path / "run", results())
    out = tmp_path / "mine"
    out.mkdir()
    (out / "clients.csv").write_text("our clients")
    with pytest.raises(ValueError, match=r"`--out .*mine` holds `clients.csv`, but no report.*Name another folder"):
        main(["report", str(run), "--out", str(out)])
    assert [p.name for p in out.iterdir()] == ["clients.csv"] and (out / "clients.csv").read_text() == "our clients"
    for _ in range(2):  # the second time over the first
        assert main(["report", str(run), "--out", str(tmp_path / "report")]) == 0
    assert (tmp_path / "report" / "report.html").is_file()


def main_table(text):
    table = re.search(r'<table id="table0">.*?</table>', text, re.S)[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.S)
    return [re.findall(r">([^<]*)</t[hd]>", row) for row in rows]


def test_the_pages_table_has_scores_in_percent_and_says_once_what_is_the_same_everywhere(tmp_path):
    runs = [make(tmp_path, m, s, glob=0.8 + s / 100 + 0.05 * (m == "B"), partition="p") for m in "AB" for s in (0, 1)]
    write_report(tmp_path / "out", "T", runs)
    text = (tmp_path / "out" / "report.html").read_text()
    # sd of .80 and .81 is .00707; client mean .8 and worst .7 are the same for both, as are metric, MB, seconds and seeds
    assert main_table(text) == [
        ["method", "score", "minus A (paired)"], ["A", "80.5 ± 0.7", ""], ["B", "85.5 ± 0.7", "+5.0 [+5.0, +5.0]"],
    ]  # fmt: skip
    assert "In all rows: metric accuracy, % (global), client mean 80.0, worst client 70.0, MB 3, s 2, seeds 2." in text
    assert "0.805" in (tmp_path / "out" / "table.csv").read_text() and "0.8050" in (tmp_path / "out" / "table.md").read_text()
    assert text.count('<figure class="whole">') == 1 and "prefers-color-scheme: dark" in text


def test_errors_and_areas_keep_their_own_unit(tmp_path):
    write_report(tmp_path / "out", "T", [make(tmp_path, m, 0, metric="rmse", mode="min", glob=0.5) for m in "AB"])
    assert "rmse (global)" in (tmp_path / "out" / "report.html").read_text() and not formats.is_share("auroc")


def test_a_figure_that_is_alone_takes_the_whole_width():
    drawn = [Figure(f"rounds_{i}", "c", "<svg/>") for i in range(2)]
    one, two = (page("T", [], [], [("R", "", [{"a": 1}])], drawn[:n]) for n in (1, 2))
    assert one.count('class="whole"') == 1 and two.count('class="whole"') == 0


def test_constant_columns_by_hand():
    rows = [{"a": 1, "b": 0.5, "c": None, "d": ""}, {"a": 2, "b": 0.5, "c": None, "d": ""}]
    assert formats.without_constants(rows) == ([{"a": 1}, {"a": 2}], "In all rows: b 0.5000.")
    assert formats.without_constants(rows[:1]) == (rows[:1], "")  # one row: nothing can be told to be the same
    assert formats.without_constants([rows[0], rows[0]]) == ([rows[0], rows[0]], "")


def test_the_caption_has_what_all_runs_share(tmp_path, capsys):
    for name, strategy in (("a", "FedAvg"), ("b", "LocalOnly")):
        config = {"data": {"class_path": "datamodules.X", "init_args": {"name": "Cora", "partition": "louvain", "root": "r"}},
                  "trainer": {"max_epochs": 2, "max_steps": -1}, "federation": {"num_rounds": 3}}  # fmt: skip
        write_run(tmp_path / name, results(strategy), config=config)
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "report")]) == 0
    assert "<p>Cora: partition louvain, rounds 3, epochs 2.</p>" in (tmp_path / "report" / "report.html").read_text()
