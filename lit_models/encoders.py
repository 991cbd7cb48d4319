r"""Node encoders: GraphSAGE, GCN, GAT, GIN on PyG's layers, with a sparse first layer for bag-of-words features.

.. math:: h^0 = x, \quad h^k = \mathrm{dropout}(\mathrm{ReLU}(\mathrm{layer}^k(h^{k-1}))), \quad
          \mathrm{logits} = \mathrm{layer}^K(h^{K-1})

Parameters and their names are those of the PyG layers (``convs.0.lin_l.weight``, ...). Dense features go through these
layers unchanged; with ``torch.sparse_csr`` features the same function is computed with the constant products of
`lit_models.sparse`. No normalisation layer: a graph of one node is legal in training.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

from lit_models.sparse import Graph, SparseInputLinear, is_sparse, spmm


class Encoder(nn.Module):
    """Base: K layers with ReLU and dropout between them, the last one linear.

    Args:
        hidden_channels: Width H of the hidden layers.
        num_layers: Number of layers K, at least 1.
        dropout: Probability to drop an entry of a hidden layer in training.
    """

    def __init__(self, hidden_channels: int = 64, num_layers: int = 2, dropout: float = 0.5) -> None:
        super().__init__()
        name = type(self).__name__
        if num_layers < 1 or hidden_channels < 1:
            raise ValueError(
                f"`{name}` needs at least one layer of at least one unit, but `model.init_args.encoder.init_args` has "
                f"num_layers: {num_layers}, hidden_channels: {hidden_channels}."
            )
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"`{name}` needs 0 <= dropout < 1, but `model.init_args.encoder.init_args.dropout` is {dropout}.")
        self.hidden_channels, self.num_layers, self.dropout = hidden_channels, num_layers, dropout
        self.convs = nn.ModuleList()
        self._widths: tuple[int, int] | None = None

    def build(self, in_channels: int, out_channels: int) -> None:
        """Create the layers; a second call with the same widths does nothing, with others it is a ``ValueError``."""
        if self._widths is None:
            widths = [in_channels] + [self.hidden_channels] * (self.num_layers - 1) + [out_channels]
            for k in range(self.num_layers):
                self.convs.append(self.make_layer(widths[k], widths[k + 1], last=k == self.num_layers - 1))
            self._widths = (in_channels, out_channels)
            self._first_parameter = [next(self.parameters())]  # in a list: not registered once more
        elif self._widths != (in_channels, out_channels):
            raise ValueError(
                f"`{type(self).__name__}` was built for (inputs, outputs) {self._widths} and cannot be rebuilt for "
                f"{(in_channels, out_channels)}. Use a new encoder."
            )

    @property
    def head_entries(self) -> tuple[str, ...]:
        """Patterns (fnmatch) of the last layer's entries: what lies behind `embed`."""
        return (f"convs.{self.num_layers - 1}.*",)

    def make_layer(self, in_channels: int, out_channels: int, last: bool) -> nn.Module:
        raise NotImplementedError

    def layer(self, conv: Any, h: Tensor, graph: Graph) -> Tensor:
        """One layer; ``h`` is ``graph.x`` in the first. ``graph.is_sparse`` chooses the path."""
        raise NotImplementedError

    def embed(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Input of the last layer before its dropout, shape ``(N, H)``; the features themselves for K = 1."""
        h = self._hidden(self._graph(x, edge_index))
        return h.to_dense() if is_sparse(h) else h

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Shapes: ``x`` ``(N, F)``, dense or ``torch.sparse_csr``, ``edge_index`` ``(2, E)`` -> ``(N, out)``."""
        graph = self._graph(x, edge_index)
        h = self._hidden(graph)
        if self.num_layers > 1:
            h = F.dropout(h, self.dropout, self.training)
        return self.layer(self.convs[-1], h, graph)

    def _hidden(self, graph: Graph) -> Tensor:
        h = graph.x
        for k in range(self.num_layers - 1):  # a slice of a ModuleList would be a new module in every forward pass
            conv = self.convs[k]
            if k > 0:
                h = F.dropout(h, self.dropout, self.training)
            h = self.layer(conv, h, graph).relu()
        return h

    def _graph(self, x: Tensor, edge_index: Tensor) -> Graph:
        if self._widths is None:
            raise ValueError(f"`{type(self).__name__}` has no layers yet: call `build(in_channels, out_channels)`.")
        if x.size(1) != self._widths[0]:
            raise ValueError(f"`{type(self).__name__}` was built for {self._widths[0]} features, found {x.size(1)}.")
        dtype = self._first_parameter[0].dtype
        if x.dtype != dtype and not is_sparse(x):
            x = x.to(dtype)
        return Graph(x, edge_index, dtype)


class GraphSAGE(Encoder):
    r"""Mean GraphSAGE (docs/papers/fedsage.md#graphsage-layer), PyG's ``SAGEConv``.

    .. math:: h_v^k = \sigma(\phi_r h_v^{k-1} + \phi_l\, \mathrm{mean}_{u \in N(v)} h_u^{k-1} + b)

    ``lin_r`` is :math:`\phi_r`, ``lin_l`` is :math:`\phi_l` and :math:`b`. ``N(v)`` excludes v; a node without
    neighbours aggregates the zero vector.
    """

    def make_layer(self, in_channels: int, out_channels: int, last: bool) -> nn.Module:
        return SAGEConv(in_channels, out_channels, aggr="mean")

    def layer(self, conv: Any, h: Tensor, graph: Graph) -> Tensor:
        neighbours, own = conv.lin_l, conv.lin_r
        if graph.is_sparse and h is graph.x:
            out = graph.aggregate_features("mean", neighbours.weight) + spmm(graph.features(), own.weight.t())
            return out + neighbours.bias
        if neighbours.out_channels < neighbours.in_channels:  # project first: 2 to 8 times faster on mended, dense rows
            aggregated = spmm(graph.mean(), F.linear(h, neighbours.weight))
        elif graph.is_sparse:
            aggregated = F.linear(spmm(graph.mean(), h), neighbours.weight)
        else:
            return conv(h, graph.edge_index)
        return aggregated + F.linear(h, own.weight, neighbours.bias)


class GCN(Encoder):
    r"""Graph convolution with self-loops, PyG's ``GCNConv``: :math:`h^k = \sigma(\hat A h^{k-1} W^\top + b)`.

    The normalisation :math:`\hat A = D^{-1/2} (A + I) D^{-1/2}` is computed once per graph.
    """

    def make_layer(self, in_channels: int, out_channels: int, last: bool) -> nn.Module:
        return GCNConv(in_channels, out_channels, normalize=False)

    def layer(self, conv: Any, h: Tensor, graph: Graph) -> Tensor:
        if not graph.is_sparse:
            return conv(h, *graph.gcn_edges())
        if h is graph.x:
            return graph.aggregate_features("gcn", conv.lin.weight) + conv.bias
        return spmm(graph.gcn(), conv.lin(h)) + conv.bias


class GAT(Encoder):
    """Graph attention with self-loops, PyG's ``GATConv``.

    Args:
        hidden_channels: Width of the hidden layers, all heads together; a multiple of ``heads``.
        num_layers: Number of layers.
        dropout: Probability to drop an entry of a hidden layer, and an attention coefficient.
        heads: Attention heads of the hidden layers (the last layer has one).
    """

    def __init__(self, hidden_channels: int = 64, num_layers: int = 2, dropout: float = 0.5, heads: int = 8) -> None:
        super().__init__(hidden_channels, num_layers, dropout)
        if heads < 1 or hidden_channels % heads:
            raise ValueError(
                f"`GAT` splits its hidden channels among its heads, but `model.init_args.encoder.init_args` has "
                f"hidden_channels: {hidden_channels}, heads: {heads}. Use a multiple."
            )
        self.heads = heads

    def make_layer(self, in_channels: int, out_channels: int, last: bool) -> nn.Module:
        heads, width = (1, out_channels) if last else (self.heads, out_channels // self.heads)
        conv = GATConv(in_channels, width, heads, dropout=self.dropout)
        conv.lin = SparseInputLinear(in_channels, heads * width, bias=False, weight_initializer="glorot")
        return conv

    def layer(self, conv: Any, h: Tensor, graph: Graph) -> Tensor:
        return conv(h, graph.edge_index)


class GIN(Encoder):
    r"""Graph isomorphism network, PyG's ``GINConv``: :math:`h_v^k = \sigma(\mathrm{MLP}(h_v + \sum_{u \in N(v)} h_u))`.

    The MLP is Linear, ReLU, Linear, without batch normalisation.
    """

    def make_layer(self, in_channels: int, out_channels: int, last: bool) -> nn.Module:
        width = self.hidden_channels
        return GINConv(nn.Sequential(nn.Linear(in_channels, width), nn.ReLU(), nn.Linear(width, out_channels)))

    def layer(self, conv: Any, h: Tensor, graph: Graph) -> Tensor:
        if not graph.is_sparse:
            return conv(h, graph.edge_index)
        if h is not graph.x:
            return conv.nn(h + spmm(graph.sum(), h))
        first = conv.nn[0]
        own = spmm(graph.features(), first.weight.t())
        return conv.nn[1:](own + spmm(graph.sum(), own) + first.bias)
