"""A test that gives no score by the metric that chooses the best model is told once, and in time."""

import lightning as L
import pytest
from federations import CPU, Central, Linear, Table, TrainOnly, clients, federate

from fl_lightning.central import fit_centrally
from fl_lightning.reporting.untested import Untested


class Other(Linear):
    """Tests by another metric than it validates by."""

    def test_step(self, batch, batch_idx):
        self.log("test_mae", (self(batch[0]) - batch[1]).abs().mean())


class NoStep(Linear):
    test_step = L.LightningModule.test_step


SAYS = {
    Other: "`Other.test_step` does not log `loss`, which chooses the best model, but only: mae. Write "
    '`self.log("test_loss", ...)` in it; else the test scores in results.json are null.',
    NoStep: "`model: NoStep` has no `test_step`, so that nothing is tested. Write one that calls "
    '`self.log("test_loss", ...)`; else the test scores in results.json are null.',
}


@pytest.mark.parametrize(
    ("module", "data", "logged", "said"),
    [
        (Other, Table(3, 1), [None, {"mae": 1.0}], True), (Other, Table(3, 1), [{"mae": 1.0}, {"loss": None}], False),
        (Other, Table(3, 1), [], False), (Other, Table(3, 1), [{}], False), (NoStep, Table(3, 1), [None], True),
        (NoStep, TrainOnly(3, 1), [None], False),
    ],
)  # fmt: skip
def test_what_is_said_and_only_once(caplog, module, data, logged, said):
    untested = Untested(module(), "loss", [data])
    untested.tell(logged)
    untested.tell(logged)
    assert caplog.messages == [SAYS[module]] * said


@pytest.mark.parametrize("module", SAYS)
@pytest.mark.parametrize("data", [lambda: clients((6, 8)), lambda: Central(*clients((6, 8)))])
def test_a_run_is_told_before_its_first_round(tmp_path, caplog, monkeypatch, module, data):
    seen = []
    monkeypatch.setattr(module, "on_round_start", lambda self, *of: seen.append(list(caplog.messages)), raising=False)
    federate(tmp_path, module, data(), num_rounds=2)
    assert caplog.messages == [SAYS[module]] and seen and all(before == [SAYS[module]] for before in seen)


class Shy(Other):
    """Cannot be tested before it has trained."""

    def on_train_start(self):
        self.register_buffer("seen", self.net.weight.new_ones(()), persistent=False)

    def on_test_start(self):
        self.get_buffer("seen")


def test_where_no_rehearsal_can_tell_it_is_told_at_the_end(tmp_path, caplog):
    federate(tmp_path, Shy, [Table(6, 1)], num_rounds=1)
    assert caplog.messages == [SAYS[Other].replace("Other", "Shy")]


@pytest.mark.parametrize(("module", "number"), [(Other, 1), (NoStep, 1), (Linear, 0)])
def test_a_central_run_does_the_same(tmp_path, caplog, module, number):
    stock = L.Trainer(**CPU, logger=False, enable_checkpointing=False)
    fit_centrally(stock, module(), Central(*clients((8, 9))), None, "c", {"default_root_dir": str(tmp_path)})
    assert [text for text in caplog.messages if "test_step" in text] == [SAYS.get(module)] * number
