"""Local work step by step; whole fits are in ``test_local_trainer.py``, their Trainers in ``test_trainers.py``."""

import logging
import warnings
from types import SimpleNamespace

import pytest
import torch
from federations import CPU, Linear, Table, TrainOnly, clients, federate
from torch.utils.data import DataLoader, RandomSampler

from fl_lightning.engine.lightning_fast.versions import is_proven
from fl_lightning.engine.local import QUIET, LocalTrainer, ReusedData, quiet, reused, set_up
from fl_lightning.engine.seeds import stream


class Modes(Linear):
    """Keeps the modes that its parts are in while training and validating."""

    def __init__(self):
        super().__init__()
        self.frozen = torch.nn.Dropout(0.5)
        self.modes = []

    def training_step(self, batch, batch_idx):
        self.modes.append((self.training, self.net.training, self.frozen.training))
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("left_in_eval", [False, True])
def test_parts_train_in_the_mode_that_the_user_left_them_in(left_in_eval):
    """Of a whole module in eval mode (after an evaluation, say) all parts train; a frozen part of a training one does not."""
    module = Modes()
    module.frozen.eval()
    if left_in_eval:
        module.eval()
    local, data = LocalTrainer(module, CPU), Table(8, seed=1)
    local.fit(data)
    local.evaluate(data, "val")
    local.fit(data)
    assert module.modes == [(True, True, left_in_eval)] * 2


@pytest.mark.skipif(not is_proven(), reason="another Lightning: there is no short way")
def test_what_our_modules_log_goes_the_short_way_and_nothing_of_it_stays():
    class Logging(Linear):
        def log_values(self, values):
            raise AssertionError("the long way")

        def training_step(self, batch, batch_idx):
            self.log_values({"train/x": torch.tensor(2.0)})
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.log_values({"val/y": torch.tensor(3.0)})

    module = Logging()
    local, data = LocalTrainer(module, CPU), Table(8, seed=1)
    assert local.fit(data)["train/x"] == 2.0
    assert local.evaluate(data, "val") == {"y": 3.0}
    assert "log_values" not in vars(module)


class Drawing(Table):
    """Draws a split in ``setup`` and a number in each loader."""

    def __init__(self):
        super().__init__(8, seed=1)
        self.drawn = {}

    def setup(self, stage=None):
        self.drawn.setdefault(f"setup/{getattr(stage, 'value', stage)}", []).append(torch.rand(1).item())
        super().setup(stage)

    def train_dataloader(self):
        self.drawn.setdefault("train", []).append(torch.rand(1).item())
        return super().train_dataloader()

    def val_dataloader(self):
        self.drawn.setdefault("val", []).append(torch.rand(1).item())
        return super().val_dataloader()


def expected_draw(purpose, client, seed=3):
    with stream(seed, purpose, client=client):
        return torch.rand(1).item()


def test_each_client_draws_its_split_and_loaders_once_from_streams_of_its_own():
    clients = {0: Drawing(), 4: Drawing()}
    server, local = Drawing(), LocalTrainer(Linear(), CPU, seed=3, clients=clients)
    for data in (*clients.values(), server):
        for _ in range(2):
            local.fit(data)
            local.evaluate(data, "val")
    for client, data in ((0, clients[0]), (4, clients[4]), (-1, server)):
        assert data.drawn["setup/fit"] == data.drawn["setup/validate"] == [expected_draw("setup", client)]
        assert data.drawn["train"] == [expected_draw("train loader", client)]
        assert data.drawn["val"] == [expected_draw("val loader", client)]
    assert expected_draw("setup", 0) != expected_draw("setup", 4)


def test_set_up_without_a_client_is_the_servers():
    data = Drawing()
    set_up(data, "fit", 3)
    assert data.drawn["setup/fit"] == [expected_draw("setup", -1)]


@pytest.mark.parametrize("holder", ["loader", "sampler", "batch sampler"])
def test_a_generator_of_the_users_own_begins_anew_in_each_fit(holder):
    own, data = torch.Generator(), list(range(6))
    loader = {
        "loader": lambda: DataLoader(data, generator=own, shuffle=True),
        "sampler": lambda: DataLoader(data, sampler=RandomSampler(data, generator=own)),
        "batch sampler": lambda: SimpleNamespace(batch_sampler=SimpleNamespace(generator=own)),
    }[holder]()
    inner = TrainOnly(4, seed=1)
    inner.train_dataloader = lambda: loader
    wrapped = ReusedData(inner, 3, 0)
    assert wrapped.built("train") is None
    states = []
    for seed in (1, 1, 2):
        with stream(seed, "fit"):
            assert wrapped.train_dataloader() is loader is wrapped.built("train")
            assert own.initial_seed() == torch.initial_seed()
            states.append(torch.rand(1, generator=own).item())
    assert states[0] == states[1] != states[2]
    other = [1, 2]
    wrapped.replace("train", other)
    assert wrapped.train_dataloader() is other


