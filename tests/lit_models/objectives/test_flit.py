"""FLIT and FLIT+ by hand (docs/papers/fedchem.md#hand-values, 3 to 8, 15), reductions, and what the received model says."""

import copy
import math
import pickle

import lightning.pytorch as pl
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
    value_at,
    with_objective,
)

from lit_models.objectives import ERM, FLIT, FedFocal, FedVAT, FLITPlus, flit, focal
from lit_models.objectives.flit import focal_factor, uncertainty, uncertainty_plus
from lit_models.objectives.support import received
from lit_models.objectives.support.received import SampleTable


def close(found, expected):
    torch.testing.assert_close(found, torch.as_tensor(expected), atol=1e-5, rtol=0)


def column(*values):
    return torch.tensor(values).view(-1, 1)


# ---- the equations --------------------------------------------------------------------------------------------------


def test_oracle_3_uncertainty_and_factor():
    local, glob = column(1.0, 2.0), column(1.5, 0.5)
    omega = uncertainty(local, glob)
    close(omega, column(1.0, 3.5))
    close(omega / omega.mean(0), column(0.44444, 1.55556))
    close(focal_factor(omega / omega.mean(0), 0.5), column(0.599016, 0.888216))


@pytest.mark.parametrize(("gamma", "loss"), [(0.5, 1.187724), (1.0, 0.968338), (2.0, 0.686783)])
def test_oracle_3_through_the_objective(gamma, loss):
    found, gradient, average = value_at(FLIT(gamma), [1.0, 2.0], received=[1.5, 0.5])
    close(found, loss)
    close(average, [2.25])
    assert gradient["levels"].shape == (2, 1)


@pytest.mark.parametrize(("gamma", "loss"), [(0.5, 1.206917), (1.0, 0.979694)])
def test_oracle_4_local_equals_global(gamma, loss):
    found, _, average = value_at(FLIT(gamma), [1.0, 2.0])
    close(found, loss)
    close(average, [1.5])
    assert torch.equal(found, value_at(FedFocal(gamma), [1.0, 2.0])[0])


def test_oracle_5_the_two_forms_of_the_uncertainty_of_flit_plus():
    opposite = column(1.0, 1.0), column(1.2, 0.5), column(0.9, 0.2), column(0.1, 0.9)
    close(uncertainty_plus(*opposite, 1.0, "official"), column(2.7, 1.7))
    close(uncertainty_plus(*opposite, 1.0), column(2.5, 1.2))
    same = column(1.0, 2.0), column(1.5, 0.5), column(0.2, 0.4), column(0.1, 0.5)
    close(uncertainty_plus(*same, 0.1, "official"), column(1.03, 3.54))
    close(uncertainty_plus(*same, 0.1), column(1.02, 3.53))


@pytest.mark.parametrize(("variant", "omega"), [("paper", (2.5, 1.2)), ("official", (2.7, 1.7))])
def test_flit_plus_through_the_objective(variant, omega):
    # Factors 1 - exp(-omega / mean), on L + c D = (1 + 2 * .9, 1 + 2 * .2); by hand with math.exp.
    mean = sum(omega) / 2
    expected = sum((1 - math.exp(-o / mean)) * total for o, total in zip(omega, (2.8, 1.4), strict=True)) / 2
    objective = FLITPlus(gamma=1.0, lam=1.0, c=2.0, variant=variant)
    found, _, average = value_at(objective, [1.0, 1.0], [1.2, 0.5], [0.9, 0.2], [0.1, 0.9])
    close(found, expected)
    close(average, [mean])


@pytest.mark.parametrize("detach", [False, True])
def test_oracle_7_gradient_through_the_active_maximum(detach):
    # L = 2, L_g = .5: omega 3.5; the average is held at 2.25: d omega / dL = 2.
    loss = torch.tensor([[2.0]], requires_grad=True)
    factor = focal_factor(uncertainty(loss, torch.tensor([[0.5]])) / 2.25, 1.0)
    ((factor.detach() if detach else factor) * loss).sum().backward()
    close(loss.grad, [[0.788928 if detach else 1.164167]])


