"""The short way through a fit or an evaluation gives the bits of Lightning's own loops, and steps back if anybody looks."""

import copy
import itertools
import warnings
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from federations import CPU, Linear, Table
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.trainer.states import RunningStage
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning.engine.lightning_fast import short_runs, versions
from fl_lightning.engine.lightning_fast.short_runs import EVALUATION_HOOKS, FIT_HOOKS, ShortRuns
from fl_lightning.engine.local import LocalTrainer

pytestmark = pytest.mark.skipif(not versions.is_proven(), reason="another Lightning: there is no short way")


class Data(L.LightningDataModule):
    def __init__(self, size=21, batch_size=4, shuffle=True, seed=0):
        super().__init__()
        x = torch.randn(size, 5, generator=torch.Generator().manual_seed(seed))
        self.set, self.options = TensorDataset(x, x.sum(1, keepdim=True)), {"batch_size": batch_size, "shuffle": shuffle}

    def train_dataloader(self):
        return DataLoader(self.set, **self.options)

    def val_dataloader(self):
        return DataLoader(self.set, batch_size=8)

    test_dataloader = val_dataloader


class Net(L.LightningModule):
    """Logs in each way that Lightning offers, and notes which hooks and counters it saw."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 1))
        self.seen = []

    def note(self, hook, *more):
        trainer = self.trainer
        counters = copy.deepcopy(trainer.fit_loop.state_dict())
        self.seen.append((hook, trainer.current_epoch, trainer.global_step, trainer.num_training_batches, counters, *more))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = (self.net(x) - y).square().mean()
        self.note("step", batch_idx, trainer_is_last(self))
        self.log("step_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        counters = copy.deepcopy(self.trainer.validate_loop.batch_progress.state_dict())
        modes = (self.training, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        self.seen.append(("val", batch_idx, modes, counters))
        self.log("val/error", (self.net(batch[0]) - batch[1]).abs().mean())

    def test_step(self, batch):
        self.log("test/error", (self.net(batch[0]) - batch[1]).abs().mean())

    def on_train_start(self):
        self.note("start")

    def on_train_epoch_start(self):
        self.note("epoch start")

    def on_train_epoch_end(self):
        self.note("epoch end")
        self.log("epoch", float(self.current_epoch))

    def on_train_end(self):
        self.note("end")

    def on_validation_start(self):
        self.seen.append(("val start", self.training))

    def on_validation_epoch_start(self):
        self.seen.append(("val epoch start", self.training))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def trainer_is_last(module):
    return module.trainer.fit_loop.epoch_loop.batch_progress.is_last_batch


class Silent(Net):
    """Logs nothing, so that the logging is skipped, too."""

    def training_step(self, batch, batch_idx):
        self.note("step", batch_idx)
        return {"loss": (self.net(batch[0]) - batch[1]).square().mean(), "more": 1}

    def on_train_epoch_end(self):
        self.note("epoch end")


def history(module, args, data, short, monkeypatch, fits=3):
    """Everything that can be seen of a few fits and evaluations of two clients in turn."""
    taken = []
    with monkeypatch.context() as patch:
        for name, stock in (("fit", False), ("evaluate", None)):
            own = getattr(ShortRuns, name)

            def counted(self, own=own, name=name):
                result = own(self)
                taken.append((name, result not in (False, None)))
                return result

            patch.setattr(ShortRuns, name, counted if short else (lambda self, stock=stock: stock))
        local = LocalTrainer(module, {"accelerator": "cpu", **args}, clients=dict(enumerate(data)))
        seen = []
        for number, client in itertools.product(range(fits), data):
            torch.manual_seed(number)
            logged = local.fit(client)
            state = {n: t.clone() for n, t in module.state_dict().items()}
            seen.append((logged, local.optimizer_state, state, torch.get_rng_state()))
            seen.append((local.evaluate(client, "val"), local.evaluate(client, "test"), module.training))
            torch.rand(1)
    return seen, module.seen, taken


def same(a, b):
    """Equality of nested results, tensors bit by bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


