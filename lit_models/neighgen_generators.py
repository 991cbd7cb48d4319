r"""dGen and fGen of NeighGen (FedSage+), and the gradient that one client computes for another's fGen.

ñ_v     = activation(w z_v + b)                                                         CountGenerator
x̃_v^p   = sigma(MLP(z_v + eps))^p, p = 1..P                                             FeatureGenerator
g_{j->i} = grad_{theta^f} alpha / |V̄_i| sum_v sum_p min_{u in V_j} ||x̃_v^p - x_u||^2    peer_gradient
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from lit_models.neighgen_losses import cross_feature_loss, draw_slots

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


def peer_gradient(
    fgen: FeatureGenerator,
    weights: dict[str, Tensor],
    u: Tensor,
    counts: Tensor,
    features: Tensor,
    *,
    num_nodes: int,
    slot_seed: int,
    alpha: float = 1.0,
    sampler: str = "random",
    min_batch: int = 32,
    chunk: int = 1024,
) -> dict[str, Tensor]:
    r"""D_j's answer to D_i: the gradient of the cross-client term with respect to D_i's fGen, summed over the batch.

    A pure function: it reads, of ``fgen``, the architecture only, and changes nothing (no ``.grad``, no mode, no RNG).

    Args:
        fgen: Any `FeatureGenerator` of D_i's architecture, for example D_j's own.
        weights: θ^f of D_i, by parameter name.
        u: z + eps of the nodes with k_v >= 1, shape ``(B, d_z)``.
        counts: k_v >= 1, int64, shape ``(B,)``.
        features: X_j, dense or sparse CSR, shape ``(N_j, F)``.
        num_nodes: |V̄_i|.
        slot_seed: Seed from which D_i drew its slots.
        alpha: α.
        sampler: ``"random"`` or ``"prefix"``, as D_i's.
        min_batch: Smallest sum of counts that is answered: the gradient of one generated vector reveals a row of X_j.
        chunk: Candidates computed at a time; bounds the memory.

    Raises:
        ValueError: The request is smaller than ``min_batch``, its weights do not fit, or it is not finite.
    """
    requested = int(counts.sum())
    if requested < min_batch:
        raise ValueError(
            f"Refused to answer for {requested} generated vectors: fewer than `min_batch: {min_batch}` could reveal a "
            "feature row of this client. The asking client should take its local gradient alone."
        )
    own = dict(fgen.named_parameters())
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in weights.items()}:
        raise ValueError(
            "The generator weights of the request do not fit this client's generator: all clients need the same "
            "`hidden_channels`, `num_slots`, `embedding_channels` and number of features."
        )
    generator = torch.Generator().manual_seed(slot_seed)
    slots = draw_slots(counts, fgen.num_slots, sampler, generator)
    leaves = {name: weights[name].detach().requires_grad_() for name in own}
    total = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    rows = max(1, chunk // fgen.num_slots)
    with torch.enable_grad():
        for part_u, part_slots in zip(u.split(rows), slots.split(rows), strict=True):
            candidates, _ = functional_call(fgen, leaves, (part_u, part_slots))
            loss = cross_feature_loss(candidates, features, num_nodes, alpha, chunk)
            for name, gradient in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
                total[name] += gradient
    check_finite(total, "of a generator request")
    return total


def attach(x: Tensor, edge_index: Tensor, candidates: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` and edges with each candidate as a new neighbour of its owner, in both directions; differentiable."""
    dense = x.to_dense()
    new = torch.arange(len(dense), len(dense) + len(owner), device=owner.device)
    edges = torch.cat([edge_index, torch.stack([owner, new]), torch.stack([new, owner])], dim=1)
    return torch.cat([dense.to(candidates), candidates]), edges


def check_finite(gradients: dict[str, Tensor], what: str) -> None:
    """Raise a ``ValueError`` that names the first gradient with a value that is not finite."""
    for name, gradient in gradients.items():
        if not bool(torch.isfinite(gradient).all()):
            raise ValueError(f"The gradient {what} is not finite in fGen's `{name}`; nothing was changed.")
