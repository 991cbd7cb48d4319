"""What all strategies share: the round, the clients' histograms as one, and what is sent for evaluation."""

import pytest
import torch

from fl_lightning import FedAvg
from fl_lightning.engine.diagnostics import Diagnostics, Histogram
from fl_lightning.engine.messages import Payload
from fl_lightning.strategies.base import PhaseCosts, Strategy, summed_counts


def test_histograms_of_all_clients_by_hand():
    found = summed_counts([{"weight": [1, 2, 0], "other": [4]}, {}, {"weight": [10, 0, 5]}, {"weight": [0, 1, 0]}])
    assert found == {"weight": [11, 3, 5], "other": [4]}
    assert summed_counts([]) == {}
    with pytest.raises(ValueError, match="zip"):
        summed_counts([{"weight": [1, 2]}, {"weight": [1]}])


class Fake:
    """A federation whose clients say what the test wrote down."""

    def __init__(self, replies):
        self.replies = replies

    def call(self, kind, requests, round, required=True, expected=None):
        assert kind == "fit" and expected is not None
        self.asked = requests
        return self.replies


class Plain(Strategy):
    """Keeps what it is asked to aggregate."""

    taken = None

    def download(self, client):
        return Payload({"w": torch.full((1,), float(client))})

    def aggregate(self, federation, round, replies):
        self.taken = (round, list(replies))


def reply(samples, **values):
    return Payload({}, {"num_samples": samples, "metrics": {"loss": 0.5 * samples}, **values})


def test_a_round_aggregates_those_that_have_trained():
    strategy = Plain()
    strategy.start({"w": torch.zeros(1), "n": torch.zeros(1, dtype=torch.long), "z": torch.zeros(1, dtype=torch.cfloat)}, ())
    pictures = {0: [1, 1], 1: [9, 9], 4: [0, 2]}
    federation = Fake({c: reply(n, pictures={"a": pictures[c]}) for c, n in ((0, 3), (1, 0), (4, 1))})
    assert strategy.round(federation, 7, [0, 1, 4]) == {0: {"loss": 1.5}, 4: {"loss": 0.5}}
    assert strategy.taken == (7, [0, 4]) and strategy.histograms == {"a": [1, 3]}
    assert {c: p.tensors["w"].item() for c, p in federation.asked.items()} == {0: 0.0, 1: 1.0, 4: 4.0}
    assert list(strategy.uploads()) == ["w", "z"]
    nobody = Plain()
    nobody.start({}, ())
    assert nobody.round(Fake({0: reply(0)}), 0, [0]) == {} and nobody.taken is None


def test_personal_strategies_send_nothing_for_evaluation():
    for personal in (False, True):
        strategy = Plain()
        strategy.personal = personal
        strategy.start({"w": torch.ones(1)}, ())
        assert list(strategy.evaluation(0).tensors) == ([] if personal else ["w"])
        assert (strategy.global_weights() is None) == personal and strategy.client_half().personal == personal
        assert list(strategy.state()) == ["w"]
        strategy.load_state({"w": torch.zeros(1)})
        assert strategy.weights["w"].item() == 0.0
    assert not Strategy.personal and not Strategy.carry_optimizer_state
    assert strategy.phases() == [] and strategy.phase_costs([]) == PhaseCosts(0, 0, 0, 0, 0, "")
    assert strategy.diagnose() == strategy.diagnose_phase() == Diagnostics()


def test_the_rounds_histograms_are_shown():
    strategy = Plain()
    strategy.histograms = {"weight": [2, 1]}
    assert strategy.diagnose() == Diagnostics(histograms={"train/weight": Histogram([2, 1])})


class Momentum(FedAvg):
    """FedAvgM of Hsu et al. 2019, with beta 1/2, as a server's optimiser."""

    def server_step(self, average):
        new = {}
        for name, mean in average.items():
            velocity = 0.5 * self.server_state.get(name, torch.zeros_like(mean)) + (self.weights[name] - mean)
            self.server_state[name], new[name] = velocity, self.weights[name] - velocity
        return new


def test_a_servers_optimiser_by_hand_and_over_a_checkpoint():
    def answer(value):
        return {0: Payload({"w": torch.tensor([value])}, {"num_samples": 1})}

    one, other = Momentum(), Momentum()
    one.start({"w": torch.tensor([1.0])}, ())
    one.aggregate(None, 0, answer(0.0))  # v = 1, w = 0
    one.aggregate(None, 1, answer(0.0))  # v = 1/2 + 0, w = -1/2
    assert one.weights["w"].item() == -0.5 and one.global_weights().keys() == {"w"}
    assert {name: t.item() for name, t in one.state().items()} == {"w": -0.5, "server/w": 0.5}
    other.start({"w": torch.tensor([1.0])}, ())
    other.load_state(one.state())
    for strategy in (one, other):
        strategy.aggregate(None, 2, answer(-1.0))  # v = 1/4 + 1/2, w = -1/2 - 3/4
        assert strategy.weights["w"].item() == -1.25
    one.start({"w": torch.tensor([1.0])}, ())
    assert one.server_state == {}  # another fit begins without it