ARGUMENTS = {
    "epochs": {"max_epochs": 3},
    "one epoch": {"max_epochs": 1},
    "steps across epochs": {"max_steps": 8},
    "steps within an epoch": {"max_steps": 2},
    "steps and epochs": {"max_steps": 100, "max_epochs": 2},
    "clipped by norm": {"max_epochs": 2, "gradient_clip_val": 0.05},
    "clipped by value": {"max_epochs": 2, "gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "some batches": {"max_epochs": 2, "limit_train_batches": 2, "limit_val_batches": 1},
    "a share of the batches": {"max_epochs": 2, "limit_train_batches": 0.5, "limit_test_batches": 0.5},
    "no validation": {"max_epochs": 1, "limit_val_batches": 0},
    "one batch": {"fast_dev_run": True},
    "stops early": {"max_epochs": 6, "min_epochs": 2, "callbacks": [EarlyStopping("epoch", patience=1)]},
}


@pytest.mark.parametrize("kind", [Net, Silent])
@pytest.mark.parametrize("args", ARGUMENTS.values(), ids=ARGUMENTS)
def test_same_bits_metrics_hooks_and_counters_as_lightnings_loops(args, kind, monkeypatch):
    if "callbacks" in args and kind is Silent:
        pytest.skip("nothing logged to stop on")
    data = [Data(), Data(17, seed=1)]
    ours, our_hooks, taken = history(kind(), args, data, True, monkeypatch)
    stock, stock_hooks, _ = history(kind(), args, data, False, monkeypatch)
    assert same(ours, stock)
    assert our_hooks == stock_hooks
    fits = [was_short for name, was_short in taken if name == "fit"]
    assert fits[-1], "the short way was not taken, so nothing was compared"
    assert [was_short for name, was_short in taken if name == "evaluate"][-1]


def test_a_logger_gets_the_same_lines(tmp_path, monkeypatch):
    written = []
    for short in (True, False):
        logger = CSVLogger(tmp_path, name=str(short))
        args = {"max_epochs": 2, "logger": logger, "log_every_n_steps": 2}
        history(Net(), args, [Data()], short, monkeypatch, fits=4)
        written.append((tmp_path / str(short) / "version_0" / "metrics.csv").read_text())
    assert written[0] == written[1]
    assert len(written[0].splitlines()) > 10


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).split(1))


class Streamed(Data):
    def train_dataloader(self):
        return DataLoader(Endless(), batch_size=None)


class StreamedNet(Silent):
    def training_step(self, batch, batch_idx):
        self.note("step", batch_idx)
        return self.net(batch).square().mean()


class Sampled(Data):
    class Sampler(torch.utils.data.RandomSampler):
        epochs = []

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

    def train_dataloader(self):
        return DataLoader(self.set, batch_size=4, sampler=self.Sampler(self.set))


class Scheduled(Silent):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Manual(Silent):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.net(batch[0]).square().mean())
        optimizer.step()


