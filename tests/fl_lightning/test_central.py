"""Central training chooses its best epoch as a federation chooses its best round, and writes into its own folder only."""

import math

import lightning as L
import pytest
import torch
from federations import Central, Linear, clients
from torch.utils.data import DataLoader

from fl_lightning.central import fit_centrally


def central(tmp_path, module, data=None, epochs=3, logger=True, ckpt_path=None, limits=None, **more):
    trainer = L.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0, **(limits or {}),
    )  # fmt: skip
    arguments = {"default_root_dir": str(tmp_path / "runs"), "logger": logger}
    return fit_centrally(trainer, module, data or Central(*clients((8, 9))), ckpt_path, "c", arguments, **more)


class Scripted(Linear):
    """Logs these values on validation data, an epoch each."""

    monitor = "accuracy"

    def __init__(self, name="val/accuracy", values=(0.1, 0.2, 0.3)):
        super().__init__()
        self.name_, self.values = name, values

    def training_step(self, batch, batch_idx):
        self.log("accuracy", 5.0 - self.current_epoch, on_epoch=True, on_step=False)  # another thing of that name
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        value = self.values[min(self.current_epoch, len(self.values) - 1)]
        self.log_dict({self.name_: value, "val_loss": 1 - value, "val_error": 1 - value})


@pytest.mark.parametrize("name", ["val/accuracy", "val_accuracy", "accuracy"])
def test_accuracy_is_maximised_however_it_is_named(tmp_path, name):
    found, _ = central(tmp_path, Scripted(name, (0.1, 0.3, 0.2)))
    assert (found["metric"], found["mode"], found["best_round"]) == ("accuracy", "max", 1)


@pytest.mark.parametrize(
    ("monitor", "mode", "best"),
    [("loss", None, 2), ("val_error", None, 2), ("loss", "max", 0), ("accuracy", "min", 0), (None, "min", 0)],
)
def test_the_federations_monitor_is_asked_centrally_too(tmp_path, monitor, mode, best):
    found, _ = central(tmp_path, Scripted(), monitor=monitor, monitor_mode=mode)
    assert found["best_round"] == best and found["metric"] == {"val_error": "error", None: "accuracy"}.get(monitor, monitor)


@pytest.mark.parametrize(
    ("values", "best"),
    [((math.nan, 0.2, 0.2), 1), ((0.2, math.nan, 0.1), 0), ((math.nan, math.nan, math.nan), 2), ((0.2, 0.2, 0.2), 0)],
)
def test_undefined_is_never_the_best_and_the_first_of_equal_is(tmp_path, values, best):
    found, run = central(tmp_path, Scripted(values=values))
    assert found["best_round"] == best and found["rounds_run"] == 3
    assert torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["epoch"] == best


def test_the_best_epoch_is_what_is_scored_and_left_in_the_module(tmp_path):
    module = Linear(lr=1.2)  # diverges: the first epoch is the best
    found, run = central(tmp_path, module)
    assert found["best_round"] == 0 and found["val"]["global"] < found["last"]["val"]["global"]
    saved = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(saved[name], tensor) for name, tensor in module.state_dict().items())


def test_without_validation_data_the_last_epoch_is_the_best(tmp_path):
    class NoValidation(Central):
        def val_dataloader(self):
            return []

    found, run = central(tmp_path, Linear(), NoValidation(*clients((8,))))
    assert found["best_round"] == 2 and (run / "checkpoints" / "best.ckpt").is_file()


def test_an_epoch_that_nothing_can_choose_is_told_before_training(tmp_path, caplog, monkeypatch):
    seen = []
    monkeypatch.setattr(Linear, "validation_step", lambda *_: None)
    monkeypatch.setattr(Linear, "on_train_start", lambda self: seen.append("no epoch can be called the best" in caplog.text),
                        raising=False)  # fmt: skip
    central(tmp_path, Linear(), epochs=1)
    assert seen == [True] and caplog.text.count("Nothing is logged in validation") == 1


def test_a_metric_that_nobody_logs_is_found_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(Linear, "training_step", lambda *_: pytest.fail("it trained"))
    with pytest.raises(ValueError, match="`federation.monitor` is `auc`, but `Linear` logs for `val` only: loss"):
        central(tmp_path, Linear(), monitor="auc")
    module = Linear()
    module.monitor = "auc"
    with pytest.raises(ValueError, match="`Linear.monitor` is `auc`, but `Linear` logs for `val` only: loss"):
        central(tmp_path, module)
    assert not (tmp_path / "runs").exists()


def checkpoints(run):
    return {path.name.split("-")[0]: path for path in (run / "checkpoints").glob("*.ckpt")}


