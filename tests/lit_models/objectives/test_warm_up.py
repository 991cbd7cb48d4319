"""Warm-up: the plain loss in the first rounds of a federation, and never outside of one."""

import pytest
import torch
from objective_samples import Linear, make_trainer, rows_data

from lit_models.objectives import ERM, FLIT, MOON, FedFocal, FedProx, FedVAT, FLITPlus
from lit_models.objectives.warm_up import AddedTerm, WarmUp

OBJECTIVES = (FedFocal, FLIT, FLITPlus, FedProx, FedVAT, MOON)


@pytest.mark.parametrize(("rounds", "expected"), [(0, [False] * 4), (1, [True] + [False] * 3), (3, [True] * 3 + [False])])
def test_the_first_rounds_are_counted_from_zero(rounds, expected):
    objective, found = WarmUp(rounds), []
    assert not objective.warming_up
    for round in range(4):
        objective.on_round_start(None, round, 9)
        found.append(objective.warming_up)
    assert found == expected and WarmUp().warmup_rounds == 1


@pytest.mark.parametrize("make", OBJECTIVES)
def test_a_stock_trainer_after_a_federation_does_not_warm_up(make):
    """It tells no round: what the last round said must not go on."""
    assert make().warmup_rounds == 1
    module, warm = Linear(make()), []
    module.on_train_epoch_start = lambda: warm.append(module.objective.warming_up)
    module.on_round_start(0, 5)
    trainer = make_trainer(max_epochs=1)
    trainer.fit(module, rows_data())
    assert not module.objective.warming_up
    make_trainer(max_epochs=1).fit(module, rows_data())
    assert warm == [True, False]


def test_hooks_of_an_added_term_reach_its_base():
    class Base(WarmUp):
        def __init__(self):
            super().__init__(warmup_rounds=2)
            self.calls = []

        def on_train_start(self, module):
            self.calls.append("start")

        def on_train_end(self, module):
            super().on_train_end(module)
            self.calls.append("end")

    objective = AddedTerm(Base(), warmup_rounds=1)
    for round, expected in ((1, (False, True)), (2, (False, False))):
        objective.on_round_start(None, round, 9)
        assert (objective.warming_up, objective.base.warming_up) == expected
    objective.on_train_start(None)
    objective.on_train_end(None)
    assert objective.base.calls == ["start", "end"]


def test_pictures_and_memory_of_an_added_term_are_the_bases():
    class Base(WarmUp):
        def pictures(self):
            return {"counts": [1, 2]}

        def state(self):
            return {"memory": torch.ones(1)}

    objective = AddedTerm(Base())
    assert objective.pictures() == {"counts": [1, 2]} and list(objective.state()) == ["base/memory"]
    with pytest.raises(ValueError, match=r"Base keeps no state between rounds, but was given \['memory'\]"):
        objective.load_state({"base/memory": torch.ones(1)})


def test_what_is_not_of_the_base_is_refused_and_the_rest_reaches_it():
    class Base(WarmUp):
        def load_state(self, state):
            self.loaded = state

    objective, memory = AddedTerm(Base()), torch.ones(1)
    objective.load_state({"base/memory": memory, "base/base/deeper": memory})
    assert objective.base.loaded == {"memory": memory, "base/deeper": memory}
    with pytest.raises(ValueError, match=r"AddedTerm keeps no state between rounds, but was given \['other'\]"):
        objective.load_state({"other": memory, "base/memory": memory})


def test_defaults_and_how_few_rounds_there_may_be():
    default = AddedTerm()
    assert default.warmup_rounds == 1 and type(default.base) is ERM and AddedTerm(warmup_rounds=0).warmup_rounds == 0
    for make in (WarmUp, AddedTerm):
        with pytest.raises(ValueError, match=f"init_args.warmup_rounds` of `{make.__name__}` must be at least 0, but is -1."):
            make(warmup_rounds=-1)