@pytest.mark.parametrize(("detach", "expected"), [(False, (0.5 * 1.164167,)), (True, (0.5 * 0.788928,))])
def test_oracle_7_through_the_objective(detach, expected):
    gradient = value_at(FLIT(gamma=1.0, detach_weight=detach), [1.0, 2.0], [1.5, 0.5])[1]["levels"]
    close(gradient[1], expected)  # the mean over two samples


@pytest.mark.parametrize("detach", [False, True])
def test_gradients_of_flit_plus_against_finite_differences(detach):
    """Eq. 11 in plain Python, the average held: derivatives with respect to every loss and discrepancy."""
    lam, c, gamma = 0.5, 2.0, 2.0
    received, received_deltas = [1.2, 0.5], [0.1, 0.9]

    def omegas(losses, deltas):
        local = [a + lam * d for a, d in zip(losses, deltas, strict=True)]
        glob = [a + lam * d for a, d in zip(received, received_deltas, strict=True)]
        return [a + max(a - b, 0.0) for a, b in zip(local, glob, strict=True)]

    at = [1.0, 1.4], [0.9, 0.2]
    held = omegas(*at)
    average = sum(held) / 2

    def value(losses, deltas):
        omega = held if detach else omegas(losses, deltas)
        factor = [(1 - math.exp(-o / average)) ** gamma for o in omega]
        return sum(f * (a + c * d) for f, a, d in zip(factor, losses, deltas, strict=True)) / 2

    found = value_at(FLITPlus(gamma, lam, c, detach_weight=detach), at[0], received, at[1], received_deltas)
    close(found[0], value(*at))
    for which, name in enumerate(("levels", "deltas")):
        for sample in range(2):
            up, down = ([list(at[0]), list(at[1])] for _ in range(2))
            up[which][sample] += 1e-5
            down[which][sample] -= 1e-5
            torch.testing.assert_close(found[1][name][sample, 0].item(), (value(*up) - value(*down)) / 2e-5,
                                       atol=1e-4, rtol=1e-4)  # fmt: skip


def test_no_gradient_to_the_received_model_and_the_average():
    glob = column(0.5).requires_grad_()
    uncertainty(column(2.0).requires_grad_(), glob).sum().backward()
    assert glob.grad is None


def test_oracle_8_zero_loss_gives_a_finite_gradient():
    _, gradient, _ = value_at(FLIT(gamma=0.5), [0.0, 0.0])
    assert gradient["levels"].isfinite().all()
    assert all(g.isfinite().all() for g in value_at(FLITPlus(gamma=0.5), [0.0, 0.0])[1].values())


def test_two_samples_of_a_batch_have_different_weights():
    module_loss = value_at(FLIT(gamma=1.0, detach_weight=True), [1.0, 2.0], [1.5, 0.5])[1]["levels"]
    close(2 * module_loss, column(1 - torch.exp(torch.tensor(-1 / 2.25)).item(), 0.788928))
    assert module_loss[0] != module_loss[1]


def test_oracle_15_a_masked_sample_changes_neither_loss_nor_average_nor_gradient():
    numbers = {"received": [[1.5], [0.5]], "deltas": [[0.3], [0.2]], "received_deltas": [[0.1], [0.4]]}
    more = {name: [*rows, [55.0]] for name, rows in numbers.items()}
    for make in (FLIT, FLITPlus, lambda: FLITPlus(variant="official"), lambda: FLITPlus(lam=0.0)):
        alone = value_at(make(), [[1.0], [2.0]], **numbers)
        masked = value_at(make(), [[1.0], [2.0], [77.0]], **more, missing=[(2, 0)])
        assert torch.equal(alone[0], masked[0]) and torch.equal(alone[2], masked[2])
        for name, gradient in alone[1].items():
            assert torch.equal(gradient, masked[1][name][:2]) and masked[1][name][2].abs().max() == 0


