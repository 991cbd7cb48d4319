"""Searches on validation data, over run folders written by hand: what is proposed, stopped, chosen; nothing is trained."""

import json
from types import SimpleNamespace

import pytest
from fake_runs import results, write_run

pytest.importorskip("optuna", reason="the extra `search` is not installed")

from fl_lightning.comparison.cell import file_of, finished
from fl_lightning.comparison.plan import Cell, Search
from fl_lightning.comparison.search import Study, search_all, trial_table, validation_curve

X = "model.init_args.x"
CELL = Cell({"data": "D"}, "m", 0, {"model": {"init_args": {"x": 0}}})


class Results:
    """Stands for the runner: ``curve(x)`` are the validation scores of a trial; the run is finished unless stopped."""

    def __init__(self, out, curve, mode="max", fails=()):
        self.out, self.curve, self.mode, self.fails = out, curve, mode, fails
        self.done, self.left, self.pruned, self.waves = {}, [], set(), []

    def run(self, cells, prune):
        self.waves.append([c.trial[X] if c.trial else None for c in cells])
        for cell in cells:
            if cell.trial is None or cell.trial[X] in self.fails:
                continue
            scores = self.curve(cell.trial[X])
            folder = self.out / cell.path / "cell" / "version_0"
            if not folder.exists():
                best = max(scores) if self.mode == "max" else min(scores)
                content = results(val=best, mode=self.mode, glob=-1.0)
                content["test"] = "not to be read"
                write_run(folder, content, curve=[(s, None) for s in scores])
                file_of(self.out, cell, ".monitor.json").write_text(json.dumps({"metric": "accuracy", "mode": self.mode}))
            self.done[cell.key] = folder


def search(**options):
    return Search(
        CELL, **{"space": {X: [1, 2, 3, 4, 5]}, "sampler": "grid", "trials": 5, "batch": 2, "prune": False, **options}
    )


def rising(x):
    return [0.1 * x + 0.01 * r for r in range(5)]


def test_grid_tries_every_combination_once_in_batches_and_chooses_by_validation(tmp_path):
    runner = Results(tmp_path, lambda x: [0.9 - abs(x - 4) / 10])
    (study,), chosen = search_all([search()], runner, [])
    assert runner.waves == [[1, 2], [3, 4], [5]]
    assert chosen[CELL.key].trial == {X: 4} and chosen[CELL.key].config["model"]["init_args"]["x"] == 4
    rows = trial_table([study], chosen)
    assert [r["chosen"] for r in rows] == ["", "", "", "yes", ""] and rows[3]["validation"] == 0.9 and "test" not in rows[3]


def test_lower_is_better_for_errors(tmp_path):
    _, chosen = search_all([search()], Results(tmp_path, lambda x: [abs(x - 2.2)], mode="min"), [])
    assert chosen[CELL.key].trial == {X: 2}


def test_the_first_of_equal_ones_is_chosen(tmp_path):
    _, chosen = search_all([search()], Results(tmp_path, lambda x: [0.5]), [])
    assert chosen[CELL.key].trial == {X: 1}


def test_pruning_stops_what_is_below_the_median_of_earlier_batches_whatever_the_process_did(tmp_path):
    runner = Results(tmp_path, lambda x: rising(-x))  # the first batch is the best
    (study,), chosen = search_all([search(prune=True, warm_up=1)], runner, [])
    assert [r["state"] for r in study.rows] == ["finished", "finished", "stopped", "stopped", "stopped"]
    assert chosen[CELL.key].trial == {X: 1}
    better = Results(tmp_path / "up", rising)
    (study,), chosen = search_all([search(prune=True, warm_up=1)], better, [])
    assert {r["state"] for r in study.rows} == {"finished"} and chosen[CELL.key].trial == {X: 5}


