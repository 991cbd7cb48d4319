"""One worker answers for its clients: streams of their own, what is remembered, and what an error leaves behind."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federations import CPU, Deep, Linear, Table, TrainOnly

from fl_lightning.engine.client import Client, ClientHalf, LocalSettings, Worker, named_outputs, protocol_step
from fl_lightning.engine.messages import Message, Payload
from fl_lightning.engine.store import ClientStore


class Drawing(Linear):
    """Keeps a number of each random stream in every step."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def draw(self):
        self.drawn.append((torch.rand(1).item(), float(np.random.rand()), random.random()))

    def training_step(self, batch, batch_idx):
        self.draw()
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.draw()
        return super().validation_step(batch, batch_idx)

    def test_step(self, batch, batch_idx):
        self.draw()
        return super().test_step(batch, batch_idx)

    def predict_step(self, batch, batch_idx):
        self.draw()
        return super().predict_step(batch, batch_idx)


def worker(module=None, half=None, seed=3, data=None, **settings):
    """Two clients with the same data."""
    torch.manual_seed(0)
    data = [Table(8, seed=1), Table(8, seed=1)] if data is None else data
    for client in data:
        if isinstance(client, Table):
            client.predict_dataloader = client.val_dataloader
    args = LocalSettings("run", seed, 5, CPU, **settings)
    return Worker(module or Drawing(), half or ClientHalf(), dict(enumerate(data)), args)


def ask(site, kind, client=0, round=0, tensors=None, **values):
    reply = site.handle(Message(kind, "run", round, client, Payload(tensors or {}, values)))
    assert reply.error is None, reply.error
    return reply.payload


def global_states():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


@pytest.mark.parametrize("kind", ["fit", "val", "test", "predict"])
def test_each_client_and_round_has_streams_of_its_own_and_the_callers_go_on(kind):
    """Else two sites with the same data would train alike, with the same dropout and the same batches."""

    def draws(seed, client, round):
        site = worker(seed=seed)
        before = global_states()
        if kind in ("val", "test"):
            ask(site, "evaluate", client, round, stages=[kind])
        else:
            ask(site, kind, client, round)
        assert global_states() == before
        assert len(site.module.drawn) == 1
        return site.module.drawn[0]

    first = draws(3, 0, 0)
    assert draws(3, 0, 0) == first
    for other in (draws(3, 1, 0), draws(3, 0, 1), draws(4, 0, 0)):
        assert all(a != b for a, b in zip(first, other, strict=True))


def test_training_and_evaluation_draw_from_other_streams():
    site = worker()
    ask(site, "fit")
    ask(site, "evaluate", stages=["val", "test"])
    ask(site, "predict")
    assert len({draw[0] for draw in site.module.drawn}) == 4


def test_a_client_starts_from_the_initial_weights_and_what_it_has_received():
    site = worker()
    initial = {n: t.clone() for n, t in site.initial.items()}
    moved = ask(site, "fit", 0).tensors
    assert not torch.equal(moved["net.weight"], initial["net.weight"])
    site.half = Showing()
    assert torch.equal(ask(site, "show", 1).tensors["net.weight"], initial["net.weight"])
    ones = torch.ones(1, 3)
    shown = ask(site, "show", 0, tensors={"net.weight": ones}).tensors
    assert torch.equal(shown["net.weight"], ones) and torch.equal(shown["net.bias"], initial["net.bias"])


class Showing(ClientHalf):
    """Its step ``show`` sends the live module as `load` has made it."""

    @protocol_step
    def show(self, client, request):
        client.load(request.tensors)
        return Payload(client._worker.entries.get(client.shared_names))


def test_personal_clients_remember_everything_others_their_private_entries():
    for personal, kept in ((True, {"net.weight", "net.bias"}), (False, set())):
        site = worker(half=ClientHalf(personal=personal))
        sent = ask(site, "fit").tensors
        stored = site.stores[0].section("module")
        assert stored.keys() == kept and all(torch.equal(stored[n], sent[n]) for n in kept)
        assert not site.stores[1]
    site = worker(Deep(), private=("head.*",))
    sent = ask(site, "fit").tensors
    assert site.stores[0].section("module").keys() == {"head.weight", "head.bias"} and "head.weight" not in sent
    assert site.stores[0].section("objective")["count"].item() == 1


def test_the_optimisers_state_is_kept_only_if_it_is_to_be_carried():
    for carry in (True, False):
        site = worker(Deep(), carry_optimizer_state=carry)
        for round in range(2):
            ask(site, "fit", round=round)
        steps = {t.item() for n, t in site.stores[0].section("optimizer").items() if n.endswith("/step")}
        assert steps == ({2.0} if carry else set())


