"""A reused Trainer calls the hooks around every run as in its first, which is Lightning's own."""

import lightning as L
import pytest
import torch
from federations import CPU, Linear, Table
from lightning.pytorch.callbacks import Callback, OnExceptionCheckpoint
from lightning.pytorch.profilers import PassThroughProfiler, SimpleProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy

from fl_lightning.engine.clock import Clock
from fl_lightning.engine.lightning_fast import trainers, versions
from fl_lightning.engine.local import LocalTrainer, reused

pytestmark = pytest.mark.skipif(not versions.is_proven(), reason="another Lightning: no Trainer is reused")

HOOKS = (
    "setup", "on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_epoch_end", "on_train_end", "on_fit_end",
    "on_validation_start", "on_validation_epoch_end", "on_validation_end", "on_test_start", "on_test_end", "teardown",
)  # fmt: skip
CALLED: list[str] = []


def recording(base, owner):
    """A class whose hooks around a run and an epoch are written down; hooks around a batch are not its own."""

    def hook(name):
        def call(self, *args, **kwargs):
            stage = kwargs.get("stage") or next((a for a in args if isinstance(a, str)), "")
            CALLED.append(f"{owner}.{name} {stage}".strip())

        return call

    return type(owner, (base,), {name: hook(name) for name in HOOKS if hasattr(base, name)})


def calls(run):
    CALLED.clear()
    run()
    return list(CALLED)


def test_every_run_calls_the_hooks_of_the_first():
    module, data = recording(Linear, "module")(), Table(8, seed=1)
    local = LocalTrainer(module, {**CPU, "callbacks": [recording(Callback, "callback")()]})
    for run in (lambda: local.fit(data), lambda: local.evaluate(data, "val"), lambda: local.evaluate(data, "test")):
        first = calls(run)
        assert len(first) > 5 and any("teardown" in name for name in first)
        assert calls(run) == calls(run) == first
    assert {"module.on_fit_start", "callback.on_fit_start", "module.on_fit_end", "callback.on_fit_end"} <= {
        *calls(lambda: local.fit(data))
    }


def test_the_trainer_is_finished_after_every_run():
    local, data = LocalTrainer(Linear(), CPU), Table(8, seed=1)
    for _ in range(3):
        local.fit(data)
        trainer = local.module.trainer
        assert trainer.state.finished and trainer.state.stage is None


def reused_trainer(**args):
    return trainers({**CPU, "logger": False, **args}, [], [], Clock()).reference


def test_modules_callbacks_and_optimisers_are_asked_for_in_every_fit():
    class Counter:
        starts = 0

        def on_train_start(self, trainer, module):
            self.starts += 1
            module.seen.append((self.owner, self.starts))

        def on_train_epoch_end(self, trainer, module):
            self.log(f"by_{self.owner}", float(self.starts))

    class OfTheUser(Counter, Callback):
        owner = "user"

    class OfTheModule(Counter, Callback):
        owner = "module"

    class Module(Linear):
        def configure_callbacks(self):
            return [OfTheModule()]

        def configure_optimizers(self):
            self.seen.append("optimiser")
            return super().configure_optimizers()

    module, data = Module(), Table(8, seed=1)
    module.seen = []
    local = LocalTrainer(module, {**CPU, "callbacks": [OfTheUser()]})
    for _ in range(3):
        module.seen.clear()
        logged = local.fit(data)
        assert module.seen == ["optimiser", ("user", 1), ("module", 1)]
        assert logged["by_user"] == logged["by_module"] == 1.0
        local.evaluate(data, "val")
        assert len(module.seen) == 3


def test_figures_of_the_last_run_are_not_those_of_this_one():
    class Once(Linear):
        first = True

        def training_step(self, batch, batch_idx):
            if self.first:
                self.log("only_first", 1.0)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            if self.first:
                self.log("val_only_first", 1.0)
            super().validation_step(batch, batch_idx)

    module, data = Once(), Table(8, seed=1)
    local = LocalTrainer(module, CPU)
    for _ in range(2):
        assert "only_first" in local.fit(data) and "only_first" in local.evaluate(data, "val")
    module.first = False
    for _ in range(2):
        assert "only_first" not in local.fit(data) and "only_first" not in local.evaluate(data, "val")


def test_predictions_come_in_every_run():
    data = Table(8, seed=1)
    data.predict_dataloader = data.val_dataloader
    local = LocalTrainer(Linear(), CPU)
    first = local.predict(data)
    assert [batch.shape for batch in first] == [(8, 1)]
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(first, local.predict(data), strict=True))


