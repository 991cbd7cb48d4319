"""One clock (`federation.local_clock: run`): a module's schedule is that of one training over all rounds."""

import itertools

import pytest
import torch
from federations import CPU, Linear, assert_same_bits, checkpoint_tensors, clients, federate, last_checkpoint, without_times
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from schedules import KINDS, InOrder, Scheduled, Streamed, TwoPlayers, noam, stock
from torch.optim import lr_scheduler as schedules

from fl_lightning import FederatedTrainer
from fl_lightning.engine import WorkerProcesses
from fl_lightning.engine.local import LocalTrainer

ROUNDS, EPOCHS, BATCHES = 3, 2, 3


@pytest.fixture(autouse=True)
def _no_trace():
    Scheduled.trace, Scheduled.logged = [], []


def trace_of(steps=None):
    """What was seen so far (of the last steps, without a rehearsal's before them)."""
    found, Scheduled.trace = Scheduled.trace, []
    return found if steps is None else found[-steps:]


def one_client(root, module, data=None, **more):
    """All rounds with one client; the weights after the last."""
    options = {"num_rounds": ROUNDS, "trainer": {"max_epochs": EPOCHS}, "carry_optimizer_state": True, "monitor": "loss"} | more
    fed = federate(root, module, [data or InOrder()], **options)
    weights = torch.load(last_checkpoint(fed.run_dir) / "server.pt", weights_only=True)["tensors"]
    return {name.removeprefix("global/"): tensor for name, tensor in weights.items()}


def assert_as_stock(root, make, data=InOrder, args=None, stock_args=None, **more):
    """One client over the rounds has the weights and traces of one stock training."""
    Scheduled.trace, Scheduled.logged = [], []
    torch.manual_seed(0)
    module = stock(make(), data(), **(stock_args or {"max_epochs": ROUNDS * EPOCHS}))
    trace, logged = trace_of(), Scheduled.logged
    Scheduled.logged = []
    if args is not None:
        more["trainer"] = args
    weights = one_client(root, make, data(), **more)
    assert_same_bits(dict(module.state_dict()), weights)
    assert trace_of(len(trace)) == trace and Scheduled.logged[-len(logged) :] == logged
    return trace


BOTH = ("StepLR", "OneCycleLR")  # the latter moves the momentum, too; with SGD, the others are in the slow part
PAIRS = [
    pytest.param(kind, optimizer, marks=() if optimizer == "Adam" or kind in BOTH else pytest.mark.slow)
    for kind, optimizer in itertools.product(KINDS, ("SGD", "Adam"))
]


@pytest.mark.parametrize(("kind", "optimizer"), PAIRS)
def test_one_client_over_the_rounds_is_one_stock_training(tmp_path, kind, optimizer):
    args = {"max_epochs": ROUNDS * EPOCHS, "check_val_every_n_epoch": EPOCHS if kind == "ReduceLROnPlateau" else 1}
    trace = assert_as_stock(tmp_path, lambda: Scheduled(kind, optimizer), stock_args=args)
    assert len({lr for lr, *_ in trace}) > 1  # the schedule has moved
    assert [step for _, _, step, *_ in trace] == list(range(ROUNDS * EPOCHS * BATCHES))


@pytest.mark.parametrize("kind", ["OneCycleLR", "ReduceLROnPlateau", "plateau of training"])
def test_the_same_with_lightnings_own_loops(tmp_path, kind):
    args = {"max_epochs": ROUNDS * EPOCHS, "check_val_every_n_epoch": EPOCHS if kind == "ReduceLROnPlateau" else 1}
    assert_as_stock(tmp_path, lambda: Scheduled(kind), stock_args=args, fast_loops=False)


def test_manual_optimisation_goes_on_where_it_was(tmp_path):
    trace = assert_as_stock(tmp_path, TwoPlayers)
    assert [row[3] for row in trace][:4] == [0, 2, 3, 5]  # two steps, one, two: nobody could have known


