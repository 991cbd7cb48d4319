"""SCAFFOLD on quadratics: the paper's algorithm in plain numbers, the minimum that FedAvg misses, what is sent and refused."""

import json
import math

import pytest
import torch
from federations import Linear, assert_same_bits, checkpoint_tensors, clients, federate, last_checkpoint
from quadratics import Quadratic, Samples, descend
from torch import nn

from fl_lightning import FedAvg, Scaffold
from fl_lightning.engine import ClipNorm
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.in_process import InProcess
from fl_lightning.engine.messages import Message, Payload
from fl_lightning.engine.sampling import participants
from fl_lightning.errors import FederationError
from fl_lightning.strategies.base import PhaseCosts

CLIENTS = ((1.0, 2.0), (4.0, -1.0), (2.0, 3.0))  # a, b of a (w - b)^2 / 2
MINIMUM = sum(a * b for a, b in CLIENTS) / sum(a for a, _ in CLIENTS)


def quadratics(steps=(2, 2, 2), kind=CLIENTS):
    return [Samples(a, b, n, batch_size=1) for (a, b), n in zip(kind, steps, strict=True)]


def algorithm(rounds, steps, per_round=3, eta=1.0, lr=0.1):
    """Algorithm 1, option II, of these clients; x, c and all c_i."""
    x, c, own = 0.0, 0.0, [0.0] * 3
    for round in range(rounds):
        moves, changes = [], []
        for i in participants(range(3), per_round, 0, round):
            y = descend(x, *CLIENTS[i], lr, steps[i], c - own[i])
            new = own[i] - c + (x - y) / (steps[i] * lr)
            moves.append(y - x)
            changes.append(new - own[i])
            own[i] = new
        x += eta * sum(moves) / len(moves)
        c += len(changes) / 3 * sum(changes) / len(changes)
    return x, c, own


def test_two_rounds_by_hand(tmp_path):
    # Two clients, two steps of rate .1. Round 1: y = (.38, -.64), x = -.13; c_1 = -.38 / .2, c_2 = .64 / .2, c = .65.
    # Round 2 adds c - c_1 = 2.55 and c - c_2 = -2.55: y_1 = -.13, -.172, -.2098; y_2 = -.13, -.223, -.2788; x = -.2443.
    for rounds, x, c in ((1, -0.13, 0.65), (2, -0.2443, None)):
        fed = federate(
            tmp_path, Quadratic(), quadratics((2, 2), CLIENTS[:2]), strategy=Scaffold(), num_rounds=rounds, keep_last=9
        )
        strategy = fed.settings.strategy
        assert strategy.weights["w"].item() == pytest.approx(x, abs=1e-6)
        if c is not None:
            assert strategy.server_state["control/w"].item() == pytest.approx(c, abs=1e-6)


@pytest.mark.parametrize(
    ("per_round", "steps", "eta", "fast_loops"),
    [(3, (2, 3, 1), 1.0, True), (2, (1, 4, 2), 0.7, True), (1, (2, 2, 3), 1.5, False)],
)
def test_rounds_of_unequal_clients_are_the_papers_algorithm(tmp_path, per_round, steps, eta, fast_loops):
    fed = federate(
        tmp_path, Quadratic(), quadratics(steps), strategy=Scaffold(eta), num_rounds=6, clients_per_round=per_round,
        fast_loops=fast_loops,
    )  # fmt: skip
    x, c, own = algorithm(6, steps, per_round, eta)
    kept = checkpoint_tensors(last_checkpoint(fed.run_dir))
    assert kept["server.pt/w"].item() == pytest.approx(x, abs=1e-5)
    assert kept["server.pt/server/control/w"].item() == pytest.approx(c, abs=1e-5)
    names = [f"client_{i:05d}.pt/control/w" for i in range(3)]
    mine = [kept[name].item() if name in kept else 0.0 for name in names]
    assert mine == pytest.approx(own, abs=1e-5)
    assert sum(mine) / 3 == pytest.approx(c, abs=1e-5)  # c is the mean of the clients'


def test_it_finds_the_joint_minimum_where_fedavg_finds_another_point(tmp_path):
    # With K steps of rate lr client i keeps q = (1 - lr a_i)^K of its distance: FedAvg stops at sum (1 - q) b / sum (1 - q).
    shares = [1 - (1 - 0.1 * a) ** 5 for a, _ in CLIENTS]
    elsewhere = sum(s * b for s, (_, b) in zip(shares, CLIENTS, strict=True)) / sum(shares)
    assert abs(elsewhere - MINIMUM) > 0.3
    for strategy, wanted in ((FedAvg("uniform"), elsewhere), (Scaffold(), MINIMUM)):
        data = quadratics((5, 5, 5))
        fed = federate(tmp_path, Quadratic(), data, strategy=strategy, num_rounds=11, check_val_every_n_rounds=11)
        assert strategy.weights["w"].item() == pytest.approx(wanted, abs=1e-4)
        assert fed.results["failures"] == []


