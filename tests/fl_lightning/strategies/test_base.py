"""What all strategies share: the round, the clients' histograms as one, and what is sent for evaluation."""

import pytest
import torch

from fl_lightning.engine.messages import Payload
from fl_lightning.strategies.base import PhaseCosts, Strategy, as_samples, summed_counts


def test_histograms_of_all_clients_by_hand():
    found = summed_counts([{"weight": [1, 2, 0], "other": [4]}, {}, {"weight": [10, 0, 5]}, {"weight": [0, 1, 0]}])
    assert found == {"weight": [11, 3, 5], "other": [4]}
    assert summed_counts([]) == {}
    with pytest.raises(ValueError, match="zip"):
        summed_counts([{"weight": [1, 2]}, {"weight": [1]}])


def test_a_histogram_as_samples_thinned_in_proportion_where_there_are_too_many():
    values = torch.tensor([0.1, 0.2, 0.3])
    assert as_samples(values, [1, 0, 2]).tolist() == values[[0, 2, 2]].tolist()
    assert as_samples(values, [1, 0, 2], most=3).tolist() == values[[0, 2, 2]].tolist()
    thinned = as_samples(values, [3, 10, 7], most=10)  # 30 / 20, 100 / 20, 70 / 20, rounded down
    assert torch.bincount((thinned * 10).round().long()).tolist() == [0, 1, 5, 3]
    assert len(as_samples(values, [10**12, 0, 0])) == 1_000_000


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
    assert strategy.phases() == [] and strategy.phase_costs([]) == PhaseCosts(0, 0, 0, 0, 0, "") and strategy.matrices() == {}


def test_the_rounds_histograms_are_logged_with_their_bins():
    class Logger:
        def add_histogram(self, name, samples, step, bins):
            self.call = name, samples.tolist(), step, bins

    strategy, logger = Plain(), Logger()
    strategy.histograms = {"weight": [2, 1]}
    strategy.log_round(logger, 3)
    assert logger.call == ("train/weight", [0.25, 0.25, 0.75], 3, 2)
