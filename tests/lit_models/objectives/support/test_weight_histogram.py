"""Weights by scaffold group: hand values of the counts, and what the objectives put into them."""

from types import SimpleNamespace

import pytest
import torch

from lit_models.base import SampleLosses
from lit_models.objectives import ERM, FLIT, FedFocal, FedProx, FLITPlus
from lit_models.objectives.support.weight_histogram import NUM_BINS, counts, group_histogram, mean_by_group


def test_mean_by_group_by_hand():
    groups = torch.tensor([7, 3, 7, 5])
    weights = torch.tensor([[0.2, 0.9], [0.5, 0.1], [0.4, 0.6], [0.3, 0.3]])
    mask = torch.tensor([[True, False], [True, True], [True, True], [False, False]])  # group 5 has no label
    torch.testing.assert_close(mean_by_group(groups, weights, mask), torch.tensor([0.3, 0.4]))  # groups 3, 7
    assert mean_by_group(groups[:0], weights[:0], mask[:0]).shape == (0,)


def test_counts_by_hand():
    found = counts(torch.tensor([0.0, 0.049, 0.051, 0.99, 1.0, 1.0000001]))
    assert len(found) == NUM_BINS == 20
    assert found == [2, 1, *[0] * 17, 3]


def test_batches_of_a_fit_are_joined_before_the_mean():
    one = torch.ones(1, 1, dtype=torch.bool)
    seen = [(torch.tensor([4]), torch.tensor([[0.1]]), one), (torch.tensor([4]), torch.tensor([[0.9]]), one)]
    assert group_histogram(seen) == [*[0] * 10, 1, *[0] * 9]  # one group, mean 0.5


def losses(values):
    values = torch.tensor(values).unsqueeze(1)
    return SampleLosses(values, torch.ones_like(values, dtype=torch.bool), torch.arange(len(values)))


@pytest.mark.parametrize("objective", [FedFocal(gamma=1.0), FLIT(gamma=1.0), FLITPlus(gamma=1.0)])
def test_objectives_count_the_factor_of_each_group(objective):
    objective.on_train_start(SimpleNamespace()) if isinstance(objective, FedFocal) else setattr(objective, "_seen", [])
    module = SimpleNamespace(observe=lambda values, mask: None)
    batch = SimpleNamespace(scaffold=torch.tensor([0, 0, 1]))
    given = losses([1.0, 1.0, 4.0])  # mean 2: factors 1 - exp(-1/2) = .393469 twice, 1 - exp(-2) = .864665
    objective.factors(module, batch, given, given.loss)
    objective.on_train_end(module)
    assert objective.pictures() == {"weight_by_scaffold": [*[0] * 7, 1, *[0] * 9, 1, 0, 0]}
    assert FedProx(base=objective).pictures() == objective.pictures()
    objective.factors(module, SimpleNamespace(), given, given.loss)  # nodes have no scaffold
    objective.on_train_end(module)
    assert objective.pictures() == {} and ERM().pictures() == {}
