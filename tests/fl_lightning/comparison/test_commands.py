"""``compare`` whole, on a tiny graph: failures, killing and going on, budget, search, the page in a browser, report."""

import csv
import fcntl
import html.parser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fl_lightning.commands import main as program
from fl_lightning.comparison.commands import main

ROOT = Path(__file__).resolve().parents[3]
BASE = """
federation:
  num_rounds: 24
  strategy: {class_path: fl_lightning.strategies.FedAvg, init_args: {weighting: num_samples}}
trainer: {max_epochs: 1, accelerator: cpu}
model:
  class_path: lit_models.LitNodeClassifier
  init_args:
    encoder: {class_path: lit_models.GraphSAGE, init_args: {hidden_channels: 8}}
    optimizer: {class_path: torch.optim.Adam, init_args: {lr: 0.02}}
data:
  class_path: datamodules.SyntheticCitationDataModule
  init_args: {num_nodes: 150, num_classes: 3, num_features: 40, blocks_per_class: 2, num_clients: 3, partition: louvain}
"""
STUDY = """
base: base.yaml
methods:
  FedAvg: {}
  Refused: {federation.min_clients: 9}
  Dying: {federation.strategy: {class_path: dying.Dies}}
seeds: [0, 1]
"""
SOUND = "\n".join(line for line in STUDY.splitlines() if not line.startswith(("  Refused", "  Dying")))
NOT_REPEATABLE = ("seconds",)


def rows(path, without=NOT_REPEATABLE):
    with path.open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in without} for row in csv.DictReader(file)]


def write(folder, study=STUDY):
    folder.mkdir(exist_ok=True)
    (folder / "base.yaml").write_text(BASE)
    (folder / "study.yaml").write_text(study)
    return str(folder / "study.yaml")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted comparison in which two methods fail: (exit code, its folder)."""
    folder = tmp_path_factory.mktemp("whole")
    code = main(["compare", "--config", write(folder), "--out", str(folder / "out"), "--workers", "2"])
    return code, folder / "out"


def test_failures_leave_the_rest_and_are_listed(whole):
    code, out = whole
    assert code == 1
    table = rows(out / "table.csv")
    assert [(r["method"], r["seeds"]) for r in table] == [("FedAvg", "2"), ("LocalOnly", "2"), ("Central", "2")]
    assert all(0 < float(r["mean"]) <= 1 for r in table) and table[1]["pairs"] == table[2]["pairs"] == "2"
    failed = json.loads((out / "comparison.json").read_text())["failed"]
    assert len(failed) == 4
    assert sum("Refused" in f and "`federation.min_clients` = 9" in f for f in failed) == 2
    assert sum("Dying" in f and "ended with signal 9" in f for f in failed) == 2
    for name in ("table.md", "report.html"):
        assert (out / name).read_text().count("FAILED: Dying") == 2


def test_scores_are_those_of_fit(whole, tmp_path, monkeypatch):
    """A cell's config, run by hand, gives the same bits: worker processes add nothing."""
    (config,) = (whole[1] / "runs" / "all" / "FedAvg").glob("seed_1_*/cell.yaml")
    monkeypatch.setattr(sys, "argv", ["fl-lightning"])
    program(["fit", "--config", str(config), "--trainer.default_root_dir", str(tmp_path)])
    (found,) = tmp_path.rglob("results.json")
    run = next(r for r in rows(whole[1] / "runs.csv") if (r["method"], r["seed"]) == ("FedAvg", "1"))
    assert json.loads(found.read_text())["test"]["global"] == float(run["global"])


def test_one_folder_a_run_and_nothing_else(whole):
    out = whole[1]
    assert {p.name for p in (out / "runs" / "all").iterdir()} == {"FedAvg", "LocalOnly", "Central", "Refused", "Dying"}
    for method in ("FedAvg", "LocalOnly", "Central"):
        folders = list((out / "runs" / "all" / method).iterdir())
        assert len(folders) == 2 and all(len(list(f.rglob("results.json"))) == 1 for f in folders)


