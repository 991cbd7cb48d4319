"""Focal factor, moving average and FedFocal by hand: docs/papers/fedchem.md#hand-values, 1, 2, 7, 8 and 15."""

import math
from types import SimpleNamespace

import pytest
import torch
from objective_samples import Linear, assert_same, rows_data, trained, value_at
from objective_samples import with_objective as using

from lit_models.base import SampleLosses
from lit_models.objectives import ERM, FedFocal
from lit_models.objectives.focal import focal_factor, moving_average, normalised

BETA = 0.8


def close(found, expected):
    torch.testing.assert_close(found, torch.as_tensor(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("p_t", "gamma", "loss"), [(0.9, 2, 0.00105361), (0.9, 0.5, 0.0333179), (0.5, 2, 0.1732868)])
def test_oracle_1_focal_loss(p_t, gamma, loss):
    plain = torch.tensor(-math.log(p_t))
    close(focal_factor(plain, gamma) * plain, loss)
    close(focal_factor(plain, 1.0), 1 - p_t)
    assert focal_factor(plain, 0.0) == 1.0


def test_oracle_2_moving_average_by_task():
    batches = [torch.tensor(b).view(2, 1) for b in ([1.0, 3.0], [2.0, 6.0], [0.0, 0.0])]
    averages, factors = [2.0, 2.4, 1.92], [[0.39347, 0.77687], [0.56540, 0.91792], [0.0, 0.0]]
    average = None
    for omega, wanted, factor in zip(batches, averages, factors, strict=True):
        both = torch.cat([omega, 10 * omega], dim=1)  # a second task: its column is independent, its ratios are equal
        average = moving_average(average, both, torch.ones_like(both, dtype=torch.bool), BETA)
        close(average, [wanted, 10 * wanted])
        close(focal_factor(normalised(both, average), 1.0), [[f, f] for f in factor])


@pytest.mark.parametrize(
    ("gamma", "live", "constant"), [(0.5, 1.026413, 0.795060), (1.0, 1.0, 0.632121), (2.0, 0.864665, 0.399576)]
)
def test_oracle_7_gradient_of_the_factor(gamma, live, constant):
    for detach, expected in ((False, live), (True, constant)):
        loss = torch.tensor([[2.0]], requires_grad=True)
        factor = focal_factor(normalised(loss, torch.tensor([2.0])), gamma)
        ((factor.detach() if detach else factor) * loss).sum().backward()
        close(loss.grad, [[expected]])


def test_oracle_8_gradient_at_zero_is_finite():
    loss = torch.zeros(1, requires_grad=True)
    (focal_factor(loss, 0.5) * loss).backward()
    close(loss.grad, [3.16e-4])
    loss.grad = None
    (focal_factor(loss, 0.5, eps=0.0) * loss).backward()
    assert loss.grad.isnan().all()  # what the guard is for


def test_a_task_without_labels_keeps_its_average_and_starts_with_its_first_batch():
    mask = torch.tensor([[True, False], [True, False]])
    average = moving_average(None, torch.tensor([[1.0, 50.0], [3.0, 60.0]]), mask, BETA)
    assert average[0] == 2.0 and average[1].isnan()
    mask = torch.tensor([[False, True], [False, False]])
    average = moving_average(average, torch.tensor([[1.0, 4.0], [3.0, 60.0]]), mask, BETA)
    close(average, [2.0, 4.0])
    close(moving_average(average, torch.ones(2, 2), torch.zeros(2, 2).bool(), BETA), [2.0, 4.0])
    assert normalised(torch.ones(1, 1), torch.tensor([torch.nan])).isfinite().all()


def test_average_has_no_gradient_and_factor_has_one_for_each_sample():
    omega = torch.tensor([[1.0], [3.0]], requires_grad=True)
    average = moving_average(None, omega, torch.ones(2, 1).bool(), BETA)
    assert not average.requires_grad
    factor = focal_factor(normalised(omega, average), 1.0)
    assert factor.shape == (2, 1) and factor[0] != factor[1]


def test_both_forms_by_hand():
    # Normalised: oracle 4, average 1.5. Eq. 4 on L = -log .9: oracle 1.
    close(value_at(FedFocal(gamma=1.0), [1.0, 2.0])[0], 0.979694)
    close(value_at(FedFocal(gamma=0.5), [1.0, 2.0])[0], 1.206917)
    close(value_at(FedFocal(gamma=2.0, normalise=False), [-math.log(0.9)])[0], 0.00105361)


def test_oracle_15_a_masked_sample_changes_nothing():
    for normalise in (True, False):
        for tasks in (1, 2):
            row = [[1.0] * tasks, [2.0] * tasks]
            alone = value_at(FedFocal(normalise=normalise), row)
            missing = [(2, t) for t in range(tasks)]
            masked = value_at(FedFocal(normalise=normalise), [*row, [77.0] * tasks], missing=missing)
            assert torch.equal(alone[0], masked[0]) and torch.equal(alone[1]["levels"], masked[1]["levels"][:2])
            assert masked[1]["levels"][2].abs().max() == 0
            assert alone[2] is masked[2] is None or torch.equal(alone[2], masked[2])


def test_oracle_15_a_masked_task_contributes_nothing():
    one = value_at(FedFocal(), [1.0, 2.0])
    two = value_at(FedFocal(), [[1.0, 9.0], [2.0, 9.0]], missing=[(0, 1), (1, 1)])
    first, second = one[1]["levels"], two[1]["levels"]
    assert torch.equal(one[0], two[0]) and torch.equal(first[:, 0], second[:, 0]) and second[:, 1].abs().max() == 0


def test_a_batch_without_labels_gives_zero():
    loss, gradient, average = value_at(FedFocal(), [1.0, 2.0], missing=[(0, 0), (1, 0)])
    assert loss == 0 and gradient["levels"].abs().max() == 0 and average.isnan().all()


def test_gamma_0_and_warm_up_are_the_plain_mean_bit_for_bit():
    data, plain = rows_data(), Linear(ERM())
    plain.build(data.schema)
    expected = trained(plain, data)
    for normalise in (True, False):
        assert_same(trained(using(plain, FedFocal(gamma=0.0, normalise=normalise)), data), expected)
    early = using(plain, FedFocal(gamma=2.0))
    early.on_round_start(0, 3)
    assert_same(trained(early, data), expected)
    assert not torch.equal(trained(using(plain, FedFocal()), data)["layer.weight"], expected["layer.weight"])


def test_average_starts_anew_in_each_fit():
    data, module = rows_data(), Linear(FedFocal())
    module.build(data.schema)
    module.objective.on_train_start(module)
    module.objective(module, data.batch())
    assert module.objective.average is not None
    module.objective.on_train_start(module)
    assert module.objective.average is None


@pytest.mark.parametrize(("name", "value"), [("gamma", -0.1), ("beta", 1.0), ("warmup_rounds", -1)])
def test_arguments_are_checked(name, value):
    with pytest.raises(ValueError, match=f"objective.init_args.{name}` of `FedFocal` must be at least 0"):
        FedFocal(**{name: value})


def test_the_average_is_a_constant_whoever_computed_it():
    omega, average = torch.tensor([[2.0]], requires_grad=True), torch.tensor([4.0], requires_grad=True)
    to_omega, to_average = torch.autograd.grad(normalised(omega, average).sum(), (omega, average), allow_unused=True)
    close(to_omega, [[0.25]])
    assert to_average is None


def test_zero_is_allowed_where_it_switches_something_off():
    objective = FedFocal(gamma=0.0, beta=0.0, warmup_rounds=0)
    assert (objective.gamma, objective.beta, objective.warmup_rounds) == (0.0, 0.0, 0)
    default = FedFocal()
    assert (default.gamma, default.beta, default.normalise, default.detach_weight) == (0.5, 0.8, True, False)
    assert default.warmup_rounds == 1


def test_what_keeps_factor_and_quotient_finite_is_one_part_in_ten_million():
    close(1e3 * focal_factor(torch.zeros(1), 0.5), [0.316228])  # sqrt(1e-7)
    close(1e6 * focal_factor(torch.tensor([-1.0]), 1.0), [0.1])  # a negative omega counts as zero
    close(normalised(torch.tensor([1e-7]), torch.zeros(1)), [1.0])
    close(normalised(torch.tensor([3.0]), torch.tensor([torch.nan])), [3.0])  # a task not seen yet


@pytest.mark.parametrize(("detach", "first"), [(False, 0.486583 + 0.342278), (True, 0.486583)])
def test_the_factor_is_differentiated_unless_it_shall_not_be(detach, first):
    """L = (1, 2), average 1.5, gamma 1: f = 1 - exp(-L / 1.5), and live f' = exp(-L / 1.5) / 1.5; d/dL of f L is f + L f'."""
    gradient = value_at(FedFocal(gamma=1.0, detach_weight=detach), [1.0, 2.0])[1]["levels"]
    second = 0.736403 + (0.0 if detach else 2 * 0.175731)
    close(gradient, [[first / 2], [second / 2]])  # of the mean over two samples


def test_what_is_logged_are_the_means_over_labelled_samples():
    logged = {}
    value_at(FedFocal(gamma=1.0), [1.0, 3.0, 50.0], missing=[(2, 0)], logged=logged)
    close(logged["train/weight"], 1.0)  # (1 / 2 + 3 / 2) / 2
    close(logged["train/lr_factor"], 1 - (math.exp(-0.5) + math.exp(-1.5)) / 2)
    value_at(FedFocal(gamma=1.0, normalise=False), [1.0, 3.0], logged=logged)
    close(logged["train/weight"], 2.0)


def fitted(objective, *batches, finish=True):
    """A fit of these batches, each of samples with these losses and scaffolds."""
    module = SimpleNamespace(observe=lambda values, mask: None)
    objective.on_train_start(module)
    for scaffolds, values in batches:
        loss = torch.tensor(values).unsqueeze(1).requires_grad_()
        losses = SampleLosses(loss, torch.ones_like(loss, dtype=torch.bool), torch.arange(len(loss)))
        batch = SimpleNamespace() if scaffolds is None else SimpleNamespace(scaffold=torch.tensor(scaffolds))
        objective.factors(module, batch, losses, losses.loss)
    if finish:
        objective.on_train_end(module)
    return objective


def test_factors_by_scaffold_are_of_the_last_fit_alone():
    """Average 2, so 1 - exp(-1 / 2) = .393 twice and 1 - exp(-2) = .865: one scaffold in bin 7 of 20, one in bin 17."""
    objective, batch = FedFocal(gamma=1.0), ([0, 0, 1], [1.0, 1.0, 4.0])
    assert objective.pictures() == {}
    for _ in range(2):
        found = fitted(objective, batch).pictures()["weight_by_scaffold"]
        assert {k: n for k, n in enumerate(found) if n} == {7: 1, 17: 1}
    assert sum(fitted(objective, batch, ([5, 6], [1.0, 1.0])).pictures()["weight_by_scaffold"]) == 4  # scaffolds 0, 1, 5, 6
    assert fitted(objective, batch, finish=False).pictures() == {}  # not while it trains
    assert fitted(objective, (None, [1.0, 4.0])).pictures() == {}
    assert fitted(objective).pictures() == {}  # no batch at all


def test_no_graph_and_no_batch_is_kept():
    objective = fitted(FedFocal(), ([0, 1], [1.0, 2.0]), finish=False)
    assert len(objective._seen) == 1 and not any(t.requires_grad for t in objective._seen[0])
    objective.on_train_end(SimpleNamespace())
    assert objective._seen == [] and objective.average is None


def test_factors_are_of_the_normalised_omega_and_in_single_precision_at_least():
    objective = fitted(FedFocal(gamma=1.0), finish=False)
    module, mask = SimpleNamespace(observe=lambda values, mask: None), torch.ones(2, 1, dtype=torch.bool)
    for dtype, found in ((torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        objective.on_train_start(module)
        loss = torch.tensor([[0.5], [1.5]], dtype=dtype)
        factor = objective.factors(module, SimpleNamespace(), SampleLosses(loss, mask, torch.arange(2)), loss)
        assert factor.dtype == found and objective.average.tolist() == [1.0]
        torch.testing.assert_close(factor, 1 - torch.exp(-loss.to(found)))


def test_a_fit_that_follows_a_warm_up_is_none():
    data, module = rows_data(), Linear(FedFocal(gamma=2.0))
    module.build(data.schema)
    later = using(module, FedFocal(gamma=2.0))
    later.on_round_start(0, 3)
    later.objective.on_train_end(later)  # a stock Trainer comes next, and tells no round
    assert_same(trained(later, data), trained(module, data))
