"""The reused trainer of a client: every fit starts from nothing but the weights, whatever was fitted before."""

import copy

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from federations import CPU, Deep, Linear, Table, TrainOnly, federate, points
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader

from fl_lightning.engine.local import LocalTrainer
from fl_lightning.engine.trainer_args import check_trainer_args
from lit_models import GraphSAGE, LitNodeClassifier
from lit_models.base import LitGraphModule
from lit_models.objectives.base import Objective

ARGS = {"accelerator": "cpu"}


class Steps(Linear):
    """Counts its training steps and remembers in which mode it was."""

    def __init__(self):
        super().__init__()
        self.steps, self.modes, self.outputs = 0, [], []

    def training_step(self, batch, batch_idx):
        self.steps += 1
        self.modes.append(self.training)
        return super().training_step(batch, batch_idx)


def table(n=10, seed=1, **options):
    data = Table(n, seed, **options)
    data.setup()
    return data


@pytest.mark.parametrize(("args", "expected"), [({"max_steps": 3}, 3), ({"max_epochs": 2}, 10), ({"max_steps": 7}, 7), ({}, 5)])
def test_local_work_counts_from_zero_in_every_fit(args, expected):
    module = Steps()
    local = LocalTrainer(module, {**ARGS, **args})
    for n in (20, 20, 20):
        module.steps = 0
        local.fit(table(n, batch_size=4))
        assert module.steps == expected


def test_a_fit_does_not_depend_on_what_was_fitted_before():
    def trained(before):
        torch.manual_seed(0)
        module = Deep()
        start = copy.deepcopy(module.state_dict())
        local = LocalTrainer(module, {**ARGS, "max_epochs": 2})
        for other in before:
            local.fit(other)
            local.evaluate(other, "val")
        module.load_state_dict(start)
        module.memory = {}
        torch.manual_seed(1)
        local.fit(table(12, 3, batch_size=4))
        return module.state_dict()

    alone, after = trained([]), trained([table(20, 1), table(6, 2)])
    for name, tensor in alone.items():
        assert torch.equal(tensor, after[name]), name


def test_train_mode_after_evaluation_prediction_and_a_module_left_in_eval_mode():
    module = Steps()
    local = LocalTrainer(module, ARGS)
    local.evaluate(table(), "val")
    local.fit(table())
    module.eval()
    local.fit(table())
    module.net.eval()
    local.fit(table())
    assert module.modes == [True] * 3 and module.net.training


def test_a_submodule_that_the_user_froze_in_eval_mode_stays_so():
    module = Deep()
    module.net[1].eval()
    local = LocalTrainer(module, ARGS)
    module.eval()
    local.fit(table(12))
    assert not module.net[1].training and module.net[3].training and module.training


class Patience(EarlyStopping):
    def __init__(self):
        super().__init__("train_loss", patience=2, min_delta=100.0, check_on_train_epoch_end=True, verbose=False)


def test_early_stopping_counts_anew_for_every_client():
    # min_delta 100: never better, so each fit stops after the first epoch and `patience` more.
    module, callback = Steps(), Patience()
    local = LocalTrainer(module, {**ARGS, "max_epochs": 50, "callbacks": [callback]})
    for _ in range(3):
        module.steps = 0
        local.fit(table())
        assert module.steps == 3
    assert callback.wait_count == 0 and callback.stopped_epoch == 0


class Counter(Callback):
    def __init__(self):
        self.starts = 0

    def on_train_start(self, trainer, module):
        self.starts += 1
        module.seen.append(self.starts)


def test_a_single_callback_need_not_be_in_a_list_and_its_state_stays_with_one_fit():
    module = Linear()
    module.seen = []
    local = LocalTrainer(module, {**ARGS, "callbacks": Counter()})
    local.fit(table())
    local.fit(table())
    assert module.seen == [1, 1]


