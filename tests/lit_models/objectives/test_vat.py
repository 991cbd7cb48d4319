"""Virtual adversarial training by hand: docs/papers/fedchem.md#hand-values, 11 and 12, its invariances; it leaves no trace."""

import math

import pytest
import torch
from objective_samples import Linear, Recording, Rows, loss_and_gradient, make_trainer, rows_data, trained

from lit_models.molecule_predictor import bernoulli_kl, soft_bce
from lit_models.objectives import ERM, FedVAT, FLITPlus, vat
from lit_models.objectives.support.extra_passes import Replay
from lit_models.objectives.vat import VAT, random_directions, search, unit_rows

ALL = torch.ones(1, 1, dtype=torch.bool)


def close(found, expected):
    torch.testing.assert_close(found, torch.as_tensor(expected), atol=1e-5, rtol=1e-5)


def linear(weight=((3.0, 4.0),), objective=None, **options):
    module = Linear(ERM() if objective is None else objective, weight, **options)
    module.build({"in": len(weight[0]), "out": len(weight)})
    return module


def delta_of(module, batch, settings=None, mask=None, **call):
    outputs = module(batch)
    mask = module.losses(outputs, batch).mask if mask is None else mask
    return (VAT() if settings is None else settings)(module, batch, outputs, mask, **call)


ONE, ORIGIN = Rows([[1.0, -2.0]], [[0.0]]).batch(), Rows([[0.0, 0.0]], [[1.0]]).batch()


# ---- oracle 11 ------------------------------------------------------------------------------------------------------


def test_direction_and_discrepancy_of_a_linear_model():
    module, x = linear(), torch.zeros(1, 2)
    found = search(lambda i: (i["x"] @ torch.tensor([3.0, 4.0])).square(), {"x": x},
                   random_directions({"x": x}), probe=1e-4)["x"]  # fmt: skip
    close(2.5 * found * found[0, 0].sign(), [[1.5, 2.0]])
    close(delta_of(module, ONE), [[156.25]])
    close(delta_of(module, ONE, VAT(radius=0.1)), [[0.25]])


def test_gradient_goes_through_the_disturbed_pass_alone():
    # Delta = (w . (x + r) - F(x))^2 with r = +-(1.5, 2) and F(x) constants: the gradient is 2 (w . r) (x + r).
    module = linear()
    delta_of(module, ORIGIN).sum().backward()
    close(module.layer.weight.grad, [[37.5, 50.0]])
    gradient = linear()
    delta_of(gradient, ONE).sum().backward()
    either = [torch.tensor([[25 * 2.5, 0.0]]), torch.tensor([[-25 * -0.5, -25 * -4.0]])]
    assert any(torch.allclose(gradient.layer.weight.grad, expected, atol=1e-3) for expected in either)


@pytest.mark.parametrize("mutation", ["on a copy", "detached"])
def test_vat_on_a_copy_fails(mutation, monkeypatch):
    """FederatedScope runs VAT on ``deepcopy(model)``: the discrepancy is right and trains nothing."""
    import copy

    right = VAT.__call__

    def wrong(self, module, *rest, **more):
        if mutation == "on a copy":
            return right(self, copy.deepcopy(module), *rest, **more)
        return right(self, module, *rest, **more).detach() + 0.0 * module.layer.weight.sum()

    monkeypatch.setattr(VAT, "__call__", wrong)
    with pytest.raises((AssertionError, TypeError)):
        test_gradient_goes_through_the_disturbed_pass_alone()


@pytest.mark.parametrize("settings", [VAT(radius=0.0), VAT(radius=0.0, power_iterations=3)])
def test_zero_at_radius_zero(settings):
    data = rows_data()
    module = linear(((1.0, 2.0, 3.0, 4.0), (0.0, 1.0, 0.0, -1.0)), dropout=0.5)
    batch, replay = data.batch(), Replay("cpu")
    assert delta_of(module, batch, settings, replay=replay).abs().max() == 0  # with dropout: the same masks


def test_kl_and_official_cross_entropy_by_hand():
    zero, one = torch.tensor(0.0), torch.tensor(1.0)  # p = .5 and .731059
    close(bernoulli_kl(zero, one), 0.120115)
    close(bernoulli_kl(one, zero), 0.110944)
    assert bernoulli_kl(one, one) == 0
    close(soft_bce(zero, zero), math.log(2))  # oracle 12: the official discrepancy is not zero at radius 0
    close(soft_bce(one, one), 0.582203)
    close(soft_bce(torch.tensor(2.0), one), 0.664811)
    close(soft_bce(torch.tensor(-2.0), zero), 1.126928)


