r"""Functional embedding of a client (FED-PUB): what its model makes of a random graph that all clients share.

.. math:: \tilde h_i = \frac{1}{|\tilde V|} \sum_{v \in \tilde V} f(\tilde G; \theta_i)_v

Computed at the client, after local training, in evaluation mode (no dropout, pruned masks). It is all that leaves the
client beside the shared weights, and the only thing through which its masks can be seen.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def functional_embedding(encoder: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
    r"""Mean over the nodes of the last convolution's output before its ReLU.

    Args:
        encoder: An encoder. Its ``pre_activation(x, edge_index)`` is averaged (`MaskedGCN`); one without that method
            is represented by ``embed(x, edge_index)``, the input of its last layer.
        x: Features of the proxy graph, ``(N, F)``; moved to the encoder's device.
        edge_index: Its edges, ``(2, E)``, both directions.

    Returns:
        Shape ``(H,)``, detached. Weights, buffers, random streams and train/eval modes are as before.
    """
    represent = getattr(encoder, "pre_activation", None) or encoder.embed
    device = next(encoder.parameters()).device
    modes = [(part, part.training) for part in encoder.modules()]
    encoder.eval()
    try:
        return represent(x.to(device), edge_index.to(device)).mean(dim=0)  # type: ignore[operator]  # a method
    finally:
        for part, training in modes:
            part.training = training