def test_callbacks_of_the_module_itself_do_not_pile_up():
    class WithCallback(Linear):
        def configure_callbacks(self):
            return [Counter()]

    module = WithCallback()
    module.seen = []
    local = LocalTrainer(module, ARGS)
    for _ in range(3):
        local.fit(table())
    assert module.seen == [1, 1, 1]


@pytest.mark.parametrize("callbacks", [[ModelCheckpoint()], ModelCheckpoint(), [Counter(), ModelCheckpoint()]])
def test_model_checkpoint_is_refused_with_what_to_use(callbacks):
    with pytest.raises(ValueError, match="`trainer.callbacks` holds a ModelCheckpoint.*federation.keep_last"):
        check_trainer_args({"callbacks": callbacks})


@pytest.mark.parametrize("args", [{"max_epochs": 0}, {"max_steps": 0}])
def test_no_local_work_is_refused(args):
    with pytest.raises(ValueError, match="local work in a round: at least 1"):
        check_trainer_args(args)


def test_endless_local_work_is_refused():
    with pytest.raises(ValueError, match="`trainer.max_epochs: -1` would never end"):
        check_trainer_args({"max_epochs": -1})
    check_trainer_args({"max_epochs": -1, "max_steps": 5})


def test_gradients_are_clipped_as_lightning_does():
    # One step of SGD, lr .05, on a gradient of norm > 1e-3: the step has length .05 x 1e-3.
    module = Linear()
    before = torch.cat([p.detach().flatten().clone() for p in module.parameters()])
    LocalTrainer(module, {**ARGS, "gradient_clip_val": 1e-3}).fit(table())
    after = torch.cat([p.detach().flatten() for p in module.parameters()])
    torch.testing.assert_close((after - before).norm(), torch.tensor(5e-5), rtol=1e-3, atol=0)


def test_bf16_mixed_precision_computes_in_bfloat16_and_keeps_float32_weights():
    class Watch(Linear):
        def training_step(self, batch, batch_idx):
            self.dtype_seen = self(batch[0]).dtype
            return super().training_step(batch, batch_idx)

    module = Watch()
    LocalTrainer(module, {**ARGS, "precision": "bf16-mixed"}).fit(table())
    assert module.dtype_seen == torch.bfloat16 and module.net.weight.dtype == torch.float32


def test_the_loss_scale_of_float16_starts_anew_in_every_fit():
    scales = []

    class Watch(Linear):
        def on_train_start(self):
            scales.append(self.trainer.precision_plugin.scaler.get_scale())

        on_train_end = on_train_start

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    local = LocalTrainer(Watch(), {**ARGS, "plugins": [plugin], "max_epochs": 3})
    local.fit(table())
    local.fit(table())
    assert scales == [1024.0, 8192.0] * 2  # doubled after each of three steps


class Kept(Linear):
    """Makes its optimiser once, in ``__init__``."""

    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)

    def configure_optimizers(self):
        return self.optimizer


def test_an_optimiser_that_the_module_keeps_is_reset_and_trains_copies():
    module = copy.deepcopy(Kept())
    start = copy.deepcopy(module.state_dict())
    local = LocalTrainer(module, ARGS)
    results = []
    for other in (None, table(16, 9)):
        if other is not None:
            local.fit(other)
        module.load_state_dict(start)
        local.fit(table())
        results.append(module.net.weight.detach().clone())
    assert torch.equal(*results) and not torch.equal(results[0], start["net.weight"])


def test_an_optimiser_bound_to_another_copy_is_an_error_not_silence():
    template = Linear()

    class Bound(Linear):
        def configure_optimizers(self):
            return torch.optim.SGD(template.parameters(), lr=0.1)

    with pytest.raises(ValueError, match="holds none of the module's parameters.*OptimizerCallable"):
        LocalTrainer(Bound(), ARGS).fit(table())