def test_private_entries_are_refused_by_name():
    site = worker(Deep(), private=("head.*",))
    reply = site.handle(Message("fit", "run", 0, 0, Payload({"head.weight": torch.zeros(1, 4)})))
    assert "Received private entries: head.weight. They never cross the border." in reply.error


class Failing(ClientHalf):
    """Writes to its memory, and then goes wrong in one way or another."""

    @protocol_step
    def fail(self, client, request):
        client.store.values["half"] = True
        client.store.put_section("half", {"x": torch.ones(1)})
        what = request.values["what"]
        if what == "raise":
            raise RuntimeError("the disk is gone")
        if what == "store":
            client.store.put_section("half", {"x": torch.tensor([float("nan")])})
        tensors = {"x": torch.tensor([float("inf")])} if what == "reply" else {}
        return Payload(tensors, {"x": float("nan")} if what == "value" else {})


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("raise", "RuntimeError: the disk is gone"), ("reply", "non-finite values in `x` of its reply"),
        ("store", "non-finite values in `half/x` of its private state"), ("value", "ValueError: Out of range float"),
    ],
)  # fmt: skip
def test_an_error_has_a_reason_and_leaves_the_memory_as_it_was(what, error):
    site = worker(half=Failing())
    before = site.stores[0]
    request = Message("fail", "run", 2, 0, Payload(values={"what": what}))
    reply = site.handle(request)
    assert reply.error.startswith(error)
    assert (reply.kind, reply.round, reply.client) == ("fail", 2, 0) and not reply.payload.tensors
    assert site.stores[0] is before and not before
    assert ask(site, "fail", what="nothing").tensors == {} and site.stores[0].values == {"half": True}


def test_a_request_that_changes_no_memory_keeps_the_store_itself():
    """So that a checkpoint can link the file of the last one."""
    site = worker(half=ClientHalf(personal=True))
    ask(site, "fit")
    kept = site.stores[0]
    ask(site, "evaluate", stages=["val"])
    assert site.stores[0] is kept


@pytest.mark.parametrize("kind", ["_hidden", "dance"])
def test_an_unknown_step_is_an_error_with_its_name(kind):
    site = worker(half=Failing())
    site.half._hidden = lambda client, request: Payload()
    assert f"Failing has no protocol step `{kind}`" in site.handle(Message(kind, "run", 0, 0)).error


def test_a_memo_is_computed_once_for_each_key_and_client():
    site, computed = worker(), []

    def value(client, key):
        asking = Client(site, client, 0, ClientStore())
        return asking.memo("graph", key, lambda: computed.append((client, key)) or len(computed))

    assert [value(0, 1), value(0, 1), value(1, 1), value(0, 2), value(0, 2)] == [1, 1, 2, 3, 3]
    assert computed == [(0, 1), (1, 1), (0, 2)]


def test_a_client_with_nothing_to_train_on_says_so_and_sends_nothing():
    class Empty(Table):
        num_train_samples = 0

    site = worker(data=[Empty(8, seed=1)])
    reply = ask(site, "fit")
    assert reply.tensors == {} and reply.values == {"num_samples": 0, "metrics": {}} and not site.module.drawn


def test_undefined_figures_are_null():
    class Undefined(Linear):
        def training_step(self, batch, batch_idx):
            self.log("train_undefined", float("nan"))
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.log("val_endless", float("inf"))
            super().validation_step(batch, batch_idx)

    site = worker(Undefined(), data=[Table(8, seed=1), TrainOnly(8, seed=1)])
    metrics = ask(site, "fit").values["metrics"]
    assert metrics["train_undefined"] is None and metrics["train_loss"] > 0
    values = ask(site, "evaluate", stages=["val"]).values
    assert values["val"]["endless"] is None and values["val"]["loss"] > 0
    assert ask(site, "evaluate", 1, stages=["val"]).values == {"val": None}


def test_predictions_are_numbered_by_batch():
    class Two(Linear):
        def predict_step(self, batch, batch_idx):
            return {"y": torch.full((1,), float(batch_idx))}

    class Halves(Table):
        def val_dataloader(self):
            return torch.utils.data.DataLoader(self.held, batch_size=4)

    site = worker(Two(), data=[Halves(8, seed=1)])
    assert {n: t.item() for n, t in ask(site, "predict").tensors.items()} == {"0/y": 0.0, "1/y": 1.0}
    assert named_outputs(torch.ones(2)).keys() == {"output"}
    for wrong in ([torch.ones(1)], {"y": 1.0}):
        with pytest.raises(ValueError, match="`predict_step` returned .*; return a tensor or a dict of tensors"):
            named_outputs(wrong)


