"""What would fail for a client in every round is told before round 1, and the telling changes no bit."""

from types import SimpleNamespace

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from federations import Central, Linear, Table, clients, federate
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

from fl_lightning.central import fit_centrally
from fl_lightning.engine import WorkerProcesses
from fl_lightning.engine.local import LocalTrainer
from fl_lightning.engine.rehearsal import Rehearsal
from fl_lightning.engine.samples import count_samples, lone_batch, samples_of


def untrained(monkeypatch, module=Linear):
    """The training steps of a run's clients (those of a rehearsal are of a copy with a trainer of one batch)."""
    steps = []
    real = module.training_step

    def step(self, batch, index):
        if not isinstance(self.trainer.limit_train_batches, int):  # the default is 1.0
            steps.append(index)
        return real(self, batch, index)

    monkeypatch.setattr(module, "training_step", step)
    return steps


# ---- monitors -------------------------------------------------------------------------------------------------------


class Plateau(Linear):
    """A schedule that waits for a metric."""

    waits_for, strict = "val_loss", True

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "strict": self.strict},
                "monitor": self.waits_for} | self.more(scheduler)  # fmt: skip

    def more(self, scheduler):
        return {"lr_scheduler": {"scheduler": scheduler, "monitor": self.waits_for, "strict": self.strict}}


@pytest.mark.parametrize("after_validation", [None, False])
def test_early_stopping_on_a_validation_metric_is_refused(tmp_path, monkeypatch, after_validation):
    steps = untrained(monkeypatch)
    stop = EarlyStopping("val_loss", check_on_train_epoch_end=after_validation)
    with pytest.raises(
        ValueError,
        match=r'`EarlyStopping\(monitor="val_loss"\)` in `trainer.callbacks` waits '
        r"for a metric that is not logged in a client's .*"
        r"logs in training: train_loss, .*Monitor one of these",
    ):
        federate(tmp_path, trainer={"callbacks": [stop]}, local_clock="round")
    assert steps == []


def test_early_stopping_of_a_client_is_refused_where_the_rounds_have_one_clock(tmp_path, monkeypatch):
    steps = untrained(monkeypatch)
    with pytest.raises(
        ValueError,
        match=r"`trainer.callbacks` holds EarlyStopping, which would .*"
        r"`federation.early_stopping: \{patience: 5\}`.*`federation.local_clock: round`",
    ):
        federate(tmp_path, trainer={"callbacks": [EarlyStopping("train_loss")]})
    assert steps == []


def test_so_is_that_of_the_module_itself(tmp_path):
    class Stops(Linear):
        def configure_callbacks(self):
            return EarlyStopping("val_loss")

    with pytest.raises(ValueError, match=r'`EarlyStopping\(monitor="val_loss"\)` in `Stops.configure_callbacks`'):
        federate(tmp_path, Stops, local_clock="round")
    with pytest.raises(ValueError, match="`Stops.configure_callbacks` holds EarlyStopping, which would stop a client"):
        federate(tmp_path, Stops)


def test_a_plateau_on_a_validation_metric_is_refused_where_each_round_has_its_clock(tmp_path, monkeypatch):
    steps = untrained(monkeypatch)
    with pytest.raises(
        ValueError,
        match=r'`ReduceLROnPlateau` with `"monitor": "val_loss"` in `Plateau.configure_optimizers` '
        r"waits for .* logs in training: train_loss.*With `federation.local_clock: run`",
    ):
        federate(tmp_path, Plateau, local_clock="round")
    assert steps == []


def test_a_plateau_on_what_nobody_logs_is_refused(tmp_path, monkeypatch):
    class Typo(Plateau):
        waits_for = "val_lsos"

    steps = untrained(monkeypatch)
    with pytest.raises(
        ValueError,
        match=r'`ReduceLROnPlateau` with `"monitor": "val_lsos"` in `Typo.configure_optimizers` '
        "waits for a metric that is not logged in a client's local training, nor in the validation",
    ):
        federate(tmp_path, Typo)
    assert steps == []


