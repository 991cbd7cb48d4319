r"""Exact fast ``NNConv``: edge-conditioned convolution with one weight matrix per *distinct* bond type.

.. math:: x'_i = \sum_{(j, i) \in E} A(e_{ji})^\top x_j + b, \qquad A(e) = \mathrm{reshape}(\mathrm{MLP}(e))

(Gilmer et al., ICML 2017; ``torch_geometric.nn.NNConv`` with ``aggr="add"``). A molecule has few kinds of bonds, so
``A`` is needed a dozen times per batch instead of once per bond. Two exact forms, chosen by the data:

- **grouped** (few distinct rows): one matrix product per bond type over the distinct (type, source atom) pairs, then
  one sum of rows per atom.
- **factorised** (continuous or many rows): ``MLP(e) = W a(e) + c`` is linear in its hidden layer, so
  :math:`x'_i = \sum_k (\sum_j a_k(e_{ji}) x_j)^\top W_k + b`; no E x in x out weights are built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.inits import reset, zeros

from lit_models.row_sum import RowSum


@dataclass(frozen=True)
class BondGroups:
    """The bonds of a batch grouped by type: made once per batch, shared by all message passing steps.

    Attributes:
        representative: One edge per type, int64 [K]; ``edge_attr[representative]`` are the distinct rows.
        sizes: (type, source) pairs per type, K integers. Pairs are sorted by type.
        source: Source atom of each of the P pairs: atom rows [N, H] -> pair rows [P, H].
        target: The sum over the bonds that end in an atom: pair rows [P, H] -> atom rows [N, H].
    """

    representative: Tensor
    sizes: tuple[int, ...]
    source: RowSum
    target: RowSum

    @classmethod
    def from_types(cls, edge_index: Tensor, edge_type: Tensor, num_nodes: int, num_targets: int | None = None) -> BondGroups:
        """Group by ``edge_type``, int64 [E]: any values below ``2**63 / num_nodes``, equal for equal feature rows.

        ``num_targets``: number of target rows, where they are others than the ``num_nodes`` source rows.
        """
        source, target = edge_index
        if edge_type.shape != source.shape:
            found = tuple(edge_type.shape)
            raise ValueError(f"`edge_type` needs one id per edge, shape ({source.numel()},); found {found}.")
        pair, pair_of_edge = torch.unique(edge_type * num_nodes + source, return_inverse=True)  # sorted by type first
        pair_type = torch.div(pair, max(num_nodes, 1), rounding_mode="floor")
        _, sizes = torch.unique_consecutive(pair_type, return_counts=True)
        edges = torch.arange(source.numel(), device=pair.device)
        edge_of_pair = torch.empty_like(pair).scatter_(0, pair_of_edge, edges)
        first_pair = sizes.cumsum(0) - sizes
        gather = RowSum.gather(source[edge_of_pair], num_nodes)
        num_targets = num_nodes if num_targets is None else num_targets
        scatter = RowSum.from_pairs(target, pair_of_edge, num_targets, pair.numel())
        return cls(edge_of_pair[first_pair], tuple(sizes.tolist()), gather, scatter)


def bond_groups(
    edge_index: Tensor, edge_attr: Tensor, num_nodes: int, edge_type: Tensor | None = None, max_types: int = 64
) -> BondGroups | None:
    """Group the bonds of a batch by distinct feature row; ``None`` where the factorised form is to be used instead.

    Args:
        edge_index: int64 [2, E].
        edge_attr: Raw features [E, D]; not looked at when ``edge_type`` is given.
        num_nodes: Atoms in the batch.
        edge_type: Optional type ids, int64 [E], equal exactly where the rows are equal.
        max_types: With more distinct rows than this the result is ``None``. Also ``None`` if ``edge_attr`` requires a
            gradient, since each edge then has a derivative of its own.
    """
    if edge_attr.requires_grad:
        return None
    if edge_type is None:
        edge_type = _row_ids(edge_attr)
    groups = BondGroups.from_types(edge_index, edge_type, num_nodes)
    return groups if len(groups.sizes) <= max_types else None


def _row_ids(edge_attr: Tensor) -> Tensor:
    """An id per row, equal exactly for equal rows: the bits of 0/1 rows, else the rank among the distinct rows."""
    num_edges, width = edge_attr.shape
    if width <= 32 and bool(((edge_attr == 0) | (edge_attr == 1)).all()):
        return (edge_attr.long() << torch.arange(width, device=edge_attr.device)).sum(1)
    if not num_edges:
        return torch.zeros(0, dtype=torch.long, device=edge_attr.device)
    return torch.unique(edge_attr, dim=0, return_inverse=True)[1]


def grouped_matmul(x: Tensor, weights: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Block k of ``sizes[k]`` consecutive rows of ``x`` [P, I] times ``weights[k]``, weights [K, I, O] -> [P, O]."""
    if not sizes:
        return x @ weights.sum(0)  # no row, but with a graph
    return torch.cat([torch.mm(rows, weight) for rows, weight in zip(x.split(sizes), weights.unbind(), strict=True)])


