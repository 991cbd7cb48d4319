r"""What FedGTA's clients say of themselves, from labels propagated over their graphs (Li et al., VLDB 2024, arXiv 2401.11755).

p          softmax of the model's outputs                                           (the caller's)
Y^0        the label of a training node, one-hot; p of any other node               with_labels
Y^l        1/2 Â Y^(l-1) + 1/2 Y^0, l = 1..k, Â = D^-1/2 (A + I) D^-1/2             propagate_labels
q^l        softmax(Y^l / T); of a training node its label, one-hot                  soft_labels
H          sum_v deg_v sum_c (1/e + q_vc ln q_vc), q = q^k with T = 20              smoothing_confidence
M          moments of the columns of q^1, ..., q^k with T = 1, orders 1..K          mixed_moments

deg_v counts v's links, without the self-loop of Â. 1/e is the largest value of -q ln q, so no term of H is negative. From the
authors' public code (github.com/xkLi-Allen/FedGTA): q is a softmax of Y, which holds probabilities already; training nodes have
their labels in q; the temperatures. Not followed: there, Y of a training node gets Y^0 once more in each step, and moments are
those of the last step alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lit_models.sparse import Graph, spmm

MOMENTS = ("raw", "central", "mixed")


def with_labels(probabilities: Tensor, labels: Tensor, known: Tensor) -> Tensor:
    """Probabilities in which the nodes whose label is known have it, one-hot.

    Args:
        probabilities: Shape ``(N, C)``; not modified.
        labels: Class of each node, int64 ``(N,)``; looked at only where known.
        known: Bool ``(N,)``.
    """
    result = probabilities.clone()
    result[known] = F.one_hot(labels[known], probabilities.shape[1]).to(result.dtype)
    return result


def propagate_labels(start: Tensor, edge_index: Tensor, num_steps: int) -> list[Tensor]:
    r"""Labels after each step :math:`Y^l = \frac12 \hat A Y^{l-1} + \frac12 Y^0`.

    Args:
        start: :math:`Y^0`, shape ``(N, C)``, floating point.
        edge_index: Links in both directions without self-loops, int64 ``(2, E)``.
        num_steps: k.

    Returns:
        :math:`Y^1` to :math:`Y^k`, shape ``(N, C)`` each. A node without links stays as it is.
    """
    matrix = Graph(start, edge_index).gcn()
    steps = [start]
    for _ in range(num_steps):
        steps.append(0.5 * spmm(matrix, steps[-1]) + 0.5 * start)
    return steps[1:]


def soft_labels(propagated: Tensor, labels: Tensor, known: Tensor, temperature: float = 1.0) -> Tensor:
    r"""q: :math:`\mathrm{softmax}(Y / T)`, in which nodes with a known label have it; shapes as for :func:`with_labels`."""
    return with_labels(torch.softmax(propagated / temperature, dim=-1), labels, known)


def smoothing_confidence(q: Tensor, degree: Tensor) -> Tensor:
    r"""H :math:`= \sum_v \deg_v \sum_c (e^{-1} + q_{vc} \ln q_{vc})`, 0 for a graph without links.

    Args:
        q: Shape ``(N, C)``; :math:`0 \ln 0` is 0.
        degree: Number of links of each node, ``(N,)``.

    Returns:
        A scalar of the type of ``q``.
    """
    return (degree * (math.exp(-1) + torch.xlogy(q, q)).sum(-1)).sum()


def mixed_moments(steps: Sequence[Tensor], order: int, kind: Literal["raw", "central", "mixed"] = "mixed") -> Tensor:
    r"""M: for each step and order o up to K the mean over nodes of :math:`q_{vc}^o` or :math:`(q_{vc} - \bar q_c)^o`.

    Args:
        steps: :math:`q^1` to :math:`q^k`, ``(N, C)`` each.
        order: K, at least 1, with central moments at least 2.
        kind: ``raw`` moments (orders 1 to K), ``central`` ones (2 to K; the first is 0), or ``mixed``: both.

    Returns:
        Shape ``(k * n * C,)``, with n = K, K - 1 or 2 K - 1 by kind (:func:`num_moments`).
    """
    found = []
    for q in steps:
        if kind != "central":
            found += [(q**o).mean(0) for o in range(1, order + 1)]
        if kind != "raw":
            found += [((q - q.mean(0)) ** o).mean(0) for o in range(2, order + 1)]
    return torch.cat(found)


def num_moments(order: int, kind: Literal["raw", "central", "mixed"]) -> int:
    """How many moments :func:`mixed_moments` takes of one column."""
    return {"raw": order, "central": order - 1, "mixed": 2 * order - 1}[kind]
