"""FedAvgM, FedAdagrad, FedAdam, FedYogi: hand values, torch's own optimisers, quadratics; what is no gradient is left alone."""

import math

import pytest
import torch
from federations import Deep, federate
from quadratics import Quadratic, Samples, descend
from torch import nn

from fl_lightning import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi
from fl_lightning.engine.messages import Payload
from fl_lightning.strategies.server_optimizers import AdaptiveServerOptimizer, ServerOptimizer


def started(strategy, weights, module=None):
    if module is not None:
        strategy.check(module, [], None)
    strategy.start(weights, ())
    return strategy


def take(strategy, tensors, **values):
    """One round of one client that ends there."""
    strategy.aggregate(None, 0, {0: Payload(tensors, {"num_samples": 1, **values})})


def move(strategy, delta):
    """One round of one client that moves ``w`` by ``delta``; where the server goes."""
    take(strategy, {"w": strategy.weights["w"] + delta})
    return strategy.weights["w"].item()


@pytest.mark.parametrize(
    ("strategy", "x"),
    [
        # Delta = 2, 4. m = 2, .5 x 2 + 4 = 5; x = 1, 1 + 5 / 2.
        (FedAvgM(eta=0.5, beta=0.5), (1.0, 3.5)),
        # v_0 = tau^2 = 4, m = 1, .5 + 2 = 2.5. v = 4 + 4 = 8, 8 + 16 = 24; x = 1 / (sqrt 8 + 2), + 2.5 / (sqrt 24 + 2).
        (FedAdagrad(eta=1, beta1=0.5, tau=2), (0.2071068, 0.5694792)),
        # v = .75 x 4 + .25 x 4 = 4, .75 x 4 + .25 x 16 = 7; x = 1 / (2 + 2), + 2.5 / (sqrt 7 + 2).
        (FedAdam(eta=1, beta1=0.5, beta2=0.75, tau=2), (0.25, 0.7881261)),
        # v = 4 (sign 0), 4 + .25 x 16 = 8; x = 1 / 4, + 2.5 / (sqrt 8 + 2).
        (FedYogi(eta=1, beta1=0.5, beta2=0.75, tau=2), (0.25, 0.7677670)),
    ],
)
def test_two_rounds_by_hand(strategy, x):
    started(strategy, {"w": torch.zeros(1)})
    assert [move(strategy, 2.0), move(strategy, 4.0)] == pytest.approx(x, abs=1e-6)


def test_yogi_shrinks_v_by_the_square_where_adam_shrinks_it_by_its_share():
    yogi = started(FedYogi(eta=1, beta1=0.0, beta2=0.75, tau=2), {"w": torch.zeros(1)})
    move(yogi, 1.0)
    assert yogi.server_state["v.w"].item() == 4 - 0.25 * 1


def torchs(kind, parameter, tau):
    if kind is FedAvgM:
        return FedAvgM(eta=0.3, beta=0.8), torch.optim.SGD([parameter], lr=0.3, momentum=0.8)
    if kind is FedAdagrad:
        eps = {"initial_accumulator_value": tau**2, "eps": tau}
        return FedAdagrad(eta=0.3, tau=tau), torch.optim.Adagrad([parameter], lr=0.3, **eps)
    own = torch.optim.RMSprop([parameter], lr=0.3, alpha=0.9, eps=tau)
    parameter.grad = torch.zeros_like(parameter)
    own.step()
    own.state[parameter]["square_avg"].fill_(tau**2)
    return FedAdam(eta=0.3, beta1=0.0, beta2=0.9, tau=tau), own


@pytest.mark.parametrize("kind", [FedAvgM, FedAdagrad, FedAdam])
def test_torchs_optimisers_take_the_same_steps_along_minus_delta(kind):
    # Without bias correction Adam with beta1 = 0 is RMSprop.
    generator = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.randn(5, generator=generator, dtype=torch.float64))
    strategy, own = torchs(kind, parameter, 0.1)
    started(strategy, {"w": parameter.detach().clone()})
    for _ in range(12):
        delta = torch.randn(5, generator=generator, dtype=torch.float64)
        take(strategy, {"w": strategy.weights["w"] + delta})
        parameter.grad = -delta
        own.step()
    torch.testing.assert_close(strategy.weights["w"], parameter.detach())


CLIENTS = ((1.0, 2.0, 3), (4.0, -1.0, 9))  # a, b, n: minimum of the weighted sum at (3 x 2 - 36) / (3 + 36)


def by_hand(rounds, update):
    """Two local steps a client, p = n / 12, and the server's update of (x, m, v, Delta), in plain numbers."""
    x, m, v = 0.0, 0.0, 0.01**2
    for _ in range(rounds):
        delta = sum(n / 12 * (descend(x, a, b, 0.1, 2) - x) for a, b, n in CLIENTS)
        x, m, v = update(x, m, v, delta)
    return x


def adaptive(grow):
    def update(x, m, v, delta):
        m, v = 0.6 * m + 0.4 * delta, grow(v, delta**2)
        return x + 0.2 * m / (math.sqrt(v) + 0.01), m, v

    return update


def momentum(x, m, v, delta):
    m = 0.5 * m + delta
    return x + 0.7 * m, m, v


