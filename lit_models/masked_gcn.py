r"""MaskedGCN: FED-PUB's model (Baek et al., ICML 2023), and the same network without masks for its baselines.

.. math:: z = \hat A\,\mathrm{dropout}(\mathrm{ReLU}(\hat A X \theta_1 + b_1))\,\theta_2 + b_2, \qquad
          \mathrm{logits} = \mathrm{dropout}(\mathrm{ReLU}(z))\,\theta_3 + b_3, \qquad \theta_k = W_k \odot \mu_k

The mean of :math:`z` over the nodes of a proxy graph is a client's functional embedding (`functional_embedding`).
`Masked` puts masks on any other encoder. What masks are is in `lit_models.masks`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from lit_models.base import inner_entries
from lit_models.encoders import GCN
from lit_models.masks import PRIVATE_MASKS, apply_masks
from lit_models.sparse import Graph, spmm


class GCNWithHead(GCN):
    r"""Graph convolutions and a linear classifier: ``convs.0``, ReLU, dropout, ``convs.1``, ReLU, dropout, ``head``.

    Args:
        hidden_channels: Width H of all convolutions.
        num_layers: Number of convolutions.
        dropout: Probability to drop an entry after each ReLU, in training.
        head_init: Initial classifier: ``"linear"``, that of ``nn.Linear``, or ``"glorot"``, uniform on
            :math:`\pm\sqrt{6 / (H + C)}`, and for the bias, seen as a 1 x C matrix, on :math:`\pm\sqrt{6 / (1 + C)}`.
            FED-PUB's code has the first in FedAvg and the second in its masked model. Convolutions are always glorot
            with bias 0.
    """

    def __init__(
        self,
        hidden_channels: int = 128,
        num_layers: int = 2,
        dropout: float = 0.5,
        head_init: Literal["linear", "glorot"] = "linear",
    ) -> None:
        super().__init__(hidden_channels, num_layers, dropout)
        if head_init not in ("linear", "glorot"):
            raise ValueError(f"`head_init` must be `linear` or `glorot`, but is {head_init!r}.")
        self.head_init = head_init

    @property
    def head_entries(self) -> tuple[str, ...]:
        return ("head.*",)

    def build(self, in_channels: int, out_channels: int) -> None:
        if self._widths is not None:
            return super().build(in_channels, out_channels)  # nothing to do, or its ValueError
        super().build(in_channels, out_channels)
        self.head = nn.Linear(self.hidden_channels, out_channels)
        if self.head_init == "glorot":
            nn.init.xavier_uniform_(self.head.weight)
            bound = math.sqrt(6 / (1 + out_channels))
            nn.init.uniform_(self.head.bias, -bound, bound)

    def make_layer(self, in_channels: int, out_channels: int, last: bool) -> nn.Module:
        return super().make_layer(in_channels, self.hidden_channels, last)

    def layer(self, conv: Any, h: Tensor, graph: Graph) -> Tensor:
        if graph.is_sparse:
            return super().layer(conv, h, graph)
        return spmm(graph.gcn(), conv.lin(h)) + conv.bias  # as the convolution; its messages take 50 times longer

    def pre_activation(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Output of the last convolution before its ReLU, shape ``(N, H)``: what FED-PUB compares clients by."""
        return super().forward(x, edge_index)

    def embed(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Input of the classifier before its dropout, shape ``(N, H)``."""
        return self.pre_activation(x, edge_index).relu()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits: ``x`` ``(N, F)``, dense or ``torch.sparse_csr``, ``edge_index`` ``(2, E)`` -> ``(N, C)``."""
        return self.head(F.dropout(self.embed(x, edge_index), self.dropout, self.training))


class MaskedGCN(GCNWithHead):
    """`GCNWithHead` with a personal mask on each of its weight matrices (``convs.*.lin.mask``, ``head.mask``).

    Args:
        hidden_channels: Width H of all convolutions.
        num_layers: Number of convolutions.
        dropout: Probability to drop an entry after each ReLU, in training.
        prune_below: Mask entries of smaller absolute value count as zero in evaluation; never in training.
        head_init: See `GCNWithHead`.
    """

    private_entries = PRIVATE_MASKS

    def __init__(
        self,
        hidden_channels: int = 128,
        num_layers: int = 2,
        dropout: float = 0.5,
        prune_below: float = 1e-3,
        head_init: Literal["linear", "glorot"] = "glorot",
    ) -> None:
        super().__init__(hidden_channels, num_layers, dropout, head_init)
        self.prune_below = prune_below

    def build(self, in_channels: int, out_channels: int) -> None:
        super().build(in_channels, out_channels)
        apply_masks(self, self.prune_below)


class Masked(nn.Module):
    """Any encoder with a mask on each of its weight matrices, for example ``Masked(GraphSAGE())``.

    Args:
        encoder: An encoder with ``build``, ``forward`` and ``embed``.
        prune_below: Mask entries of smaller absolute value count as zero in evaluation; never in training.
    """

    private_entries = PRIVATE_MASKS

    def __init__(self, encoder: nn.Module, prune_below: float = 1e-3) -> None:
        super().__init__()
        self.encoder = encoder
        self.prune_below = prune_below

    @property
    def head_entries(self) -> tuple[str, ...]:
        """Those of the encoder."""
        return inner_entries("encoder", self.encoder, "head_entries")

    def build(self, in_channels: int, out_channels: int) -> None:
        self.encoder.build(in_channels, out_channels)  # type: ignore[operator]  # a method of every encoder
        apply_masks(self.encoder, self.prune_below)

    def embed(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.encoder.embed(x, edge_index)  # type: ignore[operator]  # a method of every encoder

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.encoder(x, edge_index)