def test_a_plateau_without_a_monitor_is_told_in_lightnings_words(tmp_path):
    class Forgotten(Plateau):
        def more(self, scheduler):
            return {"lr_scheduler": {"scheduler": scheduler}}

    with pytest.raises(ValueError, match=r"`Forgotten.configure_optimizers`: The lr scheduler dict must include a monitor"):
        federate(tmp_path, Forgotten)


def test_configure_optimizers_that_returns_nothing_is_told_before_round_1(tmp_path, monkeypatch):
    class Forgot(Linear):
        def configure_optimizers(self):
            super().configure_optimizers()

    steps = untrained(monkeypatch)
    with pytest.raises(ValueError, match=r"`Forgot.configure_optimizers` returned None, so nothing would be trained. Write"):
        federate(tmp_path, Forgot)
    assert steps == []


def test_metrics_of_the_training_may_be_monitored_and_a_rehearsal_changes_no_bit(tmp_path, monkeypatch):
    class OnTraining(Plateau):
        waits_for = "train_loss"

    stop = EarlyStopping("train_loss", patience=5)
    settings = {"trainer": {"callbacks": [stop]}, "num_rounds": 1, "local_clock": "round"}
    waits = federate(tmp_path / "a", OnTraining, **settings)
    monkeypatch.setattr("fl_lightning.engine.rehearsal.Rehearsal.check_optimizers_and_callbacks", lambda *args: None)
    plain = federate(tmp_path / "b", OnTraining, **settings)
    assert torch.equal(waits.module.net.weight, plain.module.net.weight)


def test_what_need_not_be_there_is_not_refused(tmp_path, monkeypatch):
    class Lenient(Plateau):
        strict = False

    steps = untrained(monkeypatch)
    lenient = EarlyStopping("val_loss", strict=False)
    federate(tmp_path, Lenient, trainer={"callbacks": lenient}, num_rounds=1, local_clock="round")
    assert len(steps) == 4  # one batch for each client: the other tests here would see it


def test_a_schedule_that_asks_its_trainer_is_left_alone(tmp_path):
    class OneCycle(Linear):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            steps = self.trainer.estimated_stepping_batches
            return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=int(steps) + 1)]

    assert not federate(tmp_path, OneCycle, num_rounds=1).results["failures"]


def test_an_optimiser_of_another_copy_is_told_before_round_one(tmp_path):
    class Elsewhere(Linear):
        def configure_optimizers(self):
            return torch.optim.SGD(Linear().parameters(), lr=0.1)

    with pytest.raises(ValueError, match="Elsewhere.configure_optimizers` returned holds none of the module's parameters"):
        federate(tmp_path, Elsewhere)


class Two(Linear):
    def configure_optimizers(self):
        return [super(Two, self).configure_optimizers() for _ in range(2)], []


class NoStep(Linear):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [SimpleNamespace(optimizer=optimizer)]


@pytest.mark.parametrize("fast_loops", [True, False])
@pytest.mark.parametrize(("module", "text"), [(Two, "Training with multiple optimizers is only"),
                                              (NoStep, "The provided lr scheduler `SimpleNamespace`")])  # fmt: skip
def test_what_lightning_cannot_use_is_told_before_round_one(tmp_path, monkeypatch, module, text, fast_loops):
    steps = untrained(monkeypatch, module)
    with pytest.raises(ValueError, match=f"`{module.__name__}.configure_optimizers`: {text}"):
        federate(tmp_path, module, fast_loops=fast_loops)
    assert steps == []


class Named(Linear):
    monitor = "acuracy"


class Unnamed(Linear):
    def validation_step(self, batch, batch_idx):
        self.log("val_error", 1.0)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (Named, "`Named.monitor` is `acuracy`, but `Named` logs for `val` only: loss. Set `Named.monitor` or"),
        (Unnamed, "`federation.monitor` is not set and `Unnamed` names no `monitor`: it is `loss`, but .* only: error. Set"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("server", [False, True])
def test_a_modules_own_monitor_that_nobody_logs(tmp_path, monkeypatch, module, text, server):
    steps = untrained(monkeypatch, module)
    with pytest.raises(ValueError, match=text):
        federate(tmp_path, module, data=Central(*clients()) if server else clients())
    assert steps == []


# ---- batches of one -------------------------------------------------------------------------------------------------


class Normed(Linear):
    def __init__(self, norm=nn.BatchNorm1d):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), norm(4), nn.Linear(4, 1))


