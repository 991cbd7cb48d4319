"""State of optimisers as flat tensors: what is in it, whose it is, and that nothing is shared."""

from types import SimpleNamespace

import pytest
import torch
from federations import Linear, clients, federate
from lightning.pytorch.core.optimizer import _MockOptimizer
from torch import nn

from fl_lightning.engine.optimizer_state import OptimizerState, check_binding, flatten_optimizers, restore_optimizers


def with_state(**state):
    """An optimiser that holds this of its only parameter."""
    return SimpleNamespace(state_dict=lambda: {"state": {0: state}})


def adam(layer, steps=0):
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        layer(torch.ones(1, 2)).square().sum().backward()
        optimizer.step()
    return optimizer


@pytest.mark.filterwarnings("error")
def test_tensors_and_numbers_are_kept_as_copies_without_a_graph():
    live = torch.ones(2, requires_grad=True)
    flat = flatten_optimizers([with_state(a=live, n=2.5, on=True, k=3), with_state(none=None)])
    assert {name: t.tolist() for name, t in flat.items()} == {"0/0/a": [1.0, 1.0], "0/0/n": 2.5, "0/0/on": True, "0/0/k": 3}
    assert not flat["0/0/a"].requires_grad and flat["0/0/a"].data_ptr() != live.data_ptr()
    plain = torch.ones(2)
    assert flatten_optimizers([with_state(a=plain)])["0/0/a"].data_ptr() != plain.data_ptr()


def test_what_is_neither_is_named():
    with pytest.raises(ValueError, match="`federation.carry_optimizer_state`: `history` of SimpleNamespace is list, and only"):
        flatten_optimizers([with_state(history=[torch.ones(1)])])


def test_several_optimisers_are_told_apart_and_keys_may_hold_a_slash():
    layers = nn.Linear(2, 1), nn.Linear(2, 1)
    held = [adam(layers[0], steps=1), adam(layers[1], steps=3)]
    new = [adam(layer) for layer in layers]
    restore_optimizers(new, flatten_optimizers(held))
    assert [o.state_dict()["state"][0]["step"].item() for o in new] == [1.0, 3.0]
    for old, other in zip(held, new, strict=True):
        for name, tensor in flatten_optimizers([old]).items():
            assert torch.equal(tensor, flatten_optimizers([other])[name])
    plain = torch.optim.SGD(layers[0].parameters(), lr=0.1)
    restore_optimizers([plain], {"0/0/a/b": torch.ones(1)})
    assert plain.state_dict()["state"][0].keys() == {"a/b"}
    restore_optimizers(new, {})
    assert not new[1].state_dict()["state"]


def test_what_is_restored_is_not_written_to():
    layer = nn.Linear(2, 1)
    flat = flatten_optimizers([adam(layer, steps=1)])
    before = {name: tensor.clone() for name, tensor in flat.items()}
    optimizer = adam(layer)
    restore_optimizers([optimizer], flat)
    layer(torch.ones(1, 2)).square().sum().backward()
    optimizer.step()
    assert all(torch.equal(tensor, flat[name]) for name, tensor in before.items())


def test_one_parameter_of_the_module_is_enough():
    mine, other = nn.Linear(2, 1), nn.Linear(2, 1)
    check_binding([torch.optim.SGD([*other.parameters(), mine.bias], lr=0.1)], mine)
    check_binding([torch.optim.SGD([{"params": other.parameters()}, {"params": mine.parameters()}], lr=0.1)], mine)
    with pytest.raises(ValueError, match=r"`Linear.configure_optimizers` returned holds none of the module's parameters"):
        check_binding([torch.optim.SGD(mine.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)], mine)
    with pytest.raises(ValueError, match="holds none of the module's parameters"):
        OptimizerState().on_train_start(SimpleNamespace(optimizers=[adam(other)], lr_scheduler_configs=[]), mine)


@pytest.mark.parametrize(("automatic", "trainable"), [(True, True), (True, False), (False, True)])
def test_no_optimiser_is_told_as_that_and_fine_where_nothing_needs_one(automatic, trainable):
    layer = nn.Linear(2, 1).requires_grad_(trainable)
    layer.automatic_optimization = automatic
    if not (automatic and trainable):
        check_binding([_MockOptimizer()], layer)
        return
    with pytest.raises(ValueError, match=r"^`Linear.configure_optimizers` returned None, so nothing would be trained. Write"):
        check_binding([_MockOptimizer()], layer)


class StepsItself(Linear):
    """Manual optimisation with an optimiser that Lightning never sees."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        loss = (self(batch[0]) - batch[1]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def configure_optimizers(self):
        return None


def test_a_module_that_steps_its_own_optimiser_trains(tmp_path):
    fed = federate(tmp_path, StepsItself, clients((6, 8)), num_rounds=2, carry_optimizer_state=True)
    assert fed.results["failures"] == []
    torch.manual_seed(0)
    assert not torch.equal(fed.module.net.weight, StepsItself().net.weight)


def test_an_optimiser_that_is_the_same_object_in_each_fit_begins_as_it_was_first():
    layer = nn.Linear(2, 1)
    state, optimizer = OptimizerState(), adam(layer)
    trainer = SimpleNamespace(optimizers=[optimizer], lr_scheduler_configs=[])
    for received, steps in ((None, 0), (None, 0), (flatten_optimizers([adam(layer, steps=4)]), 4), (None, 0)):
        state.begin(received)
        assert state.finished == []
        state.on_train_start(trainer, layer)
        taken = {t.item() for name, t in flatten_optimizers([optimizer]).items() if name.endswith("step")}
        assert taken == ({steps} if steps else set())
        layer(torch.ones(1, 2)).square().sum().backward()
        optimizer.step()
        state.on_train_end(trainer, layer)
        assert state.finished == [optimizer]