@pytest.mark.parametrize(
    ("strategy", "update"),
    [
        (FedAvgM(eta=0.7, beta=0.5), momentum),
        (FedAdagrad(eta=0.2, beta1=0.6, tau=0.01), adaptive(lambda v, s: v + s)),
        (FedAdam(eta=0.2, beta1=0.6, beta2=0.9, tau=0.01), adaptive(lambda v, s: 0.9 * v + 0.1 * s)),
        (FedYogi(eta=0.2, beta1=0.6, beta2=0.9, tau=0.01), adaptive(lambda v, s: v + 0.1 * s * ((v < s) - (v > s)))),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, FedAvg) else "",
)
def test_unequal_clients_on_quadratics_over_rounds(tmp_path, strategy, update):
    data = [Samples(a, b, n) for a, b, n in CLIENTS]
    fed = federate(tmp_path, Quadratic(), data, {"max_epochs": 2}, strategy=strategy, num_rounds=5)
    assert fed.module.w.item() == pytest.approx(by_hand(5, update), abs=1e-5)
    assert fed.settings.strategy.weighting == "num_samples"


def test_without_momentum_it_is_fedavg_to_the_bit(tmp_path):
    runs = [federate(tmp_path, Deep, strategy=s, num_rounds=2) for s in (FedAvg("uniform"), FedAvgM(1.0, 0.0, "uniform"))]
    one, other = (fed.module.state_dict() for fed in runs)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_running_statistics_are_averaged_as_they_are():
    # An adaptive step would make the variance negative: .1 - .1 x 1.
    module = nn.BatchNorm1d(1)
    weights = {n: t for n, t in module.state_dict().items() if t.is_floating_point()}
    strategy = started(FedAdam(eta=10.0), weights, module)
    far = {name: tensor - 0.9 for name, tensor in weights.items()}
    take(strategy, far)
    for name in ("running_var", "running_mean"):
        assert torch.equal(strategy.weights[name], far[name])
    assert strategy.weights["weight"].item() < far["weight"].item() < 1
    assert set(strategy.server_state) == {"m.weight", "v.weight", "m.bias", "v.bias"}


@pytest.mark.parametrize("strategy", [FedAvgM(), FedAdam(), FedYogi(), FedAdagrad(beta1=0.9)])
def test_rows_that_nobody_has_trained_stay_with_their_memory(strategy):
    started(strategy, {"w": torch.ones(2, 3), "b": torch.ones(())})
    take(strategy, {"w": torch.full((2, 3), 3.0), "b": torch.tensor(2.0)})
    before, memory = strategy.weights["w"].clone(), {name: t.clone() for name, t in strategy.server_state.items()}
    take(strategy, {"w": before + 1, "b": torch.tensor(2.0)}, untrained_rows={"w": [1]})
    assert torch.equal(strategy.weights["w"][1], before[1]) and not torch.equal(strategy.weights["w"][0], before[0])
    for name in (name for name in memory if name.endswith(".w")):
        assert torch.equal(strategy.server_state[name][1], memory[name][1])
        assert not torch.equal(strategy.server_state[name][0], memory[name][0])
    take(strategy, {"w": strategy.weights["w"] + 1, "b": torch.tensor(2.0)})
    assert not torch.equal(strategy.weights["w"][1], before[1])


def test_what_nobody_moves_stays_to_the_bit():
    weights = {"w": torch.randn(50, generator=torch.Generator().manual_seed(1))}
    for strategy in (FedAvgM(), FedAdam(), FedYogi(), FedAdagrad()):
        take(started(strategy, weights), weights)
        assert torch.equal(strategy.weights["w"], weights["w"])


def test_half_precision_has_its_memory_in_float32_and_complex_numbers_have_two_parts():
    strategy = started(FedAdam(eta=1, beta1=0.0, beta2=0.75, tau=2), {"w": torch.zeros(1).half(), "z": torch.zeros(1) * 1j})
    take(strategy, {"w": torch.full((1,), 2.0).half(), "z": torch.tensor([2.0 + 4.0j])})
    assert strategy.weights["w"].dtype == torch.float16 and strategy.weights["w"].item() == 0.5  # 2 / (sqrt 4 + 2)
    assert strategy.server_state["v.w"].dtype == strategy.server_state["v.z"].dtype == torch.float32
    torch.testing.assert_close(strategy.weights["z"], torch.tensor([0.5 + 4j / (math.sqrt(7) + 2)]))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: FedAvgM(eta=0), "eta` must be above 0, got 0"),
        (lambda: FedAvgM(eta=math.inf), "eta` must be above 0, got inf"),
        (lambda: FedAvgM(beta=1), "beta` must be from 0 to below 1, got 1"),
        (lambda: FedAdam(beta1=-0.1), "beta1` must be from 0 to below 1, got -0.1"),
        (lambda: FedYogi(beta2=1.0), "beta2` must be from 0 to below 1, got 1.0"),
        (lambda: FedAdagrad(tau=0), "tau` must be above 0, got 0"),
        (lambda: FedAdagrad(weighting="size"), "weighting` must be `uniform` or `num_samples`, got `size`"),
    ],
)
def test_arguments_are_checked(make, text):
    with pytest.raises(ValueError) as error:
        make()
    assert f"`federation.strategy.init_args.{text}" in str(error.value)


def test_what_a_subclass_must_have():
    for strategy, method in ((ServerOptimizer(1.0), "first_memory()"), (AdaptiveServerOptimizer(1, 0, 1), "second_moment(v, ")):
        with pytest.raises(NotImplementedError, match=type(strategy).__name__) as error:
            take(started(strategy, {"w": torch.zeros(1)}), {"w": torch.ones(1)})
        assert method in str(error.value)
    with pytest.raises(NotImplementedError, match=r"direction\(delta, memory\)"):
        ServerOptimizer(1.0).direction(torch.zeros(1), {})
