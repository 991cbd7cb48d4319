r"""FED-PUB, server half: personalised subgraph federated learning (Baek, Jeong, Jin, Yoon, Hwang; ICML 2023).

G~            SBM of 5 x 100 nodes, p_in .1, p_out 0, features N(0, 1)      proxy_graph
h_i           mean over the nodes of f(G~; theta_i), at the client          lit_models.functional_embedding
S(i, j)       cos(h_i, h_j)                                                 cosine_similarity
alpha_ij      exp(tau S_ij) / sum_k exp(tau S_ik), k includes i             similarity_weights
theta_bar_i   sum_j alpha_ij theta_j                                        personal_average

The client half (masks, L1 and proximal terms) is ``lit_models/masks.py`` and ``lit_models/objectives/fedpub.py``.
"""

from __future__ import annotations

import hashlib

import networkx as nx
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.utils import coalesce


def cosine_similarity(embeddings: Tensor) -> Tensor:
    r"""Similarity :math:`S_{ij} = \cos(h_i, h_j)` of K clients.

    Args:
        embeddings: One functional embedding per client, shape ``(K, H)``. A zero row counts as orthogonal to all.

    Returns:
        Shape ``(K, K)``, symmetric, computed in float64 and cast back.
    """
    if embeddings.dim() != 2:
        raise ValueError(f"`embeddings` needs shape (clients, hidden), but has {tuple(embeddings.shape)}.")
    unit = F.normalize(embeddings.double(), dim=-1, eps=1e-300)  # only an exact zero is no direction
    return (unit @ unit.T).to(embeddings.dtype)


def similarity_weights(embeddings: Tensor, tau: float) -> Tensor:
    r"""Mixing matrix :math:`\alpha_{ij} = \mathrm{softmax}_j(\tau \cos(h_i, h_j))` of K clients.

    Args:
        embeddings: One functional embedding per client, shape ``(K, H)``; a zero row is orthogonal to all others.
        tau: Scale of the similarities; ``0`` gives the plain mean.

    Returns:
        Shape ``(K, K)``; rows sum to one and include the client itself.
    """
    return torch.softmax(tau * cosine_similarity(embeddings), dim=-1)


def personal_average(alpha: Tensor, stacked: Tensor) -> Tensor:
    r"""Personal weights :math:`\bar\theta_i = \sum_j \alpha_{ij} \theta_j` as one matrix product.

    Args:
        alpha: Mixing matrix, shape ``(R, K)``: R receivers, K senders.
        stacked: Flattened shared weights of the senders, shape ``(K, P)``, floating point.

    Returns:
        Shape ``(R, P)``, summed in float64 and cast back to the type of ``stacked``.

    Raises:
        ValueError: If the shapes do not fit, or ``stacked`` holds integers (counters are never averaged).
    """
    if alpha.dim() != 2 or stacked.dim() != 2 or alpha.shape[1] != stacked.shape[0]:
        raise ValueError(
            "`alpha` (receivers, senders) and `stacked` (senders, weights) do not fit: "
            f"{tuple(alpha.shape)} and {tuple(stacked.shape)}."
        )
    if not stacked.is_floating_point():
        raise ValueError(f"Only floating-point weights can be averaged, but `stacked` is {stacked.dtype}.")
    return (alpha.double() @ stacked.double()).to(stacked.dtype)


def proxy_graph(
    num_features: int, num_blocks: int = 5, block_size: int = 100, p_in: float = 0.1, p_out: float = 0.0, seed: int = 0
) -> Data:
    r"""The random graph :math:`\tilde G` on which clients are compared: a stochastic block model with normal features.

    It depends on nothing but the arguments (no client data), so every site can build the same one.

    Args:
        num_features: Features per node, as the clients' graphs have.
        num_blocks: Communities.
        block_size: Nodes per community.
        p_in: Probability of an edge within a community.
        p_out: Probability of an edge between communities.
        seed: Seeds the edges (networkx) and the features (torch), each with a generator of its own.

    Returns:
        ``Data`` with ``x`` ``(N, num_features)`` and ``edge_index`` ``(2, E)``, both directions, no self loops, sorted.
    """
    if num_features < 1 or num_blocks < 1 or block_size < 1:
        raise ValueError(
            "A proxy graph needs at least one feature, block and node, but was asked for "
            f"num_features={num_features}, num_blocks={num_blocks}, block_size={block_size}."
        )
    if not (0 <= p_in <= 1 and 0 <= p_out <= 1):
        raise ValueError(f"`p_in` and `p_out` are probabilities, but are {p_in} and {p_out}.")
    num_nodes = num_blocks * block_size
    graph = nx.random_partition_graph([block_size] * num_blocks, p_in, p_out, seed=seed)
    edges = torch.tensor(list(graph.edges), dtype=torch.int64).reshape(-1, 2).T
    edge_index = coalesce(torch.cat([edges, edges.flip(0)], dim=1), num_nodes=num_nodes)
    generator = torch.Generator().manual_seed(_feature_seed(seed))
    x = torch.randn(num_nodes, num_features, generator=generator)
    return Data(x=x, edge_index=edge_index, num_nodes=num_nodes)


def _feature_seed(seed: int) -> int:
    """The features' own random stream, independent of the edges'."""
    return int.from_bytes(hashlib.sha256(f"fedpub proxy features {seed}".encode()).digest()[:7], "big")
