"""FedProx by hand (docs/papers/fedchem.md#hand-values, 6 and 9): the term is live, leaves private parts out, composes, and
can be off."""

import pytest
import torch
from objective_samples import (
    Linear,
    Rows,
    assert_same,
    in_first_step,
    loss_and_gradient,
    make_trainer,
    rows_data,
    trained,
)
from objective_samples import with_objective as using

from lit_models.objectives import ERM, FedFocal, FedProx, fedprox
from lit_models.objectives.fedprox import squared_distance

ONE = Rows([[0.0, 0.0]], [[0.0]], batch_size=1)  # x = 0: the loss and its gradient are zero, the term is all there is


def moved_by_3_and_4(objective):
    """Loss and gradient after the weights (1, 1) as received moved to (4, 5)."""
    module = Linear(objective, [[1.0, 1.0]])

    def step(batch):
        module.layer.weight.data += torch.tensor([[3.0, 4.0]])
        return loss_and_gradient(module, batch)

    return in_first_step(module, ONE, step)


@pytest.mark.parametrize(("variant", "factor"), [("paper", 0.5), ("official", 1.0)])
def test_oracle_9_by_hand(variant, factor):
    loss, gradient = moved_by_3_and_4(FedProx(mu=0.1, variant=variant))
    torch.testing.assert_close(loss, torch.tensor(25 * 0.1 * factor))
    torch.testing.assert_close(gradient["layer.weight"], 2 * factor * 0.1 * torch.tensor([[3.0, 4.0]]))


def test_squared_distance_adds_up_tensors_and_is_squared():
    received = {"a": torch.zeros(2), "b": torch.ones(1, 1)}
    weights = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([[3.0]]), "c": torch.tensor(9.0)}
    assert squared_distance(weights, received).item() == 29.0
    for tensors in (weights, received):
        tensors["b"].requires_grad_()
    squared_distance(weights, received).backward()
    assert weights["b"].grad.item() == 4.0 and received["b"].grad is None  # what was received is a constant


@pytest.mark.parametrize("mutation", ["detached", "root", "live reference"])
def test_mutations_fail_oracle_9(mutation, monkeypatch):
    def broken(weights, received):
        if mutation == "detached":
            weights = {name: w.detach() for name, w in weights.items()}
            return squared_distance(weights, received) + 0.0 * next(iter(received.values())).sum().requires_grad_()
        return squared_distance(weights, received).sqrt() if mutation == "root" else squared_distance(weights, weights)

    monkeypatch.setattr(fedprox, "squared_distance", broken)
    with pytest.raises((AssertionError, KeyError)):
        test_oracle_9_by_hand("paper", 0.5)


def test_two_sgd_steps_by_hand():
    # L = (w - 3)^2 on x = 1, y = 3; mu = 2, so the term is (w - w_g)^2; w_g = 1, lr = .1.
    # w1 = 1 - .1 * 2 (1 - 3) = 1.4;  w2 = 1.4 - .1 * (2 (1.4 - 3) + 2 (1.4 - 1)) = 1.4 + .24 = 1.64
    module = Linear(FedProx(mu=2.0), [[1.0]])
    weights = trained(module, Rows([[1.0]], [[3.0]], batch_size=1), max_epochs=2)
    torch.testing.assert_close(weights["layer.weight"], torch.tensor([[1.64]]))


def test_mu_0_and_warm_up_are_the_base_loss_bit_for_bit():
    data, plain = rows_data(), Linear(ERM())
    plain.build(data.schema)
    expected = trained(plain, data)
    assert_same(trained(using(plain, FedProx(mu=0.0)), data), expected)
    early = using(plain, FedProx(mu=1.0))
    early.on_round_start(0, 5)
    assert_same(trained(early, data), expected)
    late = using(plain, FedProx(mu=1.0))
    late.on_round_start(1, 5)
    assert not torch.equal(trained(late, data)["layer.weight"], expected["layer.weight"])


def test_composes_with_another_loss():
    data, base = rows_data(), Linear(FedFocal())
    base.build(data.schema)
    assert_same(trained(using(base, FedProx(mu=0.0, base=FedFocal())), data), trained(base, data))
    with_term = trained(using(base, FedProx(mu=1.0, base=FedFocal())), data)
    assert not torch.equal(with_term["layer.weight"], trained(base, data)["layer.weight"])
    alone = trained(using(base, FedProx(mu=1.0)), data)
    assert not torch.equal(with_term["layer.weight"], alone["layer.weight"])


def test_hooks_and_memory_reach_the_base():
    class Recording(ERM):
        def __init__(self):
            self.calls = []

        def on_round_start(self, module, round, num_rounds):
            self.calls.append((round, num_rounds))

        def on_train_start(self, module):
            self.calls.append("start")

        def on_train_end(self, module):
            self.calls.append("end")

        def state(self):
            return {"count": torch.ones(1)}

        def load_state(self, state):
            self.calls.append(sorted(state))

    base = Recording()
    module = Linear(FedProx(base=base))
    module.on_round_start(2, 7)
    make_trainer(max_epochs=1).fit(module, rows_data())
    assert module.private_state().keys() == {"base/count"}
    module.load_private_state(module.private_state())
    assert base.calls == [(2, 7), "start", "end", ["count"]]


def test_frozen_and_private_parameters_are_not_pulled():
    module = Linear(FedProx())
    module.build({"in": 2, "out": 1})
    module.head, module.fixed = torch.nn.Linear(1, 1), torch.nn.Parameter(torch.ones(1), requires_grad=False)
    module.private_entries = ("head.*",)
    assert list(module.objective.pulled(module)) == ["layer.weight"]


def test_needs_the_weights_as_received():
    module = Linear(FedProx())
    module.build(ONE.schema)
    with pytest.raises(ValueError, match="`FedProx` needs the weights as received: call `on_train_start`"):
        module.objective(module, ONE.batch())


@pytest.mark.parametrize(("name", "value"), [("mu", -1.0), ("variant", "other"), ("warmup_rounds", -1)])
def test_arguments_are_checked(name, value):
    with pytest.raises(ValueError, match=f"objective.init_args.{name}` of `FedProx` must be "):
        FedProx(**{name: value})


def test_term_is_logged_as_the_mean_over_the_epoch():
    # Two batches of x = 0 leave the weights alone but for the term, whose gradient is zero at the received weights.
    module = Linear(FedProx(mu=2.0), [[1.0]])
    logged = []
    module.log_values = logged.append
    trained(module, Rows([[1.0], [1.0]], [[3.0], [3.0]], batch_size=1), max_epochs=1)
    terms = [values["train/proximal"] for values in logged if "train/proximal" in values]
    torch.testing.assert_close(torch.stack(terms), torch.tensor([0.08]))  # mean of 0 and (1.4 - 1)^2


def test_defaults_and_zero():
    default = FedProx()
    assert (default.mu, default.variant, default.warmup_rounds) == (0.01, "paper", 1) and FedProx(mu=0.0).mu == 0.0


@pytest.mark.parametrize(("mu", "round", "kept"), [(0.0, None, False), (1.0, 0, False), (1.0, 1, True), (1.0, None, True)])
def test_the_weights_as_received_are_kept_where_there_is_a_term_as_constants(mu, round, kept):
    module = Linear(FedProx(mu=mu), [[1.0, 2.0]])
    if round is not None:
        module.on_round_start(round, 9)
    received = in_first_step(module, ONE, lambda batch: module.objective._received)
    assert (received is not None) == kept
    if kept:
        assert received["layer.weight"].tolist() == [[1.0, 2.0]] and not received["layer.weight"].requires_grad
    assert module.objective._received is None