def test_every_fit_makes_a_new_optimiser_and_adam_starts_anew():
    class WithAdam(Linear):
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.1)

    module = WithAdam()
    local = LocalTrainer(module, ARGS)
    for _ in range(2):
        before = module.net.weight.detach().clone()
        local.fit(table())
        # The first step of Adam has length lr in every coordinate.
        torch.testing.assert_close((module.net.weight - before).abs(), torch.full((1, 3), 0.1), atol=1e-5, rtol=0)


def test_adam_continues_from_the_state_it_is_given():
    class WithAdam(Linear):
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.1)

    module = WithAdam()
    net = copy.deepcopy(module.net)
    x, y = points(10, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    local, state = LocalTrainer(module, ARGS), None
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
        local.fit(table(), state)
        state = local.optimizer_state
        assert torch.equal(net.weight, module.net.weight)
    assert state.keys() == {f"0/{p}/{k}" for p in range(2) for k in ("step", "exp_avg", "exp_avg_sq")}


def test_an_optimiser_with_odd_state_works_unless_its_state_is_to_be_carried(tmp_path):
    class WithLBFGS(Linear):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=2)

    assert federate(tmp_path, WithLBFGS).results["failures"] == []
    module = WithLBFGS()
    local = LocalTrainer(module, ARGS)
    local.fit(table())
    with pytest.raises(ValueError, match="carry_optimizer_state.*LBFGS"):
        local.optimizer_state  # noqa: B018


class DropsAll(TrainOnly):
    def train_dataloader(self):
        return DataLoader(self.data, batch_size=100, drop_last=True)


def test_a_loader_without_a_batch_is_a_named_failure_and_keeps_nothing_of_another_client(tmp_path):
    class WithAdam(Linear):
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.1)

    told = DropsAll(10, 2)
    told.num_train_samples = 10  # else its loader is built to count them, and the run refused
    fed = federate(
        tmp_path, WithAdam, [Table(10, 1), told], num_rounds=1, carry_optimizer_state=True
    )  # fmt: skip
    (failure,) = fed.results["failures"]
    assert failure["client"] == 1 and "no batch (`drop_last`" in failure["reason"]
    assert not (fed.run_dir / "checkpoints" / "round_00000" / "client_00001.pt").exists()


def test_metrics_come_without_the_stages_prefix():
    class Logs(Linear):
        def validation_step(self, batch, batch_idx):
            self.log_dict({"val/accuracy": 0.5, "val_loss": 2.0, "other": 1.0, "validity": 3.0})

    local = LocalTrainer(Logs(), ARGS)
    assert local.evaluate(table(), "val") == {"accuracy": 0.5, "loss": 2.0, "other": 1.0, "validity": 3.0}


def test_no_data_or_no_step_for_a_stage_is_none_not_an_error():
    class NoSteps(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 1)

    assert LocalTrainer(Linear(), ARGS).evaluate(TrainOnly(5, 1), "val") is None
    assert LocalTrainer(NoSteps(), ARGS).evaluate(table(), "test") is None
    assert LocalTrainer(Linear(), ARGS).predict(table()) is None
    assert LocalTrainer(Linear(), ARGS).evaluate(table(held_out=0), "val") == {}


def test_the_lightning_strategy_argument_is_lightnings_and_ours_is_the_federations(tmp_path):
    fed = federate(tmp_path, trainer={"strategy": "auto"})
    assert fed.results["strategy"] == "FedAvg"


def test_an_unknown_trainer_argument_is_an_error_before_round_one(tmp_path):
    with pytest.raises(ValueError, match="`trainer.max_epoch`: no such key. Did you mean `max_epochs`"):
        federate(tmp_path, trainer={"max_epoch": 3})
    assert not any(tmp_path.rglob("checkpoints"))


