"""`federation.early_stopping`: hand-made series, and runs that end early, go on, and say so."""

import pytest
import torch
from federations import Linear, clients, federate

from fl_lightning import FederatedTrainer
from fl_lightning.early_stopping import EarlyStopping


@pytest.mark.parametrize(
    ("rule", "mode", "values", "over"),
    [
        (EarlyStopping(2), "min", [3.0, 2.0, 2.5], False),
        (EarlyStopping(2), "min", [3.0, 2.0, 2.5, 2.0], True),  # equal is not better
        (EarlyStopping(2), "min", [3.0, 2.0, 2.5, 1.9, 2.0], False),  # counts anew after a better one
        (EarlyStopping(2), "max", [3.0, 2.0, 2.5], True),
        (EarlyStopping(2), "max", [1.0, 2.0, 3.0, 4.0], False),
        (EarlyStopping(1, min_delta=0.5), "max", [1.0, 1.5], True),  # must be better by more than that
        (EarlyStopping(1, min_delta=0.5), "max", [1.0, 1.6], False),
        (EarlyStopping(2, min_delta=0.5), "min", [2.0, 1.6, 1.3], False),  # .7 below the best that counted
        (EarlyStopping(2), "max", [None, None], True),
        (EarlyStopping(2), "max", [1.0, None, 2.0, None], False),
        (EarlyStopping(1), "max", [], False),
    ],
)
def test_when_a_series_is_over(rule, mode, values, over):
    assert rule.is_over(values, mode) is over


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"patience": 0}, "`federation.early_stopping.patience` must be at least 1, got 0"),
        ({"min_delta": -0.1}, "`federation.early_stopping.min_delta` must be 0 or more, got -0.1"),
        ({"min_delta": float("nan")}, "must be 0 or more, got nan"),
    ],
)
def test_values_that_make_no_sense(values, text):
    with pytest.raises(ValueError, match=text):
        FederatedTrainer(early_stopping=values)


class Steady(Linear):
    """Its validation gives what a list says, one value a round; the other metric only gets better."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rounds", torch.zeros(()))

    def on_round_start(self, round, num_rounds):
        self.rounds.fill_(round)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", [3.0, 1.0, 2.0, 2.0, 0.5, 0.1][int(self.rounds)])
        self.log("val_accuracy", self.rounds)


def run(root, **more):
    return federate(root, Steady, clients((8, 8)), num_rounds=6, **{"monitor": "loss", **more})


def test_a_run_ends_early_and_says_so(tmp_path):
    fed = run(tmp_path, early_stopping={"patience": 2})
    assert (fed.results["rounds_run"], fed.results["best_round"], fed.results["stopped_early"]) == (4, 1, True)
    whole = run(tmp_path, early_stopping={"patience": 3})
    assert (whole.results["rounds_run"], whole.results["stopped_early"]) == (6, False)


def test_another_metric_than_the_one_that_chooses_the_best_round(tmp_path):
    fed = run(tmp_path, early_stopping={"patience": 1, "metric": "val_accuracy"})
    assert fed.results["rounds_run"] == 6
    with pytest.raises(ValueError, match=r"`federation.early_stopping.metric` is `f1`, but `Steady` logs for `val` only: acc"):
        run(tmp_path, early_stopping={"metric": "f1"})
    with pytest.raises(ValueError, match=r"`federation.early_stopping.metric` is `val/f1` \(`f1`\), but `Steady` logs"):
        run(tmp_path, early_stopping={"metric": "val/f1"})
    lower = run(tmp_path, early_stopping={"patience": 1, "metric": "accuracy", "mode": "min"})
    assert lower.results["rounds_run"] == 2


def test_only_validated_rounds_count(tmp_path):
    fed = run(tmp_path, early_stopping={"patience": 1}, check_val_every_n_rounds=3)  # after rounds 3 and 6: 2.0, 0.1
    assert fed.results["rounds_run"] == 6


def test_patience_goes_on_over_a_resume(tmp_path):
    first = federate(tmp_path, Steady, clients((8, 8)), num_rounds=3, monitor="loss", early_stopping={"patience": 2})
    assert not first.results["stopped_early"]
    settings = {"num_rounds": 6, "seed": 0, "monitor": "loss", "early_stopping": {"patience": 2}}
    on = FederatedTrainer(trainer={**first.trainer_args, "logger": False, "default_root_dir": str(tmp_path)}, **settings)
    torch.manual_seed(0)
    on.fit(Steady(), clients((8, 8)), ckpt_path="last")
    assert (on.results["rounds_run"], on.results["stopped_early"]) == (4, True)
