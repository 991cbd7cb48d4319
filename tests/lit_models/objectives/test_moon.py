"""MOON by hand: docs/papers/fedchem.md#hand-values, 10 and 6, its memory, and the alignment of the three embeddings."""

import copy
import math

import pytest
import torch
from objective_samples import (
    Linear,
    Recording,
    Rows,
    assert_same,
    in_first_step,
    loss_and_gradient,
    make_trainer,
    rows_data,
    trained,
    with_objective,
)

from lit_models.objectives import ERM, MOON, FedProx, moon
from lit_models.objectives.moon import contrastive, cosine, hold_weights, rows_of


def close(found, expected):
    torch.testing.assert_close(found, torch.as_tensor(expected), atol=1e-5, rtol=0)


def at_cosine(value):
    """A unit vector with this cosine to (1, 0)."""
    return torch.tensor([[value, math.sqrt(1 - value**2)]])


@pytest.mark.parametrize(
    ("received", "previous", "half", "one"),
    [
        (1, 0, 0.126928, 0.313262),
        (1, 1, 0.693147, 0.693147),
        (1, -1, 0.018150, 0.126928),
        (0.6, 0.8, 0.913015, 0.798139),
    ],
)
def test_oracle_10_by_hand(received, previous, half, one):
    current = torch.tensor([[3.0, 0.0]])
    for tau, expected in ((0.5, half), (1.0, one)):
        close(contrastive(current, 2 * at_cosine(received), at_cosine(previous), tau), [expected])
    # The published form, written out.
    s_g, s_p = math.exp(received / 0.5), math.exp(previous / 0.5)
    close(contrastive(current, at_cosine(received), at_cosine(previous)), [-math.log(s_g / (s_g + s_p))])


def test_a_zero_embedding_has_cosine_0_and_finite_gradients():
    zero, some = torch.zeros(1, 2, requires_grad=True), torch.tensor([[3.0, 4.0]])
    assert cosine(some, zero).item() == cosine(zero, some).item() == 0.0
    close(contrastive(some, some, zero), [0.126928])
    contrastive(zero, some, -some).sum().backward()
    assert zero.grad.isfinite().all() and zero.grad.abs().max() < 100


def test_gradient_reaches_the_current_embedding_alone():
    three = [torch.randn(2, 3, requires_grad=True) for _ in range(3)]
    contrastive(*three).sum().backward()
    assert three[0].grad.abs().max() > 0 and three[1].grad is None and three[2].grad is None


# ---- through a stock Trainer ----------------------------------------------------------------------------------------

ROWS = Rows([[1.0, 1.0], [1.0, -1.0]], [[0.0], [0.0]])


def term_at(objective, received, previous, current, data=ROWS, logged=None):
    """The objective less the plain loss, for a model whose embedding is ``x * weight``."""
    module = Linear(objective, [list(received)])
    module.build(data.schema)
    objective.load_state({"previous/layer.weight": torch.tensor([list(previous)])})
    if logged is not None:
        module.log_values = logged.update

    def step(batch):
        batch = data.batch()
        module.layer.weight.data.copy_(torch.tensor([list(current)]))
        loss, gradient = loss_and_gradient(module, batch)
        plain, _ = loss_and_gradient(with_objective(module, ERM()), batch)
        return loss - plain, gradient

    return in_first_step(module, data, step)


def test_term_through_the_objective():
    # x = (1, +-1): embeddings (w_1, +-w_2), so both samples have cos_g = .6, cos_p = .8 for these weights.
    found, _ = term_at(MOON(mu=2.0), (0.6, 0.8), (0.8, 0.6), (1.0, 0.0))
    close(found, 2 * 0.913015)
    assert term_at(MOON(mu=2.0), (0.8, 0.6), (0.6, 0.8), (1.0, 0.0))[0] < found


def test_the_logged_term_is_without_its_factor_and_without_unlabelled_samples():
    logged, more = {}, Rows([[1.0, 1.0], [1.0, -1.0], [5.0, 0.3]], [[0.0], [0.0], [float("nan")]])
    term_at(MOON(mu=2.0), (0.6, 0.8), (0.8, 0.6), (1.0, 0.0), more, logged)
    close(logged["train/contrastive"], 0.913015)


@pytest.mark.parametrize("mutation", ["swapped", "detached", "no tau", "previous is the received model"])
def test_mutations_fail(mutation, monkeypatch):
    wrong = {
        "swapped": lambda z, received, previous, tau: contrastive(z, previous, received, tau),
        "detached": lambda z, received, previous, tau: contrastive(z, received, previous, tau).detach(),
        "no tau": lambda z, received, previous, tau: contrastive(z, received, previous, 1.0),
        "previous is the received model": lambda z, received, previous, tau: contrastive(z, received, received, tau),
    }
    monkeypatch.setattr(moon, "contrastive", wrong[mutation])
    with pytest.raises(AssertionError):
        test_term_through_the_objective()
        test_the_term_is_live()