def test_a_running_trial_is_stopped_at_the_first_round_behind(tmp_path):
    study = Study(search(prune=True, warm_up=2), tmp_path)
    runner = Results(tmp_path, rising)
    runner.run(study.next_batch(), {})
    study.tell(runner)
    cell = study.next_batch()[0]
    stop = study.prune()[cell.key]
    assert stop(cell) is False  # nothing there yet
    folder = write_run(tmp_path / cell.path / "cell" / "version_0", results(), curve=[(0.0, None)] * 2)
    (folder / "results.json").unlink()
    file_of(tmp_path, cell, ".monitor.json").write_text('{"metric": "accuracy", "mode": "max"}')
    assert stop(cell) is False  # warming up
    with (folder / "metrics.csv").open("a") as file:
        file.write("2,0.0,,1,1\n3,0.")  # the last line is still being written
    assert validation_curve(tmp_path, cell) == [0.0, 0.0, 0.0]
    assert stop(cell) is True and stop(cell) is True


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_search_repeated_proposes_the_same_and_finds_its_runs(tmp_path, sampler):
    wanted = search(sampler=sampler, trials=12, batch=4, space={X: {"low": 1e-3, "high": 10.0, "log": True}})
    first, second = Results(tmp_path, lambda x: [1 / (1 + abs(x - 1))]), Results(tmp_path, lambda x: [1 / (1 + abs(x - 1))])
    _, chosen = search_all([wanted], first, [])
    _, again = search_all([wanted], second, [])
    assert first.waves == second.waves and len(first.waves) == 3 and chosen[CELL.key].key == again[CELL.key].key
    assert len({x for wave in first.waves for x in wave}) == 12
    other = Results(tmp_path / "other", lambda x: [1.0])
    search_all([Search(**{**vars(wanted), "cell": Cell(CELL.setting, "m", 1, CELL.config)})], other, [])
    assert other.waves[0] != first.waves[0]  # another seed, other proposals


def test_tpe_learns(tmp_path):
    wanted = search(sampler="tpe", trials=40, batch=4, space={X: {"low": 0.0, "high": 10.0}})
    runner = Results(tmp_path, lambda x: [-((x - 7) ** 2)])
    search_all([wanted], runner, [])
    late = [x for wave in runner.waves[5:] for x in wave]
    assert sum(abs(x - 7) for x in late) / len(late) < 1.5  # at random it would be 2.9


def test_a_failed_trial_is_no_choice_and_an_unfinished_search_chooses_nothing(tmp_path):
    runner = Results(tmp_path, rising, fails=(5,))
    (study,), chosen = search_all([search()], runner, [])
    assert chosen[CELL.key].trial == {X: 4} and study.rows[-1]["state"] == "failed"
    short = Results(tmp_path / "short", rising)
    whole = short.run
    short.run = lambda cells, prune: whole(cells[:1], prune) or short.left.extend(cells[1:])
    _, chosen = search_all([search()], short, [])
    assert chosen == {} and short.waves == [[1]]


def test_fixed_cells_run_in_the_first_wave_by_seed(tmp_path):
    fixed = [Cell({}, "f", 1, {}), Cell({}, "f", 0, {})]
    runner = SimpleNamespace(out=tmp_path, waves=[], done={}, left=[])
    runner.run = lambda cells, prune: runner.waves.append([(c.method, c.seed) for c in cells])
    search_all([search(trials=5)], runner, fixed)
    assert runner.waves[0] == [("f", 0), ("m", 0), ("m", 0), ("f", 1)] and len(runner.waves) == 3


def test_test_scores_of_trials_are_never_opened(tmp_path):
    """``Results`` writes a text where the test scores belong: whoever read them would fail."""
    (study,), chosen = search_all([search()], Results(tmp_path, rising), [])
    assert json.loads((finished(tmp_path, chosen[CELL.key]) / "results.json").read_text())["test"] == "not to be read"


def test_without_optuna_the_error_says_what_to_install(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r"pip install 'fl-lightning\[search\]'"):
        Study(search(), tmp_path)
