"""A term added to a base loss: the base's hooks, pictures and memory are not lost."""

import pytest
import torch

from lit_models.objectives import ERM
from lit_models.objectives.support.added_term import AddedTerm
from lit_models.objectives.support.warm_up import WarmUp


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
    with pytest.raises(ValueError, match="init_args.warmup_rounds` of `AddedTerm` must be at least 0, but is -1."):
        AddedTerm(warmup_rounds=-1)
