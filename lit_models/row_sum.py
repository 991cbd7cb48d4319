"""RowSum: gather rows and sum rows per group, the two halves of every message passing step, fast in both directions.

A gather and a grouped sum are products with a 0/1 matrix and its transpose, so each is the other's gradient. Both are
``embedding_bag`` calls here: on a CPU 2 to 3 times faster than ``index_add_``, deterministic, and without the slow
backward of indexing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class RowSum:
    """A 0/1 matrix ``S`` of shape (bags, rows) to multiply by: each bag sums the rows listed for it.

    Attributes:
        index, offset: Bag ``i`` sums the rows ``index[offset[i]:offset[i + 1]]``.
        t_index, t_offset: The same for the transpose of ``S``.
    """

    index: Tensor
    offset: Tensor
    t_index: Tensor
    t_offset: Tensor

    @classmethod
    def gather(cls, index: Tensor, num_rows: int) -> RowSum:
        """``values -> values[index]``; its ``.T`` sums rows of equal ``index``: ``zeros.index_add(0, index, rows)``.

        Args:
            index: int64 [P] with values below ``num_rows``.
            num_rows: How many rows ``values`` has.
        """
        each = torch.arange(index.numel(), device=index.device)
        return cls(index, each, torch.argsort(index, stable=True), _starts(index, num_rows))

    @classmethod
    def from_pairs(cls, bag: Tensor, row: Tensor, num_bags: int, num_rows: int) -> RowSum:
        """Bag ``bag[k]`` sums row ``row[k]``, for all k."""
        by_bag, by_row = torch.argsort(bag, stable=True), torch.argsort(row, stable=True)
        return cls(row[by_bag], _starts(bag, num_bags), bag[by_row], _starts(row, num_rows))

    @property
    def T(self) -> RowSum:
        return RowSum(self.t_index, self.t_offset, self.index, self.offset)

    def __call__(self, values: Tensor) -> Tensor:
        """``S @ values``, (rows, H) -> (bags, H); an empty bag gives zeros. Differentiable any number of times."""
        return _RowSumFunction.apply(values, self)


class _RowSumFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: Tensor, rows: RowSum) -> Tensor:
        ctx.rows = rows
        if not rows.index.numel():
            return values.new_zeros(rows.offset.numel(), values.size(1))
        return F.embedding_bag(rows.index, values.detach().contiguous(), rows.offset, mode="sum")

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _RowSumFunction.apply(grad, ctx.rows.T), None


def _starts(key: Tensor, size: int) -> Tensor:
    """Where each of ``size`` keys starts in the sorted ``key``."""
    counts = torch.bincount(key, minlength=size)
    return counts.cumsum(0) - counts