def test_data_without_a_length_go_on_where_they_were(tmp_path):
    assert_as_stock(tmp_path, lambda: Scheduled("StepLR"), Streamed)


def test_accumulated_batches_and_their_schedule(tmp_path):
    assert_as_stock(
        tmp_path / "a",
        lambda: Scheduled("OneCycleLR"),
        args={"max_epochs": EPOCHS, "accumulate_grad_batches": 2},
        stock_args={"max_epochs": ROUNDS * EPOCHS, "accumulate_grad_batches": 2},
    )

    def grow():
        return {"callbacks": [GradientAccumulationScheduler({0: 1, 3: 2, 5: 3})]}

    trace = assert_as_stock(
        tmp_path / "b",
        lambda: Scheduled("warm-up"),
        args={"max_epochs": EPOCHS, **grow()},
        stock_args={"max_epochs": ROUNDS * EPOCHS, **grow()},
    )
    assert trace[-1][2] == 3 * 3 + 2 * 2  # three epochs of 3 steps, two of 2, and the last one's only step is to come


def test_steps_as_local_work(tmp_path):
    trace = assert_as_stock(
        tmp_path,
        lambda: Scheduled("warm-up"),
        args={"max_steps": BATCHES, "max_epochs": -1},
        stock_args={"max_steps": ROUNDS * BATCHES},
    )
    assert {row[4] for row in trace} == {ROUNDS * BATCHES} and {row[3] for row in trace} == {-1}


def test_steps_that_end_within_an_epoch_count_on(tmp_path):
    """Two steps a round of three batches: each fit begins a pass, but epochs and schedules count the steps."""
    one_client(tmp_path, lambda: Scheduled("StepLR"), trainer={"max_steps": 2, "max_epochs": -1}, num_rounds=4)
    assert [(lr, epoch, step, batch) for lr, epoch, step, *_, batch in trace_of()] == [
        (0.05, 0, 0, 0), (0.05, 0, 1, 1),
        (0.05, 0, 2, 0), (0.05, 0, 3, 1),
        (0.05, 1, 4, 0), (0.05, 1, 5, 1),
        (0.025, 2, 6, 0), (0.025, 2, 7, 1),
    ]  # fmt: skip


class Own(Scheduled):
    """A module that steps its scheduler itself, by the epoch."""

    def lr_scheduler_step(self, scheduler, metric):
        Own.calls.append((self.current_epoch, self.global_step))
        scheduler.step()

    calls: list = []


def test_a_modules_own_way_to_step_sees_the_counters_of_that_time(tmp_path):
    Own.calls = []
    federate(tmp_path, Own, [InOrder()], num_rounds=2, trainer={"max_epochs": 2})
    assert Own.calls[:2] == [(0, 3), (1, 6)]  # round 1
    assert Own.calls[2:] == [(0, 3), (1, 6), (2, 9), (3, 12)]  # gone through again, and round 2


class Same(Scheduled):
    """Gives the same optimiser and scheduler in every fit."""

    def configure_optimizers(self):
        if not hasattr(self, "made"):
            optimizer = torch.optim.SGD(self.parameters(), 0.1)
            self.made = [optimizer], [schedules.StepLR(optimizer, 1, 0.5)]
        return self.made


def test_objects_that_a_module_gives_again_stand_where_the_round_does(tmp_path):
    federate(tmp_path, Same, [InOrder(4), InOrder(4, seed=2)], num_rounds=3)
    assert [lr for lr, *_ in trace_of()] == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]


# ---- many clients -----------------------------------------------------------------------------------------------------


