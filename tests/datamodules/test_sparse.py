"""Compressed rows against hand values and dense algebra."""

import torch

from datamodules.sparse import csr_from_entries, empty_rows, expand_rows, normalize_rows, select_rows, stored_tensors


def test_entries_of_chosen_rows_by_hand():
    # rows of 2, 0 and 3 entries; rows 2, 1, 0, 0 are asked for
    position, owner, start = expand_rows(torch.tensor([0, 2, 2, 5]), torch.tensor([2, 1, 0, 0]))
    assert position.tolist() == [2, 3, 4, 0, 1, 0, 1] and owner.tolist() == [0, 0, 0, 2, 2, 3, 3]
    assert start.tolist() == [0, 3, 3, 5, 7]
    assert [part.tolist() for part in expand_rows(torch.tensor([0, 2]), torch.zeros(0, dtype=torch.long))] == [[], [], [0]]


def test_a_matrix_consists_of_its_tensors():
    dense = torch.eye(2)
    assert stored_tensors(dense) == [dense]
    assert [part.tolist() for part in stored_tensors(dense.to_sparse_csr())] == [[0, 1, 2], [0, 1], [1, 1]]


def test_sparse_rows_agree_with_dense_algebra():
    torch.manual_seed(0)
    dense = torch.randint(0, 3, (9, 6)).float() * (torch.rand(9, 6) < 0.4)
    dense[2] = 0
    row, col = dense.nonzero(as_tuple=True)
    order = torch.randperm(row.numel())
    x = csr_from_entries(row[order], col[order], dense[row, col][order], (9, 6))
    assert x.layout == torch.sparse_csr and torch.equal(x.to_dense(), dense)
    rows = torch.tensor([8, 2, 2, 0])
    assert torch.equal(select_rows(x, rows).to_dense(), dense[rows])
    total = dense.sum(1, keepdim=True)
    expected = torch.where(total > 0, dense / total.clamp(min=1e-9), dense)
    torch.testing.assert_close(normalize_rows(x).to_dense(), expected)
    torch.testing.assert_close(normalize_rows(dense), expected)
    assert empty_rows(x) == empty_rows(dense) == int((dense.sum(1) == 0).sum()) >= 1


def test_repeated_entries_are_summed_and_zeros_dropped():
    x = csr_from_entries(torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]), torch.tensor([2.0, 3.0, 0.0]), (2, 2))
    assert x.to_dense().tolist() == [[0, 5], [0, 0]] and x.values().numel() == 1