def test_two_modules_may_take_turns():
    trainer, modules, data = reused_trainer(), [Linear(), Linear()], Table(8, seed=1)
    wrapped = reused(data)
    for _ in range(3):
        for module in modules:
            before = module.net.weight.detach().clone()
            trainer.fit_loop.epoch_progress.reset()
            trainer.fit(module, datamodule=wrapped)
            assert trainer.lightning_module is module and not torch.equal(module.net.weight, before)


def test_a_checkpoint_is_loaded_where_one_is_given(tmp_path):
    trainer, module, data = reused_trainer(max_epochs=2), Linear(), reused(Table(8, seed=1))
    trainer.fit(module, datamodule=data)
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    saved = module.net.weight.detach().clone()
    with torch.no_grad():
        module.net.weight.zero_()
    trainer.fit(module, datamodule=data, ckpt_path=tmp_path / "saved.ckpt")
    assert torch.equal(module.net.weight, saved)  # both epochs were done


def test_validation_within_a_fit_and_plain_loaders_are_left_to_lightning():
    class Counts(Linear):
        validated = 0

        def validation_step(self, batch, batch_idx):
            self.validated += 1
            super().validation_step(batch, batch_idx)

    data = Table(8, seed=1)
    data.setup()
    module, trainer = Counts(), reused_trainer()
    for loaders in ({"datamodule": reused(data)}, {"train_dataloaders": data.train_dataloader(), "val_dataloaders": None}):
        for _ in range(3):
            before, module.validated = module.net.weight.detach().clone(), 0
            trainer.fit_loop.epoch_progress.reset()
            trainer.fit(module, **loaders)
            assert module.validated == ("datamodule" in loaders) and not torch.equal(module.net.weight, before)


class OwnStrategy(SingleDeviceStrategy):
    pass


@pytest.mark.parametrize(
    ("arguments", "short"),
    [
        ({}, True), ({"profiler": PassThroughProfiler()}, True), ({"profiler": SimpleProfiler()}, False),
        ({"strategy": SingleDeviceStrategy("cpu")}, True), ({"strategy": SingleDeviceStrategy("meta")}, False),
        ({"strategy": OwnStrategy("cpu")}, False),
    ],
)  # fmt: skip
def test_only_plain_runs_on_the_cpu_are_short(arguments, short):
    assert reused_trainer(**arguments)._can_be_short is short


def test_nothing_is_measured_unless_a_profiler_is_given():
    default = reused_trainer().profiler
    with default.profile("an action") as measured:
        assert measured is None and isinstance(default, PassThroughProfiler) and type(default) is not PassThroughProfiler
    own = SimpleProfiler()
    assert reused_trainer(profiler=own).profiler is own


def test_a_module_that_lightning_cannot_train_is_refused_in_the_first_run():
    class NoStep(L.LightningModule):
        def configure_optimizers(self):
            return None

    with pytest.raises(Exception, match=r"No `training_step\(\)` method defined"):
        reused_trainer().fit(NoStep(), datamodule=reused(Table(8, seed=1)))


def test_a_fit_that_is_done_is_not_begun():
    module, data, trainer = recording(Linear, "module")(), reused(Table(8, seed=1)), reused_trainer()
    CALLED.clear()
    for _ in range(3):
        trainer.fit(module, datamodule=data)
        assert (trainer.current_epoch, trainer.global_step) == (1, 1)  # of one epoch
    assert CALLED.count("module.on_train_start") == CALLED.count("module.on_train_end") == 1


def choices_of(monkeypatch, *callbacks):
    """How often Lightning chose a checkpoint in each of two fits and two evaluations."""
    module, data, asked = Linear(), Table(8, seed=1), []
    local = LocalTrainer(module, {**CPU, "callbacks": list(callbacks)})
    trainer = local._trainers.reference
    choose = trainer._lightnings_choice

    def choice(fn, *rest, **kwargs):
        asked.append(fn.value)
        return choose(fn, *rest, **kwargs)

    monkeypatch.setattr(trainer, "_lightnings_choice", choice)
    for _ in range(2):
        local.fit(data)
        local.evaluate(data, "val")
    return asked


def test_which_checkpoint_to_load_is_asked_for_once_a_kind_of_run(monkeypatch):
    assert choices_of(monkeypatch) == ["fit", "validate"]


def test_a_checkpoint_of_an_interrupted_fit_is_looked_for_in_every_fit(monkeypatch, tmp_path):
    assert choices_of(monkeypatch, OnExceptionCheckpoint(str(tmp_path))) == ["fit", "validate", "fit", "validate"]