def test_the_term_is_live():
    _, with_term = term_at(MOON(mu=2.0), (0.6, 0.8), (0.8, 0.6), (1.0, 0.5))
    _, without = term_at(MOON(mu=0.0), (0.6, 0.8), (0.8, 0.6), (1.0, 0.5))
    assert not torch.equal(with_term["layer.weight"], without["layer.weight"])


def test_embeddings_are_aligned_by_id():
    # Sample 0: cos_g = 1, cos_p = 0; sample 1: cos_g = 0, cos_p = 1 (x picks one coordinate of the weights' sign).
    data = Rows([[1.0, 0.0], [0.0, 1.0]], [[0.0], [0.0]], batch_size=1, shuffle=True)
    for order in ([0, 1], [1, 0]):
        module = Linear(MOON(), [[1.0, 0.0]])  # as received: the second sample's embedding is zero
        module.build(data.schema)
        module.objective.load_state({"previous/layer.weight": torch.tensor([[0.0, 1.0]])})

        def step(batch, module=module, order=order):
            table = module.objective._received
            return table.at(data.ids[order])

        found = in_first_step(module, data, step)
        close(found["received"], torch.tensor([[1.0, 0.0], [0.0, 0.0]])[order])
        close(found["previous"], torch.tensor([[0.0, 0.0], [0.0, 1.0]])[order])


def test_no_term_before_there_is_a_previous_model_and_the_model_is_remembered():
    data, plain = rows_data(), Linear(ERM(), dropout=0.3)
    plain.build(data.schema)
    expected = trained(plain, data)
    first = with_objective(plain, MOON(mu=5.0))
    torch.manual_seed(0)
    make_trainer(max_epochs=3).fit(first, data)
    assert torch.equal(first.layer.weight, expected["layer.weight"])
    state = first.objective.state()
    assert list(state) == ["previous/layer.weight"] and torch.equal(state["previous/layer.weight"], first.layer.weight)
    state["previous/layer.weight"].zero_()
    first.layer.weight.data.zero_()
    assert first.objective.state()["previous/layer.weight"].abs().max() > 0  # a copy on both sides


def test_mu_0_and_warm_up_are_the_plain_loss_bit_for_bit():
    data, plain = rows_data(), Linear(ERM(), dropout=0.3)
    plain.build(data.schema)
    expected = trained(plain, data)

    def after(objective, round=None):
        module = with_objective(plain, objective)
        module.objective.load_state({"previous/layer.weight": torch.randn(2, 4)})
        if round is not None:
            module.on_round_start(round, 9)
        return trained(module, data)

    assert_same(after(MOON(mu=0.0)), expected)
    assert_same(after(MOON(mu=5.0), round=0), expected)
    later = after(MOON(mu=5.0), round=1)
    assert not torch.equal(later["layer.weight"], expected["layer.weight"])
    assert torch.equal(later["next random number"], expected["next random number"])


def test_with_mu_0_no_model_is_kept():
    module = Linear(MOON(mu=0.0))
    make_trainer(max_epochs=1).fit(module, ROWS)
    assert module.objective.state() == {}


def test_a_late_or_fresh_client_has_no_term():
    module = Linear(MOON())
    module.build(ROWS.schema)
    module.objective.load_state({"previous/layer.weight": torch.ones(1, 2)})
    module.load_private_state({})  # another client's turn: its memory is empty
    assert module.private_state() == {}
    module.on_round_start(7, 9)
    assert in_first_step(module, ROWS, lambda batch: module.objective._received) is None


def test_memory_of_the_base_comes_along():
    objective = MOON(base=MOON(mu=0.5))
    state = {"previous/layer.weight": torch.ones(1, 2), "base/previous/layer.weight": torch.zeros(1, 2)}
    objective.load_state(state)
    assert_same(dict(sorted(objective.state().items())), dict(sorted(state.items())))
    with pytest.raises(ValueError, match=r"keeps no state between rounds, but was given \['other'\]"):
        objective.load_state({"other": torch.ones(1)})
    FedProx(base=MOON()).load_state({"base/previous/w": torch.ones(1)})


def test_holding_puts_the_models_own_tensors_back():
    module = Linear(ERM(), norm=True)
    module.build(ROWS.schema)
    module.bn.running_mean.fill_(3.0)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    places = {name: value.data_ptr() for name, value in module.state_dict().items()}
    with pytest.raises(RuntimeError, match="on purpose"), hold_weights(module, {n: v + 1 for n, v in before.items()}):
        assert torch.equal(module.layer.weight, before["layer.weight"] + 1) and module.bn.running_mean[0] == 4.0
        raise RuntimeError("on purpose")
    assert_same(dict(module.state_dict()), before)
    assert {name: value.data_ptr() for name, value in module.state_dict().items()} == places
    with pytest.raises(ValueError, match="previous model that `MOON` remembers is not a `Linear` with these layers"):
        with hold_weights(module, {"layer.weight": torch.ones(1, 2)}):
            pass