def test_batches_of_one_are_told_with_clients_layer_and_remedy(tmp_path, monkeypatch):
    steps = untrained(monkeypatch, Normed)
    with pytest.raises(
        ValueError,
        match=r"`net.1` \(BatchNorm1d\) of `model: Normed` cannot be trained on a batch of "
        r"one sample, which 2 clients have in every epoch \(client 1: 17 samples in batches of 8; "
        r"client 2: 1 sample in batches of 8\).*`drop_last=True`.*another batch size.*LayerNorm",
    ):
        federate(tmp_path, Normed, clients((16, 17, 1), batch_size=8))
    assert steps == []


@pytest.mark.parametrize(
    ("module", "sizes", "trainer"),
    [
        (Normed, (16, 10), {}),
        (lambda: Normed(nn.LayerNorm), (17,), {}),
        (Normed, (17,), {"max_steps": 2}),  # never comes to it
        (Normed, (17,), {"limit_train_batches": 2}),
    ],
)
def test_what_can_be_trained_is_not_refused(tmp_path, module, sizes, trainer):
    assert not federate(tmp_path, module, clients(sizes, batch_size=8), trainer=trainer, num_rounds=1).results["failures"]


def test_one_image_is_enough_for_a_batchnorm_over_its_pixels(tmp_path):
    class Images(Linear):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.BatchNorm1d(1), nn.Flatten(), nn.Linear(3, 1))

    assert not federate(tmp_path, Images, clients((9,), batch_size=8), num_rounds=1).results["failures"]


@pytest.mark.parametrize(
    ("number", "arguments", "trainer", "expected"),
    [
        (17, {"batch_size": 8}, {}, "17 samples in batches of 8"),
        (17, {"batch_size": 8, "drop_last": True}, {}, None),
        (16, {"batch_size": 8}, {}, None),
        (1, {"batch_size": 8}, {}, "1 sample in batches of 8"),
        (4, {"batch_size": 1}, {"max_steps": 1}, "4 samples in batches of 1"),
        (17, {"batch_size": 8}, {"limit_train_batches": 0.9}, None),
        (17, {"batch_size": 8}, {"max_steps": 2, "accumulate_grad_batches": 2}, "17 samples in batches of 8"),
        (17, {"batch_size": 8}, {"fast_dev_run": True}, None),
        (17, {"batch_size": 8, "sampler": SubsetRandomSampler(range(9))}, {}, "9 samples in batches of 8"),
        (17, {"batch_size": None}, {}, None),
    ],
)
def test_when_a_batch_has_one_sample(number, arguments, trainer, expected):
    assert lone_batch(DataLoader(range(number), **arguments), trainer) == expected
    assert lone_batch([torch.zeros(1)], trainer) is None


# ---- numbers of samples and loaders ---------------------------------------------------------------------------------


class Endless(IterableDataset):
    def __iter__(self):
        yield from torch.ones(8, 3)


class Streamed(L.LightningDataModule):
    def __init__(self, *loaders):
        super().__init__()
        self.loaders, self.built = loaders, 0

    def train_dataloader(self):
        self.built += 1
        return self.loaders[0] if len(self.loaders) == 1 else list(self.loaders)


def test_a_training_set_without_a_length_asks_for_num_train_samples(tmp_path):
    data = [Table(10, 1), Streamed(DataLoader(Endless(), batch_size=4))]
    with pytest.raises(
        ValueError,
        match=r"Client 1: the training set of `data: Streamed` \(Endless\) has no length, so its "
        r"samples cannot be counted. Give `Streamed` an attribute `num_train_samples`",
    ):
        federate(tmp_path, data=data)


def test_with_num_train_samples_it_is_trained_on(tmp_path):
    class Sums(Linear):
        def training_step(self, batch, batch_idx):
            return F.mse_loss(self(batch if torch.is_tensor(batch) else batch[0]), torch.zeros(1, 1).expand(4, 1))

    data = Streamed(DataLoader(Endless(), batch_size=4))
    data.num_train_samples = 8
    fed = federate(tmp_path, Sums, data=[data], num_rounds=1)
    assert not fed.results["failures"]


