r"""Sparse first layers: bag-of-words features stay sparse, and what is constant in a graph is computed once.

.. math:: S X W^\top = S (X W^\top) = (S X) W^\top

`spmm` multiplies a sparse by a dense matrix; its gradient uses the transpose, which is stored too. `Graph` gives the
matrices of one graph (features :math:`X`, mean aggregation :math:`A`, GCN's :math:`\hat A`, and :math:`S X` where that
pays), each computed once and remembered as long as the graph's tensors live and are not edited.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from torch_geometric.nn import Linear
from torch_geometric.nn.conv.gcn_conv import gcn_norm

T = TypeVar("T")

_CALL_COST = 8192
"""What one more `spmm` costs beside its arithmetic, in stored entries (measured at 64 columns on one CPU thread)."""


class Rows(NamedTuple):
    """Compressed rows of a sparse matrix: row ``i`` has ``values[start[i]:start[i + 1]]`` in ``columns[...]``."""

    start: Tensor
    columns: Tensor
    values: Tensor

    def times(self, dense: Tensor) -> Tensor:
        """The product with a dense matrix, without a gradient; computed in the precision of ``values``."""
        if dense.dtype is not self.values.dtype:
            dense = dense.to(self.values.dtype)
        # The same sum as torch.sparse.mm, 2-4 times faster on CPU, and in half precision too: rows are bags of columns.
        # (dense, columns, row starts, scale_grad_by_freq, mode "sum", sparse, values, include_last_offset)
        return torch.embedding_bag(dense.contiguous(), self.columns, self.start, False, 0, False, self.values, True)[0]


class SparseMatrix(NamedTuple):
    """A constant sparse matrix in both directions.

    Args:
        rows: The matrix, ``(n, m)``.
        transposed: Its transpose, ``(m, n)``: the gradient of a product.
    """

    rows: Rows
    transposed: Rows

    @property
    def num_entries(self) -> int:
        return self.rows.columns.numel()

    @classmethod
    def from_entries(cls, row: Tensor, column: Tensor, values: Tensor, shape: tuple[int, int]) -> SparseMatrix:
        """From coordinates in any order; duplicates add up. ``row``, ``column`` int64 ``(E,)``, ``values`` ``(E,)``."""
        return cls(_compress(row, column, values, shape[0]), _compress(column, row, values, shape[1]))

    @classmethod
    def from_csr(cls, matrix: Tensor, dtype: torch.dtype | None = None) -> SparseMatrix:
        """From a ``torch.sparse_csr`` tensor."""
        start, column = matrix.crow_indices(), matrix.col_indices()
        values = matrix.values().detach().to(dtype or matrix.dtype)  # a view would keep ``matrix`` alive in `remember`
        row = torch.repeat_interleave(torch.arange(matrix.size(0), device=start.device), start.diff())
        return cls(Rows(start, column, values), _compress(column, row, values, matrix.size(1)))


def expand_rows(start: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """All entries of some rows of a compressed matrix: torch cannot index one.

    Args:
        start: Start of each row and the end of the last, int64 ``(n + 1,)``.
        rows: Which rows, in this order, int64 ``(R,)``; one may be there several times.

    Returns:
        Position of each entry in the arrays of columns and values, and the index into ``rows`` that it belongs to
        (ascending); int64 ``(E,)`` each.
    """
    length = start[rows + 1] - start[rows]
    owner = torch.repeat_interleave(length)
    first = start[rows] - (length.cumsum(0) - length)
    return first[owner] + torch.arange(owner.numel(), device=owner.device), owner


def _compress(row: Tensor, column: Tensor, values: Tensor, num_rows: int) -> Rows:
    order = torch.argsort(row, stable=True)
    start = F.pad(torch.bincount(row, minlength=num_rows).cumsum(0), (1, 0))
    return Rows(start, column[order], values[order])


class _SpMM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, rows: Rows, transposed: Rows) -> Tensor:
        ctx.rows, ctx.transposed, ctx.dtype = rows, transposed, dense.dtype
        return rows.times(dense)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():  # a gradient of the gradient is wanted
            return _SpMM.apply(grad, ctx.transposed, ctx.rows).to(ctx.dtype), None, None
        return ctx.transposed.times(grad).to(ctx.dtype), None, None


def spmm(matrix: SparseMatrix, dense: Tensor) -> Tensor:
    """``matrix @ dense`` with a gradient to ``dense`` (of any order). Shapes ``(n, m)``, ``(m, H)`` -> ``(n, H)``."""
    return _SpMM.apply(dense, matrix.rows, matrix.transposed)


def is_sparse(x: Tensor) -> bool:
    """Is it a CSR matrix?"""
    return x.layout is torch.sparse_csr


# ---- what is remembered of a graph ----------------------------------------------------------------------------------

_memory: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # tensor -> {name: (other tensors' refs, versions, value)}


@contextmanager
def _constants() -> Iterator[None]:
    """What is first needed in validation (inference mode) must be usable in training afterwards."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def remember(name: Any, tensors: tuple[Tensor, ...], compute: Callable[[], T]) -> T:
    """``compute()``, remembered under ``name`` for as long as ``tensors`` are these very objects, alive and unedited.

    Nothing is kept alive: the memory goes with the first tensor, and holds one value a name, so it does not grow over
    rounds. An in-place edit (PyTorch's version counter) or another tensor in the same role computes anew.
    """
    if any(tensor.is_inference() for tensor in tensors):  # has no version counter, so an edit would go unseen
        return compute()
    versions = [tensor._version for tensor in tensors]  # noqa: SLF001  torch's version counter has no other name
    known: dict[Any, tuple[list[Any], list[int], Any]] = _memory.setdefault(tensors[0], {})
    if name in known:
        others, seen, value = known[name]
        if seen == versions and all(ref() is tensor for ref, tensor in zip(others, tensors[1:], strict=True)):
            return value
    with _constants():
        value = compute()
    known[name] = ([weakref.ref(tensor) for tensor in tensors[1:]], versions, value)
    return value