def test_rows_of_the_training_nodes():
    class Graph:
        node_id = torch.tensor([30, 10, -1, -1, 20])  # -1: generated nodes

    embedding = torch.arange(5.0).view(5, 1)
    assert rows_of(embedding, torch.tensor([20, 10]), Graph()).flatten().tolist() == [4.0, 1.0]
    assert rows_of(embedding[:2], torch.tensor([20, 10]), Graph()).flatten().tolist() == [0.0, 1.0]
    assert rows_of(embedding, torch.tensor([4, 1]), object()).flatten().tolist() == [4.0, 1.0]


def test_a_masked_sample_changes_nothing():
    nan = float("nan")
    alone = term_at(MOON(), (0.6, 0.8), (0.8, 0.6), (1.0, 0.2))
    more = Rows([[1.0, 1.0], [1.0, -1.0], [5.0, 0.3]], [[0.0], [0.0], [nan]])
    masked = term_at(MOON(), (0.6, 0.8), (0.8, 0.6), (1.0, 0.2), data=more)
    assert torch.equal(alone[0], masked[0]) and torch.equal(alone[1]["layer.weight"], masked[1]["layer.weight"])


def test_memory_survives_a_copy_and_arguments_are_checked():
    objective = MOON()
    objective.load_state({"previous/w": torch.ones(1)})
    assert_same(copy.deepcopy(objective).state(), objective.state())
    for name, value in (("mu", -1.0), ("tau", 0.0)):
        with pytest.raises(ValueError, match=f"objective.init_args.{name}` of `MOON` must be "):
            MOON(**{name: value})


def test_defaults():
    default = MOON()
    assert (default.mu, default.tau, default.warmup_rounds) == (1.0, 0.5, 1)
    assert type(default.base) is ERM and MOON(mu=0.0).mu == 0.0 and MOON(tau=1e-9, warmup_rounds=0).warmup_rounds == 0


def test_cosines_of_short_and_long_rows_by_hand():
    a = torch.tensor([[0.03, 0.04], [300.0, 400.0], [0.6, 0.8]])
    close(cosine(a, torch.tensor([[0.1, 0.0], [0.0, 0.2], [-6.0, -8.0]])), [0.6, 0.8, -1.0])


def test_the_gradient_of_a_zero_row_is_the_others_direction():
    """As if its length were one."""
    zero = torch.zeros(1, 2, requires_grad=True)
    cosine(zero, torch.tensor([[3.0, 4.0]])).sum().backward()
    close(zero.grad, [[0.6, 0.8]])


def test_hooks_reach_the_base_and_a_fit_ends_the_warm_up():
    module = Linear(MOON(base=Recording()))
    module.on_round_start(0, 3)
    make_trainer(max_epochs=1).fit(module, ROWS)
    assert module.objective.base.calls == ("start", "end") and not module.objective.warming_up


def test_nothing_is_measured_without_factor_and_the_width_of_the_outputs_once():
    passes = []

    class Counting(Linear):
        def forward(self, batch, x=None):
            passes.append(1)
            return super().forward(batch, x)

    data = rows_data(9)  # three batches
    for mu, expected in ((0.0, 0), (1.0, 1)):
        passes.clear()
        module = Counting(MOON(mu=mu))
        module.build(data.schema)
        module.objective.load_state({"previous/layer.weight": torch.randn(2, 4)})
        received = in_first_step(module, data, lambda batch, module=module: module.objective._received)
        assert len(passes) == expected and (received is None) == (mu == 0.0)


def test_a_sample_with_any_label_counts():
    """Two tasks; the third row has a label of one, the fourth of none: the mean of the term is over three."""
    nan, logged = float("nan"), {}
    x = [[1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [5.0, 0.3]]
    data = Rows(x, [[0.0, 0.0], [0.0, 0.0], [0.0, nan], [nan, nan]], batch_size=4)
    module = Linear(MOON(mu=1.0), [[0.6, 0.8], [0.0, 0.0]])
    module.build(data.schema)
    module.objective.load_state({"previous/layer.weight": torch.tensor([[0.8, 0.6], [0.0, 0.0]])})
    module.log_values = logged.update

    def step(batch):
        table = module.objective._received.at(batch.sample_id)
        current = module.embed(batch).detach()
        loss_and_gradient(module, batch)
        return contrastive(current, table["received"], table["previous"], 0.5)[batch.y.isfinite().any(1)]

    terms = in_first_step(module, data, step)
    assert len(terms) == 3
    close(logged["train/contrastive"], terms.mean())


def test_a_remembered_model_does_not_change_with_the_tensors_that_it_came_from():
    objective, given = MOON(), {"previous/w": torch.ones(1)}
    objective.load_state(given)
    given["previous/w"].zero_()
    assert objective.state()["previous/w"].item() == 1.0
