"""A new stock Trainer for each run, and what both ways of getting one have alike."""

import pytest
import torch
from federations import Linear, Table
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy

from datamodules import SyntheticCitationDataModule
from fl_lightning.engine.clock import Clock
from fl_lightning.engine.lightning_fast import trainers, versions
from fl_lightning.engine.local import LocalTrainer
from lit_models import GraphSAGE, LitNodeClassifier

PROVEN = pytest.mark.skipif(not versions.is_proven(), reason="another Lightning: there is no short way")
BOTH = pytest.mark.parametrize("fast_loops", [True, False])


def made(args, fast_loops, shared=()):
    return trainers({"accelerator": "cpu", **args}, [], list(shared), Clock(), fast_loops)


@BOTH
@pytest.mark.parametrize(
    ("arguments", "epochs", "steps"),
    [
        ({}, 1, -1), ({"max_epochs": 3}, 3, -1), ({"max_steps": 5}, None, 5), ({"max_epochs": 2, "max_steps": 5}, 2, 5),
        ({"max_epochs": None, "max_steps": -1}, 1, -1), ({"max_time": {"minutes": 1}}, None, -1),
    ],
)  # fmt: skip
def test_one_epoch_is_the_local_work_unless_something_else_is_said(arguments, epochs, steps, fast_loops):
    trainer = made(arguments, fast_loops).take(training=True)
    assert (None if trainer.max_epochs == -1 else trainer.max_epochs, trainer.max_steps) == (epochs, steps)


@BOTH
def test_a_clients_trainer_writes_and_shows_nothing(fast_loops):
    local = LocalTrainer(Linear(), {"accelerator": "cpu", "enable_progress_bar": True, "logger": None}, fast_loops=fast_loops)
    trainer = local._trainers.take(training=True)
    assert [type(c).__name__ for c in trainer.callbacks] == ["OptimizerState", "Clock"] and not trainer.checkpoint_callbacks
    assert type(trainer.logger).__name__ == "DummyLogger" and trainer.num_sanity_val_steps == 0
    assert not trainer.validate_loop.inference_mode and local.device == torch.device("cpu")
    shown = made({"enable_model_summary": True, "limit_val_batches": 3}, fast_loops)
    assert "ModelSummary" in [type(c).__name__ for c in shown.reference.callbacks]  # what the user says wins
    assert [shown.take(training).limit_val_batches for training in (False, True, False)] == [3, 0, 3]


def table(n=10, seed=1, **options):
    data = Table(n, seed, **options)
    data.setup()
    return data


class Steps(Linear):
    def __init__(self):
        super().__init__()
        self.steps, self.seen = 0, []

    def training_step(self, batch, batch_idx):
        self.steps += 1
        return super().training_step(batch, batch_idx)


def stock(module, **args):
    return LocalTrainer(module, {"accelerator": "cpu", **args}, fast_loops=False)


def test_local_work_and_patience_count_from_zero():
    module = Steps()
    stop = EarlyStopping("train_loss", patience=2, min_delta=100.0, check_on_train_epoch_end=True, verbose=False)
    local = stock(module, max_epochs=50, callbacks=[stop])
    for _ in range(2):
        module.steps = 0
        local.fit(table())
        assert module.steps == 3  # never better: the first epoch and `patience` more
    assert stop.wait_count == 0


@PROVEN
def test_our_modules_log_through_lightning_with_the_same_values():
    def logged(fast_loops):
        torch.manual_seed(0)
        module = LitNodeClassifier(GraphSAGE(hidden_channels=4), num_classes=3, in_channels=30)
        sinks = []
        real = module.objective.on_train_end
        module.objective.on_train_end = lambda module: (sinks.append("log_values" in vars(module)), real(module))
        local = LocalTrainer(module, {"accelerator": "cpu", "max_epochs": 2}, fast_loops=fast_loops)
        return local.fit(data), local.evaluate(data, "val"), sinks

    data = SyntheticCitationDataModule(num_nodes=60, num_classes=3, num_features=30, num_clients=1, blocks_per_class=1)
    data.setup("fit")
    (stock_fit, stock_val, stock_sinks), (fit, val, sinks) = logged(False), logged(True)
    assert stock_fit == fit and "train/loss" in fit and stock_val == val and "accuracy" in val
    assert stock_sinks == [False] and sinks == [True]


def test_a_loss_scale_begins_anew_and_the_users_plugin_stays_as_it_was():
    scales = []

    class Watch(Linear):
        def on_train_end(self):
            scales.append(self.trainer.precision_plugin.scaler.get_scale())

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    local = stock(Watch(), plugins=[MixedPrecision("16-mixed", "cpu", scaler)], max_epochs=3)
    for _ in range(2):
        local.fit(table())
    assert scales == [8192.0, 8192.0] and scaler.get_scale() == 1024.0  # doubled after each of three steps


def test_a_lightning_strategy_object_serves_every_run():
    local = stock(Steps(), strategy=SingleDeviceStrategy("cpu"))
    data = table()
    for _ in range(2):
        local.fit(data)
        assert local.evaluate(data, "val").keys() == {"loss"}
    assert local.device == torch.device("cpu")


def test_nothing_is_validated_in_a_fit_and_all_data_in_an_evaluation():
    seen = []

    class Notes(Linear):
        def validation_step(self, batch, batch_idx):
            seen.append((self.trainer.state.fn, len(batch[0])))

    local = stock(Notes(), limit_val_batches=2, max_epochs=2)
    local.fit(table(held_out=150))
    assert seen == []
    local.evaluate(table(held_out=150), "val")
    assert [size for _, size in seen] == [64, 64]


@pytest.mark.parametrize(("fast_loops", "training", "expected"), [(False, True, True), (False, False, False),
                                                                  (True, True, True), (True, False, False)])  # fmt: skip
def test_evaluation_is_not_distributed(fast_loops, training, expected):
    """Under DDP every rank scores all data; the training data are divided."""
    held = trainers({"accelerator": "cpu"}, [], [], Clock(), fast_loops)
    held.take(not training)
    assert held.take(training)._accelerator_connector.use_distributed_sampler is expected
    mine = trainers({"accelerator": "cpu", "use_distributed_sampler": False}, [], [], Clock(), fast_loops)
    assert mine.take(training)._accelerator_connector.use_distributed_sampler is False  # as the user has it


@BOTH
def test_the_reference_is_made_once(fast_loops):
    held = made({}, fast_loops)
    assert held.reference is held.reference
    assert (held.take(training=True) is held.reference) is (fast_loops and versions.is_proven())
