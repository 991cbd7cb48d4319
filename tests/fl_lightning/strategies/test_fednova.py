"""FedNova: hand values; FedAvg where all take as many steps; no weight for steps where they do not; what is refused."""

import pytest
import torch
from federations import Linear, clients, federate
from quadratics import Quadratic, Samples, descend

from fl_lightning import FedAvg, FedNova
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.in_process import InProcess
from fl_lightning.engine.messages import Message, Payload


class Scripted(InProcess):
    def __init__(self, replies):
        super().__init__()
        self.replies = replies

    def exchange(self, requests, timeout):
        for request in requests:
            tensors, values = self.replies[request.client]
            yield Message("fit", "run", request.round, request.client, Payload(tensors, {"metrics": {}, **values}))


def one_round(strategy, initial, replies):
    strategy.start(initial, ())
    federation = Federation(Scripted(replies), "run", tuple(replies))
    strategy.round(federation, 0, sorted(replies))
    return strategy.weights, federation.failures


def scalar(y, steps, samples=1, **values):
    return {"w": torch.tensor([float(y)])}, {"num_samples": samples, "num_steps": steps, **values}


def test_one_round_by_hand():
    # x = 1, p = (1/4, 3/4), tau = (1, 3), moves (2, 12): tau_eff = 10/4, sum p move / tau = 2/4 + 12/4: x = 1 + 2.5 x 3.5.
    replies = {0: scalar(3, 1, 10), 1: scalar(13, 3, 30)}
    weights, _ = one_round(FedNova(), {"w": torch.ones(1)}, replies)
    assert weights["w"].item() == 1 + 2.5 * 3.5
    uniform, _ = one_round(FedNova("uniform"), {"w": torch.ones(1)}, replies)
    assert uniform["w"].item() == 1 + 2 * 3  # tau_eff = 2, (2 + 4) / 2


def test_rows_are_those_of_the_clients_that_trained_them():
    # Row 0: both, as above with x = 0, moves (2, 12). Row 1: client 1 alone, its own move. Row 2: nobody.
    replies = {c: ({"w": torch.full((3, 2), y), "z": torch.tensor(y), "s": torch.tensor([y])},
                   {"num_samples": n, "num_steps": tau, "untrained_rows": {"w": rows}})
               for c, (y, n, tau, rows) in enumerate(((2.0, 10, 1, [1, 2]), (12.0, 30, 3, [2])))}  # fmt: skip
    initial = {"w": torch.tensor([[0.0], [0.0], [7.0]]).repeat(1, 2), "z": torch.tensor(0.0), "s": torch.zeros(1)}
    strategy = FedNova()
    strategy._buffers = frozenset({"s"})
    weights, failures = one_round(strategy, initial, replies)
    assert failures == []
    assert weights["w"].tolist() == [[8.75] * 2, [12.0] * 2, [7.0] * 2]
    assert weights["z"].item() == 8.75 and weights["s"].item() == 9.5  # a buffer: the mean (2 + 3 x 12) / 4


def test_equal_steps_are_fedavg(tmp_path):
    runs = [federate(tmp_path, Linear, strategy=s, num_rounds=3) for s in (FedAvg(), FedNova())]
    one, other = (fed.module.state_dict() for fed in runs)
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=1e-7, rtol=1e-6)


CLIENTS = ((1.0, 2.0, 2), (1.0, -1.0, 8))  # a, b, number of samples; batches of one


def samples():
    return [Samples(a, b, n, batch_size=1) for a, b, n in CLIENTS]


@pytest.mark.parametrize("fast_loops", [True, False])
def test_rounds_of_unequal_clients_are_the_papers_algorithm(tmp_path, fast_loops):
    x = 0.0
    for _ in range(4):
        ends = [(n, descend(x, a, b, 0.1, 2 * n)) for a, b, n in CLIENTS]  # two epochs
        x += sum(n / 10 * 2 * n for n, _ in ends) * sum(n / 10 * (y - x) / (2 * n) for n, y in ends)
    fed = federate(tmp_path, Quadratic(), samples(), {"max_epochs": 2}, strategy=FedNova(), num_rounds=4, fast_loops=fast_loops)
    assert fed.module.w.item() == pytest.approx(x, abs=1e-5)


def test_the_bias_of_unequal_steps_is_gone(tmp_path):
    # Client i keeps q_i = (1 - lr)^tau_i of its distance in a round. FedAvg ends at the mean of b = (2, -1) by 1 - q_i, near
    # (2 x 2 - 8) / 10; FedNova by (1 - q_i) / tau_i, which is lr but for the drift: near the minimum .5 of the uniform sum.
    gone = [1 - 0.95**n for _, _, n in CLIENTS]
    found = {}
    for strategy, weights in ((FedAvg("uniform"), gone), (FedNova("uniform"), [gone[0] / 2, gone[1] / 8])):
        federate(tmp_path, Quadratic(lr=0.05), samples(), strategy=strategy, num_rounds=25, check_val_every_n_rounds=25)
        found[type(strategy)] = strategy.weights["w"].item()
        assert found[type(strategy)] == pytest.approx((2 * weights[0] - weights[1]) / sum(weights), abs=5e-3)
    assert found[FedAvg] < -0.3 and abs(found[FedNova] - 0.5) < 0.12


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (None, "its reply has no `num_steps`"),
        (0, "`num_steps` of its reply is 0: nothing was trained"),
        (-3, "`num_steps` of its reply must be a whole number from 0"),
        (2.0, "`num_steps` of its reply must be a whole number from 0"),
        (True, "`num_steps` of its reply must be a whole number from 0"),
        ("2", "`num_steps` of its reply must be a whole number from 0"),
    ],
)
def test_malformed_numbers_of_steps_are_named_and_left_out(steps, text):
    tensors, values = scalar(99, steps)
    if steps is None:
        del values["num_steps"]
    replies = {0: scalar(3, 1), 1: (tensors, values), 2: ({}, {"num_samples": 0, "num_steps": 0})}
    weights, failures = one_round(FedNova(), {"w": torch.zeros(1)}, replies)
    assert weights["w"].item() == 3 and [f["client"] for f in failures] == [1] and text in failures[0]["reason"]


def test_an_empty_client_took_no_step(tmp_path):
    fed = federate(tmp_path, Linear, clients((10, 0, 6)), strategy=FedNova())
    assert fed.results["failures"] == [] and '"num_steps"' in (fed.run_dir / "ledger.jsonl").read_text()


@pytest.mark.parametrize("sgd", [{"momentum": 0.9}, {"weight_decay": 0.1}])
def test_other_optimisers_are_refused_before_round_1(tmp_path, monkeypatch, sgd):
    monkeypatch.setattr(Federation, "call", lambda *args, **kwargs: pytest.fail("a client was asked"))
    ((name, value),) = sgd.items()
    with pytest.raises(ValueError, match=f"`federation.strategy: FedNova` needs plain SGD.*SGD with `{name}: {value}`"):
        federate(tmp_path, Quadratic(**sgd), samples(), strategy=FedNova())
