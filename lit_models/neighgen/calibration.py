"""Where NeighGen starts: at the means of its targets, with an encoder that already sees topics, so that few hidden neighbours
can teach it the rest.

From random projections of 1433 words, a client of Cora ends near the mean vector's error or, later, memorises its
targets. From the principal directions of its own features, the error on unseen neighbours falls twice as far below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_models.encoders import GraphSAGE
from lit_models.sparse import is_sparse

if TYPE_CHECKING:
    from lit_models.neighgen.module import LitNeighGen


@torch.no_grad()
def calibrate(module: LitNeighGen, batch: Any) -> None:
    """Start ñ at mean(n_v), x̃ near the mean feature vector, m at the mean of H^e, and a GraphSAGE encoder at topics."""
    if isinstance(module.encoder, GraphSAGE) and module.encoder.num_layers > 1:
        start_at_topics(module.encoder, batch.x)
    mode = module.encoder.training
    module.z_shift.copy_(module.encoder.eval()(batch.x, batch.edge_index).mean(0))
    module.encoder.train(mode)
    known = batch.missing_count[batch.count_mask].float()
    module.dgen.start_at(float(known.mean()) if len(known) else 0.0)
    module.fgen.start_at(mean_features(batch.x))


def mean_features(x: Tensor) -> Tensor:
    """Mean row of dense or sparse CSR features, shape ``(F,)``."""
    if not is_sparse(x):
        return x.mean(0)
    total = torch.zeros(x.shape[1], dtype=x.dtype, device=x.device)
    return total.index_add_(0, x.col_indices(), x.values()) / x.shape[0]


@torch.no_grad()
def principal_directions(x: Tensor, number: int, iterations: int = 8) -> Tensor:
    """First principal directions of centred features, by subspace iteration; ``x`` stays sparse.

    Args:
        x: Dense or sparse CSR, shape ``(N, F)``.
        number: At most this many; fewer if N - 1 or F is less.
        iterations: Of the subspace.

    Returns:
        Orthonormal rows, shape ``(k, F)``; their order and signs carry no meaning.
    """
    k = max(0, min(number, x.shape[0] - 1, x.shape[1]))
    mean = mean_features(x)[:, None]
    transposed = x.t().to_sparse_csr() if is_sparse(x) else x.t()
    basis = torch.randn(x.shape[1], k, generator=torch.Generator().manual_seed(0)).to(mean)
    for _ in range(iterations):
        scores = x @ basis - mean.t() @ basis
        basis = torch.linalg.qr(transposed @ scores - mean * scores.sum(0))[0]
    return basis.t()


@torch.no_grad()
def start_at_topics(encoder: GraphSAGE, x: Tensor) -> None:
    r"""First layer :math:`h_v = \mathrm{ReLU}(\pm V (x_v - \mu + \bar x_{N(v)} - \mu))`, V principal directions.

    V is scaled so that ``V (x - mu)`` has unit deviation on average. Units that are left over keep their random start.
    """
    layer: Any = encoder.convs[0]
    directions = principal_directions(x, encoder.hidden_channels // 2)
    if len(directions) == 0:
        return
    mean = mean_features(x)
    spread = (x @ directions.t() - directions @ mean).std(0, correction=0).mean()
    if not bool(spread > 0):
        return
    directions = directions / spread
    weight = torch.cat([directions, -directions]).to(layer.lin_r.weight)
    layer.lin_r.weight[: len(weight)] = weight
    layer.lin_l.weight[: len(weight)] = weight
    layer.lin_l.bias[: len(weight)] = -2 * weight @ mean.to(weight)
