"""Warm-up: the plain loss in the first rounds of a federation, and never outside of one."""

import pytest
from objective_samples import Linear, make_trainer, rows_data

from lit_models.objectives import FLIT, MOON, FedFocal, FedProx, FedVAT, FLITPlus
from lit_models.objectives.support.warm_up import WarmUp

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


def test_defaults_and_how_few_rounds_there_may_be():
    assert WarmUp().warmup_rounds == 1 and WarmUp(0).warmup_rounds == 0
    with pytest.raises(ValueError, match="init_args.warmup_rounds` of `WarmUp` must be at least 0, but is -1."):
        WarmUp(warmup_rounds=-1)
