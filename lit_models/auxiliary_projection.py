r"""Auxiliary projection: FedAux's classifier of nodes (Zhuo, Zhan, Yu; NeurIPS 2025), around any encoder of nodes.

.. math:: s_i = \cos(h_i, a)                                                                   \qquad\text{`scores`}
.. math:: z_i = \frac{1}{M_i} \sum_j \kappa_{ij} h_j, \quad
          \kappa_{ij} = \exp\left(-\frac{(s_i - s_j)^2}{\sigma^2}\right), \quad M_i = \sum_j \kappa_{ij}
                                                                                        \qquad\text{`kernel_mean`}
.. math:: \mathrm{logits}_i = W\, [h_i \,\|\, z_i] + b                              \qquad\text{`AuxiliaryProjection`}

h are the encoder's outputs, a is learned with the rest. So nodes are put on a line by a, and each is told what the nodes near
to it on that line look like. The server compares clients by their a (``fl_lightning.strategies.FedAux``).

Of what is open, the authors' code was followed: the score is the cosine, so that neither the length of a nor that of h counts;
h is taken after ReLU and dropout, in both halves; a begins uniform between 0 and 1.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lit_models.base import inner_entries

PROJECTION = "projection"
"""The last part of the name of a, in any module that has one."""

MOST_PAIRS = 2**24
"""Pairs of nodes whose kernel is in memory at once (64 MiB a matrix in single precision)."""


def scores(h: Tensor, a: Tensor) -> Tensor:
    r"""Where each node lies on the line: :math:`s_i = \cos(h_i, a)`; 0 for a zero row.

    Args:
        h: Embeddings, shape ``(N, H)``.
        a: The projection, shape ``(H,)``.

    Returns:
        Shape ``(N,)``, from -1 to 1.
    """
    return F.cosine_similarity(h, a.unsqueeze(0), dim=-1)


def kernel_mean(h: Tensor, s: Tensor, sigma: float, most_pairs: int = MOST_PAIRS) -> Tensor:
    r"""Mean of all nodes' embeddings, weighted by how near they lie: :math:`z_i = \sum_j \kappa_{ij} h_j / M_i`.

    Every pair of nodes counts, so the time is O(N^2 H). The memory is O(N^2) up to ``most_pairs`` and stays there: beyond, rows
    are taken in groups, and computed once more for the gradient.

    Args:
        h: Embeddings, shape ``(N, H)``.
        s: Scores, shape ``(N,)``.
        sigma: Width of the kernel, above 0. Scores differ by 2 at most.
        most_pairs: Pairs that are in memory at once.

    Returns:
        Shape ``(N, H)``.
    """
    rows = max(1, most_pairs // max(1, len(s)))
    if rows >= len(s):
        return _kernel_rows(s, s, h, sigma)
    parts = [
        checkpoint(_kernel_rows, part, s, h, sigma, use_reentrant=False, preserve_rng_state=False) for part in s.split(rows)
    ]
    return torch.cat(parts)


def _kernel_rows(of: Tensor, s: Tensor, h: Tensor, sigma: float) -> Tensor:
    kappa = torch.exp(-((of.unsqueeze(1) - s.unsqueeze(0)).square() / sigma**2))
    return kappa @ h / kappa.sum(dim=1, keepdim=True)


class AuxiliaryProjection(nn.Module):
    """An encoder of nodes whose outputs are classified together with their mean over the nodes near to them on a learned line.

    All nodes of a batch are compared: those of a client's graph where it trains on the whole graph, those drawn where it
    samples neighbours.

    Args:
        encoder: An encoder with ``hidden_channels`` H, e.g. `GCN`, `GraphSAGE`; all its layers are built, the last one for H
            outputs, so that ``num_layers: 2`` are two convolutions before the classifier.
        sigma: Width of the kernel against scores from -1 to 1. With a wide one (10, as in the authors' call) every z is almost
            the mean of all nodes, and a has hardly a gradient.
        dropout: Probability to drop an entry of h, in training.
    """

    def __init__(self, encoder: nn.Module, sigma: float = 1.0, dropout: float = 0.5) -> None:
        super().__init__()
        if not isinstance(getattr(encoder, "hidden_channels", None), int):
            raise ValueError(
                "`AuxiliaryProjection` asks its encoder for `hidden_channels`, the width of what it projects, but "
                f"`{type(encoder).__name__}` has none. Set it in the encoder's `__init__`, or use `lit_models.GCN`."
            )
        if not 0 < sigma < float("inf"):
            raise ValueError(f"`model.init_args.encoder.init_args.sigma` must be a number above 0, but is {sigma}.")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"`model.init_args.encoder.init_args.dropout` must be 0 or more and below 1, but is {dropout}.")
        self.encoder: Any = encoder
        self.sigma, self.dropout = sigma, dropout
        self.private_entries = inner_entries("encoder", encoder, "private_entries")
        self.head_entries = ("head.*",)
        self._widths: tuple[int, int] | None = None

    def build(self, in_channels: int, out_channels: int) -> None:
        """Create the layers; a second call with the same widths does nothing, with others it is a ``ValueError``."""
        width = self.encoder.hidden_channels
        self.encoder.build(in_channels, width)
        if self._widths is None:
            self.projection = nn.Parameter(torch.rand(width))
            self.head = nn.Linear(2 * width, out_channels)
            self._widths = (in_channels, out_channels)
        elif self._widths != (in_channels, out_channels):
            raise ValueError(
                f"`AuxiliaryProjection` was built for (inputs, outputs) {self._widths} and cannot be rebuilt for "
                f"{(in_channels, out_channels)}. Use a new encoder."
            )

    def embed(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Input of the classifier, ``[h || z]`` without dropout of h, shape ``(N, 2 H)``."""
        return self._with_mean(self.encoder(x, edge_index).relu())

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits: ``x`` ``(N, F)``, dense or ``torch.sparse_csr``, ``edge_index`` ``(2, E)`` -> ``(N, C)``."""
        h = F.dropout(self.encoder(x, edge_index).relu(), self.dropout, self.training)
        return self.head(self._with_mean(h))

    def _with_mean(self, h: Tensor) -> Tensor:
        return torch.cat([h, kernel_mean(h, scores(h, self.projection), self.sigma)], dim=-1)
