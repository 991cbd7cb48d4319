r"""Predict, then propagate: APPNP and GPR-GNN, an MLP on each node's features and K averages over neighbours, without weights.

.. math:: H^0 = \mathrm{MLP}(X), \qquad \hat A = D^{-1/2} (A + I) D^{-1/2}
.. math:: Z^0 = H^0, \quad Z^{k+1} = (1 - \alpha) \hat A Z^k + \alpha H^0, \quad \mathrm{logits} = Z^K \qquad\text{(APPNP)}
.. math:: \mathrm{logits} = \sum_{k=0}^{K} \gamma_k \hat A^k H^0 \qquad\text{(GPR-GNN, } \gamma \text{ learned)}

The MLP is `lit_models.encoders.Encoder` with linear layers (its first one keeps bag-of-words features sparse), so that
``num_layers``, ``dropout`` and ``embed`` mean there what they mean everywhere. The papers' further dropout, of the features and
of the matrix, is not here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lit_models.encoders import Encoder
from lit_models.sparse import Graph, SparseInputLinear, spmm


def start_gamma(hops: int, alpha: float) -> Tensor:
    r"""Weights of APPNP's terms: :math:`\alpha (1 - \alpha)^k`, last :math:`(1 - \alpha)^K`; shape ``(hops + 1,)``."""
    gamma = alpha * (1 - alpha) ** torch.arange(hops + 1, dtype=torch.float64)
    gamma[-1] = (1 - alpha) ** hops
    return gamma.to(torch.get_default_dtype())


class Propagation(Encoder):
    """Base: an MLP, whose outputs are then propagated over the graph.

    Args:
        hidden_channels: Width H of the MLP's hidden layers.
        num_layers: Number of the MLP's layers, at least 1.
        dropout: Probability to drop an entry of a hidden layer in training.
        hops: Number K of averages over neighbours; 0 is the MLP alone.
        alpha: Weight of the node's own prediction against its neighbours', from 0 to 1.
    """

    def __init__(
        self, hidden_channels: int = 64, num_layers: int = 2, dropout: float = 0.5, hops: int = 10, alpha: float = 0.1
    ) -> None:
        super().__init__(hidden_channels, num_layers, dropout)
        if hops < 0 or not 0.0 <= alpha <= 1.0:
            raise ValueError(
                f"`{type(self).__name__}` needs at least 0 hops and 0 <= alpha <= 1, but "
                f"`model.init_args.encoder.init_args` has hops: {hops}, alpha: {alpha}."
            )
        self.hops, self.alpha = hops, alpha

    def make_layer(self, in_channels: int, out_channels: int, last: bool) -> nn.Module:
        return SparseInputLinear(in_channels, out_channels)

    def layer(self, conv: Any, h: Tensor, graph: Graph) -> Tensor:
        return conv(h)

    def propagate(self, h: Tensor, graph: Graph) -> Tensor:
        """What becomes of the MLP's outputs ``h``, shape ``(N, C)``, on this graph; same shape."""
        raise NotImplementedError

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(super().forward(x, edge_index), self._graph(x, edge_index))


class APPNP(Propagation):
    """Personalised PageRank of an MLP's predictions (Gasteiger, Bojchevski, Guennemann; ICLR 2019).

    As PyG's ``torch_geometric.nn.APPNP`` without dropout of its own.
    """

    def propagate(self, h: Tensor, graph: Graph) -> Tensor:
        z = h
        for _ in range(self.hops):
            z = (1 - self.alpha) * spmm(graph.gcn(), z) + self.alpha * h
        return z


class GPRGNN(Propagation):
    """Generalised PageRank: as `APPNP`, with a learned weight ``gamma`` of each hop (Chien, Peng, Li, Milenkovic; ICLR 2021).

    It starts as `APPNP` with the same ``alpha``. A weight may become negative: neighbours of another class then tell, too.
    An optimiser's weight decay pulls on ``gamma`` like on all other parameters (in the authors' code it does not).
    """

    def build(self, in_channels: int, out_channels: int) -> None:
        if self._widths is None:
            self.gamma = nn.Parameter(start_gamma(self.hops, self.alpha))
        super().build(in_channels, out_channels)

    def propagate(self, h: Tensor, graph: Graph) -> Tensor:
        total = self.gamma[0] * h
        for k in range(1, self.hops + 1):
            h = spmm(graph.gcn(), h)
            total = total + self.gamma[k] * h
        return total