def test_own_transfer_hooks_are_seen_and_private_names_are_not():
    class Own(TrainOnly):
        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            return "moved", batch

    wrapped, plain = reused(Own(4, seed=1)), reused(TrainOnly(4, seed=1))
    assert wrapped.transfer_batch_to_device("b", None, 0) == ("moved", "b")
    assert "transfer_batch_to_device" in vars(type(wrapped)) and "transfer_batch_to_device" not in vars(type(plain))
    assert wrapped.data is wrapped._inner.data
    with pytest.raises(AttributeError):
        _ = wrapped._secret


@pytest.mark.parametrize("fast_loops", [True, False])
def test_a_fit_that_fails_leaves_a_trainer_that_works(fast_loops):
    class Once(Linear):
        failed = False

        def training_step(self, batch, batch_idx):
            if not self.failed:
                self.failed = True
                raise KeyboardInterrupt
            return super().training_step(batch, batch_idx)

    module, data = Once(), Table(8, seed=1)
    local = LocalTrainer(module, CPU, fast_loops=fast_loops)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        local.fit(data)
    broken = module.trainer
    assert local.fit(data)["train_loss"] > 0 and module.trainer is not broken


def test_there_is_nothing_to_evaluate_or_predict_without_loader_or_step():
    local = LocalTrainer(Linear(), CPU)
    only = TrainOnly(4, seed=1)
    assert local.evaluate(only, "val") is local.evaluate(only, "test") is local.predict(only) is None


def test_quiet_is_undone_and_free_inside_another_one():
    before = [logging.getLogger(name).level for name in QUIET]
    with quiet():
        assert all(logging.getLogger(name).level == logging.ERROR for name in QUIET)
        with quiet():
            filters = list(warnings.filters)
        assert warnings.filters == filters and all(logging.getLogger(name).level == logging.ERROR for name in QUIET)
        with warnings.catch_warnings(record=True) as told:
            warnings.filterwarnings("always", "something else")
            warnings.warn("the loader does not have many workers", stacklevel=1)
            warnings.warn("something else", stacklevel=1)
        assert [str(w.message) for w in told] == ["something else"]
    assert [logging.getLogger(name).level for name in QUIET] == before
    with pytest.raises(RuntimeError), quiet():
        raise RuntimeError
    assert [logging.getLogger(name).level for name in QUIET] == before


def test_without_a_seed_and_clients_all_is_drawn_as_the_server_does_for_seed_zero():
    data = Drawing()
    LocalTrainer(Linear(), CPU).fit(data)
    assert data.drawn == {"setup/fit": [expected_draw("setup", -1, 0)], "train": [expected_draw("train loader", -1, 0)]}
    data = Drawing()
    reused(data).setup("fit")
    assert data.drawn == {"setup/fit": [expected_draw("setup", -1, 0)]}


def test_a_fit_trains_only_and_an_evaluation_goes_over_all_data():
    class Validated(Linear):
        seen = 0

        def validation_step(self, batch, batch_idx):
            self.seen += 1
            return super().validation_step(batch, batch_idx)

    data = Table(8, seed=1)
    data.predict_dataloader = data.val_dataloader
    module = Validated()
    local, taken = LocalTrainer(module, CPU), []
    take = local._trainers.take
    local._trainers.take = lambda training: taken.append(training) or take(training)
    assert not any(name.startswith("val") for name in local.fit(data)) and module.seen == 0
    assert local.evaluate(data, "val").keys() == {"loss"} and module.seen == 1
    assert len(local.predict(data)) == 1 and taken == [True, False, False]


def test_nothing_is_printed(capsys):
    local, data = LocalTrainer(Linear(), CPU), Table(8, seed=1)
    local.fit(data)
    local.evaluate(data, "val")
    assert capsys.readouterr().out == ""