def test_samples_are_what_an_epoch_draws():
    part = DataLoader(range(17), sampler=SubsetRandomSampler(range(5)))
    assert count_samples(Streamed(part)) == 5 and count_samples(Streamed(DataLoader(range(17), batch_size=4))) == 17
    assert samples_of([torch.ones(2), torch.ones(2)], Streamed()) == 2  # a list of batches: all that can be told
    for several in ([part, part], {"a": part}, CombinedLoader([part, part])):
        with pytest.raises(ValueError, match="`data: Streamed` gives several loaders.*`num_train_samples`"):
            samples_of(several, Streamed())


def test_a_loader_that_drops_all_its_samples_is_told_before_round_one(tmp_path):
    small = Streamed(DataLoader(TensorDataset(*torch.ones(2, 5, 1)), batch_size=8, drop_last=True))
    with pytest.raises(
        ValueError,
        match="Client 1: the training loader of `data: Streamed` has no batch: `drop_last=True` "
        "with 5 samples and batches of 8. Use `drop_last=False`",
    ):
        federate(tmp_path, data=[Table(10, 1), small])


def test_a_quick_try_rehearses_quickly(tmp_path, monkeypatch):
    seen = []
    real = Linear.validation_step
    monkeypatch.setattr(Linear, "validation_step", lambda self, batch, index: (seen.append(index), real(self, batch, index)))
    data = clients((10,), held_out=150)
    federate(tmp_path, data=data, trainer={"fast_dev_run": True})
    assert set(seen) == {0}  # of three batches


@pytest.mark.parametrize("rounds", [1, 4])
def test_loaders_are_not_built_in_every_fit(tmp_path, rounds):
    data = [Streamed(DataLoader(TensorDataset(torch.ones(6, 3), torch.ones(6, 1)), batch_size=3)) for _ in range(2)]
    federate(tmp_path, data=data, num_rounds=rounds)
    assert [d.built for d in data] == [2, 2]  # once to count, once to train


def test_what_a_loader_draws_does_not_depend_on_the_round_in_which_it_is_built(tmp_path):
    from fl_lightning.engine import InProcess

    class Drawn(Table):
        def train_dataloader(self):
            kept = torch.randperm(self.n)[: self.n // 2]
            return DataLoader(torch.utils.data.Subset(self.train, kept.tolist()), batch_size=4)

    weights = [federate(tmp_path / str(rebuild), data=[Drawn(12, 1), Drawn(16, 2)], num_rounds=3,
                        engine=InProcess(rebuild_clients=rebuild)).module.net.weight for rebuild in (False, True)]  # fmt: skip
    assert torch.equal(*weights)


@pytest.mark.slow
def test_a_rehearsed_data_module_can_still_be_sent_to_a_worker(tmp_path):
    stop = EarlyStopping("train_loss", patience=5)
    fed = federate(tmp_path, engine=WorkerProcesses(1), trainer={"callbacks": [stop]}, num_rounds=1, local_clock="round")
    assert not fed.results["failures"]


def test_a_rehearsal_leaves_no_trainer_in_the_data(tmp_path):
    from fl_lightning.engine.rehearsal import Rehearsal

    data = clients((9,), batch_size=8)
    data[0].setup()
    rehearsal = Rehearsal(Linear(), {"accelerator": "cpu", "callbacks": [EarlyStopping("train_loss")]}, 0)
    rehearsal.check_optimizers_and_callbacks(dict(enumerate(data)))
    assert rehearsal.logged_in_validation(data, "loss")[0].keys() == {"loss"}
    assert data[0].trainer is None


# ---- centrally ------------------------------------------------------------------------------------------------------


class WithoutUnion(L.LightningDataModule):
    def client_datamodules(self):
        return clients()


@pytest.mark.parametrize(
    ("data", "callbacks", "text"),
    [
        (WithoutUnion(), [], "`--federation null` trains on the undivided data, but `data: WithoutUnion` has no `train_"),
        (Central(*clients()), [EarlyStopping("val_accuracy")], "`trainer.callbacks`: Early stopping .* `val_accuracy`"),
    ],
)
def test_what_a_central_run_lacks_is_told_in_words(tmp_path, data, callbacks, text):
    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "logger"), False)
    trainer = L.Trainer(accelerator="cpu", max_epochs=1, callbacks=callbacks, **quiet)
    with pytest.raises(ValueError, match=text):
        fit_centrally(trainer, Linear(), data, None, "x", {"default_root_dir": str(tmp_path), "logger": False})


