"""Sparse bag-of-words features and adjacency in compressed-row form, with PyTorch alone (no SciPy, no compiled
extra)."""

import warnings

import torch
from torch import Tensor


def csr_tensor(indptr: Tensor, indices: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A ``torch.sparse_csr`` tensor, without PyTorch's notice that CSR support is in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Sparse CSR tensor support is in beta.*")
        return torch.sparse_csr_tensor(indptr.long(), indices.long(), values, size=shape, check_invariants=False)


def csr_from_entries(row: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """CSR tensor of ``(row, col, value)`` entries in any order: repeated entries are summed, zeros dropped, columns
    sorted."""
    key, inverse = torch.unique(row.long() * shape[1] + col.long(), return_inverse=True)
    summed = torch.zeros(key.numel(), dtype=values.dtype).index_add_(0, inverse, values)
    key, summed = key[summed != 0], summed[summed != 0]
    row, col = torch.div(key, max(shape[1], 1), rounding_mode="floor"), key % max(shape[1], 1)
    return csr_tensor(row_pointers(row, shape[0]), col, summed, shape)


def row_pointers(sorted_row: Tensor, num_rows: int) -> Tensor:
    """Start of each row among entries that are sorted by row, shape ``(num_rows + 1,)``."""
    indptr = torch.zeros(num_rows + 1, dtype=torch.long)
    indptr[1:] = torch.bincount(sorted_row, minlength=num_rows).cumsum(0)
    return indptr


def expand_rows(indptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All entries of some rows of a compressed matrix, or of some segments of whatever lies one after another.

    Args:
        indptr: Start of each row and the end of the last, int64 ``(N + 1,)``.
        rows: Which rows, in this order, int64 ``(R,)``; one may be there several times.

    Returns:
        ``position`` of each entry in the arrays of columns and values, int64 ``(E,)``; ``owner``, the index into ``rows``
        that it belongs to, ascending, ``(E,)``; and ``start``, where the rows begin among the E entries, ``(R + 1,)``.
    """
    first = indptr.index_select(0, rows)
    count = indptr.index_select(0, rows + 1).sub_(first)
    start = torch.zeros(count.numel() + 1, dtype=torch.long)
    torch.cumsum(count, 0, out=start[1:])
    owner = torch.repeat_interleave(count)
    return first.sub_(start[:-1]).index_select(0, owner).add_(torch.arange(owner.numel())), owner, start


def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """``x[rows]`` for a dense or CSR matrix, shape ``(len(rows), F)``, in the layout of ``x``."""
    if x.layout != torch.sparse_csr:
        return x[rows]
    position, _, start = expand_rows(x.crow_indices(), rows)
    return csr_tensor(start, x.col_indices()[position], x.values()[position], (rows.numel(), x.size(1)))


def normalize_rows(x: Tensor) -> Tensor:
    """Divide each row by its sum (PyG's ``NormalizeFeatures`` for non-negative ``x``); a row that sums to 0 stays as
    it is."""
    if x.layout != torch.sparse_csr:
        total = x.sum(dim=1, keepdim=True)
        return x / torch.where(total == 0, torch.ones_like(total), total)
    indptr = x.crow_indices()
    owner = torch.repeat_interleave(torch.arange(x.size(0)), indptr.diff())
    total = torch.zeros(x.size(0), dtype=x.dtype).index_add_(0, owner, x.values())
    total[total == 0] = 1
    return csr_tensor(indptr, x.col_indices(), x.values() / total[owner], (x.size(0), x.size(1)))


def empty_rows(x: Tensor) -> int:
    """How many rows hold nothing but zeros."""
    if x.layout != torch.sparse_csr:
        return int((x == 0).all(dim=1).sum())
    return int((x.crow_indices().diff() == 0).sum())


def stored_tensors(x: Tensor) -> list[Tensor]:
    """The tensors that a dense or CSR matrix consists of."""
    return [x.crow_indices(), x.col_indices(), x.values()] if x.layout == torch.sparse_csr else [x]
