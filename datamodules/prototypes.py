r"""Class prototypes for missing neighbours (our own, no paper's). Pure functions.

What a missing neighbour of node v looks like on average, from sums that clients can send without naming a node:

    mu_c = sum of the features of all clients' training nodes of class c / their number          (1)
    T_cd = links from training nodes of class c to training nodes of class d / those of class c  (2)
    x_v  = sum_d (q_v T)_d mu_d,  q_v: the probabilities of v's classes                          (3)

A class of which a client has fewer than ``min_nodes`` training nodes is left out of its sums, so that none is a single row.
Classes that nobody has sent have no prototype: in the rows of T they get no weight, and the others' is scaled to sum 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules.sparse import select_rows


def class_sums(graph: Data, num_classes: int, min_nodes: int) -> dict[str, Tensor]:
    """What one client contributes to (1) and (2).

    Args:
        graph: With ``x`` (dense or CSR, ``(N, F)``), ``y``, ``train_mask`` and ``edge_index``.
        num_classes: C.
        min_nodes: Classes with fewer training nodes are left out.

    Returns:
        ``features`` float64 ``(C, F)``, ``nodes`` int64 ``(C,)`` and ``links`` int64 ``(C, C)``.
    """
    label = torch.where(graph.train_mask, graph.y, -1)
    nodes = torch.bincount(label[label >= 0], minlength=num_classes)
    told = nodes >= min_nodes
    label = torch.where((label >= 0) & told[label.clamp(min=0)], label, -1)
    rows = (label >= 0).nonzero().squeeze(1)
    x = select_rows(graph.x, rows)
    x = x if x.layout == torch.strided else x.to_dense()
    features = torch.zeros(num_classes, graph.x.shape[1], dtype=torch.float64).index_add_(0, label[rows], x.double())
    source, target = label[graph.edge_index]
    linked = (source >= 0) & (target >= 0)
    pairs = torch.bincount(source[linked] * num_classes + target[linked], minlength=num_classes**2)
    return {"features": features, "nodes": torch.where(told, nodes, 0), "links": pairs.view(num_classes, num_classes)}


def prototypes(features: Tensor, nodes: Tensor, links: Tensor) -> tuple[Tensor, Tensor]:
    """Equations (1) and (2), from sums over all clients (shapes as in :func:`class_sums`).

    Returns:
        ``mu`` float32 ``(C, F)``, zero where nobody has sent a class; and ``T`` float32 ``(C, C)``, whose rows sum to 1 over
        classes with a prototype: a class without a link stays among its own kind, and one without a prototype, of which
        nothing is known, is followed by any class as often as that has nodes.
    """
    known = nodes > 0
    mu = features / nodes.clamp(min=1).unsqueeze(1)
    weights = links.double() * known
    alone = (weights.sum(1) == 0) & known
    weights[alone, alone] = 1.0
    weights[~known] = nodes.double()
    return mu.float(), (weights / weights.sum(1, keepdim=True).clamp(min=1e-300)).float()


def expected_neighbours(probabilities: Tensor, mu: Tensor, transitions: Tensor) -> Tensor:
    """Equation (3) for every node.

    Args:
        probabilities: q, ``(N, C)``.
        mu: ``(C, F)``.
        transitions: T, ``(C, C)``.

    Returns:
        Shape ``(N, F)``.
    """
    return probabilities @ transitions @ mu
