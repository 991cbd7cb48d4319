r"""AdaFGL's personal step: two heads over a client's graph as the shared model sees it (Li et al., ICDE 2024, 2401.11750).

P        softmax(f(X, A)), f the shared encoder in evaluation mode, which is not trained any more     `View.of`
S        1 where cos(P_u, P_v) > 0.999 and u != v, else 0                                            `alike`
Â        D^-1/2 (alpha A + (1 - alpha) S + I) D^-1/2, D its row sums                                 `mixed_topology`
X~       [X || Â X || ... || Â^K X]                                                                  `hops`

homophilous      z = MLP(X~)                                          loss CE(z) + mean (z - P)^2, Y_ho = (softmax z + P) / 2
heterophilous    o = MLP(X), s = MLP(X~), e = MLP(X~)
                 R = beta S + (1 - beta) cos(softmax e), diagonal 0                                  `likeness`
                 T = R above and below its mean, scaled to 1 and -1, diagonal 1                      `signed`
                 m = (softmax(phi(T) e) - softmax(phi(-T) e) + e) / 2, phi = PReLU                   `messages`
                                                     loss CE(o) + CE(s) + CE(m), Y_he = mean of the three softmaxes
HCS              from one half of the training labels, 10 steps of Y <- Â_0 Y / 2 + Y^0 / 2 over A alone; the share of
                 the other half that is then right                                                   `homophily_confidence`
output           HCS Y_ho + (1 - HCS) Y_he                                                           `combine`

CE is over training nodes, the mean of squares over all nodes and classes. The equations were read in two public codes of the
authors, which differ, and in summaries of the paper; its own text was not at hand. What was followed?
- Both heads are trained and mixed by HCS (the summaries, and github.com/xkLi-Allen/OpenFGL); github.com/xkLi-Allen/AdaFGL
  trains one of them, the homophilous one if HCS is at least 0.9.
- S has a threshold, and z is compared with P as it is, without a softmax (both codes); alpha .05 and beta .2 (AdaFGL's).
- P is one softmax of the logits (the summaries). In the codes it goes through a second one before S and Y_ho,
  which flattens it.
- Not followed: the codes give a pair just below the mean of R the most negative T, and the least alike pair 0; and a node with
  a label gets it once more in each step of the propagation. Each MLP has a PReLU of its own; there o and s share one.

All pairs of nodes are compared: O(N^2 F) time, O(N^2) memory, so that graphs of more than `MOST_NODES` nodes are refused.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lit_models.label_propagation import propagate_labels
from lit_models.sparse import is_sparse, remember

ALIKE = 0.999
"""From which cosine on two nodes are linked in S."""

LEAST = 1e-9
"""Below it nothing is divided by: a graph of one node has no pair."""

MOST_NODES = 2**13
"""Nodes of the largest graph: a matrix of all pairs then has 256 MiB in single precision; training holds about ten."""


def check_size(num_nodes: int) -> None:
    """Can all pairs of nodes be compared?

    Raises:
        ValueError: There are more than `MOST_NODES` nodes.
    """
    if num_nodes > MOST_NODES:
        raise ValueError(
            f"AdaFGL compares all pairs of a client's nodes and takes at most {MOST_NODES} nodes, but a client has "
            f"{num_nodes}. Cut the graph into more clients (`data.init_args.num_clients`), or use "
            "`federation.strategy: FedGTA`."
        )


# ---- the graph as the shared model sees it ------------------------------------------------------------------------------


def likeness(probabilities: Tensor) -> Tensor:
    """Cosine of each pair of rows, 0 on the diagonal; ``(N, C)`` -> ``(N, N)``."""
    unit = F.normalize(probabilities, dim=-1)
    return _with_diagonal(unit @ unit.T, 0.0)


def _with_diagonal(matrix: Tensor, value: float) -> Tensor:
    return matrix.masked_fill(torch.eye(len(matrix), dtype=torch.bool, device=matrix.device), value)


def alike(probabilities: Tensor, threshold: float = ALIKE) -> Tensor:
    """S: 1.0 for two nodes whose probabilities have a cosine above the threshold; ``(N, C)`` -> ``(N, N)``."""
    return (likeness(probabilities) > threshold).to(probabilities.dtype)


def mixed_topology(edge_index: Tensor, s: Tensor, alpha: float) -> Tensor:
    r""":math:`\hat A = D^{-1/2} (\alpha A + (1 - \alpha) S + I) D^{-1/2}`.

    Args:
        edge_index: Links in both directions without self-loops, int64 ``(2, E)``.
        s: S, ``(N, N)``.
        alpha: Weight of the graph's own links, from 0 to 1.

    Returns:
        Dense, ``(N, N)``.
    """
    matrix = (1 - alpha) * s + torch.eye(len(s), dtype=s.dtype, device=s.device)
    weight = torch.full(edge_index.shape[1:], alpha, dtype=s.dtype, device=s.device)
    matrix.index_put_((edge_index[1], edge_index[0]), weight, accumulate=True)
    root = matrix.sum(1).rsqrt()
    return root.unsqueeze(1) * matrix * root


def hops(x: Tensor, matrix: Tensor, num_hops: int) -> Tensor:
    r""":math:`[X \,\|\, \hat A X \,\|\, \dots \,\|\, \hat A^K X]`: ``(N, F)`` and ``(N, N)`` -> ``(N, (K + 1) F)``."""
    steps = [x]
    for _ in range(num_hops):
        steps.append(matrix @ steps[-1])
    return torch.cat(steps, dim=-1)


class View(NamedTuple):
    """What does not change in the personal step.

    Args:
        p: P, ``(N, C)``.
        s: S, ``(N, N)``.
        x: X~, ``(N, (K + 1) F)``; the first F columns are X.
    """

    p: Tensor
    s: Tensor
    x: Tensor

    @classmethod
    def of(cls, encoder: nn.Module, x: Tensor, edge_index: Tensor, alpha: float, num_hops: int) -> View:
        """The graph as this encoder sees it, without a gradient, remembered until its weights or the graph change.

        Args:
            encoder: The shared one; modes and random streams stay as they are.
            x: Features, dense or ``torch.sparse_csr``, ``(N, F)``.
            edge_index: As for :func:`mixed_topology`.
            alpha: As there.
            num_hops: K.

        Raises:
            ValueError: As :func:`check_size`.
        """
        check_size(x.size(0))

        def compute() -> View:
            p = _evaluated(encoder, x, edge_index).softmax(-1)
            s = alike(p)
            dense = (x.to_dense() if is_sparse(x) else x).to(p.dtype)
            return cls(p, s, hops(dense, mixed_topology(edge_index, s, alpha), num_hops))

        weights = (*encoder.parameters(), *encoder.buffers())
        return remember(("personal view", alpha, num_hops), (edge_index, x, *weights), compute)


@torch.no_grad()
def _evaluated(encoder: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
    modes = [(part, part.training) for part in encoder.modules()]
    encoder.eval()
    try:
        found: Tensor = encoder(x, edge_index)
        return found
    finally:
        for part, training in modes:
            part.training = training


# ---- the heads ----------------------------------------------------------------------------------------------------------


def signed(relation: Tensor) -> Tensor:
    r"""T: above the mean of R :math:`(R - \bar R) / (\max R - \bar R)`, below it :math:`(R - \bar R) / \bar R`; diagonal 1.

    Args:
        relation: R, not negative, ``(N, N)``.

    Returns:
        From -1 (R = 0) over 0 (the mean) to 1 (the largest).
    """
    mean = relation.mean()
    centred = relation - mean
    scaled = torch.where(centred > 0, centred / (relation.max() - mean).clamp_min(LEAST), centred / mean.clamp_min(LEAST))
    return _with_diagonal(scaled, 1.0)


def messages(e: Tensor, s: Tensor, beta: float, phi: nn.Module) -> Tensor:
    r"""Logits :math:`m = (\mathrm{softmax}(\varphi(T) e) - \mathrm{softmax}(\varphi(-T) e) + e) / 2` over all pairs of nodes.

    Args:
        e: ``(N, C)``.
        s: S, ``(N, N)``.
        beta: Weight of S in R.
        phi: What lets positive signals pass, and damps negative ones.
    """
    t = signed(beta * s + (1 - beta) * likeness(e.softmax(-1)))
    return ((phi(t) @ e).softmax(-1) - (phi(-t) @ e).softmax(-1) + e) / 2


class Branches(NamedTuple):
    """Logits z, o, s, m of the four classifiers, ``(N, C)`` each."""

    z: Tensor
    o: Tensor
    s: Tensor
    m: Tensor


def combine(branches: Branches, p: Tensor, confidence: Tensor) -> Tensor:
    """HCS Y_ho + (1 - HCS) Y_he: probabilities ``(N, C)``; ``confidence`` is HCS, a scalar."""
    z, o, s, m = (logits.softmax(-1) for logits in branches)
    return confidence * (z + p) / 2 + (1 - confidence) * (o + s + m) / 3


class Perceptron(nn.Module):
    """Linear layers with one PReLU and dropout between them; Xavier weights for ReLU, no bias at the beginning."""

    def __init__(self, widths: list[int], dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.activation = nn.PReLU()
        for layer in self.layers:
            nn.init.xavier_uniform_(layer.weight, gain=nn.init.calculate_gain("relu"))  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """``(N, widths[0])`` -> ``(N, widths[-1])``."""
        for index, layer in enumerate(self.layers):
            if index:
                x = F.dropout(self.activation(x), self.dropout, self.training)
            x = layer(x)
        return x


class AdaptivePropagation(nn.Module):
    """The homophilous and the heterophilous head.

    Args:
        hidden_channels: Width of the hidden layers: one in the homophilous head, two in each branch of the other.
        hops: K, how far features are propagated.
        alpha: Weight of the graph's own links against those of S.
        beta: Weight of S against what is learned, in R.
        dropout: Probability to drop an entry of a hidden layer in training.
    """

    def __init__(
        self, hidden_channels: int = 64, hops: int = 3, alpha: float = 0.05, beta: float = 0.2, dropout: float = 0.5
    ) -> None:
        super().__init__()
        key = "`model.init_args.personal.init_args"
        if hidden_channels < 1 or hops < 0:
            raise ValueError(f"{key}` needs hidden_channels of at least 1 and hops from 0, got {hidden_channels} and {hops}.")
        for name, share in (("alpha", alpha), ("beta", beta)):
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"{key}.{name}` must be from 0 to 1, got {share}.")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"{key}.dropout` must be 0 or more and below 1, got {dropout}.")
        self.hidden_channels, self.hops, self.alpha, self.beta, self.dropout = hidden_channels, hops, alpha, beta, dropout

    def build(self, in_channels: int, out_channels: int) -> None:
        """Create the layers for F features and C classes."""
        self.in_channels, wide, hidden = in_channels, (self.hops + 1) * in_channels, self.hidden_channels
        self.homophilous = Perceptron([wide, hidden, out_channels], self.dropout)
        self.own = Perceptron([in_channels, hidden, hidden, out_channels], self.dropout)
        self.smoothed = Perceptron([wide, hidden, hidden, out_channels], self.dropout)
        self.propagated = Perceptron([wide, hidden, hidden, out_channels], self.dropout)

    def view(self, encoder: nn.Module, x: Tensor, edge_index: Tensor) -> View:
        """The graph as the shared encoder sees it: :meth:`View.of`."""
        return View.of(encoder, x, edge_index, self.alpha, self.hops)

    def forward(self, view: View) -> Branches:
        """Logits of all four classifiers."""
        propagated = messages(self.propagated(view.x), view.s, self.beta, self.propagated.activation)
        own = self.own(view.x[:, : self.in_channels])
        return Branches(self.homophilous(view.x), own, self.smoothed(view.x), propagated)


# ---- how homophilous a client is -----------------------------------------------------------------------------------------


def homophily_confidence(labels: Tensor, known: Tensor, edge_index: Tensor, num_classes: int, num_steps: int = 10) -> Tensor:
    """HCS: the share of a half of the known labels that the other half predicts, propagated over the graph.

    The halves are drawn from torch's global generator. A node whose label is not given begins with 1 / C for each class.

    Args:
        labels: Class of each node, int64 ``(N,)``; looked at only where known.
        known: Bool ``(N,)``: training nodes with a label.
        edge_index: As for :func:`mixed_topology`.
        num_classes: C.
        num_steps: Steps of the propagation.

    Returns:
        A scalar from 0 to 1; 1/2 with fewer than two known labels, of which nothing can be learnt.
    """
    rows = known.nonzero().flatten()
    given, asked = rows[torch.randperm(len(rows))].tensor_split([len(rows) // 2])
    if not len(given):
        return torch.tensor(0.5)
    start = torch.full((len(labels), num_classes), 1 / num_classes, dtype=torch.float64)
    start[given] = F.one_hot(labels[given], num_classes).to(start.dtype)
    found = propagate_labels(start, edge_index, num_steps)[-1].argmax(-1)
    return (found[asked] == labels[asked]).float().mean()