def test_directions_are_unit_rows_at_any_scale():
    rows = torch.randn(5, 3)
    for scale in (1.0, 1e-12, 1e-25, 1e-36, 1e30):
        torch.testing.assert_close(unit_rows(rows * scale), unit_rows(rows), atol=1e-4, rtol=1e-4)
    close(unit_rows(rows).square().sum(1), torch.ones(5))
    assert unit_rows(torch.zeros(2, 3)).abs().max() == 0 and unit_rows(torch.zeros(0, 3)).shape == (0, 3)
    close(unit_rows(torch.tensor([[3e-8, 4e-8]]), official_norm=True), [[0.5, 4 / 6]])  # 3 / (5 + 1), 4 / (5 + 1)


def test_scaling_the_discrepancy_leaves_the_direction_unchanged():
    weight = torch.randn(4, 3)
    inputs = {"x": torch.randn(6, 4)}
    start = random_directions(inputs, torch.Generator().manual_seed(0))
    clean = (inputs["x"] @ weight).tanh()

    def found(scale, official):
        def discrepancy(i):
            return scale * ((i["x"] @ weight).tanh() - clean).square()

        return search(discrepancy, inputs, start, 1e-3, official_norm=official)["x"]

    torch.testing.assert_close(found(1.0, False), found(1e-6, False), atol=1e-4, rtol=1e-4)
    assert found(1.0, True).norm(dim=1).max() > 10 * found(1e-6, True).norm(dim=1).max()  # the 1e-8 guard


def test_adversarial_exceeds_random_and_more_iterations_do_not_hurt():
    torch.manual_seed(3)
    data = rows_data(40, missing=False)
    module = linear(torch.randn(2, 4).tolist())
    found = [
        torch.stack([delta_of(module, data.batch(), VAT(power_iterations=k)).mean() for _ in range(10)]).mean()
        for k in (0, 1, 4)
    ]
    assert found[1] > found[0] and found[2] >= 0.99 * found[1]
    assert (delta_of(module, data.batch()) >= 0).all()


def test_zero_gradient_gives_no_disturbance():
    module = linear(((0.0, 0.0),))
    found = delta_of(module, ONE)
    assert found.item() == 0.0
    found.sum().backward()
    assert module.layer.weight.grad.isfinite().all()

    class Constant(Linear):
        def forward(self, batch, x=None):
            return batch.x[:, :1] * 1.0  # does not look at what is disturbed

    constant = Constant(ERM())
    constant.build({"in": 2, "out": 1})
    assert delta_of(constant, ONE).item() == 0.0


def test_masked_pairs_do_not_sway_the_direction():
    # Task 0 looks along x_0, task 1 along x_1 and much more so; with task 1 masked out r = (+-2.5, 0).
    module = linear(((1.0, 0.0), (0.0, 100.0)))
    mask = torch.tensor([[True, False]])
    close(delta_of(module, Rows([[1.0, 1.0]], [[0.0, 0.0]]).batch(), mask=mask), [[6.25, 0.0]])


# ---- no trace -------------------------------------------------------------------------------------------------------


def test_search_touches_no_parameter_gradient():
    module, data = linear(((1.0, 2.0, 3.0, 4.0),)), rows_data(tasks=1)
    marker = torch.full_like(module.layer.weight, 7.0)
    module.layer.weight.grad = marker.clone()
    outputs = module(data.batch())
    with torch.no_grad():
        delta_of(module, data.batch())
    delta_of(module, data.batch())
    assert torch.equal(module.layer.weight.grad, marker) and outputs.requires_grad


def test_statistics_and_random_stream_are_left_alone():
    data = rows_data()
    module = linear(((1.0, 2.0, 3.0, 4.0), (1.0, 0.0, 0.0, 0.0)), dropout=0.5, norm=True)
    module.train()
    replay = Replay("cpu")
    outputs = module(data.batch())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    mask = module.losses(outputs, data.batch()).mask
    found = VAT()(module, data.batch(), outputs, mask, replay)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert module.bn.track_running_stats and module.bn.num_batches_tracked == 1
    (outputs.sum() + found.sum()).backward()  # nothing that the first pass needs was edited
    assert VAT(radius=0.0)(module, data.batch(), module(data.batch()), mask).shape == mask.shape


def test_replay_gives_the_same_dropout_masks():
    drop, x = torch.nn.Dropout(0.5), torch.ones(100)
    replay = Replay("cpu")
    first = drop(x)
    after = torch.get_rng_state()
    with replay():
        assert torch.equal(drop(x), first)
    assert torch.equal(torch.get_rng_state(), after)
    with replay():
        pass  # draws less than the pass that it repeats
    assert torch.equal(torch.get_rng_state(), after)