class Graph:
    r"""The constant matrices of one graph.

    Args:
        x: Node features, dense or ``torch.sparse_csr``, shape ``(N, F)``.
        edge_index: Edges from row 0 to row 1, int64, shape ``(2, E)``.
        dtype: Floating type of the model. Default: that of ``x``.
    """

    def __init__(self, x: Tensor, edge_index: Tensor, dtype: torch.dtype | None = None) -> None:
        self.x, self.edge_index, self.num_nodes, self.dtype = x, edge_index, x.size(0), dtype or x.dtype
        self.is_sparse = is_sparse(x)
        self._of_edges: dict[str, Any] = remember((self.num_nodes, self.dtype), (edge_index,), dict)
        # What depends on dense features is not kept: they may be new in every step (VAT).
        self._of_graph: dict[str, Any] = remember(self.dtype, (edge_index, x), dict) if self.is_sparse else {}

    def features(self) -> SparseMatrix:
        """:math:`X`, shape ``(N, F)``; ``x`` must be sparse."""
        return _once(self._of_graph, "X", lambda: SparseMatrix.from_csr(self.x, self.dtype))

    def mean(self) -> SparseMatrix:
        r""":math:`A_{vu} = 1 / |N(v)|` for each edge u -> v; the row of a node without neighbours is zero."""

        def compute() -> SparseMatrix:
            target = self.edge_index[1]
            degree = torch.bincount(target, minlength=self.num_nodes)
            return self._aggregation(self.edge_index, 1.0 / degree[target].to(self.dtype))

        return _once(self._of_edges, "mean", compute)

    def sum(self) -> SparseMatrix:
        """:math:`A_{vu} = 1` for each edge u -> v."""

        def compute() -> SparseMatrix:
            return self._aggregation(self.edge_index, torch.ones_like(self.edge_index[0], dtype=self.dtype))

        return _once(self._of_edges, "sum", compute)

    def gcn(self) -> SparseMatrix:
        r""":math:`\hat A = D^{-1/2} (A + I) D^{-1/2}`."""
        return _once(self._of_edges, "gcn", lambda: self._aggregation(*self.gcn_edges()))

    def gcn_edges(self) -> tuple[Tensor, Tensor]:
        r"""Edges with self-loops ``(2, E + N)`` and their weights in :math:`\hat A`: PyG's ``gcn_norm``."""
        return _once(self._of_edges, "gcn_edges", lambda: gcn_norm(self.edge_index, None, self.num_nodes, dtype=self.dtype))

    def _aggregation(self, edge_index: Tensor, weight: Tensor) -> SparseMatrix:
        return SparseMatrix.from_entries(edge_index[1], edge_index[0], weight, (self.num_nodes, self.num_nodes))

    def aggregate_features(self, name: str, weight: Tensor) -> Tensor:
        r"""First layer :math:`S X W^\top` for sparse ``x``, in the cheaper order.

        Args:
            name: The aggregation :math:`S`: ``"mean"``, ``"gcn"`` or ``"sum"``.
            weight: :math:`W`, shape ``(H, F)``.
        """
        constant = self.aggregated(name)
        if constant is not None:
            return spmm(constant, weight.t())
        return spmm(getattr(self, name)(), spmm(self.features(), weight.t()))

    def aggregated(self, name: str) -> SparseMatrix | None:
        """:math:`S X`, or None if it has so many entries that projecting first costs less."""

        def compute() -> SparseMatrix | None:
            matrix, features = getattr(self, name)(), self.features()
            allowed = matrix.num_entries + features.num_entries + _CALL_COST
            length = features.rows.start.diff()[matrix.rows.columns]  # entries that each edge brings along
            if int(length.sum()) > 4 * allowed:
                return None
            product = _product(matrix.rows, features.rows, self.x.size(1))
            return None if product.num_entries > allowed else product

        return _once(self._of_graph, f"{name} X", compute)


def _once(store: dict[str, Any], name: str, compute: Callable[[], T]) -> T:
    if name not in store:
        with _constants():
            store[name] = compute()
    return store[name]


def _product(left: Rows, right: Rows, num_columns: int) -> SparseMatrix:
    """``left @ right``: each entry of ``left`` selects a row of ``right``."""
    num_rows = left.start.numel() - 1
    row = torch.repeat_interleave(left.start.diff())
    entry, selected_by = expand_rows(right.start, left.columns)
    values = left.values[selected_by] * right.values[entry]
    place = row[selected_by] * num_columns + right.columns[entry]
    place, slot = torch.unique(place, return_inverse=True)
    values = torch.zeros(place.numel(), dtype=values.dtype, device=values.device).index_add_(0, slot, values)
    row, column = torch.div(place, num_columns, rounding_mode="floor"), place % num_columns
    return SparseMatrix.from_entries(row, column, values, (num_rows, num_columns))


class SparseInputLinear(Linear):
    """PyG's ``Linear`` (same parameters and names) that also takes sparse rows: for layers that project first."""

    def forward(self, x: Tensor) -> Tensor:
        if not is_sparse(x):
            return super().forward(x)
        features = remember(("X", self.weight.dtype), (x,), lambda: SparseMatrix.from_csr(x, self.weight.dtype))
        out = spmm(features, self.weight.t())
        return out if self.bias is None else out + self.bias