def test_all_clients_of_a_round_use_one_rate_whichever_took_part(tmp_path):
    """StepLR by epoch has its closed form; a client that comes in late begins there, too."""
    fed = federate(tmp_path, Scheduled, clients(), num_rounds=5, clients_per_round=2, trainer={"max_epochs": 1})
    rates = [[lr, epoch, rounds] for lr, epoch, _, rounds, *_ in trace_of()]
    assert rates == [[0.05 * 0.5 ** (r // 2), r, 5] for r in range(5) for _ in range(2)]
    assert fed.results["rounds_run"] == 5


def test_by_step_each_client_is_where_its_own_data_would_be(tmp_path):
    """Sizes 8 and 20 in batches of 4: 2 and 5 steps an epoch, each with its own warm-up of a third."""
    federate(tmp_path, lambda: Scheduled("warm-up"), [InOrder(8), InOrder(20)], num_rounds=3)
    expected = []
    for round in range(3):
        for steps in (2, 5):
            rate = noam(3 * steps)
            expected += [pytest.approx(0.05 * rate(round * steps + i), rel=1e-12) for i in range(steps)]
    assert [lr for lr, *_ in trace_of()] == expected


def test_a_plateau_watches_the_servers_validation_and_the_ledger_says_so(tmp_path):
    fed = federate(tmp_path, lambda: Scheduled("ReduceLROnPlateau"), clients(), num_rounds=4, monitor="loss")
    lines = [line for line in (fed.run_dir / "metrics.csv").read_text().splitlines()]
    header, rows = lines[0].split(","), [line.split(",") for line in lines[1:]]
    means = [float(row[header.index("val/clients_mean")]) for row in rows]
    optimizer = torch.optim.SGD([torch.zeros(1)], 0.05)
    scheduler = schedules.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
    expected = [0.05]
    for mean in means[:3]:
        scheduler.step(mean)
        expected.append(optimizer.param_groups[0]["lr"])
    assert [float(row[header.index("clients/0/lr")]) for row in rows] == pytest.approx(expected, rel=1e-6)
    assert min(expected) < 0.05
    assert '"validation"' in (fed.run_dir / "ledger.jsonl").read_text()


class NeverBetter(Scheduled):
    """Its validation gives one value for ever."""

    def __init__(self):
        super().__init__("ReduceLROnPlateau")

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", 1.0)


def test_a_plateau_where_only_some_rounds_are_validated(tmp_path):
    """Validated after rounds 2 and 4: two steps of the scheduler, both too small a gain for its threshold."""
    federate(tmp_path, NeverBetter, [InOrder(4)], num_rounds=6, check_val_every_n_rounds=2, monitor="loss")
    # The first value is the best so far; the second is no better, and patience is 0.
    assert [lr for lr, *_ in trace_of(6)] == pytest.approx([0.05] * 4 + [0.005] * 2)


# ---- engines, kills, resume -------------------------------------------------------------------------------------------


class Cut(Scheduled):
    """Is interrupted in the fourth of five rounds."""

    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        if self.current_epoch == 3:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["OneCycleLR", "ReduceLROnPlateau", "plateau of training"])
def test_a_run_that_goes_on_has_the_rates_of_one_that_never_stopped(tmp_path, kind):
    settings = {"clients_per_round": 0.6, "seed": 0, "carry_optimizer_state": True, "monitor": "loss"}
    settings |= {"run_config": {"model": "Scheduled"}}  # `Cut` is one, too
    whole = federate(tmp_path / "a", lambda: Scheduled(kind), clients(batch_size=5), num_rounds=5, **settings)

    with pytest.raises(SystemExit):  # so says Lightning
        federate(tmp_path / "b", lambda: Cut(kind), clients(batch_size=5), num_rounds=5, **settings)
    args = {**whole.trainer_args, "logger": False, "default_root_dir": str(tmp_path / "b")}
    trainer = FederatedTrainer(trainer=args, num_rounds=5, **settings)
    torch.manual_seed(0)
    trainer.fit(Scheduled(kind), clients(batch_size=5), ckpt_path="last")
    assert_same_bits(checkpoint_tensors(last_checkpoint(whole.run_dir)), checkpoint_tensors(last_checkpoint(trainer.run_dir)))
    assert without_times(whole.results) == without_times(trainer.results)


@pytest.mark.slow
def test_worker_processes_have_the_same_clock(tmp_path):
    settings = {"num_rounds": 3, "monitor": "loss", "clients_per_round": 3}
    one = federate(tmp_path / "a", lambda: Scheduled("ReduceLROnPlateau"), clients(batch_size=5), **settings)
    engine = WorkerProcesses(num_workers=2)
    two = federate(tmp_path / "b", lambda: Scheduled("ReduceLROnPlateau"), clients(batch_size=5), engine=engine, **settings)
    assert_same_bits(checkpoint_tensors(last_checkpoint(one.run_dir)), checkpoint_tensors(last_checkpoint(two.run_dir)))


# ---- callbacks --------------------------------------------------------------------------------------------------------


class Counts(Callback):
    """Counts its epochs over the rounds, and keeps a tensor."""

    seen: list = []

    def __init__(self):
        self.epochs, self.total = 0, torch.zeros(2)

    def on_train_epoch_end(self, trainer, module):
        self.epochs, self.total = self.epochs + 1, self.total + 1
        Counts.seen.append((self.epochs, self.total.tolist()))

    def state_dict(self):
        return {"epochs": self.epochs, "total": self.total}

    def load_state_dict(self, state):
        self.epochs, self.total = state["epochs"], state["total"]


@pytest.mark.parametrize("fast_loops", [True, False])
def test_a_callbacks_state_is_its_clients_and_goes_on(tmp_path, fast_loops):
    Counts.seen = []
    federate(tmp_path, Linear, clients((8, 8)), trainer={"callbacks": Counts()}, num_rounds=3, fast_loops=fast_loops)
    assert Counts.seen == [(n, [float(n)] * 2) for n in (1, 1, 2, 2, 3, 3)]


def test_with_a_clock_of_its_own_each_round_is_a_training_of_its_own(tmp_path):
    Counts.seen = []
    settings = {"trainer": {"max_epochs": 2, "callbacks": Counts()}, "num_rounds": 2, "local_clock": "round"}
    federate(tmp_path, lambda: Scheduled("CosineAnnealingLR"), [InOrder(4)], **settings)
    # Half of a cosine over two epochs: the whole rate, then half of it; and again.
    assert [(round(lr, 6), *rest[:4]) for lr, *rest in trace_of()] == [(0.05, 0, 0, 2, -1), (0.025, 1, 1, 2, -1)] * 2
    assert [count for count, _ in Counts.seen] == [1, 2, 1, 2]


def test_a_module_that_reads_no_counter_has_the_bits_of_either_clock(tmp_path):
    runs = [federate(tmp_path / c, Linear, clients(batch_size=5), local_clock=c) for c in ("run", "round")]
    one, other = (checkpoint_tensors(last_checkpoint(run.run_dir)) for run in runs)
    assert_same_bits(one, other)


class StopsItself(Scheduled):
    """Says in the first epoch of each fit that it is enough."""

    epochs: list = []

    def on_train_epoch_end(self):
        self.epochs.append(self.current_epoch)
        self.trainer.should_stop = True


@pytest.mark.parametrize("fast_loops", [True, False])
def test_a_fit_that_is_stopped_ends_before_the_rounds_limit(tmp_path, fast_loops):
    StopsItself.epochs.clear()
    settings = {"trainer": {"max_epochs": 3}, "num_rounds": 2, "fast_loops": fast_loops}
    federate(tmp_path, lambda: StopsItself("StepLR"), [InOrder(2)], **settings)
    assert [epoch for _, epoch, *_ in trace_of()] == [0, 3] == StopsItself.epochs  # one in each round, of three


def test_without_a_position_nothing_is_kept_or_watched():
    local = LocalTrainer(Scheduled("ReduceLROnPlateau"), CPU, seed=0)
    local.fit(InOrder(2), position=None)
    assert local.clock.kept is None and local.clock.callbacks == {} and local.clock.watches == []