@pytest.mark.slow
def test_killed_midway_and_started_again_gives_the_same_table(whole, tmp_path):
    config, out = write(tmp_path, SOUND), tmp_path / "out"
    command = [sys.executable, "-m", "fl_lightning", "compare", "--config", config, "--out", str(out), "--workers", "1"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "fl_lightning"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL, cwd=tmp_path)
    try:
        wait_for(lambda: list(out.glob("runs/all/FedAvg/seed_0_*/cell/version_0/checkpoints/round_00003")), process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (cell,) = out.glob("runs/all/FedAvg/seed_0_*")
    with (cell / "cell.lock").open() as lock:  # its worker, orphaned, ends by itself
        fcntl.flock(lock, fcntl.LOCK_EX)
    (run,) = (cell / "cell").iterdir()
    done = sorted(p.name for p in (run / "checkpoints").iterdir() if p.name.startswith("round_"))[-1]
    assert done < "round_00023" and not (run / "results.json").exists() and not (out / "table.csv").exists()
    assert main(["compare", "--config", config, "--out", str(out), "--workers", "2"]) == 0
    assert [p.name for p in (cell / "cell").iterdir()] == ["version_0"]  # it went on, not anew
    for name in ("table.csv", "clients.csv", "differences.csv", "joining.csv"):
        assert rows(out / name) == rows(whole[1] / name), name
    assert rows(out / "runs.csv", ("seconds", "MB memory")) == rows(whole[1] / "runs.csv", ("seconds", "MB memory"))


def wait_for(condition, process, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)


def test_finished_cells_are_not_run_again_and_a_changed_one_is(whole, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(whole[1], out)
    study = SOUND.replace("FedAvg: {}", "FedAvg: {}\n  Short: {federation.num_rounds: 2}")
    before = {p: p.stat().st_mtime_ns for p in out.rglob("results.json")}
    assert main(["compare", "--config", write(tmp_path, study), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert re.findall(r"^\[\d/8\] (\w+)", said, re.MULTILINE) == ["Short", "Short"]
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert [r["method"] for r in rows(out / "table.csv")] == ["FedAvg", "Short", "LocalOnly", "Central"]


def test_budget_stops_and_the_exit_code_says_that_it_is_incomplete(tmp_path, capsys):
    out = tmp_path / "out"
    command = ["compare", "--config", write(tmp_path), "--out", str(out), "--budget_minutes", "1e-9"]
    assert main(command) == 3
    said = capsys.readouterr().out
    assert "The budget has ended" in said and "not finished (budget): FedAvg | seed 0" in said and "... and 5 more" in said
    assert not (out / "runs").exists() and len(json.loads((out / "comparison.json").read_text())["left"]) == 10


def test_without_a_finished_run_an_older_table_is_no_longer_there(tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("table.csv", "report.html"):
        (out / name).write_text("of another YAML")
    assert main(["compare", "--config", write(tmp_path), "--out", str(out), "--budget_minutes", "1e-9"]) == 3
    assert not (out / "table.csv").exists() and "No run has finished: there is no table." in capsys.readouterr().out


def test_two_comparisons_in_one_folder_are_refused(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="Another `compare` is running in"):
            main(["compare", "--config", write(tmp_path), "--out", str(out)])


def test_search_reads_the_test_score_of_the_chosen_trial_only(tmp_path, capsys):
    pytest.importorskip("optuna", reason="the extra `search` is not installed")
    study = """
base: base.yaml
changes: {federation.num_rounds: 3}
methods:
  Tuned: {search: {space: {model.init_args.optimizer.init_args.lr: [1.0e-5, 0.03]}, sampler: grid, prune: false}}
baselines: []
"""
    out = tmp_path / "out"
    command = ["compare", "--config", write(tmp_path, study), "--out", str(out)]
    assert main(command) == 0
    trials = {r["values"]: r for r in rows(out / "trials.csv")}
    best = max(trials.values(), key=lambda r: float(r["validation"]))
    assert [r["chosen"] for r in trials.values()].count("yes") == 1 and best["chosen"] == "yes"
    (row,) = rows(out / "table.csv")
    files = {p: json.loads(p.read_text()) for p in out.rglob("results.json")}
    (chosen,) = [r for r in files.values() if r["val"]["global"] == float(best["validation"])]
    assert float(row["mean"]) == chosen["test"]["global"] and row["method"] == "Tuned" and len(files) == 2
    for path, content in files.items():
        if content is not chosen:
            path.write_text(json.dumps({**content, "test": "nobody reads this", "last": None}))
    capsys.readouterr()
    assert main(command) == 0 and rows(out / "table.csv") == [row]  # nothing is trained again
    assert not re.search(r"^\[", capsys.readouterr().out, re.MULTILINE)
    assert main(["report", str(out), "--out", str(tmp_path / "report")]) == 0
    assert rows(tmp_path / "report" / "table.csv") == [row]


def test_report_of_a_comparison_is_the_same_table(whole, tmp_path):
    assert main(["report", str(whole[1]), "--out", str(tmp_path)]) == 0
    for name in ("table.csv", "clients.csv", "differences.csv", "runs.csv"):
        assert rows(tmp_path / name) == rows(whole[1] / name)


def test_list_runs_nothing_and_names_every_cell(tmp_path, capsys):
    assert main(["compare", "--config", write(tmp_path), "--list", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "FedAvg | seed 0" and lines[-1] == "10 cells and 0 searches (profile default)"
    assert not (tmp_path / "out").exists()


def test_exit_codes_and_messages_of_the_program(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for arguments, text in (
        (["compare", "--config", "none.yaml"], "`none.yaml` cannot be read"),
        (["compare", "--config", write(tmp_path), "--workers", "0"], "`--workers` must be at least 1"),
        (["compare", "--config", write(tmp_path), "--budget_minutes", "0"], "`--budget_minutes` must be a positive number"),
        (["compare", "--config", write(tmp_path), "--seeds", "0", "0"], "`seeds` must be a list of different whole numbers"),
        (["report", "nowhere"], "`nowhere` does not exist"),
    ):
        assert program(arguments) == 1 and text in capsys.readouterr().err


class Cells(html.parser.HTMLParser):
    """Header and cells (exact value, text) of the first table."""

    def __init__(self, text):
        super().__init__()
        self.header, self.cells, self._in, self.tables = [], [], None, 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tables += tag == "table"
        if self.tables == 1 and tag in ("th", "td"):
            self._in = tag
            (self.header if tag == "th" else self.cells).append("" if tag == "th" else (dict(attrs)["data-value"], ""))

    def handle_data(self, data):
        if self._in == "th":
            self.header[-1] += data
        elif self._in == "td":
            self.cells[-1] = (self.cells[-1][0], self.cells[-1][1] + data)

    def handle_endtag(self, tag):
        self._in = None if tag in ("th", "td") else self._in


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_the_page_opens_in_a_browser_without_network_or_errors_and_its_table_is_the_csv(whole, tmp_path):
    page = whole[1] / "report.html"
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", "--dump-dom",
            f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={tmp_path / 'net.json'}", "--virtual-time-budget=2000",
            "--disable-background-networking", "--disable-component-update", "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND", page.resolve().as_uri(),
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr, done.stderr
    asked = set(re.findall(r'"url":"((?:https?|wss?|ftp):[^"]*)"', (tmp_path / "net.json").read_text()))
    assert not {url for url in asked if "google" not in url and "gvt1" not in url}, asked  # the browser's own calls go nowhere
    shown = Cells(done.stdout)
    with (whole[1] / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {"method", "score"} <= set(shown.header)
    texts = [text for _, text in shown.cells]
    width = len(shown.header)
    table = [dict(zip(shown.header, texts[i : i + width], strict=True)) for i in range(0, len(texts), width)]
    assert [row["method"] for row in table] == [row["method"] for row in rows]
    for row, exact in zip(table, rows, strict=True):
        assert float(row["score"].split(" ")[0]) == pytest.approx(100 * float(exact["mean"]), abs=0.051)  # percent
    assert done.stdout.count("<img ") == len(list((whole[1] / "figures").iterdir())) >= 5


def test_the_page_names_no_address(whole):
    text = (whole[1] / "report.html").read_text()
    outside = re.sub(r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]+", "", text)
    assert not re.search(r"https?://|//[a-z]|<script|<link(?! rel=\"icon\" href=\"data:,\")|@import|url\(", outside)
