"""Median, TrimmedMean, ClippedMean, MultiKrum: hand values, what a liar can do, who is not asked, and what is refused."""

import csv
import math

import pytest
import torch
from federations import CPU
from hypothesis import given
from hypothesis import strategies as st
from quadratics import Quadratic, Samples

from fl_lightning import FederatedTrainer
from fl_lightning.settings import FederationSettings
from fl_lightning.strategies import (
    ClippedMean,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedDF,
    FedGTA,
    FedNova,
    FedPer,
    FedPub,
    LocalOnly,
    Median,
    MultiKrum,
    Scaffold,
    TrimmedMean,
)
from fl_lightning.strategies.aggregation import standing
from fl_lightning.strategies.averaging import average_learnt

ALL = [Median(), TrimmedMean(0.25), ClippedMean(), MultiKrum(1)]


def combine(aggregation, *rows, weights=None, untrained=None, before=None):
    """Of models with one entry ``w``."""
    models = [{"w": torch.tensor(row)} for row in rows]
    start = {"w": torch.zeros(len(rows[0])) if before is None else torch.tensor(before)}
    return aggregation(models, weights or [1.0] * len(models), untrained or [{}] * len(models), start)["w"].tolist()


def test_median_by_hand_of_odd_and_even_numbers():
    assert combine(Median(), [1.0, 9.0], [2.0, 7.0], [100.0, -8.0]) == [2.0, 7.0]
    assert combine(Median(), [1.0], [2.0], [4.0], [100.0]) == [3.0]
    assert combine(Median(), [5.0]) == [5.0]


def test_median_and_trimmed_mean_do_not_ask_how_many_samples_a_client_says_it_has():
    for aggregation in (Median(), TrimmedMean(0.0), MultiKrum(0)):
        once = combine(aggregation, [1.0], [2.0], [6.0])
        assert combine(aggregation, [1.0], [2.0], [6.0], weights=[1.0, 1.0, 1e9]) == once


def test_trimmed_mean_by_hand():
    five = ([1.0, -9.0], [2.0, 3.0], [3.0, 4.0], [7.0, 5.0], [100.0, 6.0])
    assert combine(TrimmedMean(0.2), *five) == [4.0, 4.0]  # without 1 and 100; without -9 and 6
    assert combine(TrimmedMean(0.39), *five) == [4.0, 4.0]  # .39 x 5 = 1.95: one
    assert combine(TrimmedMean(0.4), *five) == [3.0, 4.0]  # two at each side
    assert combine(TrimmedMean(0.0), *five) == pytest.approx([22.6, 1.8])
    hundred = [[float(i**2)] for i in range(100)]
    assert combine(TrimmedMean(0.29), *hundred) == pytest.approx([sum(i**2 for i in range(29, 71)) / 42])


def test_clipped_mean_by_hand():
    # From (1, 0): updates of length 1, 2 and 10; the median is 2, so that the last is divided by 5.
    found = combine(ClippedMean(), [2.0, 0.0], [1.0, 2.0], [7.0, 8.0], before=[1.0, 0.0])
    assert found == pytest.approx([1 + (1 + 0 + 6 / 5) / 3, (0 + 2 + 8 / 5) / 3])
    weighted = combine(ClippedMean(), [2.0, 0.0], [1.0, 2.0], [7.0, 8.0], before=[1.0, 0.0], weights=[1.0, 1.0, 2.0])
    assert weighted == pytest.approx([1 + (1 + 0 + 2 * 6 / 5) / 4, (0 + 2 + 2 * 8 / 5) / 4])
    assert combine(ClippedMean(0.5), [1.0], [-2.0], [4.0]) == pytest.approx([(1 - 1 + 1) / 3])


