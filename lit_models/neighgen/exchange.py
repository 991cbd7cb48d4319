r"""Phase 2 of FedSage+, client side: the clients' fGen learn from each other's features without seeing them.

g_{j->i} = grad_{theta^f} alpha / |V̄_i| sum_v sum_p min_{u in V_j} ||x̃_v^p - x_u||^2    peer_gradient, at j
theta^f  <- theta^f - lr (grad L^f local + sum_j g_{j->i})                              exchange_step, at i

Both gradients are taken at the same theta^f and the same U = z + eps, those of `make_query`. Encoder and dGen are frozen.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from lit_models.neighgen.generators import FeatureGenerator
from lit_models.neighgen.losses import cross_feature_loss, draw_slots, mend_counts, sample_rows, slot_ranks
from lit_models.sparse import is_sparse, remember

if TYPE_CHECKING:
    from lit_models.neighgen.module import LitNeighGen

Gradient = dict[str, Tensor]


class Query(NamedTuple):
    """One generator request of phase 2, and what D_i keeps for its own half of the step.

    Only ``u[:sent]``, ``counts``, fGen's weights, ``num_nodes``, alpha and the slot seed cross the border.

    Args:
        rows: Nodes of V̄ that take part, those sent first, shape ``(B,)``.
        u: z + eps, shape ``(B, d_z)``.
        slots: Slots of the local term, bool, shape ``(B, P)``.
        counts: k_v of the sent nodes, int64, shape ``(sent,)``.
        num_nodes: |V̄|; with ``max_rows`` the share of it that was drawn.
    """

    rows: Tensor
    u: Tensor
    slots: Tensor
    counts: Tensor
    num_nodes: int

    @property
    def sent(self) -> int:
        return len(self.counts)


def train_fgen_alone(module: LitNeighGen) -> None:
    """Only fGen trains from here on; encoder, dGen and classifier are frozen, in eval mode."""
    for part in (module.encoder, module.dgen, module.classifier):
        if part is not None:
            part.requires_grad_(False).eval()


@torch.no_grad()
def make_query(module: LitNeighGen, batch: Any, seed: int) -> Query:
    """The generator request of one round; the same module, batch and seed give the same bits on any later call.

    k_v is sent as clip(round ñ_v, 0, P): the training rule would tell n_v. The local term keeps the training rule,
    and of the nodes that are sent it takes the sent slots first. eps follows from the client's own graph as well as
    from the seed, which others know.

    Args:
        module: The client's generator.
        batch: The impaired graph.
        seed: Public seed of this client and round; the slots follow from it (``slot_seed`` of `peer_gradient`).
    """
    z = module.embed_eval(batch)
    predicted = module.dgen(z)
    sent_counts, counts = mend_counts(predicted, module.num_slots), module.training_counts(predicted, batch)
    noise = np.random.default_rng(_private_key(batch, seed))
    rows, num_nodes = sample_rows(counts.nonzero().squeeze(1), len(counts), module.max_rows, noise)
    rows = torch.cat([rows[sent_counts[rows] > 0], rows[sent_counts[rows] == 0]])
    sent_counts = sent_counts[rows][sent_counts[rows] > 0]
    generator, sent = torch.Generator().manual_seed(seed), len(sent_counts)
    ranks = [slot_ranks(n, module.num_slots, module.sampler, generator) for n in (sent, len(rows) - sent)]
    eps = torch.from_numpy(noise.standard_normal((len(rows), z.shape[1]), dtype=np.float32))
    slots = torch.cat(ranks).to(rows.device) < counts[rows, None]
    return Query(rows, z[rows] + eps.to(z), slots, sent_counts, num_nodes)


def fgen_weights(module: LitNeighGen) -> dict[str, Tensor]:
    """θ^f by name, detached clones: the weights of a request."""
    return {name: parameter.detach().clone() for name, parameter in module.fgen.named_parameters()}


def local_gradient(module: LitNeighGen, batch: Any, query: Query) -> Gradient:
    """Gradient of lambda_f L^f local (+ lambda_c L^c) with respect to θ^f, at the current θ^f and the query's U."""
    names, parameters = zip(*module.fgen.named_parameters(), strict=True)
    terms = module.generator_terms(batch, query.rows, query.u, query.slots, query.num_nodes)
    return dict(zip(names, torch.autograd.grad(module.weigh(terms), parameters), strict=True))


def fgen_optimizer(module: LitNeighGen) -> torch.optim.Optimizer:
    """The optimiser of phase 2: the module's own, over θ^f alone."""
    return module.optimizer(module.fgen.parameters())


def exchange_step(
    module: LitNeighGen, batch: Any, query: Query, peer_gradients: Gradient | None, optimizer: torch.optim.Optimizer
) -> None:
    """One step of θ^f with lambda_f (grad L^f local + ĝ) (+ lambda_c grad L^c).

    Args:
        module: The client's generator.
        batch: The impaired graph.
        query: The one that the peers answered; θ^f must not have changed since.
        peer_gradients: ĝ = sum over j of g_{j->i}, or None without an answer.
        optimizer: From `fgen_optimizer`.
    """
    gradient = local_gradient(module, batch, query)
    for name, parameter in module.fgen.named_parameters():
        parameter.grad = gradient[name]
        if peer_gradients is not None:
            parameter.grad += module.lambda_f * peer_gradients[name].to(parameter)
    total = {name: p.grad for name, p in module.fgen.named_parameters() if p.grad is not None}
    check_finite(total, "of a generator step")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


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


def check_finite(gradients: dict[str, Tensor], what: str) -> None:
    """Raise a ``ValueError`` that names the first gradient with a value that is not finite."""
    for name, gradient in gradients.items():
        if not bool(torch.isfinite(gradient).all()):
            raise ValueError(f"The gradient {what} is not finite in fGen's `{name}`; nothing was changed.")


def _private_key(batch: Any, seed: int) -> int:
    """256 bits from the seed and the client's own graph: reproducible here, out of reach for whoever knows the seed."""

    def digest() -> bytes:
        x = batch.x
        tensors = [x.crow_indices(), x.col_indices(), x.values()] if is_sparse(x) else [x]
        data = hashlib.sha256()
        for tensor in [*tensors, batch.edge_index]:
            data.update(tensor.cpu().contiguous().numpy().tobytes())
        return data.digest()

    known = remember("private_key", (batch.x, batch.edge_index), digest)
    return int.from_bytes(hashlib.sha256(known + str(int(seed)).encode()).digest(), "big")