class FastNNConv(nn.Module):
    r"""Drop-in for ``torch_geometric.nn.NNConv(aggr="add")``: same parameters, initial values, outputs and gradients.

    Args:
        in_channels: Width of ``x``.
        out_channels: Width of the result.
        nn: Edge network, [*, D] -> [*, in_channels * out_channels]. The factorised form needs an ``nn.Sequential``
            that ends in a ``Linear``; any other network is then applied to every edge.
        aggr: Only ``"add"``.
        root_weight: Adds ``x @ root``. Default ``False``: the self-loop bonds of our molecules supply it.
        bias: Adds a bias.
        max_types: More distinct bond features than this use the factorised form.

    Shapes:
        x [N, I], edge_index [2, E], edge_attr [E, D] -> [N, O].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        nn: nn.Module,
        aggr: str = "add",
        root_weight: bool = False,
        bias: bool = True,
        max_types: int = 64,
    ) -> None:
        super().__init__()
        if aggr != "add":
            raise ValueError(f"`FastNNConv` needs aggr='add', found {aggr!r}. Use `torch_geometric.nn.NNConv`.")
        self.in_channels, self.out_channels, self.max_types = in_channels, out_channels, max_types
        self.nn: Any = nn
        self.lin = torch.nn.Linear(in_channels, out_channels, bias=False) if root_weight else None
        self.bias = torch.nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        reset(self.nn)
        reset(self.lin)
        zeros(self.bias)

    def matrices(self, distinct_attr: Tensor) -> Tensor:
        """``A(e)`` of the distinct feature rows, [K, D] -> [K, I, O]."""
        return self.nn(distinct_attr).view(-1, self.in_channels, self.out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, edge_type: Tensor | None = None) -> Tensor:
        """One step from raw features; groups the bonds itself. ``edge_type``: see ``bond_groups``."""
        groups = bond_groups(edge_index, edge_attr, x.size(0), edge_type, self.max_types)
        if groups is None:
            return self.factorised(x, edge_index, edge_attr)
        return self.grouped(x, self.matrices(edge_attr[groups.representative]), groups)

    def grouped(self, x: Tensor, matrices: Tensor, groups: BondGroups) -> Tensor:
        """One step with the ``matrices`` of the bond types. Compute groups and matrices once for several steps."""
        return self._finish(groups.target(grouped_matmul(groups.source(x), matrices, groups.sizes)), x)

    def factorised(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """One step with a feature row of its own for every edge, differentiable in ``edge_attr``."""
        from_source, to_target = RowSum.gather(edge_index[0], x.size(0)), RowSum.gather(edge_index[1], x.size(0)).T
        x_j = from_source(x)
        last = self.nn[-1] if isinstance(self.nn, torch.nn.Sequential) and len(self.nn) else None
        if not isinstance(last, torch.nn.Linear):
            return self._finish(to_target(torch.bmm(x_j.unsqueeze(1), self.matrices(edge_attr)).squeeze(1)), x)
        hidden = self.nn[:-1](edge_attr)  # a(e), [E, M]
        weight = last.weight.view(self.in_channels, self.out_channels, -1).permute(2, 0, 1)  # W_k, [M, I, O]
        if last.bias is not None:
            hidden = torch.cat([hidden, hidden.new_ones(hidden.size(0), 1)], dim=1)
            weight = torch.cat([weight, last.bias.view(1, self.in_channels, self.out_channels)])
        summed = to_target((hidden.unsqueeze(2) * x_j.unsqueeze(1)).flatten(1))  # sum_j a_k(e_ji) x_j, [N, M * I]
        return self._finish(summed @ weight.flatten(0, 1), x)

    def _finish(self, out: Tensor, x: Tensor) -> Tensor:
        if self.lin is not None:
            out = out + self.lin(x)
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"
