"""What a client's Trainer is not given: objects of `pytorch_lightning` beside `lightning`, checkpoints of its own."""

import lightning as L
import pytest
import torch
from federations import Central, Linear, Table, clients, federate
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Callback,
    EarlyStopping,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
)

from fl_lightning import FederatedTrainer
from fl_lightning.engine.trainer_args import (
    callbacks_of,
    check_package,
    check_trainer_args,
    early_stops,
    missing_metric_in_words,
)


def of_other_package(name, *bases):
    """A class as ``pytorch_lightning`` has it, without importing that: it is known by its module's name."""
    return type(name, bases, {"__module__": f"pytorch_lightning.core.{name.lower()}"})


OtherModule = of_other_package("LightningModule", torch.nn.Module)
OtherData = of_other_package("LightningDataModule")
OtherCallback = of_other_package("EarlyStopping")
OtherCheckpoint = of_other_package("ModelCheckpoint")
OtherLogger = of_other_package("CSVLogger")
REMEDY = "Change `import pytorch_lightning as pl` to `import lightning.pytorch as pl`"


def test_a_module_of_the_other_package(tmp_path):
    class Mine(OtherModule):
        pass

    with pytest.raises(ValueError, match=f"`model: Mine` derives from `LightningModule` of `pytorch_lightning`, but.*{REMEDY}"):
        FederatedTrainer(trainer={"default_root_dir": str(tmp_path)}).fit(Mine(), clients())


def test_data_modules_of_the_other_package(tmp_path):
    class Mine(OtherData):
        pass

    with pytest.raises(ValueError, match=f"`data of client 1: Mine` derives from `LightningDataModule` of.*{REMEDY}"):
        federate(tmp_path, data=[*clients((10,)), Mine()])
    with pytest.raises(ValueError, match=f"`data: Mine` derives from `LightningDataModule` of.*{REMEDY}"):
        federate(tmp_path, data=Mine())

    class Holds(Central):
        def client_datamodules(self):
            return [Mine()]

    with pytest.raises(ValueError, match="`data of client 0: Mine` derives"):
        federate(tmp_path, data=Holds(Table(4, 1)))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"callbacks": [OtherCallback()]}, "`trainer.callbacks: EarlyStopping` comes from `pytorch_lightning`"),
        ({"callbacks": OtherCallback()}, "`trainer.callbacks: EarlyStopping` comes from"),
        ({"callbacks": [[OtherCallback()]]}, "`trainer.callbacks: EarlyStopping` comes from"),
        ({"callbacks": [OtherCheckpoint()]}, "`trainer.callbacks` holds a ModelCheckpoint.*federation.keep_last"),
        ({"logger": OtherLogger()}, "`trainer.logger: CSVLogger` comes from"),
        ({"logger": [False, OtherLogger()]}, "`trainer.logger: CSVLogger` comes from"),
        ({"plugins": [of_other_package("Plugin")()]}, "`trainer.plugins: Plugin` comes from"),
        ({"profiler": of_other_package("SimpleProfiler")()}, "`trainer.profiler: SimpleProfiler` comes from"),
    ],
)
def test_arguments_of_the_other_package(arguments, text):
    with pytest.raises(ValueError, match=text):
        FederatedTrainer(trainer=arguments)


@pytest.mark.parametrize(
    ("callback", "text"),
    [
        (OtherCallback(), "`Mine.configure_callbacks: EarlyStopping` comes from"),
        (ModelCheckpoint(), "`Mine.configure_callbacks` holds a ModelCheckpoint"),
    ],
)
def test_callbacks_of_the_module(tmp_path, callback, text):
    class Mine(Linear):
        def configure_callbacks(self):
            return [callback]

    with pytest.raises(ValueError, match=text):
        federate(tmp_path, Mine)


def test_what_is_of_no_package_at_all(tmp_path):
    with pytest.raises(ValueError, match="`model` must be a `lightning.LightningModule`, but is Linear"):
        FederatedTrainer(trainer={"default_root_dir": str(tmp_path)}).fit(torch.nn.Linear(1, 1), clients())
    with pytest.raises(ValueError, match="`data of client 0` must be a `lightning.LightningDataModule`, but is DataLoader"):
        federate(tmp_path, data=[torch.utils.data.DataLoader(range(3))])
    check_package(Linear(), "model", L.LightningModule)