# ---- a rehearsal by itself --------------------------------------------------------------------------------------------


class Counted(Linear):
    """Notes the size of each batch; copies of it share the notes."""

    trained, validated = [], []

    def training_step(self, batch, index):
        Counted.trained.append(len(batch[0]))
        if len(batch[0]) == 3:
            self.log("rare", 1.0)
        return super().training_step(batch, index)

    def validation_step(self, batch, index):
        Counted.validated.append(len(batch[0]))
        super().validation_step(batch, index)


class ManyValidated(Table):
    def val_dataloader(self):
        return DataLoader(self.held, batch_size=2)  # four batches


def rehearsal(module=Counted, **arguments):
    Counted.trained, Counted.validated = [], []
    return Rehearsal(module(), {"accelerator": "cpu", **arguments}, 0)


def tables(*sizes, kind=Table):
    return {client: kind(size, seed=client, batch_size=min(size, 4)) for client, size in enumerate(sizes)}


def test_one_batch_of_one_client_is_tried_where_something_waits_for_what_it_logs():
    for waiting, tried in (("train_loss", [4]), ("rare", [4, 3]), (None, [])):
        callbacks = [EarlyStopping(waiting)] if waiting else []
        made = rehearsal(callbacks=callbacks, max_epochs=5, max_steps=9, limit_train_batches=2)
        made.check_optimizers_and_callbacks(tables(8, 3, 8))
        assert Counted.trained == tried
    with pytest.raises(ValueError, match="logs in training: rare, train_loss"):
        rehearsal(callbacks=[EarlyStopping("val_loss")]).check_optimizers_and_callbacks(tables(8, 3))
    assert Counted.trained == [4, 3]
    rehearsal(callbacks=[EarlyStopping("val_loss")]).check_optimizers_and_callbacks({})  # nobody to ask


@pytest.mark.parametrize("many", [list, tuple, lambda one: one[0]])
def test_a_module_gives_one_callback_or_several(many):
    def module(callback):
        class Stops(Counted):
            def configure_callbacks(self):
                return many([callback])

        return Stops

    for callback, text in (
        (EarlyStopping("val_loss"), r'`EarlyStopping\(monitor="val_loss"\)` in `Stops.configure_callbacks` waits'),
        (ModelCheckpoint(), "`Stops.configure_callbacks` holds a ModelCheckpoint"),
        (type("Other", (), {"__module__": "pytorch_lightning.callbacks"})(), "`Stops.configure_callbacks: Other` comes from"),
    ):
        with pytest.raises(ValueError, match=text):
            rehearsal(module(callback)).check_optimizers_and_callbacks(tables(4))


def test_with_ones_own_loop_no_schedule_waits():
    class Manual(Plateau):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

    class Steps(Linear):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    for module in (Manual, Steps):
        rehearsal(module).check_optimizers_and_callbacks(tables(4))
    assert Counted.trained == []


