r"""Losses, counts and sampler of NeighGen (FedSage+): pure functions, no module, no state.

Client i removes the nodes V^h from its graph. V̄ are those that stay, N^h(v) the removed neighbours of v, n_v their
number.

L^d         = 1/|V̄| sum_v smoothL1(ñ_v - n_v)                                          count_loss
L^f local   = 1/|V̄| sum_v sum_{p in R(v)} min_{u in N^h(v)} ||x̃_v^p - x_u||^2          local_feature_loss
L^f from j  = alpha/|V̄| sum_v sum_{p in R(v)} min_{u in V_j} ||x̃_v^p - x_u||^2         cross_feature_loss
R(v)        = k_v of the P slots, drawn uniformly without replacement                   draw_slots
k_v         = clip(round ñ_v, 0, P), or while training max(that, min(n_v, P))           mend_counts, train_counts

Generated vectors are a flat list: row q of ``candidates`` belongs to node ``owner[q]``, one row for each drawn slot.
Each minimum has two stages: which target is nearest is found without gradient, then the distance to it is taken exactly
with gradient (the gradient of a minimum is that of its argument). A candidate without any target adds zero. Rounding to
k_v carries no gradient.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lit_models.sparse import expand_rows


def count_loss(predicted: Tensor, target: Tensor, beta: float = 1.0) -> Tensor:
    r"""L^d: mean over nodes of smoothL1 between the *unrounded* prediction and n_v, nodes with n_v = 0 included.

    Args:
        predicted: ñ_v, float, shape ``(N,)``.
        target: n_v, any real dtype, shape ``(N,)``; not clipped to P.
        beta: Where the loss turns from quadratic to linear; ``0`` gives the plain L1 distance.

    Returns:
        Scalar; zero with a zero gradient when there is no node.
    """
    if predicted.numel() == 0:
        return predicted.sum()
    return F.smooth_l1_loss(predicted, target.to(predicted.dtype), beta=beta)


def mend_counts(predicted: Tensor, num_slots: int) -> Tensor:
    """k_v = clip(round ñ_v, 0, P), int64, no gradient. Rounding is half to even: 0.5 -> 0, 1.5 -> 2, 2.5 -> 2.

    Raises:
        ValueError: A prediction is not finite.
    """
    if not bool(torch.isfinite(predicted).all()):
        raise ValueError(
            f"NeighGen predicted {int((~torch.isfinite(predicted)).sum())} neighbour counts that are not finite; "
            "check the features for NaN or lower the learning rate (`optimizer.init_args.lr`)."
        )
    return predicted.round().clamp(0, num_slots).long()


def train_counts(predicted: Tensor, target: Tensor, num_slots: int) -> Tensor:
    """k_v = max(clip(round ñ_v, 0, P), min(n_v, P)): while training, a node with hidden neighbours is never skipped.

    Without the second term ñ ≈ 0 at the start means k = 0 everywhere, and the feature generator gets no signal at all.
    """
    return torch.maximum(mend_counts(predicted, num_slots), target.long().clamp(0, num_slots))


def draw_slots(counts: Tensor, num_slots: int, sampler: str = "random", generator: torch.Generator | None = None) -> Tensor:
    """The sampler R: which k_v of the P candidate slots of each node are used.

    Args:
        counts: k_v in 0..P, int64, shape ``(N,)``.
        num_slots: P.
        sampler: ``"random"`` draws uniformly without replacement, ``"prefix"`` takes slots 0..k_v-1.
        generator: CPU generator of the draw; ``None`` is torch's global one. Both ends of an exchange that start from
            the same seed draw the same slots, on any device.

    Returns:
        Bool, shape ``(N, P)``, with exactly k_v True entries in row v.
    """
    return slot_ranks(len(counts), num_slots, sampler, generator).to(counts.device) < counts[:, None]


def slot_ranks(num_nodes: int, num_slots: int, sampler: str = "random", generator: torch.Generator | None = None) -> Tensor:
    """Each node's order of its slots: those of rank below k_v are drawn. int64, ``(N, P)``, on the CPU."""
    if sampler == "prefix":
        return torch.arange(num_slots).expand(num_nodes, num_slots)
    if sampler == "random":
        return torch.rand(num_nodes, num_slots, generator=generator).argsort(dim=1).argsort(dim=1)
    raise ValueError(f"`sampler: {sampler}` is unknown; use `random` (drawn uniformly) or `prefix` (slots 0..k-1).")


def sample_rows(rows: Tensor, num_nodes: int, most: int | None, rng: np.random.Generator | None) -> tuple[Tensor, int]:
    """At most so many of the nodes that take part, and the divisor |V̄| that keeps the loss unbiased.

    Args:
        rows: Nodes whose neighbours are generated, int64, shape ``(B,)``.
        num_nodes: |V̄|.
        most: Number of rows to draw; ``None`` takes all.
        rng: Of the draw; ``None`` is torch's global one.
    """
    if most is None or len(rows) <= most:
        return rows, num_nodes
    order = torch.randperm(len(rows)) if rng is None else torch.from_numpy(rng.permutation(len(rows)))
    chosen = order[:most].sort().values.to(rows.device)
    return rows[chosen], max(1, round(num_nodes * most / len(rows)))