@pytest.mark.parametrize(
    ("mask", "found"),
    [(torch.zeros(3), "float32[3]"), (torch.ones(2, dtype=torch.bool), "bool[2]"), (torch.tensor(True), "bool[]"),
     (torch.ones(1, 3, dtype=torch.bool), "bool[1, 3]"), (torch.ones(1), "float32[1]")],
)  # fmt: skip
def test_untrained_rows_must_be_a_mask_of_the_entrys_rows(mask, found):
    site = worker()
    site.module.untrained_rows = lambda: {"net.weight": mask}
    error = site.handle(Message("fit", "run", 0, 0)).error
    assert f"one value for each row of `net.weight` [1, 3], but gives {found}." in error
    site.module.untrained_rows = lambda: {"head": mask}
    assert "There is no entry `head` in the model" in site.handle(Message("fit", "run", 0, 0)).error


def test_untrained_rows_are_told_by_number_and_only_of_what_is_sent():
    site = worker(Deep(), private=("head.*",))
    site.module.untrained_rows = lambda: {
        "net.0.weight": torch.arange(8) % 3 == 1, "net.0.bias": torch.zeros(8, dtype=torch.bool),
        "head.bias": torch.ones(1, dtype=torch.bool),
    }  # fmt: skip
    assert ask(site, "fit").values["untrained_rows"] == {"net.0.weight": [1, 4, 7]}
    del site.module.untrained_rows
    assert "untrained_rows" not in ask(site, "fit").values


def test_nothing_is_carried_private_or_shared_unless_it_is_said():
    settings = LocalSettings("run", 0, 5)
    assert (settings.carry_optimizer_state, settings.fast_loops, settings.private) == (False, True, ())
    assert settings.local_clock == "run"
    assert settings.trainer_args == settings.shared == {} and ClientHalf().personal is False


def test_each_client_has_its_own_memory_and_hears_of_the_round():
    site = worker(Deep())
    for round in range(2):
        for client in range(2):
            ask(site, "fit", client, round)
            assert site.stores[client].section("objective")["count"].item() == round + 1
    assert site.module.rounds == [(0, 5), (0, 5), (1, 5), (1, 5)]


def test_what_the_objective_keeps_is_a_copy_without_a_graph():
    class Keeps(Linear):
        def private_state(self):
            return {"live": self.net.weight}

    site = worker(Keeps())
    ask(site, "fit")
    kept = site.stores[0].section("objective")["live"]
    before = kept.clone()
    with torch.no_grad():
        site.module.net.weight.add_(1)
    assert torch.equal(kept, before) and not kept.requires_grad


def test_an_optimisers_state_from_before_is_not_used_if_none_is_to_be_carried():
    moved = []
    for state in ({}, {f"0/{p}/{k}": torch.tensor(9.0) for p in range(2) for k in ("step", "exp_avg", "exp_avg_sq")}):
        site = worker(Deep(), data=[Table(8, seed=1)])
        site.stores[0].put_section("optimizer", state)
        moved.append(ask(site, "fit").tensors)
    assert all(torch.equal(tensor, moved[1][name]) for name, tensor in moved[0].items())


def test_one_sample_is_something_to_train_on():
    site = worker(data=[Table(1, seed=1)])
    reply = ask(site, "fit")
    assert reply.values["num_samples"] == 1 and len(site.module.drawn) == 1 and reply.tensors


def test_every_step_works_with_what_was_received():
    """And not with what the last request left in the live module."""

    class Ones(Table):
        def setup(self, stage=None):
            self.train = self.held = torch.utils.data.TensorDataset(torch.ones(4, 3), torch.zeros(4, 1))

    site = worker(Linear(), data=[Ones(4, seed=1)])

    def received(weight):
        return {"net.weight": torch.full((1, 3), weight), "net.bias": torch.ones(1)}

    loss = ask(site, "evaluate", tensors=received(1.0), stages=["val", "test"]).values
    assert loss["val"]["loss"] == loss["test"]["loss"] == 16  # (3 x 1 + 1) ** 2
    assert ask(site, "predict", tensors=received(2.0)).tensors["0/output"].flatten().tolist() == [7.0] * 4
    assert ask(site, "model", tensors=received(3.0)).tensors["net.weight"].tolist() == [[3.0] * 3]
    assert ask(site, "fit", tensors=received(4.0)).values["metrics"]["train_loss"] == 169


def test_who_has_nothing_to_predict_on_says_what_is_missing():
    reply = worker(data=[TrainOnly(8, seed=1)]).handle(Message("predict", "run", 0, 0, Payload()))
    assert reply.error.startswith("ValueError: `data: TrainOnly` has no `predict_dataloader`. Write `predict_dataloader(self)`")
    site = worker(data=[TrainOnly(8, seed=1)])
    site.datamodules[0].predict_dataloader = lambda: []  # a loader without a batch is none of its faults
    reply = ask(site, "predict")
    assert reply.tensors == {} and reply.values == {}