def test_a_part_that_is_there_later_trains():
    module = Linear()
    local, data = LocalTrainer(module, CPU), Table(8, seed=1)
    module.late = torch.nn.Dropout(0.5).eval()
    local.fit(data)
    assert module.late.training


def test_a_loader_may_be_given_instead_of_the_data_modules_own():
    class Sizes(Linear):
        def __init__(self):
            super().__init__()
            self.sizes = []

        def training_step(self, batch, batch_idx):
            self.sizes.append(len(batch[0]))
            return super().training_step(batch, batch_idx)

    module, data = Sizes(), Table(8, seed=1)
    local = LocalTrainer(module, CPU)
    local.fit(data)
    local.fit(data, loader=DataLoader(data.train, batch_size=4))
    local.fit(data)  # from now on
    assert module.sizes == [8, 4, 4, 4, 4]


def test_samples_are_counted_by_the_loader_of_the_fits_unless_the_number_is_given():
    class Prepared(Table):
        def __init__(self):
            super().__init__(8, seed=1)
            self.calls = []

        def prepare_data(self):
            self.calls.append("prepare")

        def setup(self, stage=None):
            self.calls.append(stage)
            super().setup(stage)

        def train_dataloader(self):
            self.calls.append("train")
            return super().train_dataloader()

    data, local = Prepared(), LocalTrainer(Linear(), CPU)
    assert local.num_train_samples(data) == 8 and data.calls == ["prepare", "fit", "train"]
    for _ in range(2):
        local.fit(data)
    assert local.num_train_samples(data) == 8 and data.calls == ["prepare", "fit", "train"]
    given = Prepared()
    given.num_train_samples = 3.0
    assert local.num_train_samples(given) == 3 and given.calls == []


def test_only_an_optimiser_that_the_module_can_make_is_asked_for_clipping():
    args = {**CPU, "precision": "bf16-mixed", "gradient_clip_val": 1.0}
    LocalTrainer(Linear(), args).check()
    module = Linear()
    module.optimizer = torch.optim.SGD(module.parameters(), lr=0.1, fused=True)  # one that is there, not one to make
    LocalTrainer(module, args).check()


@pytest.mark.parametrize(("fast_loops", "processes", "short"), [(True, 1, is_proven()), (True, 2, False), (False, 1, False)])
def test_the_short_way_of_logging_is_for_one_process_and_modules_that_have_it(fast_loops, processes, short):
    class Logging(Linear):
        def log_values(self, values):
            raise AssertionError("the long way")

    trainer = SimpleNamespace(world_size=processes, callback_metrics={})
    module, plain = Logging(), Linear()
    with LocalTrainer(module, CPU, fast_loops=fast_loops)._short_logging(trainer):
        assert ("log_values" in vars(module)) is short
    assert "log_values" not in vars(module)
    with LocalTrainer(plain, CPU, fast_loops=fast_loops)._short_logging(trainer):
        assert not hasattr(plain, "log_values")


@pytest.mark.parametrize(
    "text",
    [
        "`isinstance(treespec, LeafSpec)` is deprecated", "You have overridden `transfer_batch_to_device` in `LightningModule`",
        "Sparse CSR tensor support is in beta state", "The number of training batches (1) is smaller than the logging interval",
        "Trying to infer the `batch_size` from an ambiguous collection", "Found 3 module(s) in eval mode at the start",
        "You defined a `validation_step` but have no `val_dataloader`", "but have no `validation_step`. Skipping val loop",
        "`max_epochs` was not set. Setting it to 1000 epochs", "GPU available but not used", "does not have many workers",
        "total length of `DataLoader` across ranks is zero", "your sampler has shuffling enabled",
    ],
)  # fmt: skip
def test_what_lightning_would_say_in_every_fit_is_not_said(text):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with quiet():
            warnings.warn(text, stacklevel=1)
        warnings.warn(text, stacklevel=1)
    assert len(told) == 1


def test_a_warning_that_each_fit_repeats_is_said_once_in_a_run(tmp_path):
    class Warns(Linear):
        def training_step(self, batch, batch_idx):
            with warnings.catch_warnings():  # makes Python forget what it has said
                pass
            warnings.warn("'pin_memory' argument is set as true", stacklevel=1)
            return super().training_step(batch, batch_idx)

    for number in (1, 2):  # and again in the next run
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            federate(tmp_path, Warns, clients((6, 8)), num_rounds=2)
        assert [str(w.message) for w in caught] == ["'pin_memory' argument is set as true"], number
