"""Progress: a bar in a terminal, a line a round elsewhere if asked for; and counted from 1."""

import re

import pytest
from federations import CPU, clients, federate

from fl_lightning import FederatedTrainer
from fl_lightning.reporting.progress import Progress
from fl_lightning.reporting.tables import score_lines


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [({}, 0), ({"progress": True}, 2), ({"progress": False}, 0), ({"trainer": {"enable_progress_bar": True}}, 2),
     ({"trainer": {"enable_progress_bar": True}, "progress": False}, 0)],
)  # fmt: skip
def test_a_line_a_round_where_there_is_no_terminal(tmp_path, capsys, arguments, lines):
    quiet = {k: v for k, v in CPU.items() if k != "enable_progress_bar"}
    trainer = {**quiet, "logger": False, "default_root_dir": str(tmp_path), **arguments.get("trainer", {})}
    fed = FederatedTrainer(**{"num_rounds": 2, "seed": 0, **arguments, "trainer": trainer})
    from federations import Linear

    fed.fit(Linear(), clients((8, 9)))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == lines
    for number, line in enumerate(said, start=1):
        assert re.fullmatch(rf"round {number} of 2: loss \d+\.\d{{4}}", line)


def test_a_resumed_run_and_phases_count_on(capsys):
    with Progress(True).steps("generators", "generators: step", 2, 4) as done:
        done(None)
        done("error 0.1")
    assert capsys.readouterr().err == "generators: step 3 of 4\ngenerators: step 4 of 4: error 0.1\n"


def test_a_bar_in_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress(True).steps("rounds", "round", 0, 1) as done:
        done("loss 0.5")
    err = capsys.readouterr().err
    assert "rounds: 100%" in err and "loss 0.5" in err and "round 1 of 1" not in err


def test_rounds_are_counted_as_people_count(tmp_path):
    fed = federate(tmp_path, num_rounds=3)
    assert fed.results["best_round"] == 2  # files count from 0
    assert score_lines(fed.results)[0] == "FedAvg: best round 3 of 3 (by validation)"
    central = {**fed.results, "strategy": "Central", "best_round": 0}
    assert score_lines(central)[0] == "Central: best epoch 1 of 3 (by validation)"
    undefined = {**fed.results, "val": {**fed.results["val"], "global": None, "mean": None}}
    assert score_lines(undefined)[0] == "FedAvg: round 3 of 3, the last (no validation score to choose by)"