def test_the_real_other_package():
    pl = pytest.importorskip("pytorch_lightning")
    with pytest.raises(ValueError, match="`trainer.callbacks: Timer` comes from `pytorch_lightning`"):
        FederatedTrainer(trainer={"callbacks": [pl.callbacks.Timer()]})
    with pytest.raises(ValueError, match="holds a ModelCheckpoint"):
        FederatedTrainer(trainer={"callbacks": [pl.callbacks.ModelCheckpoint()]})


def test_a_metric_that_a_stock_trainer_waits_for_in_words():
    with pytest.raises(ValueError, match="`trainer.callbacks`: Early stopping condition"), missing_metric_in_words():
        raise RuntimeError("Early stopping conditioned on metric `x` which is not available.")
    with pytest.raises(RuntimeError, match="out of memory"), missing_metric_in_words():
        raise RuntimeError("out of memory")


def test_callbacks_are_a_list_whether_one_several_or_none_are_given():
    one = Callback()
    assert callbacks_of({}) == callbacks_of({"callbacks": None}) == []
    for given in (one, [one], (one,), [(one,)]):
        assert callbacks_of({"callbacks": given}) == [one]


def test_only_strict_early_stopping_ends_a_fit_without_its_metric():
    class Strict(Callback):
        strict = True

    stops = EarlyStopping("x"), EarlyStopping("x", strict=False)
    assert early_stops([*stops, Strict(), Callback()]) == [stops[0]]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_epochs": 0}, "at least 1"), ({"max_epochs": 0, "max_steps": 5}, "at least 1"), ({"max_steps": 0}, "at least 1"),
        ({"max_epochs": 1}, None), ({"max_steps": 1}, None), ({}, None), ({"max_steps": -1}, None), ({"max_steps": None}, None),
        ({"max_epochs": -1}, "never end"), ({"max_epochs": -1, "max_steps": -1}, "never end"),
        ({"max_epochs": -1, "max_steps": None}, "never end"), ({"max_epochs": -1, "max_steps": 1}, None),
        ({"max_epochs": -1, "max_time": {"minutes": 1}}, None),
    ],
)  # fmt: skip
def test_local_work_is_something_and_ends(arguments, text):
    if text is None:
        check_trainer_args(arguments)
    else:
        with pytest.raises(ValueError, match=text):
            check_trainer_args(arguments)


class Remembers(Callback):
    def __init__(self, **state):
        self.state = state

    def state_dict(self):
        return self.state


class StopsLater(EarlyStopping):
    pass


OwnFinder = type("LearningRateFinder", (Callback,), {"__module__": "my_package.callbacks"})


@pytest.mark.parametrize(
    ("callback", "text"),
    [
        (EarlyStopping("x"), "holds EarlyStopping, which would stop a client in the middle of the run"),
        (StopsLater("x"), "holds StopsLater, which would stop a client"),
        (StochasticWeightAveraging(0.1), "holds StochasticWeightAveraging, which averages the epochs of one training"),
        (LearningRateFinder(), "holds LearningRateFinder, which would search in each round"),
        (BatchSizeFinder(), "holds BatchSizeFinder, which would search in each round"),
        (Remembers(n=1, odd=torch.device("cpu")), r"`odd` in it is device. Give it as a tensor, numbers or text, or write"),
        (Remembers(pair=(1, 2)), "`pair` in it is tuple"), (Remembers(keys={1: 2}), "`keys` in it is dict"),
        (Remembers(n=1, text="a", deep={"a": [1.5, None, True]}, weights=torch.ones(2)), None), (Callback(), None),
        (OwnFinder(), None), (object(), None),
    ],
)  # fmt: skip
def test_callbacks_that_know_nothing_of_rounds_are_for_rounds_with_a_clock_of_their_own(callback, text):
    for given in ([callback], [Callback(), callback]):
        check_trainer_args({"callbacks": given}, "round")
        if text is None:
            check_trainer_args({"callbacks": given})
        else:
            with pytest.raises(ValueError, match=text):
                check_trainer_args({"callbacks": given})


@pytest.mark.parametrize("limit", [0, 0.0])
def test_a_limit_that_trains_on_nothing_is_refused(limit):
    with pytest.raises(ValueError, match=f"`trainer.limit_train_batches: {limit}` trains on no batch.*a number of batches"):
        check_trainer_args({"limit_train_batches": limit})
    check_trainer_args({"limit_train_batches": 1, "limit_val_batches": 0})
    check_trainer_args({"limit_train_batches": None})