class Scheduled(Quadratic):
    """The rate halves with each step."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def test_with_a_schedule_k_eta_is_the_sum_of_the_rates(tmp_path):
    # One client, b = 2, a = 1, rates .1, .05: y = .2, .29; c_1 = -.29 / .15.
    fed = federate(tmp_path, Scheduled(), [Samples(1, 2, 2, batch_size=1)], strategy=Scaffold(), num_rounds=1)
    assert fed.settings.strategy.weights["w"].item() == pytest.approx(0.29, abs=1e-6)
    assert fed.settings.strategy.server_state["control/w"].item() == pytest.approx(-0.29 / 0.15, abs=1e-6)


def test_accumulated_batches_are_one_step(tmp_path):
    args = {"accumulate_grad_batches": 2}
    fed = federate(tmp_path, Quadratic(), quadratics((4, 6, 2)), args, strategy=Scaffold(), num_rounds=3)
    assert fed.settings.strategy.weights["w"].item() == pytest.approx(algorithm(3, (2, 3, 1))[0], abs=1e-5)


class Parts(Linear):
    """One layer that no gradient reaches, one that is frozen, one that stays private; a buffer."""

    def __init__(self):
        super().__init__()
        self.unused, self.frozen, self.own = nn.Linear(1, 1), nn.Linear(1, 1).requires_grad_(False), nn.Linear(1, 1)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.own(self.net(self.norm(x)))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def test_what_learns_nothing_stays_and_what_is_private_is_not_sent(tmp_path):
    fed = federate(tmp_path, Parts, strategy=Scaffold(), num_rounds=3, private=["own.*"])
    torch.manual_seed(0)
    first, last = Parts().state_dict(), fed.settings.strategy.weights
    for name in ("unused.weight", "unused.bias", "frozen.weight", "frozen.bias"):
        assert torch.equal(first[name], last[name])
    controls = {"net.weight", "net.bias", "unused.weight", "unused.bias", "norm.weight", "norm.bias"}
    assert set(fed.settings.strategy.server_state) == {f"control/{name}" for name in controls}
    assert not fed.settings.strategy.server_state["control/unused.weight"].any()
    lines = [json.loads(line) for line in (fed.run_dir / "ledger.jsonl").read_text().splitlines()]
    for direction in ("up", "down"):
        sent = {t for line in lines if line["kind"] == "fit" and line["direction"] == direction for t in line["tensors"]}
        assert sent - {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"} == controls | {
            f"control/{name}" for name in controls
        }
    kept = checkpoint_tensors(last_checkpoint(fed.run_dir))
    assert {n.split("/", 2)[2] for n in kept if n.startswith("client_00000.pt/control/")} == controls


def test_a_transform_of_the_upload_holds_for_both_parts(tmp_path):
    # One step of rate .1 from 0 with a = 1, b = 2 goes to .2, and is clipped to .05: c_1 = -.05 / .1.
    data = [Samples(1, 2)]
    fed = federate(tmp_path, Quadratic(), data, strategy=Scaffold(), num_rounds=1, upload_transforms=[ClipNorm(0.05)])
    assert fed.settings.strategy.weights["w"].item() == pytest.approx(0.05)
    assert fed.settings.strategy.server_state["control/w"].item() == pytest.approx(-0.5)


# ---- refused --------------------------------------------------------------------------------------------------------


class WithAdam(Linear):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


@pytest.mark.parametrize(
    ("module", "found"),
    [(WithAdam, "`WithAdam.configure_optimizers` gives Adam"), (lambda: Quadratic(momentum=0.9), "SGD with `momentum: 0.9`"),
     (lambda: Quadratic(weight_decay=0.1), "SGD with `weight_decay: 0.1`")],
)  # fmt: skip
def test_other_optimisers_are_refused_before_round_1(tmp_path, monkeypatch, module, found):
    monkeypatch.setattr(Federation, "call", lambda *args, **kwargs: pytest.fail("a client was asked"))
    data = clients((8,)) if module is WithAdam else quadratics()
    with pytest.raises(ValueError, match="`federation.strategy: Scaffold` needs plain SGD") as error:
        federate(tmp_path, module, data, strategy=Scaffold())
    assert found in str(error.value) and "`model.init_args.optimizer: {class_path: torch.optim.SGD" in str(error.value)


class GainsMomentum(Quadratic):
    def on_train_batch_start(self, batch, index):
        if self.current_epoch == 1:
            self.optimizers().param_groups[0]["momentum"] = 0.5


class Thaws(Parts):
    def on_round_start(self, round, num_rounds):
        self.frozen.requires_grad_(round > 0)

    def forward(self, x):
        return super().forward(x) + self.frozen(x[:, :1])


def test_what_only_a_round_can_show_ends_it_there(tmp_path):
    with pytest.raises(FederationError, match=r"Round 2.*\n.*SGD with `momentum: 0.5`"):
        federate(tmp_path, GainsMomentum(), quadratics(), strategy=Scaffold())
    with pytest.raises(FederationError, match=r"(?s)Round 2.*`frozen.weight` was frozen before round 1 and is trained now"):
        federate(tmp_path, Thaws, strategy=Scaffold())


class Scripted(InProcess):
    def __init__(self, replies, untrained=None):
        super().__init__()
        self.replies, self.untrained = replies, untrained or {}

    def exchange(self, requests, timeout):
        for request in requests:
            values = {"num_samples": 1, "metrics": {}, "untrained_rows": self.untrained.get(request.client, {})}
            yield Message("fit", "run", request.round, request.client, Payload(self.replies[request.client], values))


def test_replies_without_a_control_variate_are_left_out_by_name():
    strategy = Scaffold()
    strategy.check(Quadratic(), [], None)
    strategy.start({"w": torch.zeros(1)}, ())
    good = {"w": torch.ones(1), "control/w": torch.full((1,), 3.0)}
    replies = {
        0: good,
        1: {"w": torch.ones(1)},
        2: {**good, "control/w": torch.ones(2)},
        3: {**good, "control/v": torch.ones(1)},
    }
    federation = Federation(Scripted(replies), "run", (0, 1, 2, 3))
    strategy.round(federation, 0, [0, 1, 2, 3])
    assert strategy.server_state["control/w"].item() == 3 / 4 and list(strategy.weights) == ["w"]
    reasons = {failure["client"]: failure["reason"] for failure in federation.failures}
    assert "entries missing: ['control/w']" in reasons[1] and "`control/w` is float32[2]" in reasons[2]
    assert "unexpected: ['control/v']" in reasons[3]


def test_a_row_is_the_mean_of_those_that_trained_it_and_c_that_of_all():
    # Only so are c's terms alike whoever took part: where all c_i are the gradients, c = 0 is the minimum of the row.
    strategy = Scaffold(eta=0.5)
    strategy.check(Quadratic(size=3), [], None)
    strategy.start({"w": torch.tensor([0.0, 0.0, 7.0])}, ())
    replies = {
        0: {"w": torch.tensor([2.0, 2.0, 8.0]), "control/w": torch.tensor([1.0, 1.0, 0.0])},
        1: {"w": torch.tensor([4.0, 9.0, 8.0]), "control/w": torch.tensor([3.0, 0.0, 0.0])},
    }
    federation = Federation(Scripted(replies, {0: {"w": [2]}, 1: {"w": [1, 2]}}), "run", (0, 1, 2, 3))
    strategy.round(federation, 0, [0, 1])
    assert federation.failures == [] and strategy.weights["w"].tolist() == [1.5, 1.0, 7.0]
    assert strategy.server_state["control/w"].tolist() == [1.0, 0.25, 0.0]  # sums over four clients


def test_half_precision_has_its_control_variate_in_float32_and_costs_are_told():
    strategy = Scaffold()
    strategy.check(Quadratic(size=5).half(), [], None)
    strategy.start({"w": torch.zeros(5).half()}, ())
    assert strategy.uploads()["control/w"].dtype == torch.float32 and strategy.download(0).tensors.keys() == {"w", "control/w"}
    assert strategy.phase_costs([None] * 3) == PhaseCosts(clients=3 * 5 * 4) and strategy.phases() == []


def test_a_first_round_is_fedavgs(tmp_path):
    runs = [federate(tmp_path, Linear, strategy=s, num_rounds=1) for s in (FedAvg("uniform"), Scaffold())]
    assert_same_bits(*(dict(fed.module.state_dict()) for fed in runs))
    assert runs[1].results["strategy"] == "Scaffold" and runs[1].results["weighting"] == "uniform"


@pytest.mark.parametrize("eta", [0, -1.0, math.inf])
def test_the_rate_is_checked(eta):
    with pytest.raises(ValueError, match="`federation.strategy.init_args.eta` must be above 0, got"):
        Scaffold(eta)