def test_oracle_15_tasks_are_independent():
    one = value_at(FLIT(gamma=1.0), [1.0, 2.0], [1.5, 0.5])
    both = value_at(FLIT(gamma=1.0), [[1.0, 10.0], [2.0, 20.0]], [[1.5, 15.0], [0.5, 5.0]])
    close(both[2], [2.25, 22.5])
    close(both[0], one[0] * 11 / 2)  # the same factors, losses ten times as large
    absent = value_at(FLIT(gamma=1.0), [[1.0, 10.0], [2.0, 20.0]], [[1.5, 1.0], [0.5, 1.0]], missing=[(0, 1), (1, 1)])
    assert torch.equal(absent[0], one[0])


# ---- what the received model says -----------------------------------------------------------------------------------


def everything(objective, data, **options):
    """The table of the received model, and its losses of all rows computed here."""
    module = Linear(objective, **options)
    module.build(data.schema)
    weight = module.layer.weight.detach().clone()
    table = in_first_step(module, data, lambda batch: module.objective._received)
    outputs = data.x @ weight.T
    return table, torch.where(data.y.isfinite(), (outputs - data.y).square(), 0.0), data.y.isfinite()


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"batch_size": 100}, {"shuffle": False}])
def test_every_sample_is_known_by_its_id(options):
    data = rows_data(**options)  # 9 rows in batches of 4: a last, short batch of 1
    table, losses, mask = everything(FLIT(), data)
    assert len(table.ids) == 9
    found = table.at(data.ids)["loss"]
    torch.testing.assert_close(found[mask], losses[mask])


def test_the_pass_is_in_evaluation_mode_and_leaves_no_trace():
    data = rows_data(features=4)
    module = Linear(FLIT(), dropout=0.5, norm=True)
    module.build(data.schema)
    module.layer.eval()  # a part that the user has frozen stays in its mode
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trainer = make_trainer(max_steps=1)
    seen = {}

    class Look(pl.Callback):
        def on_train_start(self, trainer, module):
            seen["before"] = torch.get_rng_state()

        def on_train_epoch_start(self, trainer, module):
            seen["after"] = torch.get_rng_state()

    trainer.callbacks.append(Look())
    in_module = copy.deepcopy(module)
    in_module.training_step = lambda *step: 0.0 * in_module.layer.weight.sum()
    trainer.fit(in_module, data)
    assert torch.equal(seen["before"], seen["after"])
    assert_same({n: v for n, v in in_module.state_dict().items()}, before)
    assert in_module.training and not in_module.layer.training and in_module.dropout.training
    table, losses, mask = everything(FLIT(), data, dropout=0.5)
    torch.testing.assert_close(table.at(data.ids)["loss"][mask], losses[mask])  # no dropout in the received model


def test_one_forward_over_the_data_in_a_fit():
    data, rows = rows_data(), []

    class Counting(Linear):
        def forward(self, batch, x=None):
            rows.append(len(batch.sample_id))
            return super().forward(batch, x)

    module = Counting(FLIT())
    module.build(data.schema)
    make_trainer(max_epochs=2).fit(module, data)
    assert sum(rows) == 9 * 3  # once as received, twice in training
    rows.clear()
    module.objective = FLITPlus()
    make_trainer(max_epochs=1).fit(module, data)
    assert sum(rows) == 9 * 3 * 2  # each: clean, search, disturbed


def test_a_sequential_loader_of_the_data_module_is_preferred():
    data = rows_data()
    asked = []

    class Own(Rows):
        def sequential_train_dataloader(self):
            asked.append(1)
            return [self.batch()]

    own = Own(data.x, data.y, batch_size=4)
    table, losses, mask = everything(FLIT(), own)
    assert asked and torch.allclose(table.at(own.ids)["loss"][mask], losses[mask])


