r"""dGen and fGen of NeighGen (FedSage+), what they can generate, and a graph with what they have generated.

ñ_v     = activation(w z_v + b)                                                         CountGenerator
x̃_v^p   = sigma(MLP(z_v + eps))^p, p = 1..P                                             FeatureGenerator
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lit_models.sparse import is_sparse

FEATURE_RANGES = ("tanh", "sigmoid", "relu", "identity")
COUNT_ACTIVATIONS = ("softplus", "relu")


class CountGenerator(nn.Module):
    """dGen: ñ_v = activation(w z_v + b) >= 0, shape ``(N,)``.

    Args:
        embedding_channels: d_z.
        activation: ``"softplus"``, which always has a gradient, or ``"relu"``, which can die: predict 0 for ever.
    """

    def __init__(self, embedding_channels: int, activation: Literal["softplus", "relu"] = "softplus") -> None:
        super().__init__()
        if activation not in COUNT_ACTIVATIONS:
            raise ValueError(f"`count_activation: {activation}` is unknown; use one of {', '.join(COUNT_ACTIVATIONS)}.")
        self.activation = activation
        self.linear = nn.Linear(embedding_channels, 1)

    def start_at(self, mean_count: float) -> None:
        """Bias so that ñ = mean(n_v) at z = 0. From b ~ 0 a ReLU can start at zero for every node and never learn."""
        bias = mean_count if self.activation == "relu" else math.log(math.expm1(max(mean_count, 1e-3)))
        nn.init.constant_(self.linear.bias, bias)

    def forward(self, z: Tensor) -> Tensor:
        out = self.linear(z).squeeze(-1)
        return out.relu() if self.activation == "relu" else F.softplus(out)


class FeatureGenerator(nn.Module):
    """fGen: an MLP from U = z + eps to P candidate feature vectors, of which only the drawn ones are computed.

    Its output depends on its arguments and weights alone, not on train or eval mode: in the exchange two clients must
    compute the same function.

    Args:
        embedding_channels: d_z.
        num_features: F.
        num_slots: P.
        hidden_channels: Widths of the hidden layers.
        feature_range: What bounds the output: ``tanh`` (-1, 1), ``sigmoid`` (0, 1), ``relu`` or ``identity``.
    """

    def __init__(
        self,
        embedding_channels: int,
        num_features: int,
        num_slots: int = 5,
        hidden_channels: tuple[int, ...] | list[int] = (256, 256),
        feature_range: str = "tanh",
    ) -> None:
        super().__init__()
        if feature_range not in FEATURE_RANGES:
            raise ValueError(f"`feature_range: {feature_range}` is unknown; use one of {', '.join(FEATURE_RANGES)}.")
        self.num_features, self.num_slots, self.feature_range = num_features, num_slots, feature_range
        widths = [embedding_channels, *hidden_channels]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.out = nn.Linear(widths[-1], num_slots * num_features)

    def start_at(self, mean_features: Tensor) -> None:
        """Start near the mean feature vector, shape ``(F,)``, the best constant."""
        start = mean_features.to(self.out.bias)
        if self.feature_range == "tanh":
            start = start.clamp(-0.999, 0.999).atanh()
        elif self.feature_range == "sigmoid":
            start = start.clamp(1e-4, 1 - 1e-4).logit()
        with torch.no_grad():
            self.out.bias.copy_(start.repeat(self.num_slots))
            self.out.weight.mul_(0.1)

    def forward(self, u: Tensor, slots: Tensor, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
        """Candidates of the drawn slots.

        Args:
            u: z + eps, shape ``(B, d_z)``.
            slots: Which slots are drawn, bool, shape ``(B, P)``.
            dropout: Probability to drop a hidden unit, from torch's global RNG.

        Returns:
            Candidates ``(Q, F)`` and the row of ``u`` that each comes from ``(Q,)``, slot by slot; Q slots are drawn.
        """
        h = u
        for layer in self.hidden:
            h = F.dropout(layer(h).relu(), dropout)
        candidates, owner = [], []
        weights, biases = self.out.weight.chunk(self.num_slots), self.out.bias.chunk(self.num_slots)
        for slot, weight, bias in zip(slots.T, weights, biases, strict=True):
            rows = slot.nonzero().squeeze(1)
            candidates.append(F.linear(h[rows], weight, bias))
            owner.append(rows)
        out = torch.cat(candidates)
        if self.feature_range != "identity":
            out = getattr(torch, self.feature_range)(out)
        return out, torch.cat(owner)


def check_features(x: Tensor, feature_range: str) -> None:
    """Can these features, dense or sparse CSR, be generated?

    Raises:
        ValueError: They are not finite, or outside what ``feature_range`` can generate.
    """
    values = x.values() if is_sparse(x) else x
    if not bool(torch.isfinite(values).all()):
        raise ValueError("NeighGen needs finite features, but some are NaN or infinite; clean `x` first.")
    low, high = {"sigmoid": (0, 1), "tanh": (-1, 1), "relu": (0, torch.inf)}.get(feature_range, (-torch.inf, torch.inf))
    if bool(((values < low) | (values > high)).any()):
        raise ValueError(
            f"Features go from {float(values.min()):g} to {float(values.max()):g}, but `feature_range: "
            f"{feature_range}` of LitNeighGen generates {low} to {high} only. Use `feature_range: identity`."
        )


def attach(x: Tensor, edge_index: Tensor, candidates: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` and edges with each candidate as a new neighbour of its owner, in both directions; differentiable."""
    dense = x.to_dense()
    new = torch.arange(len(dense), len(dense) + len(owner), device=owner.device)
    edges = torch.cat([edge_index, torch.stack([owner, new]), torch.stack([new, owner])], dim=1)
    return torch.cat([dense.to(candidates), candidates]), edges