def test_directions_are_the_same_for_the_same_seed_and_new_in_every_step():
    module, data = linear(((1.0, 2.0, 3.0, 4.0),)), rows_data(tasks=1)
    settings = VAT(power_iterations=0)
    torch.manual_seed(4)
    settings.begin()
    first, second = delta_of(module, data.batch(), settings), delta_of(module, data.batch(), settings)
    settings.begin()
    assert torch.equal(delta_of(module, data.batch(), settings), first) and not torch.equal(first, second)
    settings.begin("received")
    assert not torch.equal(delta_of(module, data.batch(), settings), first)


# ---- FedVAT ---------------------------------------------------------------------------------------------------------


def test_fedvat_adds_the_mean_discrepancy():
    # x = 0, y = 1, w = (3, 4): loss 1 with gradient 0; Delta 156.25 with gradient (37.5, 50), times .01.
    loss, gradient = loss_and_gradient(linear(objective=FedVAT(lam=0.01)), ORIGIN)
    close(loss, 1 + 1.5625)
    close(gradient["layer.weight"], [[0.375, 0.5]])


def test_fedvat_on_another_base_loss():
    from lit_models.objectives import FedFocal, FedProx

    data = rows_data()
    for base in (FedFocal(), FedProx(mu=0.1)):
        module = Linear(FedVAT(lam=0.1, base=base))
        logged = []
        module.log_values = logged.append
        trained(module, data)
        names = set().union(*logged)
        assert "train/vat" in names and names & {"train/lr_factor", "train/proximal"}


def test_a_detached_penalty_fails(monkeypatch):
    right = vat.masked_mean
    monkeypatch.setattr(vat, "masked_mean", lambda values, mask: right(values.detach(), mask))
    with pytest.raises(AssertionError):
        test_fedvat_adds_the_mean_discrepancy()


def test_works_in_validation_free_trainers_with_inference_mode():
    data, found = rows_data(), []
    for objective in (ERM(), FedVAT()):
        module, trainer = linear(((1.0, -1.0, 0.5, 2.0),), objective), make_trainer(max_epochs=1, inference_mode=True)
        trainer.fit(module, data)
        assert trainer.global_step > 0
        found.append(module.layer.weight.detach().clone())
    assert found[1].isfinite().all() and not torch.equal(*found), "the discrepancy has had a gradient"


@pytest.mark.parametrize(("name", "value"), [("lam", -1.0), ("radius", -1.0), ("probe", 0.0), ("power_iterations", -1)])
def test_arguments_are_checked(name, value):
    with pytest.raises(ValueError, match=f"objective.init_args.{name}`"):
        FedVAT(**{name: value})


def test_zero_switches_off_or_takes_the_direction_as_it_is_drawn():
    for name in ("lam", "radius", "power_iterations", "warmup_rounds"):
        FedVAT(**{name: 0})
    drawn = random_directions({"x": torch.randn(3, 4)})
    assert search(lambda inputs: inputs["x"].sum(), {"x": torch.zeros(3, 4)}, drawn, 0.1, power_iterations=0) is drawn


def test_the_stream_of_a_gpu_is_replayed_too(monkeypatch):
    """Without a GPU: its state is a number that dropout would move."""
    state = {"now": torch.tensor(1)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: state["now"])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda value, device: state.update(now=value))
    replay = Replay("cuda")
    state["now"] = torch.tensor(2)
    with replay():
        assert state["now"] == 1
        state["now"] = torch.tensor(3)
    assert state["now"] == 2
    with Replay("cpu")():
        assert state["now"] == 2


def test_no_generator_is_kept_between_two_fits():
    """Objectives are copied and pickled there; a new fit begins a stream of its own."""
    for objective in (FedVAT(), FLITPlus()):
        module = linear(((1.0, -1.0, 0.5, 2.0),), objective)
        held = []
        module.on_train_epoch_end = lambda m=module, h=held: h.append(m.objective.vat._generator is not None)
        make_trainer(max_epochs=1).fit(module, rows_data(tasks=1))
        assert held == [True] and objective.vat._generator is None


def test_zero_is_allowed_where_it_switches_something_off():
    objective = FedVAT(lam=0.0, radius=0.0, power_iterations=0, warmup_rounds=0)
    assert (objective.lam, objective.vat.radius, objective.vat.power_iterations, objective.warmup_rounds) == (0, 0, 0, 0)
    default = FedVAT()
    assert (default.lam, default.vat.radius, default.vat.probe, default.vat.power_iterations) == (0.1, 2.5, 1e-2, 1)
    assert default.vat.official_norm is False and default.warmup_rounds == 1