def test_a_run_that_goes_on_keeps_the_best_epoch_that_it_had(tmp_path):
    values = (0.3, 0.1, 0.2, 0.4)
    _, first = central(tmp_path, Scripted(values=values), epochs=2)
    last = checkpoints(first)["epoch=1"]
    found, run = central(tmp_path, module := Scripted(values=values), epochs=3, ckpt_path=last)
    assert run != first and found["best_round"] == 0 and found["rounds_run"] == 3
    saved = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    assert saved["epoch"] == 0 and all(torch.equal(saved["state_dict"][n], t) for n, t in module.state_dict().items())
    found, _ = central(tmp_path, Scripted(values=values), epochs=4, ckpt_path=checkpoints(run)["epoch=2"])
    assert found["best_round"] == 3  # a better one takes its place
    found, run = central(tmp_path, Scripted(values=values), epochs=2, ckpt_path=last)
    assert found["best_round"] == 0 and found["rounds_run"] == 2  # nothing was left to train


def test_a_best_epoch_of_another_rule_or_of_later_is_not_taken_over(tmp_path):
    values = (0.3, 0.1, 0.2)
    _, first = central(tmp_path, Scripted(values=values), epochs=2)
    last = checkpoints(first)["epoch=1"]
    found, _ = central(tmp_path, Scripted(values=values), ckpt_path=last, monitor="loss")
    assert found["best_round"] == 2
    best = checkpoints(first)["best.ckpt"]
    content = torch.load(best, weights_only=True)
    torch.save({**content, "BestEpoch": {**content["BestEpoch"], "epoch": 5}}, best)  # of a later epoch than the source's
    found, _ = central(tmp_path, Scripted(values=values), ckpt_path=last)
    assert found["best_round"] == 2
    best.unlink()
    assert central(tmp_path, Scripted(values=values), ckpt_path=last)[0]["best_round"] == 2


class WithObject(Linear):
    """Its hyperparameters hold an object, which no `weights_only` reader takes from a checkpoint."""

    def __init__(self, loss=torch.nn.MSELoss()):  # noqa: B008
        super().__init__()
        self.save_hyperparameters({"loss": loss})


@pytest.mark.filterwarnings("ignore:Attribute")
def test_hyperparameters_that_are_objects_do_not_cost_the_results(tmp_path):
    found, run = central(tmp_path, WithObject(), epochs=1)
    assert (run / "results.json").is_file() and found["test"]["global"] is not None


@pytest.mark.parametrize("logger", [True, False])
def test_nothing_is_written_outside_of_the_runs_folder(tmp_path, monkeypatch, logger):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("mine")
    _, run = central(tmp_path, Linear(), epochs=1, logger=logger)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.yaml", "runs"]
    assert (tmp_path / "config.yaml").read_text() == "mine"
    assert len(list((run / "checkpoints").glob("*.ckpt"))) == 2  # Lightning's own of the last epoch, too


def test_a_test_that_fails_costs_its_score_and_not_the_run(tmp_path):
    class Fails(Linear):
        def test_step(self, batch, batch_idx):
            raise RuntimeError("no such file")

    found, run = central(tmp_path, Fails(), epochs=1)
    assert found["test"]["global"] is None and found["val"]["global"] is not None and (run / "results.json").is_file()
    assert {f["client"] for f in found["failures"]} == {None, 0, 1}
    assert {f["reason"] for f in found["failures"]} == {"RuntimeError: no such file"}


def test_fast_dev_run_writes_nothing(tmp_path):
    trainer = L.Trainer(fast_dev_run=True, accelerator="cpu", logger=False, enable_progress_bar=False)
    found, run = fit_centrally(
        trainer, Linear(), Central(*clients((8,))), None, "c", {"default_root_dir": str(tmp_path / "runs")}
    )
    assert run is None and found["rounds_run"] == 1 and not list(tmp_path.iterdir())


def test_limits_and_data_under_which_nothing_is_trained_are_told(tmp_path, caplog):
    with pytest.raises(ValueError, match="`trainer.limit_train_batches: 0` trains on no batch"):
        central(tmp_path, Linear(), limits={"limit_train_batches": 0})
    central(tmp_path, Linear(), limits={"limit_val_batches": 0})
    assert any("so no epoch can be" in text and "`trainer.limit_val_batches: 0`" in text for text in caplog.messages)

    class Empty(Central):
        def train_dataloader(self):
            return DataLoader(self.union().tensors[0][:0], shuffle=True)

    with pytest.raises(ValueError, match="^`data: Empty` has no training sample; check the split"):
        central(tmp_path, Linear(), Empty(*clients((8, 9))))


def test_a_run_without_an_optimiser_is_told_so(tmp_path):
    class Forgot(Linear):
        def configure_optimizers(self):
            super().configure_optimizers()

    with pytest.raises(ValueError, match="^`Forgot.configure_optimizers` returned None, so nothing would be trained"):
        central(tmp_path, Forgot())