def test_unknown_samples_are_an_error():
    table = SampleTable(torch.tensor([5, 3]), {"loss": column(50.0, 30.0)})
    assert table.at(torch.tensor([3, 5, 3]))["loss"].tolist() == [[30.0], [50.0], [30.0]]
    for unknown in (0, 4, 9):
        with pytest.raises(ValueError, match=f"Sample {unknown} is trained on but was not among the training data"):
            table.at(torch.tensor([3, unknown]))
    with pytest.raises(ValueError, match="Sample 7"):
        SampleTable.of([]).at(torch.tensor([7]))
    assert SampleTable.of([]).at(torch.zeros(0, dtype=torch.long)) == {}


def test_needs_a_trainer_and_the_received_model():
    module, data = Linear(FLIT()), rows_data()
    module.build(data.schema)
    with pytest.raises(ValueError, match="`FLIT` compares with the model as received: call `on_train_start`"):
        module.objective(module, data.batch())
    with pytest.raises(ValueError, match="`FLIT` looks at all training data when training begins"):
        module.objective.on_train_start(module)


def test_official_cache_has_zeros_for_the_remainder():
    data = rows_data(missing=False)  # 9 rows, batches of 4: one is left out
    table, losses, _ = everything(FLIT(variant="official"), data)
    assert table.values.keys() == {"loss"}
    found = table.at(data.ids)["loss"]
    right, zero = torch.isclose(found, losses).all(1), torch.isclose(found, data.y.square()).all(1)
    assert right.sum() == 8 and zero.sum() == 1 and (right ^ zero).all()


def test_nothing_is_kept_after_training():
    data, module = rows_data(), Linear(FLITPlus())
    make_trainer(max_epochs=1).fit(module, data)
    assert module.objective._received is None and module.objective.average is None
    assert module.objective.state() == {} and module.objective.vat._generator is None
    pickle.loads(pickle.dumps(module.objective))


# ---- reductions -----------------------------------------------------------------------------------------------------


def models(missing=True):
    data, plain = rows_data(missing=missing), Linear(ERM(), dropout=0.3)
    plain.build(data.schema)
    return data, plain


@pytest.mark.parametrize(
    ("objective", "same_as"),
    [
        (FLIT(gamma=0.0), ERM()),
        (FLITPlus(gamma=0.0, lam=0.3, c=0.7), FedVAT(lam=0.7)),
        (FLITPlus(gamma=0.0, lam=0.0, c=0.7), FedVAT(lam=0.7)),
        (FLITPlus(gamma=0.5, lam=0.0, c=0.0), FLIT(gamma=0.5)),
        (FLITPlus(gamma=2.0, lam=0.0, c=0.0, variant="official"), FLIT(gamma=2.0, variant="official")),
        (FedVAT(lam=0.0), ERM()),
    ],
)
def test_oracle_6_reductions_bit_for_bit(objective, same_as):
    data, plain = models()
    expected = trained(with_objective(plain, same_as), data)
    assert_same(trained(with_objective(plain, objective), data), expected)  # weights and the random stream


@pytest.mark.parametrize("objective", [FLIT(), FLITPlus(), FedVAT(lam=1.0), FLIT(gamma=2, variant="official")])
def test_oracle_6_round_0_is_the_plain_loss_and_round_1_is_not(objective):
    data, plain = models()
    expected = trained(plain, data)
    early = with_objective(plain, objective)
    early.on_round_start(0, 9)
    assert_same(trained(early, data), expected)
    late = with_objective(plain, objective)
    late.on_round_start(1, 9)
    assert not torch.equal(trained(late, data)["layer.weight"], expected["layer.weight"])
    assert_same(trained(late, data), trained(with_objective(plain, objective), data))  # a stock Trainer has no warm-up