def test_the_official_norm_has_a_guard_of_1e_8():
    for entry, expected in ((1e-8, 0.5), (3e-8, 0.75), (1.0, 1.0), (0.0, 0.0)):
        close(unit_rows(torch.tensor([[0.0, entry]]), official_norm=True), [[0.0, expected]])
        close(unit_rows(torch.tensor([[0.0, entry]])), [[0.0, float(entry > 0)]])
    assert unit_rows(torch.zeros(2, 0)).shape == (2, 0)


def test_random_directions_point_anywhere():
    """d ~ U(-.5, .5): in each coordinate as often up as down (1000 draws: five standard deviations are 79)."""
    drawn = random_directions({"x": torch.zeros(1000, 3)}, torch.Generator().manual_seed(0))["x"]
    close(drawn.norm(dim=1), torch.ones(1000))
    assert ((drawn > 0).sum(0) - 500).abs().max() < 79


def test_an_input_that_nothing_depends_on_is_not_disturbed():
    inputs = {"x": torch.ones(2, 3), "unused": torch.ones(2, 2)}
    found = search(lambda i: i["x"].square().sum(1), inputs, random_directions(inputs), probe=0.1)
    assert found["unused"].eq(0).all() and found["x"].abs().sum() > 0
    assert not any(t.requires_grad for t in (*found.values(), *inputs.values()))


def test_defaults_of_the_search():
    inputs = {"x": torch.randn(4, 3, generator=torch.Generator().manual_seed(1))}
    start = random_directions(inputs, torch.Generator().manual_seed(2))
    weights = torch.tensor([1.0, 5.0, 20.0])

    def found(**options):
        return search(lambda i: ((i["x"] - inputs["x"]) * weights).square().sum(1), inputs, start, 0.1, **options)["x"]

    assert torch.equal(found(), found(power_iterations=1, official_norm=False))
    assert not torch.equal(found(), found(power_iterations=2)) and not torch.equal(found(), found(official_norm=True))


@pytest.mark.parametrize("seed", [0, 2**62 + 1, 2**63 + 1, 2**64 - 1, -1])
def test_any_seed_of_torch_will_do(seed):
    torch.manual_seed(seed)
    settings = VAT()
    settings.begin()
    first = settings._generator.get_state()
    settings.begin("received")
    assert not torch.equal(first, settings._generator.get_state())


@pytest.mark.parametrize(("power_iterations", "rounded", "passes"), [(0, False, 1), (1, False, 2), (3, False, 4), (0, True, 1),
                                                                     (1, True, 3), (3, True, 5)])  # fmt: skip
def test_how_many_passes_a_discrepancy_costs(power_iterations, rounded, passes):
    """One for each gradient and the disturbed one; where the given outputs are rounded, also exact ones to compare with."""
    module, calls = linear(), []
    outputs = module(ONE)
    module.register_forward_hook(lambda *call: calls.append(1))
    with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
        VAT(power_iterations=power_iterations)(module, ONE, outputs, ALL)
    assert len(calls) == passes


def test_a_discrepancy_that_rounding_makes_negative_is_zero():
    module = linear()
    module.divergence = lambda outputs, reference, batch: (outputs - reference).square() - 1000.0
    assert delta_of(module, ONE).item() == 0.0


@pytest.mark.parametrize(("lam", "round", "passes"), [(0.0, None, 1), (0.0, 3, 1), (0.1, 0, 1), (0.1, 1, 3), (0.1, None, 3)])
def test_without_a_term_a_batch_is_passed_once(lam, round, passes):
    data, module, calls = rows_data(4, tasks=1), linear(((1.0, -1.0, 0.5, 2.0),), FedVAT(lam=lam)), []
    if round is not None:
        module.on_round_start(round, 9)
    module.register_forward_hook(lambda *call: calls.append(1))
    make_trainer(max_epochs=1).fit(module, data)
    assert len(calls) == passes and not module.objective.warming_up


def test_a_fit_begins_its_stream_anew_and_tells_the_base():
    objective = FedVAT(base=Recording())
    torch.manual_seed(1)
    objective.on_train_start(None)
    first = torch.rand(3, generator=objective.vat._generator)
    objective.on_train_start(None)  # the fit before has broken off
    assert torch.equal(torch.rand(3, generator=objective.vat._generator), first)
    objective.on_train_end(None)
    assert objective.base.calls == ("start", "start", "end") and objective.vat._generator is None