def test_clipped_mean_measures_all_entries_together_and_is_fedavg_to_the_bit_where_nothing_is_long():
    generator = torch.Generator().manual_seed(0)
    models = [{"w": torch.randn(3, 2, generator=generator), "b": torch.randn(2, generator=generator)} for _ in range(4)]
    before, weights = {"w": torch.zeros(3, 2), "b": torch.zeros(2)}, [1.0, 2.0, 3.0, 4.0]
    wide = ClippedMean(math.inf)(models, weights, [{}] * 4, before)
    plain = average_learnt(models, weights, [{}] * 4, before)
    assert all(torch.equal(wide[name], plain[name]) for name in plain)
    one_long = [models[0], *[{n: t / 1e3 for n, t in m.items()} for m in models[1:]]]
    found = ClippedMean(1.0)(one_long, [1.0, 0.0, 0.0, 0.0], [{}] * 4, before)
    norms = sorted(math.sqrt(sum(float(t.double().square().sum()) for t in m.values())) for m in one_long)
    assert math.sqrt(sum(float(t.double().square().sum()) for t in found.values())) == pytest.approx((norms[1] + norms[2]) / 2)


def test_multi_krum_by_hand():
    # K = 5, f = 1: each one's two nearest. Squares: 0: 1 + 4, 1: 1 + 1, 2: 1 + 4, 4: 4 + 9, 50: 46^2 + 48^2.
    rows = ([0.0], [1.0], [2.0], [4.0], [50.0])
    assert MultiKrum(1, 1).chosen([{"w": torch.tensor(r)} for r in rows]) == [1]
    assert MultiKrum(1, 3).chosen([{"w": torch.tensor(r)} for r in rows]) == [0, 1, 2]
    assert combine(MultiKrum(1), *rows) == [1.75]
    assert combine(MultiKrum(1, 2), *rows) == [0.5]  # 0 and 2 are as good: the first


def test_multi_krum_tells_models_apart_that_differ_by_little():
    models = [{"w": torch.full((1000,), 1000.0) + torch.tensor(d)} for d in (0.0, 0.01, 0.02, 0.03, 5.0)]
    assert MultiKrum(1).chosen(models) == [0, 1, 2, 3]


@pytest.mark.parametrize("aggregation", ALL, ids=lambda a: type(a).__name__)
@given(lie=st.sampled_from([1e3, -1.0, -1e3, 1e30]), who=st.integers(0, 4))
def test_one_liar_of_five_moves_no_number_beyond_the_others_values(aggregation, lie, who):
    honest = [[0.9, -2.0], [1.0, -2.2], [1.1, -1.9], [1.05, -2.1], [0.95, -2.05]]
    told = [[lie * x for x in row] if i == who else row for i, row in enumerate(honest)]
    others = [row for i, row in enumerate(honest) if i != who]
    for value, column in zip(combine(aggregation, *told), zip(*others, strict=True), strict=True):
        if isinstance(aggregation, ClippedMean):  # a fifth of the weight, at most as long as the others
            assert abs(value) <= max(map(abs, column)) * 1.6
        else:
            assert min(column) - 1e-6 <= value <= max(column) + 1e-6


def test_rows_that_a_client_has_not_trained_have_no_vote_of_it():
    untrained = [{"w": [1]}, {}, {"w": [1]}, {}]
    assert combine(Median(), [1.0, 90.0], [2.0, 5.0], [3.0, 80.0], [4.0, 7.0], untrained=untrained) == [2.5, 6.0]
    nobody = [{"w": [1]}] * 3
    assert combine(TrimmedMean(0.34), [1.0, 9.0], [2.0, 9.0], [6.0, 9.0], untrained=nobody, before=[0.0, -3.0]) == [2.0, -3.0]


def test_complex_entries_are_taken_by_their_parts():
    models = [{"w": torch.tensor([value])} for value in (1 + 5j, 2 + 1j, 9 + 3j)]
    assert Median()(models, [1.0] * 3, [{}] * 3, {"w": torch.zeros(1, dtype=torch.complex64)})["w"].tolist() == [2 + 3j]