def local_feature_loss(
    candidates: Tensor,
    owner: Tensor,
    pair_ptr: Tensor,
    pair_target: Tensor,
    hidden_x: Tensor,
    num_nodes: int,
    chunk: int = 1024,
) -> Tensor:
    """L^f local: squared distance, summed over features, of each candidate to its owner's nearest hidden neighbour.

    Args:
        candidates: x̃_v^p of the drawn slots, shape ``(Q, F)``.
        owner: The node v of each candidate, int64, shape ``(Q,)``.
        pair_ptr: CSR pointer over nodes, int64, shape ``(N + 1,)``.
        pair_target: Rows of ``hidden_x``; node v's targets are ``pair_target[pair_ptr[v]:pair_ptr[v + 1]]``. All count,
            also beyond P. Neither their order nor duplicates matter.
        hidden_x: Features of the removed nodes, dense, shape ``(H, F)``.
        num_nodes: |V̄|, the divisor.
        chunk: Pairs compared at a time; bounds the memory at ``chunk * F`` floats and changes no result.
    """
    nearest = nearest_hidden(candidates, owner, pair_ptr, pair_target, hidden_x, chunk)
    has_target = (nearest >= 0).nonzero().squeeze(1)
    return (candidates[has_target] - hidden_x[nearest[has_target]]).square().sum() / num_nodes


def cross_feature_loss(candidates: Tensor, features: Tensor, num_nodes: int, alpha: float = 1.0, chunk: int = 1024) -> Tensor:
    """L^f from j, evaluated by another client D_j: distance of each candidate to the nearest of *all* nodes of D_j.

    It does not involve n_v: nodes without hidden neighbours count too. D_j needs no edges.

    Args:
        candidates: x̃_v^p of the drawn slots, shape ``(Q, F)``.
        features: X_j, dense or sparse CSR, shape ``(N_j, F)``; no gradient.
        num_nodes: |V̄_i| of the client that asks, the divisor.
        alpha: α, the weight of the cross-client term.
        chunk: Candidates compared at a time; bounds the memory at ``chunk * (N_j + F)`` floats.
    """
    if features.shape[0] == 0:
        return candidates.sum() * 0.0
    nearest = nearest_row(candidates, features, chunk)
    parts = [
        (rows - dense_rows(features, index).to(rows)).square().sum()
        for rows, index in zip(candidates.split(chunk), nearest.split(chunk), strict=True)
    ]
    return torch.stack(parts).sum() * (alpha / num_nodes)


@torch.no_grad()
def nearest_hidden(
    candidates: Tensor, owner: Tensor, pair_ptr: Tensor, pair_target: Tensor, hidden_x: Tensor, chunk: int = 1024
) -> Tensor:
    """Row of ``hidden_x`` nearest to each candidate among its owner's targets; -1 if it has none. Shape ``(Q,)``.

    Of equally near targets the smallest row is taken, so the choice does not depend on the order of the pairs.
    """
    num_candidates, num_hidden = len(candidates), len(hidden_x)
    pair, query = expand_rows(pair_ptr, owner)  # all (candidate, target) pairs, by candidate
    target = pair_target[pair]
    distance = candidates.new_empty(len(query))
    for start in range(0, len(query), chunk):
        part = slice(start, start + chunk)
        distance[part] = (candidates[query[part]] - hidden_x[target[part]]).square().sum(-1)
    smallest = torch.full((num_candidates,), torch.inf, dtype=distance.dtype, device=distance.device)
    smallest.scatter_reduce_(0, query, distance, "amin")
    tied = distance == smallest[query]
    nearest = torch.full((num_candidates,), num_hidden, device=query.device)
    nearest.scatter_reduce_(0, query[tied], target[tied], "amin")
    # A NaN candidate ties with nothing: keep a valid row, so that the loss is NaN and not an index error.
    return torch.where(pair_ptr.diff()[owner] > 0, nearest.clamp(max=num_hidden - 1), -1)


@torch.no_grad()
def nearest_row(candidates: Tensor, features: Tensor, chunk: int = 1024) -> Tensor:
    """Row of ``features`` (dense or sparse CSR) nearest to each candidate, by |x_u|^2 - 2 x̃ x_u. Shape ``(Q,)``."""
    features = features.to(candidates.dtype)
    squared_norm = _squared_norms(features)[:, None]
    parts = [torch.argmin(squared_norm - 2.0 * (features @ rows.T.contiguous()), dim=0) for rows in candidates.split(chunk)]
    return torch.cat(parts)


def dense_rows(features: Tensor, index: Tensor) -> Tensor:
    """``features[index]`` as a dense matrix, for dense or sparse CSR ``features`` (torch cannot index the latter)."""
    if features.layout == torch.strided:
        return features[index]
    if features.layout != torch.sparse_csr:
        raise ValueError(f"Features must be dense or sparse CSR, not {features.layout}; use `x.to_sparse_csr()`.")
    entry, row = expand_rows(features.crow_indices(), index)
    rows = torch.zeros(len(index), features.shape[1], dtype=features.dtype, device=features.device)
    rows[row, features.col_indices()[entry].long()] = features.values()[entry]
    return rows


def _squared_norms(features: Tensor) -> Tensor:
    """|x_u|^2 of each row, dense or sparse CSR."""
    if features.layout == torch.strided:
        return features.square().sum(-1)
    row = torch.repeat_interleave(features.crow_indices().diff().long())
    return torch.zeros(features.shape[0], dtype=features.dtype, device=features.device).index_add_(
        0, row, features.values().square()
    )
