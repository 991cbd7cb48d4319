"""ERM and masked_mean by hand, and what an objective may be asked to remember."""

import pytest
import torch

from lit_models.base import SampleLosses
from lit_models.objectives import ERM, Objective
from lit_models.objectives.base import masked_mean


def test_masked_mean_by_hand():
    values = torch.tensor([[1.0, 100.0], [2.0, 6.0]], requires_grad=True)
    mask = torch.tensor([[True, False], [True, True]])
    mean = masked_mean(values, mask)
    torch.testing.assert_close(mean, torch.tensor(3.0))  # (1 + 2 + 6) / 3
    mean.backward()
    torch.testing.assert_close(values.grad, torch.tensor([[1 / 3, 0.0], [1 / 3, 1 / 3]]))
    values.grad = None
    whole = masked_mean(values, torch.ones_like(mask))
    assert whole.item() == 27.25  # (1 + 100 + 2 + 6) / 4
    whole.backward()
    assert values.grad.eq(0.25).all()


@pytest.mark.parametrize("shape", [(0, 1), (2, 3)])
def test_nothing_unmasked_gives_zero_with_zero_gradient(shape):
    values = torch.ones(shape, requires_grad=True)
    mean = masked_mean(values, torch.zeros(shape, dtype=torch.bool))
    mean.backward()
    assert mean == 0.0 and torch.equal(values.grad, torch.zeros(shape))


def test_erm_is_the_mean_over_labelled_pairs():
    class Module:
        def __call__(self, batch):
            return batch

        def losses(self, outputs, batch):
            return SampleLosses(outputs, torch.tensor([[True], [False], [True]]), torch.arange(3))

    torch.testing.assert_close(ERM()(Module(), torch.tensor([[1.0], [50.0], [4.0]])), torch.tensor(2.5))


def test_default_objective_remembers_nothing():
    objective = Objective()
    assert objective.state() == {}
    objective.load_state({})
    with pytest.raises(ValueError, match=r"Objective keeps no state between rounds, but was given \['previous'\]"):
        objective.load_state({"previous": torch.ones(1)})
    with pytest.raises(NotImplementedError, match="`__call__"):
        objective(None, None)


def test_a_single_labelled_pair_is_its_own_mean():
    values, mask = torch.tensor([[3.0, torch.inf], [7.0, 7.0]]), torch.tensor([[True, False], [False, False]])
    assert masked_mean(values, mask).item() == 3.0
