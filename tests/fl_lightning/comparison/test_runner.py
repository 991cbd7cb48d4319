"""Which runs count: by config, and only if nothing failed. Run folders are written by hand; nothing is trained."""

from types import SimpleNamespace

from fake_runs import results, write_run

from fl_lightning.comparison.cell import file_of, finished
from fl_lightning.comparison.plan import Cell
from fl_lightning.comparison.runner import Runner

CELL = Cell({"data": "D"}, "m", 0, {"federation": {"num_rounds": 3}, "data": {"init_args": {"root": "here"}}})


def test_a_run_that_failed_is_never_counted_even_if_it_left_results(tmp_path):
    said = []
    write_run(tmp_path / CELL.path / "cell" / "version_0", results())
    runner = Runner(tmp_path, 1, None, said.append)
    runner._end(CELL, SimpleNamespace(exitcode=-9), 1.0, [], [])
    assert runner.done == {} and "signal 9" in runner.failed[CELL.key] and "1 failed" in said[0]
    file_of(tmp_path, CELL, ".failed.json").write_text('{"reason": "why"}')
    assert finished(tmp_path, CELL) is None  # the next start tries it again
    runner._end(CELL, SimpleNamespace(exitcode=1), 1.0, [], [])
    assert runner.done == {} and runner.failed == {CELL.key: "why"}
    file_of(tmp_path, CELL, ".failed.json").unlink()
    assert finished(tmp_path, CELL) is not None


def test_a_run_of_an_older_config_is_not_taken_for_this_one(tmp_path):
    write_run(tmp_path / CELL.path / "cell" / "version_0", results())
    changed = Cell(CELL.setting, CELL.method, CELL.seed, {**CELL.config, "federation": {"num_rounds": 4}})
    moved = Cell(CELL.setting, CELL.method, CELL.seed, {**CELL.config, "data": {"init_args": {"root": "there"}}})
    assert finished(tmp_path, CELL) is not None and finished(tmp_path, moved) is not None
    assert finished(tmp_path, changed) is None
    assert finished(tmp_path, Cell(CELL.setting, CELL.method, CELL.seed, CELL.config, central=True)) is None