class ThreeNorms(L.LightningModule):
    """Two layers that get by on the four values of one image, and one that does not."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm2d(1), nn.BatchNorm2d(1), nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def training_step(self, batch, index):
        return self.net(batch[0]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def images(number):
    """A data module of ``number`` images in batches of two."""

    class Images(L.LightningDataModule):
        def train_dataloader(self):
            return DataLoader(TensorDataset(torch.randn(number, 1, 2, 2)), batch_size=2)

    return Images()


def test_the_layer_is_the_last_that_was_entered_and_five_clients_are_named(monkeypatch):
    asked, real = [], Rehearsal._layer_that_needs_two
    monkeypatch.setattr(Rehearsal, "_layer_that_needs_two", lambda *args: asked.append(args[1]) or real(*args))
    clients = {client: images(4 if client == 2 else 5) for client in range(8)}
    with pytest.raises(ValueError, match=r"`net.3` \(BatchNorm1d\) .* which 7 clients have in every epoch") as error:
        rehearsal(ThreeNorms).check_lone_batches(clients)
    named = [client for client in range(8) if f"client {client}: 5 samples in batches of 2" in str(error.value)]
    assert named == [0, 1, 3, 4, 5] and asked == [0]  # tried once
    with pytest.raises(ValueError, match="which 1 client has in every epoch"):
        rehearsal(ThreeNorms).check_lone_batches({0: images(4), 1: images(3)})
    rehearsal(ThreeNorms).check_lone_batches({0: images(4)})


@pytest.mark.parametrize(("quick", "batches"), [({}, 4), ({"fast_dev_run": True}, 1)])
def test_validation_is_tried_on_data_until_the_metric_is_there(quick, batches):
    found = rehearsal(**quick).logged_in_validation(tables(4, 4, kind=ManyValidated).values(), "loss")
    assert len(found) == 1 and "loss" in found[0] and Counted.validated == [2] * batches
    without = Table(4, seed=0, held_out=0)
    found = rehearsal().logged_in_validation([without, *tables(4, 4).values()], "loss")
    assert not found[0] and len(found) == 2 and "loss" in found[1]
    found = rehearsal().logged_in_validation(tables(4, 4).values(), "accuracy")
    assert len(found) == 2 and all("loss" in seen for seen in found)


def test_without_a_batchnorm_no_loader_is_built_and_nothing_tried():
    data = images(3)
    data.train_dataloader = lambda: pytest.fail("nobody needs it")
    rehearsal().check_lone_batches({0: data})
    assert Counted.trained == []


class OwnNorm(nn.Module):
    """Normalises by torch's function, in a layer of the user's own."""

    def forward(self, x):
        return F.batch_norm(x, None, None, training=True)


def one_sample(step, *layers):
    """A rehearsal of a module with a BatchNorm layer and this training step."""

    class Own(ThreeNorms):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(4, 4), *layers)

        def training_step(self, batch, index):
            return step(self, batch[0])

    return rehearsal(Own)


def test_the_layer_that_refuses_one_sample_is_named_whatever_it_is():
    with pytest.raises(ValueError, match=r"`net.3` \(OwnNorm\) of `model: Own` cannot be trained on a batch of one sample"):
        one_sample(lambda self, x: self.net(x).mean(), OwnNorm()).check_lone_batches({0: images(3)})


def test_another_error_is_no_matter_of_batch_sizes():
    def fails(self, x):
        raise ValueError(f"{self.net(x).shape} is not what it should be")

    def by_no_layer(self, x):
        return F.batch_norm(x.flatten(1), None, None, training=True).mean() * self.net[2].weight.sum()

    for step in (fails, by_no_layer):
        one_sample(step).check_lone_batches({0: images(3)})


def test_of_several_that_wait_the_one_in_vain_is_named():
    callbacks = [EarlyStopping("train_loss"), EarlyStopping("val_loss")]
    with pytest.raises(ValueError, match=r'^`EarlyStopping\(monitor="val_loss"\)` in `trainer.callbacks` waits'):
        rehearsal(callbacks=callbacks).check_optimizers_and_callbacks(tables(4))


def test_what_only_a_round_can_configure_is_left_to_the_round():
    class Later(Counted):
        def configure_optimizers(self):
            raise AttributeError("`from_the_server` comes with the first round")

    rehearsal(Later).check_optimizers_and_callbacks(tables(4))
    assert Counted.trained == []


def test_who_has_nothing_to_validate_is_passed_over():
    class Only(Table):
        val_dataloader = L.LightningDataModule.val_dataloader

    found = rehearsal().logged_in_validation([Only(4, seed=0), *tables(4).values()], "loss")
    assert len(found) == 2 and found[0] is None and "loss" in found[1]


@pytest.mark.parametrize("fast_loops", [True, False])
def test_a_rehearsal_goes_the_way_of_the_run(fast_loops):
    kinds = [type(LocalTrainer(Linear(), {}, fast_loops=fast_loops)._trainers)]
    made = [Rehearsal(Linear(), {}, 0, fast_loops), *([Rehearsal(Linear(), {}, 0)] if fast_loops else [])]
    assert kinds * len(made) == [type(one._probe()._trainers) for one in made]
