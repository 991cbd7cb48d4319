"""The first process of a run writes and reports, the others do not."""

import pytest
from lightning.pytorch.utilities import rank_zero_only

from fl_lightning.reporting.progress import Progress
from fl_lightning.reporting.rank import first_rank


@pytest.mark.parametrize(("rank", "text"), [(0, "round 1 of 1: 0.5\n"), (1, "")])
def test_rank_zero_alone_reports(rank, text, monkeypatch, capsys):
    monkeypatch.setattr(rank_zero_only, "rank", rank)
    assert first_rank() == (rank == 0)
    with Progress(shown=True).steps("rounds", "round", 0, 1) as done:
        done("0.5")
    assert capsys.readouterr().err == text