def test_flit_leaves_the_random_stream_of_training_alone():
    data, plain = models()
    expected = trained(plain, data)["next random number"]
    for objective in (FLIT(), FLITPlus(), FedVAT()):
        assert torch.equal(trained(with_objective(plain, objective), data)["next random number"], expected)


def test_closed_form_of_two_steps():
    """Two SGD steps of FLIT on one weight, x = 1, written out in plain Python: a second implementation."""
    y, w, lr, gamma, received_weight = [3.0, -1.0], 0.5, 0.1, 1.0, 0.5
    average = None
    for _ in range(2):
        loss = [(w - target) ** 2 for target in y]
        glob = [(received_weight - target) ** 2 for target in y]
        omega = [a + max(a - b, 0.0) for a, b in zip(loss, glob, strict=True)]
        mean = sum(omega) / 2
        average = mean if average is None else 0.8 * average + 0.2 * mean
        slope = 0.0
        for target, a, b, o in zip(y, loss, glob, omega, strict=True):
            d_loss = 2 * (w - target)
            d_omega = d_loss * (2 if a > b else 1)
            e = math.exp(-o / average)
            slope += (gamma * e * d_omega / average * a + (1 - e) * d_loss) / 2
        w -= lr * slope
    data = Rows([[1.0], [1.0]], [[y[0]], [y[1]]])
    weights = trained(Linear(FLIT(gamma=gamma), [[0.5]]), data, max_epochs=2)
    torch.testing.assert_close(weights["layer.weight"], torch.tensor([[w]]))


# ---- mutations ------------------------------------------------------------------------------------------------------


def test_a_weight_reduced_to_a_scalar_fails_oracle_3(monkeypatch):
    monkeypatch.setattr(focal, "focal_factor", lambda omega, gamma: focal_factor(omega.mean(0, keepdim=True), gamma))
    with pytest.raises(AssertionError):
        test_oracle_3_through_the_objective(0.5, 1.187724)
    with pytest.raises(AssertionError):
        test_two_samples_of_a_batch_have_different_weights()


def test_a_detached_weight_fails_oracle_7(monkeypatch):
    monkeypatch.setattr(focal, "focal_factor", lambda omega, gamma: focal_factor(omega, gamma).detach())
    with pytest.raises(AssertionError):
        test_oracle_7_through_the_objective(False, (0.5 * 1.164167,))


def test_an_average_from_zero_or_after_dividing_fails_oracle_3(monkeypatch):
    right = focal.moving_average
    for wrong in (lambda p, *a: right(torch.zeros(1) if p is None else p, *a),
                  lambda p, *a: torch.ones(1) if p is None else right(p, *a)):  # fmt: skip
        monkeypatch.setattr(focal, "moving_average", wrong)
        with pytest.raises(AssertionError):
            test_oracle_3_through_the_objective(0.5, 1.187724)


@pytest.mark.parametrize("mutation", ["shifted by one", "by position in the batch", "training batches, drop_last"])
def test_a_wrong_cache_fails(mutation, monkeypatch):
    if mutation == "shifted by one":
        right = SampleTable.rows
        monkeypatch.setattr(SampleTable, "rows", lambda self, ids: (right(self, ids) + 1) % len(self.ids))
    elif mutation == "by position in the batch":
        monkeypatch.setattr(SampleTable, "at", lambda self, ids: {n: v[: len(ids)] for n, v in self.values.items()})
    else:
        monkeypatch.setattr(received, "in_order", lambda trainer: trainer.train_dataloader)
    options = {"drop_last": True} if "drop" in mutation else {}
    with pytest.raises((AssertionError, ValueError)):
        test_every_sample_is_known_by_its_id(options)
    if not options:
        with pytest.raises(AssertionError):
            test_oracle_3_through_the_objective(0.5, 1.187724) if "shifted" in mutation else _order_matters()