def test_standing_by_hand():
    models = [{"w": torch.tensor([3.0]), "b": torch.tensor([4.0])}, {"w": torch.tensor([0.0]), "b": torch.tensor([0.0])}]
    before = {"w": torch.zeros(1), "b": torch.zeros(1)}
    found = standing(models, {"w": torch.tensor([1.0]), "b": torch.tensor([0.0])}, before)
    assert found == [{"update_norm": 5.0, "update_cosine": pytest.approx(0.6)}, {"update_norm": 0.0}]


class Clients:
    """Five quadratics whose minima are near 1, but for the last one's."""

    def __init__(self, last=-1000.0):
        self.data = [Samples(1.0, b, n=2) for b in (0.9, 1.0, 1.1, 1.05, last)]

    def train(self, folder, **settings):
        module = Quadratic(lr=0.5)
        trainer = FederatedTrainer(
            num_rounds=8, min_clients=5, seed=1, trainer={**CPU, "default_root_dir": str(folder)}, **settings
        )
        results = trainer.fit(module, self.data)
        return module.w.item(), results, trainer


@pytest.mark.parametrize("aggregation", ALL, ids=lambda a: type(a).__name__)
def test_a_federation_with_one_client_that_is_far_off_goes_where_the_others_are(aggregation, tmp_path):
    w, _, trainer = Clients().train(tmp_path, aggregation=aggregation)
    assert (0.5 if isinstance(aggregation, ClippedMean) else 0.85) < w < 1.15
    with open(next(tmp_path.rglob("metrics.csv")), encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get("clients/4/update_norm")]
    first = {c: float(rows[0][f"clients/{c}/update_norm"]) for c in range(5)}
    assert first[4] > 100 * max(first[c] for c in range(4))
    assert float(rows[0]["clients/4/update_cosine"]) < 0 < float(rows[0]["clients/0/update_cosine"])


def test_fedavg_goes_where_the_liar_wants():

    module = Quadratic(lr=0.5)
    FederatedTrainer(num_rounds=8, seed=1, trainer={**CPU, "logger": False}).fit(module, Clients().data)
    assert module.w.item() < -100


def test_a_servers_optimiser_steps_along_the_median(tmp_path):
    w, *_ = Clients().train(tmp_path, aggregation=Median(), strategy=FedAvgM(eta=1.0, beta=0.0))
    assert w == pytest.approx(Clients().train(tmp_path, aggregation=Median())[0], abs=1e-6)


@pytest.mark.parametrize(
    "strategy", [LocalOnly(), FedPub(), FedGTA(), Scaffold(), FedNova(), FedDF()], ids=lambda s: type(s).__name__
)
def test_strategies_without_a_mean_are_refused_by_name(strategy):
    with pytest.raises(ValueError, match=rf"aggregation: Median.*strategy: {type(strategy).__name__}"):
        FederationSettings(strategy=strategy, aggregation=Median())


def test_those_of_fedavgs_kind_are_not():
    for strategy in (FedAvg(), FedAdam(), FedPer()):
        assert FederationSettings(strategy=strategy, aggregation=Median()).aggregation is not None


def test_mistakes_are_told_in_the_names_of_the_yaml():
    for wrong, words in [
        (lambda: TrimmedMean(0.5), "share"),
        (lambda: TrimmedMean(-0.1), "share"),
        (lambda: ClippedMean(0.0), "factor"),
        (lambda: MultiKrum(-1), "num_faulty"),
        (lambda: MultiKrum(1, 0), "num_kept"),
        (lambda: FederationSettings(aggregation=MultiKrum(2)), "federation.min_clients` is 1: set it to 7"),
        (lambda: FederationSettings(aggregation="median"), "must be an Aggregation"),
        (lambda: combine(MultiKrum(1), [1.0], [2.0], [3.0], [4.0]), "needs 5 trained clients.*4 have"),
    ]:
        with pytest.raises(ValueError, match=words):
            wrong()
