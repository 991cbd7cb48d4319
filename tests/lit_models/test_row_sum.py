"""RowSum against index_select and index_add, which are independent implementations."""

import torch

from lit_models.row_sum import RowSum


def test_gather_and_its_transpose_by_hand():
    rows = RowSum.gather(torch.tensor([2, 0, 2]), num_rows=4)
    values = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    torch.testing.assert_close(rows(values), torch.tensor([[3.0], [1.0], [3.0]]))
    torch.testing.assert_close(rows.T(torch.tensor([[5.0], [6.0], [7.0]])), torch.tensor([[6.0], [0.0], [12.0], [0.0]]))


def test_from_pairs_is_index_add_with_gradients_of_any_order():
    torch.manual_seed(0)
    bag, row = torch.randint(5, (30,)), torch.randint(8, (30,))
    values = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    rows = RowSum.from_pairs(bag, row, 5, 8)
    torch.testing.assert_close(rows(values), torch.zeros(5, 3, dtype=torch.float64).index_add(0, bag, values[row]))
    assert torch.autograd.gradcheck(lambda v: rows(v.square()), values)
    assert torch.autograd.gradgradcheck(lambda v: rows(v.square()), values)


def test_nothing_to_sum():
    rows = RowSum.gather(torch.zeros(0, dtype=torch.long), num_rows=2)
    values = torch.ones(2, 3, requires_grad=True)
    assert rows(values).shape == (0, 3)
    torch.testing.assert_close(rows.T(torch.zeros(0, 3)), torch.zeros(2, 3))
    rows(values).sum().backward()
    torch.testing.assert_close(values.grad, torch.zeros(2, 3))