def _order_matters():
    """Training in reverse order of the cache gives the same factors."""
    data = Rows([[1.0], [2.0]], [[3.0], [0.0]])
    found = [
        in_first_step(module := Linear(FLIT(gamma=1.0), [[0.5]]), data,
                      lambda batch, module=module, rows=rows: moved(module, data.batch(rows)))
        for rows in ([0, 1], [1, 0])
    ]  # fmt: skip
    torch.testing.assert_close(found[0], found[1])


def moved(module, batch):
    module.layer.weight.data.fill_(2.0)  # losses (1, 16), received (6.25, 1)
    return loss_and_gradient(module, batch)[0]


def test_the_order_of_a_batch_does_not_matter():
    _order_matters()


@pytest.mark.parametrize(("name", "value"), [("gamma", -1), ("lam", -1), ("c", -1), ("variant", "x"), ("beta", 1.5)])
def test_arguments_are_checked(name, value):
    with pytest.raises(ValueError, match=f"objective.init_args.{name}` of `FLITPlus` must be "):
        FLITPlus(**{name: value})


def test_what_is_logged():
    logged = []
    module = Linear(FLIT(gamma=1.0), [[0.5]])
    module.log_values = logged.append
    make_trainer(max_epochs=1).fit(module, Rows([[1.0], [1.0]], [[3.0], [-1.0]]))
    values = next(v for v in logged if "train/lr_factor" in v)
    # omega = the losses, 6.25 and 2.25, of mean 4.25
    close(values["train/lr_factor"], 1 - (math.exp(-6.25 / 4.25) + math.exp(-2.25 / 4.25)) / 2)
    close(values["train/weight"], 1.0)
    assert any(v.get("train/less_sure") == 0 for v in logged)


@pytest.mark.parametrize("objective", [FLIT(), FLITPlus(lam=1.0), FedVAT(lam=0.1)])
def test_what_is_logged_by_hand(objective):
    """By loss one of three is less sure than the received model, by phi_+ two; the fourth has no label, is in no mean."""
    logged = {}
    value_at(objective, [1.0, 1.0, 2.0, 9.0], [1.2, 1.3, 1.0, 1.0], [0.9, 0.2, 0.3, 9.0], [0.1, 0.9, 0.2, 1.0],
             missing=[(3, 0)], logged=logged)  # fmt: skip
    if not isinstance(objective, FedVAT):  # phi_+ = 1.9, 1.2, 2.3, received 1.3, 2.2, 1.2
        close(logged["train/less_sure"], 2 / 3 if isinstance(objective, FLITPlus) else 1 / 3)
    if type(objective) is not FLIT:
        close(logged["train/vat"], (0.9 + 0.2 + 0.3) / 3)


def test_the_received_models_discrepancies_have_a_stream_of_their_own():
    """Same weights, same order of the rows, random directions: only the streams can tell the two passes apart."""
    data, seen = rows_data(8, missing=False, shuffle=False), []
    objective = FLITPlus(power_iterations=0)
    module = Linear(objective, lr=0.0)
    module.build(data.schema)
    right = objective.vat

    class Watched(type(right)):
        def __call__(self, *given, **more):
            seen.append(super().__call__(*given, **more))
            return seen[-1]

    right.__class__ = Watched
    make_trainer(max_epochs=1).fit(module, data)
    assert len(seen) == 4 and not any(torch.allclose(seen[i], seen[i + 2]) for i in range(2))


def test_official_cache_has_no_discrepancy_for_the_remainder():
    data = rows_data(missing=False)
    table, _, _ = everything(FLITPlus(variant="official", official_norm=False), data)
    found = table.at(data.ids)["delta"]
    assert (found == 0).all(1).sum() == 1 and (found > 0).all(1).sum() == 8