class Asks(Silent):
    """Sets its rate by the number of steps, for which Lightning makes the loaders before the fit."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1 / self.trainer.estimated_stepping_batches)


STOCK = {
    "an optimiser that asks for the number of steps": (Asks, {"max_epochs": 2}, Data),
    "a loader without a length": (StreamedNet, {"max_epochs": 1}, Streamed),
    "a sampler that follows the epochs": (Silent, {"max_epochs": 2}, Sampled),
    "a scheduler": (Scheduled, {"max_epochs": 2}, Data),
    "manual optimisation": (Manual, {"max_epochs": 1}, Data),
    "accumulated gradients": (Silent, {"max_epochs": 1, "accumulate_grad_batches": 2}, Data),
    "bfloat16": (Silent, {"max_epochs": 1, "precision": "bf16-mixed"}, Data),
    "loaders made anew": (Silent, {"max_epochs": 2, "reload_dataloaders_every_n_epochs": 1}, Data),
    "a few batches to overfit on": (Silent, {"max_epochs": 2, "overfit_batches": 2}, Data),
    "anomaly detection": (Silent, {"max_epochs": 1, "detect_anomaly": True}, Data),
}


@pytest.mark.parametrize(("kind", "args", "data"), STOCK.values(), ids=STOCK)
def test_what_the_short_way_does_not_do_is_left_to_lightning(kind, args, data, monkeypatch):
    ours, our_hooks, taken = history(kind(), args, [data()], True, monkeypatch)
    stock, stock_hooks, _ = history(kind(), args, [data()], False, monkeypatch)
    assert same(ours, stock)
    assert our_hooks == stock_hooks
    assert ("fit", True) not in taken
    assert ("fit", False) in taken


@pytest.mark.parametrize("hook", FIT_HOOKS + EVALUATION_HOOKS)
@pytest.mark.parametrize("owner", ["module", "callback", "one object"])
def test_every_hook_around_a_batch_is_called_in_every_run(hook, owner, monkeypatch):
    calls = []
    base = Callback if owner == "callback" else L.LightningModule
    if not hasattr(base, hook):
        pytest.skip(f"a {owner} has no {hook}")

    def noted(self, *args, **kwargs):
        calls.append(hook)
        return getattr(base, hook)(self, *args, **kwargs)

    module, callbacks = Silent(), []
    if owner == "callback":
        callbacks = [type("Looks", (Callback,), {hook: noted})()]
    elif owner == "module":
        module = type("Looks", (Silent,), {hook: noted})()
    else:
        setattr(module, hook, lambda *args, **kwargs: noted(module, *args, **kwargs))
    args = {"accelerator": "cpu", "max_epochs": 1, "callbacks": callbacks}
    local, data = LocalTrainer(module, args), Data(9)
    numbers = []
    for _ in range(3):
        calls.clear()
        local.fit(data)
        local.evaluate(data, "val")
        local.evaluate(data, "test")
        numbers.append(len(calls))
    assert numbers[0] > 0
    assert numbers == [numbers[0]] * 3


def test_another_precision_is_evaluated_by_lightning(monkeypatch):
    """Its plugin converts the batch."""
    args = {"max_epochs": 1, "precision": "64-true"}
    ours, _, taken = history(Net().double(), args, [Data()], True, monkeypatch)
    stock, _, _ = history(Net().double(), args, [Data()], False, monkeypatch)
    assert same(ours, stock)
    assert {was_short for _, was_short in taken} == {False}


def test_a_new_loader_is_noticed(monkeypatch):
    """A data module that gives another loader than before is not served the old one."""
    data = Data(8)
    local = LocalTrainer(Silent(), {"accelerator": "cpu", "max_epochs": 1})
    for _ in range(3):
        local.fit(data)
    inner = local._reused(data)
    inner._done["train"] = DataLoader(data.set, batch_size=1)
    local.module.seen.clear()
    local.fit(data)
    assert len([note for note in local.module.seen if note[0] == "step"]) == 8


def test_a_step_without_a_loss_leaves_the_weights(monkeypatch):
    class Skips(Silent):
        def training_step(self, batch, batch_idx):
            self.note("step", batch_idx)
            return None if batch_idx == 1 else self.net(batch[0]).square().mean()

    with pytest.warns(UserWarning, match="returned `None`"):
        short_runs.Closure.warning_cache.clear()
        ours, our_hooks, _ = history(Skips(), {"max_epochs": 1}, [Data()], True, monkeypatch)
    stock, stock_hooks, _ = history(Skips(), {"max_epochs": 1}, [Data()], False, monkeypatch)
    assert same(ours, stock)
    assert our_hooks == stock_hooks


def test_an_error_in_a_step_comes_through_and_the_next_fit_is_whole():
    class Fails(Silent):
        fail = False

        def training_step(self, batch, batch_idx):
            if self.fail and batch_idx == 1:
                raise RuntimeError("broken batch")
            return super().training_step(batch, batch_idx)

    module, data = Fails(), Data(8)
    local = LocalTrainer(module, {"accelerator": "cpu", "max_epochs": 1})
    for _ in range(2):
        local.fit(data)
    module.fail = True
    with pytest.raises(RuntimeError, match="broken batch"):
        local.fit(data)
    module.fail = False
    module.seen.clear()
    local.fit(data)
    assert [note[0] for note in module.seen] == ["start", "epoch start", "step", "step", "epoch end", "end"]


@pytest.mark.parametrize("kind", [Net, Silent])
def test_callbacks_that_only_look_at_epochs_keep_the_short_way(kind, monkeypatch):
    class Counts(Callback):
        ends = 0

        def on_train_epoch_end(self, trainer, module):
            type(self).ends += 1

    _, _, taken = history(kind(), {"max_epochs": 2, "callbacks": [Counts()]}, [Data()], True, monkeypatch)
    assert ("fit", True) in taken
    assert Counts.ends == 6


def test_a_callback_that_looks_at_batches_does_not(monkeypatch, tmp_path):
    args = {"max_epochs": 1, "callbacks": [LearningRateMonitor()], "logger": CSVLogger(tmp_path)}
    _, _, taken = history(Net(), args, [Data()], True, monkeypatch)
    assert ("fit", True) not in taken


# ---- what only some modules, optimisers and moments show -----------------------------------------------------------------


class OnlyBatch(Silent):
    """Steps need not take the batch's number."""

    def training_step(self, batch):
        return super().training_step(batch, -1)

    def validation_step(self, batch):
        super().validation_step(batch, -1)