def test_clipping_a_fused_optimiser_in_mixed_precision_is_an_error_before_round_one():
    def local(fused, **args):
        module = LitNodeClassifier(GraphSAGE(4), optimizer=lambda p: torch.optim.Adam(p, lr=0.1, fused=fused))
        module.build({"num_features": 3, "num_classes": 2})
        return LocalTrainer(module, {**ARGS, **args})

    mixed, clipped = {"precision": "bf16-mixed"}, {"gradient_clip_val": 1.0}
    with pytest.raises(ValueError, match=r"`trainer.precision: bf16-mixed` cannot clip .*fused: false`"):
        local(True, **mixed, **clipped).check()
    for fused, args in ((False, {**mixed, **clipped}), (True, mixed), (True, clipped)):
        local(fused, **args).check()


def test_batch_hooks_of_a_data_module_are_used():
    class Doubles(Table):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return [batch[0] * 2, batch[1]]

    module = Linear()
    net = copy.deepcopy(module.net)
    data = Doubles(10, 1)
    data.setup()
    LocalTrainer(module, ARGS).fit(data)
    x, y = points(10, 1)
    F.mse_loss(net(2 * x), y).backward()
    torch.testing.assert_close(module.net.weight, net.weight - 0.05 * net.weight.grad)


def test_loaders_and_setup_are_asked_for_once():
    class Counts(Table):
        calls = ()

        def setup(self, stage=None):
            self.calls += ("setup " + stage,)
            super().setup(stage)

        def train_dataloader(self):
            self.calls += ("train",)
            return super().train_dataloader()

    data, local = Counts(10, 1), LocalTrainer(Linear(), ARGS)
    for _ in range(4):
        local.fit(data)
        local.evaluate(data, "val")
    assert sorted(data.calls) == ["setup fit", "setup validate", "train"]


def test_a_copy_of_a_trained_module_drags_no_trainer_and_no_data_along():
    data = table(2000)
    module = Linear()
    local = LocalTrainer(module, ARGS)
    local.fit(data)
    local.evaluate(data, "val")
    twin = copy.deepcopy(module)
    assert twin._trainer is None
    assert not any(isinstance(v, L.Trainer | L.LightningDataModule) for v in vars(twin).values())
    ours = LitNodeClassifier(GraphSAGE(hidden_channels=4), num_classes=2, in_channels=3)
    assert not any(callable(v) and getattr(v, "__self__", None) is ours for v in vars(copy.deepcopy(ours)).values())


def test_training_in_a_thread_registers_no_signal_handler(tmp_path):
    import threading

    found = []
    thread = threading.Thread(target=lambda: found.append(federate(tmp_path).results["rounds_run"]))
    thread.start()
    thread.join(60)
    assert found == [2]


def test_cpu_arguments_reach_lightning():
    local = LocalTrainer(Linear(), {**CPU, "limit_train_batches": 2, "max_epochs": 3})
    module = Steps()
    local.module = module
    local.fit(table(20, batch_size=4))
    assert module.steps == 6


def test_a_clients_metrics_are_the_means_over_its_epoch():
    """Without Lightning's bookkeeping what is logged last would stay: a term must not be that of the last batch."""

    class Numbered(Objective):
        batch = 0.0

        def __call__(self, module, batch):
            self.batch += 1
            module.observe({"number": torch.tensor(self.batch)})
            return module.net(batch[0]).sum()

    class Ours(LitGraphModule):
        def __init__(self):
            super().__init__(Numbered())
            self.build({})

        def build_layers(self, schema):
            self.net = nn.Linear(3, 1)

    local = LocalTrainer(Ours(), ARGS)
    assert [local.fit(table(8, batch_size=2))["train/number"] for _ in range(2)] == [2.5, 6.5]  # 1 to 4, 5 to 8


def test_fits_are_silent_beside_the_other_package(caplog):
    """Whichever of the two was imported last has the logger of both."""
    pytest.importorskip("pytorch_lightning")
    with caplog.at_level("INFO"):
        LocalTrainer(Linear(), ARGS).fit(table())
    assert not [r for r in caplog.records if "lightning" in r.name]