def test_pictures_of_the_module_are_sent():
    class Draws(Linear):
        def pictures(self):
            return {"weights": [1, 2]}

    assert ask(worker(Draws()), "fit").values["pictures"] == {"weights": [1, 2]}
    assert "pictures" not in ask(worker(), "fit").values


def test_an_average_is_defined_for_real_and_complex_numbers_only():
    class Mixed(Linear):
        def __init__(self):
            super().__init__()
            self.register_buffer("phase", torch.ones(2, dtype=torch.complex64))
            self.register_buffer("count", torch.ones(2, dtype=torch.int64))

    site = worker(Mixed())
    assert ask(site, "fit").tensors.keys() == {"net.weight", "net.bias", "phase"}
    assert ask(site, "model").tensors.keys() == {"net.weight", "net.bias", "phase", "count"}


def test_a_number_has_no_rows():
    site = worker(Deep())
    site.module.untrained_rows = lambda: {"net.1.num_batches_tracked": torch.tensor(True)}
    assert "one value for each row of `net.1.num_batches_tracked` [], but gives bool[]." in (
        site.handle(Message("fit", "run", 0, 0)).error
    )


def test_one_output_that_is_no_tensor_is_told():
    with pytest.raises(ValueError, match="`predict_step` returned dict; return a tensor or a dict of tensors"):
        named_outputs({"y": torch.ones(1), "z": 1.0})


# ---- one clock for the run ------------------------------------------------------------------------------------------------


class Fits:
    """Stands for a client's local trainer, whose fits end with what is written down here."""

    def __init__(self, kept=None, callbacks=None, watches=()):
        self.clock, self.positions = SimpleNamespace(kept=kept, callbacks=callbacks or {}, watches=list(watches)), []

    def fit(self, data, state, position):
        self.positions.append(position)
        return {}

    num_train_samples = staticmethod(lambda data: 8)


def test_a_fit_is_told_where_in_the_run_it_stands():
    site = worker()
    site.local = fits = Fits()
    ask(site, "fit", 0, 3, validation={"val_loss": [[1, 0.5]]})
    ask(site, "fit", 1, 4)
    first, second = fits.positions
    assert (first.round, first.num_rounds, first.validation) == (3, 5, {"val_loss": [[1, 0.5]]})
    assert (second.round, second.num_rounds, second.validation) == (4, 5, {})
    assert first.kept is second.kept is None and first.callbacks == second.callbacks == {}
    assert not site.stores[0] and not site.stores[1]  # nothing to remember
    site = worker(local_clock="round")
    site.local = fits = Fits({"round": 3}, {"0:Counts": {"n": 1}})
    ask(site, "fit", 0, 3)
    assert fits.positions == [None] and not site.stores[0]


def test_what_the_position_does_not_tell_goes_on_from_the_clients_own_last_fit():
    site = worker()
    live = torch.ones(2, requires_grad=True)
    states = {"0:Counts": {"n": 1, "mean/of": live}, "1:Other": {"a": torch.zeros(1)}, "2:Plain": {"b": [1, 2]}}
    site.local = fits = Fits({"round": 0, "count": [1, 2, 3]}, states)
    ask(site, "fit", 0, 0)
    with torch.no_grad():
        live.add_(1)
    ask(site, "fit", 1, 0)
    fits.clock.kept, fits.clock.callbacks = None, {"0:Counts": {"n": 2}}
    for _ in range(2):
        ask(site, "fit", 0, 1)
    _, other, again, last = fits.positions
    assert other.kept is None and other.callbacks == {}  # of client 1, before its first
    assert again.kept == {"round": 0, "count": [1, 2, 3]} and again.callbacks.keys() == states.keys()
    counts = again.callbacks["0:Counts"]
    assert counts.pop("mean/of").tolist() == [1.0, 1.0] and counts == {"n": 1}  # a copy
    assert again.callbacks["1:Other"]["a"].tolist() == [0.0] and again.callbacks["2:Plain"] == {"b": [1, 2]}
    assert last.callbacks == {"0:Counts": {"n": 2}}  # tensors of the fit before it are gone
    assert not any(tensor.requires_grad for tensor in site.stores[1].tensors.values())


def test_what_schedulers_watch_is_told():
    site = worker()
    site.local = Fits(watches=["val_loss"])
    assert ask(site, "fit").values["watches"] == ["val_loss"]
    site.local = Fits()
    assert "watches" not in ask(site, "fit").values