class Moves(Silent):
    """Hooks around a batch's way to the device, with the loader's number."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        self.seen.append(("before", dataloader_idx))
        return [batch[0] + 1, batch[1]]

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        self.seen.append(("transfer", str(device), dataloader_idx))
        return [batch[0] * 2, batch[1]]

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.seen.append(("after", dataloader_idx))
        return [batch[0] - 1, batch[1]]


class LogsAtTheEnd(Silent):
    """Nothing but a figure of each epoch."""

    def on_train_epoch_end(self):
        self.note("epoch end")
        self.log("epoch", float(self.current_epoch))


class LeavesGradients(Silent):
    """Has gradients from elsewhere; notes which there are, and whether they are computed, in hooks around a run."""

    def gradients(self, hook):
        self.seen.append((hook, torch.is_grad_enabled(), [p.grad is None for p in self.parameters()]))

    def on_train_start(self):
        self.gradients("start")

    def on_validation_start(self):
        self.gradients("val start")

    def on_train_end(self):
        self.gradients("end")

    def on_validation_end(self):
        with torch.enable_grad():
            self.net(torch.ones(1, 5)).sum().backward()


@pytest.mark.parametrize("kind", [OnlyBatch, Moves, LogsAtTheEnd, LeavesGradients])
def test_other_modules_see_the_same(kind, monkeypatch):
    with torch.no_grad():  # whatever the caller has said
        ours, our_hooks, taken = history(kind(), {"max_epochs": 2}, [Data(9)], True, monkeypatch)
        stock, stock_hooks, _ = history(kind(), {"max_epochs": 2}, [Data(9)], False, monkeypatch)
    assert same(ours, stock) and our_hooks == stock_hooks
    assert ("fit", True) in taken and ("evaluate", True) in taken


def test_inference_mode_is_left_to_lightning(monkeypatch):
    _, hooks, taken = history(Net(), {"inference_mode": True}, [Data(9)], True, monkeypatch)
    assert ("evaluate", True) not in taken and ("fit", True) in taken
    assert {seen[2] for seen in hooks if seen[0] == "val"} == {(False, False, True)}


@pytest.mark.parametrize("kind", [Net, LogsAtTheEnd])
def test_loggers_get_each_figure_at_the_same_step(kind, tmp_path, monkeypatch):
    written = []
    for short in (True, False):
        logger = CSVLogger(tmp_path, name=str(short))
        lines = []
        monkeypatch.setattr(logger, "log_metrics", lambda metrics, step=None, lines=lines: lines.append((step, metrics)))
        history(kind(), {"max_epochs": 3, "logger": logger, "log_every_n_steps": 1}, [Data(9)], short, monkeypatch)
        written.append(lines)
    assert same(*written) and len(written[0]) > 5


def test_an_optimiser_that_asks_for_the_loss_several_times_gets_it():
    class Repeats(Silent):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=3)

    weights = []
    for fast_loops in (True, False):
        module, data = Repeats(), Data(8)
        local = LocalTrainer(module, {"accelerator": "cpu"}, fast_loops=fast_loops)
        for number in range(3):
            torch.manual_seed(number)
            local.fit(data)
        weights.append(dict(module.state_dict()))
    assert same(*weights)


def test_an_optimiser_gets_the_loss_without_its_graph():
    needed = []

    class Notes(torch.optim.SGD):
        def step(self, closure=None):
            needed.append(closure().requires_grad)
            return super().step()

    class Net(Silent):
        def configure_optimizers(self):
            return Notes(self.parameters(), lr=0.01)

    local, data = LocalTrainer(Net(), {"accelerator": "cpu"}), Data(4)
    for _ in range(3):
        local.fit(data)
    assert needed == [False] * 3


def test_a_missing_loss_is_told_and_no_other(monkeypatch):
    class Skips(Silent):
        skips = False

        def training_step(self, batch, batch_idx):
            return None if self.skips else super().training_step(batch, batch_idx)

    module, data = Skips(), Data(4)
    local = LocalTrainer(module, {"accelerator": "cpu"})
    short_runs.Closure.warning_cache.clear()
    wanted = "`training_step` returned `None`, so the weights"  # from the third run on it is the short way that says it
    for module.skips, told in ((False, []), (False, []), (False, []), (True, [wanted])):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            local.fit(data)
        assert [str(w.message)[:47] for w in caught if "`None`" in str(w.message)] == told


def test_a_loader_without_a_batch_starts_nothing_and_draws_the_same():
    class Drops(Data):
        def train_dataloader(self):
            return DataLoader(self.set, batch_size=100, drop_last=True)

    module, data, states = Silent(), Drops(), []
    local = LocalTrainer(module, {"accelerator": "cpu"})
    for _ in range(3):
        torch.manual_seed(0)
        with pytest.raises(ValueError, match="its training loader has no batch"):
            local.fit(data)
        states.append(torch.get_rng_state())
    assert module.seen == [] and torch.equal(states[0], states[1]) and torch.equal(states[0], states[2])


@pytest.mark.parametrize("where", ["training_step", "validation_step"])
@pytest.mark.parametrize("at", [0, 2])
def test_a_signal_to_stop_ends_a_run_where_lightning_would(where, at):
    """At once within an epoch; a fit ends after its epoch, an evaluation that has come to its end is whole."""

    class Stopped(Silent):
        on = False

        def stop(self, index):
            if self.on and index == at:
                self.trainer._signal_connector.received_sigterm = True

        def training_step(self, batch, batch_idx):
            if where == "training_step":
                self.stop(batch_idx)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            if where == "validation_step":
                self.stop(batch_idx)

    outcomes = []
    for before in (0, 2):  # the first is Lightning's own
        module, data = Stopped(), Data(17)
        data.train_dataloader = lambda data=data: DataLoader(data.set, batch_size=8)
        local = LocalTrainer(module, {"accelerator": "cpu", "max_epochs": 2})

        def run(local=local, data=data):
            return local.fit(data) if where == "training_step" else local.evaluate(data, "val")

        for _ in range(before):
            run()
        module.on = True
        module.seen.clear()
        try:
            run()
            ended = "whole"
        except BaseException as error:  # its kind is what is compared
            ended = type(error).__name__
        outcomes.append((ended, [seen[0] for seen in module.seen]))
    assert outcomes[0] == outcomes[1]
    assert (outcomes[0][0] == "whole") == (where == "validation_step" and at == 2)


# ---- which loaders are remembered ----------------------------------------------------------------------------------------


class Follows(torch.utils.data.SequentialSampler):
    def set_epoch(self, epoch):
        pass


ITEMS = list(range(8))
LOADERS = {
    "a plain one": (DataLoader(ITEMS, batch_size=2), {}, 4),
    "a part of its batches": (DataLoader(ITEMS, batch_size=2), {"limits": [3]}, 3),
    "with worker processes": (DataLoader(ITEMS, batch_size=2, num_workers=1), {}, None),
    "without a length": (DataLoader(Endless(), batch_size=None), {"limits": [float("inf")]}, None),
    "a sampler that follows the epochs": (DataLoader(ITEMS, sampler=Follows(ITEMS)), {}, None),
    "a batch sampler that follows the epochs": (DataLoader(ITEMS, batch_sampler=Follows(ITEMS)), {}, None),
    "one that Lightning replaced": (DataLoader(ITEMS), {"iterables": DataLoader(ITEMS)}, None),
    "one without a batch": (DataLoader(ITEMS), {"limits": [0]}, None),
    "one with a single batch": (DataLoader(ITEMS), {"limits": [1]}, 1),
    "several": ([DataLoader(ITEMS)], {}, None),
    "none": (None, {"iterables": None}, None),
}


@pytest.mark.parametrize("what", LOADERS)
@pytest.mark.parametrize("stage", ["train", "val", "test"])
def test_a_plain_loader_that_comes_again_is_remembered(what, stage):
    loader, given, expected = LOADERS[what]
    stages = {"train": "TRAINING", "val": "VALIDATING", "test": "TESTING"}
    built = SimpleNamespace(built={stage: loader}.get, **{f"{stage}_dataloader": lambda: loader})
    combined = SimpleNamespace(**{"iterables": loader, "limits": None, **given})
    state = SimpleNamespace(stage=RunningStage[stages[stage]])
    trainer = SimpleNamespace(_active_loop=SimpleNamespace(_combined_loader=combined), state=state, datamodule=built)
    runs = ShortRuns(trainer)
    assert runs._find(stage) is None
    runs.remember()
    known = runs._find(stage)
    assert (None if known is None else known.num_batches) == expected
    assert known is None or (known.loader is loader and known.combined is combined)
    vars(built)[f"{stage}_dataloader"] = lambda: DataLoader(ITEMS)
    assert runs._find(stage) is None  # another one
    trainer.datamodule = SimpleNamespace(built=built.built, **{f"{stage}_dataloader": lambda: loader})
    assert runs._find(stage) is None  # of another client


def test_nothing_is_remembered_of_a_run_without_loader_or_of_another_data_module():
    loader = DataLoader(ITEMS)
    state = SimpleNamespace(stage=RunningStage.TRAINING)
    for loop, data in (
        (SimpleNamespace(), SimpleNamespace(built=lambda stage: loader)),
        (SimpleNamespace(_combined_loader=None), SimpleNamespace(built=lambda stage: loader)),
        (SimpleNamespace(_combined_loader=SimpleNamespace(iterables=loader, limits=None)), SimpleNamespace()),
        (SimpleNamespace(_combined_loader=SimpleNamespace(iterables=loader, limits=None)), None),
    ):
        runs = ShortRuns(SimpleNamespace(_active_loop=loop, state=state, datamodule=data))
        runs.remember()
        assert runs._known == {}


@pytest.mark.parametrize("run", ["fit", "val"])
def test_a_run_begins_without_gradients_and_a_fit_computes_them_whatever_the_caller_has_said(run):
    seen = []

    class Notes(Silent):
        def on_train_start(self):
            seen.append((torch.is_grad_enabled(), {p.grad is None for p in self.parameters()}))

        def on_validation_start(self):
            seen.append((torch.is_grad_enabled(), {p.grad is None for p in self.parameters()}))

    module, data = Notes(), Data(4)
    local = LocalTrainer(module, {"accelerator": "cpu"})
    for _ in range(3):
        module.net(torch.ones(1, 5)).sum().backward()
        with torch.no_grad():
            local.fit(data) if run == "fit" else local.evaluate(data, run)
    assert seen == [(run == "fit", {True})] * 3


def test_loggers_save_when_a_fit_is_to_stop(tmp_path, monkeypatch):
    saved = []

    class Stops(Net):
        def training_step(self, batch, batch_idx):
            self.trainer.should_stop = batch_idx == 1
            return super().training_step(batch, batch_idx)

    for short in (True, False):
        logger = CSVLogger(tmp_path, name=str(short))
        numbers = []
        monkeypatch.setattr(logger, "save", lambda numbers=numbers: numbers.append(1))
        history(Stops(), {"max_epochs": 2, "logger": logger}, [Data(9)], short, monkeypatch)
        saved.append(len(numbers))
    assert saved[0] == saved[1] > 0


def test_a_step_that_is_given_anew_is_asked_anew_whether_it_takes_the_batchs_number():
    module, data, seen = Linear(), Table(8, seed=1), []
    local = LocalTrainer(module, CPU)
    for _ in range(3):  # the third goes the short way
        local.fit(data)
        local.evaluate(data, "val")
    train, validate = module.training_step, module.validation_step
    module.training_step = lambda batch: seen.append("train") or train(batch, 0)
    module.validation_step = lambda batch: seen.append("val") or validate(batch, 0)
    local.fit(data)
    local.evaluate(data, "val")
    assert set(seen) == {"train", "val"}
