"""A training that nothing in validation can choose the best model of is told so once, and in time."""

import pytest
from federations import Central, Linear, Table, TrainOnly, clients, federate

from fl_lightning.reporting.unscored import Unscored


class Silent(Linear):
    """Validates, and logs nothing of it."""

    def validation_step(self, batch, batch_idx):
        return None


class NoStep(Linear):
    validation_step = Linear.__mro__[1].validation_step


SAYS = {
    Silent: '`Silent.validation_step` calls no `self.log("val_loss", ...)`, or the validation data are empty',
    NoStep: "`model: NoStep` has no `validation_step`. Write one",
    Linear: "no data have a `val_dataloader`.",
}


@pytest.mark.parametrize(
    ("module", "logged", "said"),
    [
        (Silent, [{}], Silent), (Silent, [None, {}], Silent), (NoStep, [None], NoStep), (Linear, [None, None], Linear),
        (Linear, [], None), (Linear, [None, {"loss": None}], None), (Linear, [{}, {"loss": 1.0}], None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("unit", ["round", "epoch"])
def test_what_is_said_and_only_once(caplog, module, logged, said, unit):
    unscored = Unscored(module(), unit)
    unscored.tell(logged)
    unscored.tell(logged)
    assert len(caplog.messages) == (said is not None)
    if said is not None:
        (text,) = caplog.messages
        assert text.startswith(f"Nothing is logged in validation, so no {unit} can be called the best") and SAYS[said] in text


@pytest.mark.parametrize(
    ("module", "data", "said"),
    [
        (Silent, lambda: clients((6, 8)), Silent),
        (NoStep, lambda: Central(*clients((6, 8))), NoStep),
        (Linear, lambda: [TrainOnly(6, 1), TrainOnly(8, 2)], Linear),
    ],
)
def test_a_run_is_told_before_its_first_round(tmp_path, caplog, monkeypatch, module, data, said):
    real, at = module.on_fit_start, []
    monkeypatch.setattr(module, "on_fit_start", lambda self: (at.append(list(caplog.messages)), real(self)))
    federate(tmp_path, module, data(), num_rounds=3)
    (text,) = [text for text in caplog.messages if "Nothing is logged" in text]
    assert SAYS[said] in text and all(text in before for before in at[-6:])  # the fits of three rounds


class Shy(Silent):
    """Cannot be validated before it has trained, as a module that needs what a round gives it."""

    def on_train_start(self):
        self.register_buffer("seen", self.net.weight.new_ones(()), persistent=False)

    def on_validation_start(self):
        self.get_buffer("seen")


def test_where_no_rehearsal_can_tell_it_is_told_after_the_first_validation(tmp_path, caplog, monkeypatch):
    said = []
    monkeypatch.setattr(Shy, "on_round_start", lambda self, round, number: said.append((round, len(caplog.messages))),
                        raising=False)  # fmt: skip
    federate(tmp_path, Shy, [Table(6, 1)], num_rounds=3)
    assert said == [(0, 0), (1, 1), (2, 1)]


def test_a_run_with_a_score_is_told_nothing(tmp_path, caplog):
    federate(tmp_path, Linear, clients((6, 8)), num_rounds=1)
    assert caplog.messages == []


def test_no_batch_to_validate_on_is_told_by_the_limit_that_asks_for_it(tmp_path, caplog):
    federate(tmp_path, Linear, clients((6, 8)), {"limit_val_batches": 0}, num_rounds=1)
    (text,) = caplog.messages
    assert text.startswith("Nothing is logged in validation, so no round can be called") and text.endswith(
        "`trainer.limit_val_batches: 0` validates on no batch. Leave it out, or give a number of batches.")  # fmt: skip