def test_exported_names():
    assert flit.focal_factor is focal.focal_factor


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_vats_probe_and_norm_follow_the_variant_unless_they_are_given(variant):
    by_default = FLITPlus(variant=variant).vat
    assert (by_default.probe, by_default.official_norm) == ((1e-3, True) if variant == "official" else (1e-2, False))
    for norm in (True, False):
        given = FLITPlus(variant=variant, probe=0.5, official_norm=norm, radius=3.0, power_iterations=2).vat
        assert (given.probe, given.official_norm, given.radius, given.power_iterations) == (0.5, norm, 3.0, 2)


def test_zero_is_allowed_where_it_switches_something_off_and_defaults():
    objective = FLITPlus(gamma=0.0, lam=0.0, c=0.0, beta=0.0, warmup_rounds=0)
    assert (objective.gamma, objective.lam, objective.c, objective.beta) == (0.0, 0.0, 0.0, 0.0)
    for default in (FLIT(), FLITPlus()):
        assert (default.gamma, default.beta, default.detach_weight, default.warmup_rounds) == (0.5, 0.8, False, 1)
        assert default.variant == "paper"
    assert (default.lam, default.c, default.vat.radius, default.vat.power_iterations) == (0.1, 1.0, 2.5, 1)


@pytest.mark.parametrize(
    ("objective", "names"),
    [(FLIT(), {"loss"}), (FLITPlus(), {"loss", "delta"}), (FLITPlus(lam=0.0, c=1.0), {"loss"}),
     (FLITPlus(variant="official"), {"loss", "delta"}), (FLITPlus(lam=0.0, variant="official"), {"loss"})],
)  # fmt: skip
def test_nothing_is_measured_that_is_not_needed(objective, names):
    assert everything(objective, rows_data())[0].values.keys() == names


@pytest.mark.parametrize(("lam", "c"), [(1.0, 0.0), (0.0, 2.0)])
def test_the_discrepancy_in_the_uncertainty_alone_or_in_the_loss_alone(lam, c):
    """L = 1, 1; D = .9, .2; received 1.2, .5 and .1, .9, so with lam = 1 omega = 2.5, 1.2 and without 1, 1.5."""
    omega = (2.5, 1.2) if lam else (1.0, 1.5)
    factors = [1 - math.exp(-o / (sum(omega) / 2)) for o in omega]
    expected = sum(f * (1 + c * d) for f, d in zip(factors, (0.9, 0.2), strict=True)) / 2
    found = value_at(FLITPlus(gamma=1.0, lam=lam, c=c), [1.0, 1.0], [1.2, 0.5], [0.9, 0.2], [0.1, 0.9])
    close(found[0], expected)


@pytest.mark.parametrize("objective", [FLIT(), FLITPlus(lam=1.0)])
def test_as_sure_as_the_received_model_is_not_less_sure(objective):
    logged = {}
    value_at(objective, [1.0, 2.0], deltas=[0.5, 0.25], received_deltas=[0.5, 0.25], logged=logged)
    close(logged["train/less_sure"], 0.0)


def test_an_average_that_was_left_behind_is_forgotten_when_training_begins():
    objective = FLIT()
    objective.average, data = torch.ones(2), rows_data()
    assert in_first_step(Linear(objective), data, lambda batch: objective.average) is None


def test_forgetting_the_remainder_leaves_the_table_as_it_is():
    table = SampleTable(torch.arange(5), {n: torch.ones(5, 1) for n in ("loss", "delta")} | {"loss_of_zero": torch.zeros(5, 1)})
    loader = type("Loader", (), {"batch_size": 3})
    module = type("Module", (), {"trainer": type("Trainer", (), {"train_dataloader": loader})})
    found = flit.forget_remainder(table, module)
    assert [float(found.values[n].sum()) for n in ("loss", "delta")] == [3.0, 3.0]  # 5 mod 3 are forgotten
    assert table.values.keys() == {"loss", "delta", "loss_of_zero"}
    assert all(table.values[n].eq(1).all() for n in ("loss", "delta"))
    loader.batch_size = None
    assert flit.forget_remainder(table, module).values["loss"].eq(1).all()  # a batch is all there is
