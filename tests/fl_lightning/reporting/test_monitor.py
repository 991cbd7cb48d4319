"""Which metric chooses the best model, and in which direction: one rule for federated and central training."""

import lightning as L
import pytest
from federations import Linear, clients, federate

from fl_lightning.reporting.monitor import Monitor, is_better, mode_by_name, selection_value
from lit_models import GraphSAGE, LitNodeClassifier
from lit_models.base import LitGraphModule


class Scored(L.LightningModule):
    monitor, monitor_mode = "val/score", "min"


class Named(L.LightningModule):
    monitor = "val_accuracy"


class AnothersMonitor(L.LightningModule):
    """Something of its own that happens to bear the name."""

    def monitor(self):
        return None


class Ours(LitGraphModule):
    monitor = "auroc"


@pytest.mark.parametrize(
    ("module", "asked", "metric", "mode", "source"),
    [
        (Scored, (None, None), "score", "min", "module"),
        (Scored, (None, "max"), "score", "max", "module"),
        (Scored, ("score", None), "score", "min", "federation"),
        (Scored, ("val_score", None), "score", "min", "federation"),
        (Scored, ("accuracy", None), "accuracy", "max", "federation"),  # the module's `min` is its score's
        (Scored, ("val/accuracy", "min"), "accuracy", "min", "federation"),
        (Named, (None, None), "accuracy", "max", "module"),
        (AnothersMonitor, (None, None), "loss", "min", "default"),
        (Ours, (None, None), "auroc", "max", "module"),  # and not the direction of the base class
        (L.LightningModule, (None, None), "loss", "min", "default"),
    ],
)
def test_metric_direction_and_who_named_it(module, asked, metric, mode, source):
    found = Monitor.of(module(), *asked)
    assert (found.metric, found.mode, found.source) == (metric, mode, source)


def test_loss_of_a_classifier_is_minimised_though_its_accuracy_is_maximised():
    module = LitNodeClassifier(GraphSAGE(hidden_channels=4))
    assert Monitor.of(module).mode == "max" and Monitor.of(module, "loss").mode == "min"


@pytest.mark.parametrize(
    ("metric", "mode"),
    [("loss", "min"), ("mae", "min"), ("rmse", "min"), ("NLL", "min"), ("perplexity", "min"), ("class_error", "min"),
     ("accuracy", "max"), ("auroc", "max"), ("f1", "max"), ("r2", "max")],
)  # fmt: skip
def test_the_direction_by_the_name(metric, mode):
    assert mode_by_name(metric) == mode


@pytest.mark.parametrize("metric", ["loss", "val_rmsd", "accuracy", "auroc_3", "r2", "top5", "nll", "macro_f1", "elbo"])
def test_a_direction_that_the_name_tells_is_no_guess(metric, caplog):
    Monitor.of(L.LightningModule(), metric).tell_guess()
    assert not caplog.messages


def test_a_guessed_direction_is_told_with_the_key_that_says_it(caplog):
    Monitor.of(L.LightningModule(), "val/regret").tell_guess()
    assert caplog.messages == ["`regret` is taken for a metric of which more is better, for want of a word. Set "
                               "`federation.monitor_mode`: `min` if less is, else `max`."]  # fmt: skip
    caplog.clear()
    Monitor.of(L.LightningModule(), "regret", "max").tell_guess()
    Monitor.of(Scored()).tell_guess()  # its `monitor_mode` says it
    assert not caplog.messages
    Monitor("regret", "max", source="early_stopping", is_guessed=True).tell_guess()
    assert "Set `federation.early_stopping.mode`: `min`" in caplog.messages[0]


def test_a_guess_is_told_once_in_a_run_and_before_its_first_round(tmp_path, caplog):
    class Regret(Linear):
        def validation_step(self, batch, batch_idx):
            self.log("regret", self.training_step(batch, batch_idx))

        def test_step(self, batch, batch_idx):
            self.log("test_regret", self.training_step(batch, batch_idx))

        def on_round_start(self, round, num_rounds):
            assert len(caplog.messages) == 1

    def told(**more):
        caplog.clear()
        assert federate(tmp_path, Regret, clients((6, 8)), monitor="regret", **more).results["failures"] == []
        return [text for text in caplog.messages if "is taken for" in text]

    assert len(told()) == 1 and len(told(early_stopping={"patience": 2})) == 1
    (text,) = told(monitor_mode="min", early_stopping={"metric": "regret", "patience": 2})
    assert "federation.early_stopping.mode" in text


def test_a_direction_that_is_none_names_where_it_was_set():
    class Wrong(Scored):
        monitor_mode = "maximise"

    with pytest.raises(ValueError, match="`Wrong.monitor_mode` is 'maximise'; write `min` .* or `max`"):
        Monitor.of(Wrong())
    with pytest.raises(ValueError, match="`federation.monitor_mode` is 'up'; write `min`"):
        Monitor.of(Wrong(), "loss", "up")


@pytest.mark.parametrize(
    ("module", "asked", "text"),
    [
        (Named, "auc", "`federation.monitor` is `auc`, but `Named` logs for `val` only: f1, loss. Set `federation.monitor` to"),
        (Named, "val_auc", r"`federation.monitor` is `val_auc` \(`auc`\), but `Named` logs for `val` only: f1, loss. Set"),
        (Named, "val/auc", r"`federation.monitor` is `val/auc` \(`auc`\), but"),
        (Named, None, r"`Named.monitor` is `val_accuracy` \(`accuracy`\), but .* Set `Named.monitor` or"),
        (AnothersMonitor, None, "`federation.monitor` is not set and `AnothersMonitor` names no `monitor`: it is `loss`, but"),
    ],
)
def test_a_metric_that_nobody_logs_is_laid_to_who_named_it(module, asked, text):
    logged = {"f1": 1.0} if asked is None and module is AnothersMonitor else {"f1": 1.0, "loss": 2.0}
    with pytest.raises(ValueError, match=text):
        Monitor.of(module(), asked).check([None, logged, {}])


def test_what_is_logged_by_one_or_by_none_is_no_mistake():
    monitor = Monitor.of(Named())
    monitor.check([{"loss": 1.0}, {"accuracy": None}])  # undefined is not unknown
    monitor.check([None, {}])


def test_the_value_that_chooses():
    assert selection_value({"global": 0.9, "mean": 0.6}) == 0.9
    assert selection_value({"global": 0.0, "mean": 0.6}) == 0.0
    assert selection_value({"global": None, "mean": 0.6}) == 0.6


def test_the_first_of_equal_is_the_best_and_the_undefined_never():
    for mode, worse, better in (("max", 0.4, 0.6), ("min", 0.6, 0.4)):
        assert is_better(better, worse, mode) and not is_better(worse, better, mode) and not is_better(worse, worse, mode)
        assert is_better(worse, None, mode) and not is_better(None, worse, mode) and not is_better(None, None, mode)
