"""A report is written over an older report, and over nothing else."""

import pytest
from fake_runs import results, write_run

from fl_lightning.comparison.commands import main


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
