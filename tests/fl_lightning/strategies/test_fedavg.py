"""FedAvg: hand values (docs/papers/fedsage.md#hand-values T8, docs/papers/fedchem.md#hand-values 14), what it rejects, and in
which precision it adds."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.engine import InProcess
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Message, Payload
from fl_lightning.errors import FederationError
from fl_lightning.settings import FederationSettings
from fl_lightning.strategies import FedAvg, FedSagePlus
from fl_lightning.strategies.averaging import average


class Scripted(InProcess):
    """Answers ``fit`` with what the test wrote down, in whatever order."""

    def __init__(self, replies, order=None):
        super().__init__()
        self.replies, self.order = replies, order

    def exchange(self, requests, timeout):
        asked = {r.client: r for r in requests}
        for client in self.order or sorted(asked):
            tensors, samples = self.replies[client]
            values = {"num_samples": samples, "metrics": {}}
            yield Message("fit", "run", asked[client].round, client, Payload(tensors, values))


def run(replies, weighting="uniform", order=None, min_clients=1, initial=None):
    strategy = FedAvg(weighting)
    first = next(iter(replies.values()))[0]
    strategy.start(initial or {n: torch.zeros_like(t) for n, t in first.items()}, ())
    federation = Federation(Scripted(replies, order), "run", tuple(replies), min_clients=min_clients)
    strategy.round(federation, 0, sorted(replies))
    return strategy.weights, federation


def scalar(value):
    return {"theta": torch.tensor([float(value)])}


T8 = {0: (scalar(1), 10), 1: (scalar(2), 30), 2: (scalar(3), 60)}


def test_t8_uniform_and_weighted():
    # (1 + 2 + 3) / 3 = 2;  (10 x 1 + 30 x 2 + 60 x 3) / 100 = 2.5
    assert run(T8)[0]["theta"].item() == 2.0
    assert run(T8, "num_samples")[0]["theta"].item() == 2.5


def test_t8_one_round_of_gradient_steps():
    # theta = 1, eta = .1, gradients (1, 2, 3): (.9 + .8 + .7) / 3 = .8
    replies = {c: (scalar(1 - 0.1 * g), n) for c, g, n in ((0, 1, 10), (1, 2, 30), (2, 3, 60))}
    torch.testing.assert_close(run(replies)[0]["theta"], torch.tensor([0.8]))


def test_fedchem_14():
    # (93 x 1 + 130 x 2 + 187 x 4) / 410 = 1101 / 410 = 2.6853659
    replies = {0: (scalar(1), 93), 1: (scalar(2), 130), 2: (scalar(4), 187)}
    torch.testing.assert_close(run(replies, "num_samples")[0]["theta"], torch.tensor([2.6853659]), atol=1e-6, rtol=0)


def test_inputs_are_not_modified_nor_aliased():
    models = [{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, 6.0])}]
    kept = copy.deepcopy(models)
    result = average(models, [1, 1])
    assert result["w"].tolist() == [2.0, 4.0]
    result["w"].zero_()
    assert all(torch.equal(m["w"], k["w"]) for m, k in zip(models, kept, strict=True))


def test_a_single_model_comes_back_exactly():
    model = {"w": torch.randn(50), "h": torch.randn(50).half(), "d": torch.randn(50, dtype=torch.float64)}
    for name, tensor in average([model], [7]).items():
        assert torch.equal(tensor, model[name])


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(5)), st.sampled_from(["uniform", "num_samples"]))
def test_the_order_in_which_clients_answer_does_not_matter(order, weighting):
    generator = torch.Generator().manual_seed(3)
    replies = {c: ({"w": torch.randn(20, generator=generator) * 10**c}, 3 + 7 * c) for c in range(5)}
    assert torch.equal(run(replies, weighting)[0]["w"], run(replies, weighting, order)[0]["w"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_added_in_float64(dtype):
    # 3000 x (1 + 2^-7): a sum in half precision stops growing (float16 ends at 65504, bfloat16 has 8 bits).
    value = torch.tensor([1 + 2**-7, 40000.0], dtype=dtype)
    result = average([{"w": value.clone()} for _ in range(3000)], [1.0] * 3000)["w"]
    assert result.dtype == dtype and torch.equal(result, value)


def test_float32_is_added_in_float64():
    # 2^24 + 1 is no float32: adding 1 to 2^24 in float32 changes nothing. Mean of (2^24, 1, 1, 2) = 2^22 + 1.
    models = [{"w": torch.tensor([v])} for v in (2.0**24, 1.0, 1.0, 2.0)]
    assert average(models, [1, 1, 1, 1])["w"].item() == 2**22 + 1


def test_complex_entries():
    assert average([{"w": torch.tensor([1 + 2j])}, {"w": torch.tensor([3 - 4j])}], [1, 3])["w"].item() == 2.5 - 2.5j


@pytest.mark.parametrize("weights", [[0, 0], [1, -1], [3, -1], [float("nan"), 1], [float("inf"), 1]])
def test_weights_without_a_sum_are_an_error(weights):
    with pytest.raises(ValueError, match="weights must be non-negative with a positive sum"):
        average([scalar(1), scalar(2)], weights)


def test_integers_stay_as_the_server_has_them():
    initial = {"w": torch.zeros(1), "n": torch.tensor(3)}
    weights, _ = run({0: (({"w": torch.ones(1)}), 1), 1: ({"w": torch.ones(1) * 3}, 1)}, initial=initial)
    assert weights["w"].item() == 2 and weights["n"].item() == 3 and weights["n"].dtype == torch.int64


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_non_finite_update_is_left_out_by_name(bad):
    weights, federation = run({**T8, 1: (scalar(bad), 30)}, "num_samples")
    torch.testing.assert_close(weights["theta"], torch.tensor([190 / 70]))  # (10 x 1 + 60 x 3) / 70
    assert federation.failures == [{"round": 0, "client": 1, "kind": "fit", "reason": "non-finite values in `theta`"}]


def test_a_wrong_shape_is_left_out_by_name_and_never_broadcast():
    # (4, 1) + (4,) would broadcast to (4, 4)
    good = {"w": torch.ones(4)}
    weights, federation = run({0: (good, 1), 1: ({"w": torch.ones(4, 1)}, 1), 2: ({"w": torch.ones(1)}, 1)})
    assert weights["w"].shape == (4,) and weights["w"].tolist() == [1.0] * 4
    reasons = {f["client"]: f["reason"] for f in federation.failures}
    assert reasons.keys() == {1, 2} and "`w` is float32[4, 1], expected float32[4]" in reasons[1]


def test_another_dtype_missing_and_extra_entries_are_left_out_by_name():
    good = {"a": torch.ones(2), "b": torch.ones(1)}
    replies = {
        0: (good, 1),
        1: ({"a": torch.ones(2).double(), "b": torch.ones(1)}, 1),
        2: ({"a": torch.ones(2)}, 1),
        3: ({**good, "c": torch.ones(1)}, 1),
    }
    weights, federation = run(replies)
    assert weights["a"].tolist() == [1, 1]
    reasons = {f["client"]: f["reason"] for f in federation.failures}
    assert "`a` is float64[2]" in reasons[1] and "missing: ['b']" in reasons[2] and "unexpected: ['c']" in reasons[3]


def test_below_min_clients_the_old_model_stays():
    strategy = FedAvg()
    strategy.start(scalar(5), ())
    replies = {**T8, 1: (scalar(float("nan")), 1), 2: ({"theta": torch.ones(1, 1)}, 1)}
    federation = Federation(Scripted(replies), "run", (0, 1, 2), min_clients=2)
    with pytest.raises(FederationError, match=r"(?s)needed.*client 1: non-finite.*client 2: its update does not fit"):
        strategy.round(federation, 0, [0, 1, 2])
    assert strategy.weights["theta"].item() == 5


def test_clients_without_samples_are_no_part_of_the_mean():
    weights, _ = run({0: (scalar(1), 10), 1: (scalar(100), 0), 2: (scalar(3), 10)})
    assert weights["theta"].item() == 2
    weights, _ = run({0: (scalar(1), 0), 1: (scalar(1), 0)}, initial=scalar(9))
    assert weights["theta"].item() == 9


def test_the_default_weights_by_samples_as_the_paper():
    # McMahan et al. 2017, Algorithm 1: w <- sum_k n_k / n w_k; T8 weighted is 2.5, uniform 2.0. FedSage+ averages uniformly.
    strategy = FederationSettings().strategy
    assert type(strategy) is FedAvg and strategy.weighting == FedAvg().weighting == "num_samples"
    assert run(T8, FedAvg().weighting)[0]["theta"].item() == 2.5
    assert FedSagePlus().weighting == "uniform"


def test_unknown_weighting():
    with pytest.raises(ValueError, match="`federation.strategy.init_args.weighting` must be `uniform` or `num_samples`"):
        FedAvg(weighting="size")
