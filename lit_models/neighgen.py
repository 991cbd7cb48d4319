r"""NeighGen, the missing-neighbour generator of FedSage+: client side.

z_v  = r (H^e(x, E)_v - m) / ||.||            a K-layer GraphSAGE; never leaves the client     LitNeighGen.embed
ñ_v  = softplus(w z_v + b)                    dGen, how many neighbours v misses               CountGenerator
x̃_v  = R(sigma(MLP(z_v + eps)), k_v)          fGen: P candidates, of which R draws k_v         FeatureGenerator
L^n  = lambda_d L^d + lambda_f L^f + lambda_c L^c                                              training_step

eps ~ N(0, I). L^d and L^f: `lit_models.neighgen_losses`. L^c: cross entropy of a local classifier on the mended
impaired graph. GraphSAGE's normalisation of z fixes how much of a node fGen can tell from eps: free to grow, z lets it
learn the targets by heart; as it starts (near 0.05) eps drowns it. m is the mean of H^e at the start.

Phase 1, local: all of it trains on impaired graphs (``datamodules.impairing``), under a stock ``Trainer``.
Phase 2, federated: encoder and dGen are frozen. Client i asks each other client j for g_{j->i} (`peer_gradient`) and
steps once with grad L^f local + sum_j g_{j->i}, both at the same theta^f and the same U = z + eps (`exchange_step`).
Mending: `generate` on the whole local graph gives what ``datamodules.mending.mend`` takes.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from lit_models.base import LitGraphModule
from lit_models.encoders import GraphSAGE
from lit_models.neighgen_generators import (
    COUNT_ACTIVATIONS,
    FEATURE_RANGES,
    CountGenerator,
    FeatureGenerator,
    attach,
    check_finite,
)
from lit_models.neighgen_losses import (
    count_loss,
    draw_slots,
    local_feature_loss,
    mend_counts,
    nearest_hidden,
    slot_ranks,
    train_counts,
)
from lit_models.neighgen_start import mean_features, start_at_topics
from lit_models.sparse import is_sparse, remember

Gradient = dict[str, Tensor]
PROFILES = ("seed", "paper", "balanced")

neighgen_optimizer: OptimizerCallable = partial(torch.optim.Adam, lr=1e-3)


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


class LitNeighGen(LitGraphModule):
    r"""NeighGen on one client's impaired graph.

    A batch is what ``datamodules.impairing.impair`` returns. Everything in here is private to the client.

    Logs per epoch ``train/loss``, ``train/count_loss`` (L^d), ``train/feature_loss`` (L^f local) and, with
    ``lambda_c > 0``, ``train/task_loss`` (L^c); in validation the entries of `report`.

    Args:
        encoder: H^e; default GraphSAGE with 64 hidden units and dropout 0.5.
        embedding_channels: d_z.
        num_slots: P, the most neighbours that a node can get.
        hidden_channels: Hidden widths of fGen; the last is the rank of what it can say, and sets the size of a message
            (Cora: 1 MB; 61 MB for the official ``[256, 2048]``).
        feature_range: ``sigmoid`` for features in [0, 1], ``tanh`` in [-1, 1], ``relu`` >= 0, or ``identity``.
        count_activation: ``softplus`` or ``relu``; see `CountGenerator`.
        calibrate: Start ñ at mean(n_v), x̃ near the mean feature vector, a GraphSAGE encoder at the principal directions
            of the features and m at the mean of H^e, from the first batch.
        embedding_norm: r, the length of z_v; ``None`` leaves z as it comes.
        profile: ``seed`` (lambda_d, lambda_f, lambda_c = 1, 1, 0), ``paper`` (1, 1, 1) or ``balanced`` (1, 1/F, 0).
        lambda_d: Weight of L^d; default: that of the profile.
        lambda_f: Weight of L^f, local and cross; default: that of the profile.
        lambda_c: Weight of L^c; default: that of the profile.
        count_beta: beta of the smooth L1 in L^d; ``0`` is L1.
        train_count: ``max`` trains on k = max(round ñ, min(n, P)), ``predicted`` on round ñ alone.
        sampler: ``random`` or ``prefix``.
        dropout: In fGen, in phase 1 only.
        max_rows: Nodes whose neighbours are generated in one step, drawn at random; default all. Bounds the cost of a
            step on large graphs; the loss is then an unbiased estimate.
        optimizer: Callable ``parameters -> Optimizer``; Adam, lr 1e-3. Weight decay stops learning where features are
            small (PubMed's TF-IDF).
    """

    monitor = "generator_error"
    monitor_mode = "min"
    private_entries = ("*",)
    z_shift: Tensor
    started: Tensor
    default_optimizer = staticmethod(neighgen_optimizer)

    def __init__(
        self,
        encoder: nn.Module | None = None,
        embedding_channels: int = 128,
        num_slots: int = 5,
        hidden_channels: tuple[int, ...] | list[int] = (128, 32),
        feature_range: str = "sigmoid",
        count_activation: Literal["softplus", "relu"] = "softplus",
        calibrate: bool = True,
        embedding_norm: float | None = 8.0,
        profile: Literal["seed", "paper", "balanced"] = "seed",
        lambda_d: float | None = None,
        lambda_f: float | None = None,
        lambda_c: float | None = None,
        count_beta: float = 1.0,
        train_count: Literal["max", "predicted"] = "max",
        sampler: Literal["random", "prefix"] = "random",
        dropout: float = 0.0,
        max_rows: int | None = None,
        optimizer: OptimizerCallable | None = None,
    ) -> None:
        super().__init__(optimizer=optimizer)
        for name, value, choices in (
            ("profile", profile, PROFILES),
            ("feature_range", feature_range, FEATURE_RANGES),
            ("count_activation", count_activation, COUNT_ACTIVATIONS),
            ("train_count", train_count, ("max", "predicted")),
            ("sampler", sampler, ("random", "prefix")),
        ):
            if value not in choices:
                raise ValueError(f"`{name}: {value}` of LitNeighGen is unknown; use one of {', '.join(choices)}.")
        if num_slots < 1:
            raise ValueError(f"`num_slots: {num_slots}` of LitNeighGen must be at least 1.")
        self.encoder = GraphSAGE(hidden_channels=64, num_layers=2, dropout=0.5) if encoder is None else encoder
        self.embedding_channels, self.num_slots = embedding_channels, num_slots
        self.hidden_channels, self.feature_range = tuple(hidden_channels), feature_range
        self.count_activation, self.calibrate = count_activation, calibrate
        self.profile, self._lambdas = profile, (lambda_d, lambda_f, lambda_c)
        self.count_beta, self.train_count, self.sampler = count_beta, train_count, sampler
        self.dropout, self.max_rows, self.embedding_norm = dropout, max_rows, embedding_norm

    def build_layers(self, schema: dict[str, int | str]) -> None:
        num_features = int(schema["num_features"])
        defaults = {"seed": (1.0, 1.0, 0.0), "paper": (1.0, 1.0, 1.0), "balanced": (1.0, 1.0 / num_features, 0.0)}
        self.lambda_d, self.lambda_f, self.lambda_c = (
            default if given is None else given
            for given, default in zip(self._lambdas, defaults[self.profile], strict=True)
        )
        self.encoder.build(num_features, self.embedding_channels)  # type: ignore[operator]  # `Encoder.build`
        self.dgen = CountGenerator(self.embedding_channels, self.count_activation)
        self.fgen = FeatureGenerator(
            self.embedding_channels, num_features, self.num_slots, self.hidden_channels, self.feature_range
        )
        self.classifier = None
        if self.lambda_c > 0:
            self.classifier = GraphSAGE(hidden_channels=64, num_layers=2, dropout=0.5)
            self.classifier.build(num_features, int(schema["num_classes"]))
        self.register_buffer("z_shift", torch.zeros(self.embedding_channels))
        self.register_buffer("started", torch.tensor(False))

    # ---- the generator ----------------------------------------------------------------------------------------------

    def embed(self, batch: Any) -> Tensor:
        """z_v of all nodes, shape ``(N, d_z)``."""
        z = self.encoder(batch.x, batch.edge_index) - self.z_shift
        return z if self.embedding_norm is None else self.embedding_norm * F.normalize(z, dim=-1)

    @torch.no_grad()
    def _embed_eval(self, batch: Any) -> Tensor:
        """z_v without dropout, whatever the module's mode, which stays."""
        mode = self.encoder.training
        self.encoder.eval()
        z = self.embed(batch)
        self.encoder.train(mode)
        return z

    def forward(self, batch: Any, **replaced_inputs: Tensor) -> Tensor:
        """ñ_v of all nodes, unrounded, shape ``(N,)``."""
        return self.dgen(self.embed(batch))

    @torch.no_grad()
    def generate(self, batch: Any, seed: int, missing: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The neighbours to add to a graph (the whole local one, not the impaired), for ``datamodules.mending.mend``.

        The same weights, graph and seed give the same neighbours; eps and slots are drawn on the CPU.

        Args:
            batch: The graph.
            seed: Of eps and slots.
            missing: n_v, int64 ``(N,)``, where it is known; dGen's ñ_v otherwise.

        Returns:
            k_v = clip(round ñ_v, 0, P), int64 ``(N,)``, and their features ordered by owner ``(sum k, F)``, on the CPU.
        """
        z = self._embed_eval(batch)
        counts = mend_counts(self.dgen(z) if missing is None else missing.to(z), self.num_slots)
        rows = counts.nonzero().squeeze(1)
        generator = torch.Generator().manual_seed(seed)
        u = z[rows] + torch.randn(len(rows), z.shape[1], generator=generator).to(z)
        slots = draw_slots(counts[rows], self.num_slots, self.sampler, generator)
        features, owner = self.fgen(u, slots)
        return counts.cpu(), features[torch.argsort(owner, stable=True)].cpu()

    @torch.no_grad()
    def start(self, batch: Any) -> None:
        """Check the features and calibrate on a first batch; once, before the first step.

        Raises:
            ValueError: Features are not finite, or outside what ``feature_range`` can generate.
        """
        if bool(self.started):
            return
        for x in (batch.x, batch.hidden_x):
            self.check_features(x)
        self.started.fill_(True)
        if not self.calibrate:
            return
        if isinstance(self.encoder, GraphSAGE) and self.encoder.num_layers > 1:
            start_at_topics(self.encoder, batch.x)
        mode = self.encoder.training
        self.z_shift.copy_(self.encoder.eval()(batch.x, batch.edge_index).mean(0))
        self.encoder.train(mode)
        known = batch.missing_count[batch.count_mask].float()
        self.dgen.start_at(float(known.mean()) if len(known) else 0.0)
        self.fgen.start_at(mean_features(batch.x))

    def check_features(self, x: Tensor) -> None:
        """Can these features, dense or sparse CSR, be generated?

        Raises:
            ValueError: They are not finite, or outside what ``feature_range`` can generate.
        """
        values = x.values() if is_sparse(x) else x
        if not bool(torch.isfinite(values).all()):
            raise ValueError("NeighGen needs finite features, but some are NaN or infinite; clean `x` first.")
        low, high = {"sigmoid": (0, 1), "tanh": (-1, 1), "relu": (0, torch.inf)}.get(
            self.feature_range, (-torch.inf, torch.inf)
        )
        if bool(((values < low) | (values > high)).any()):
            raise ValueError(
                f"Features go from {float(values.min()):g} to {float(values.max()):g}, but `feature_range: "
                f"{self.feature_range}` of LitNeighGen generates {low} to {high} only. Use `feature_range: identity`."
            )

    # ---- phase 1: local training ------------------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.start(batch)
        z = self.embed(batch)
        predicted = self.dgen(z)
        counts = self._training_counts(predicted, batch)
        rows = self._participants(counts if self.classifier is not None else counts * (batch.pair_ptr.diff() > 0))
        rows, num_nodes = self._sample(rows, len(counts), None)
        u = z[rows] + torch.randn_like(z[rows])
        slots = draw_slots(counts[rows], self.num_slots, self.sampler)
        known = batch.count_mask
        terms = {"count_loss": count_loss(predicted[known], batch.missing_count[known], self.count_beta)}
        terms |= self.generator_terms(batch, rows, u, slots, num_nodes, self.dropout)
        loss = self.lambda_d * terms["count_loss"] + self._weighted(terms)
        self.observe({"loss": loss, **terms})
        return loss

    def generator_terms(
        self, batch: Any, rows: Tensor, u: Tensor, slots: Tensor, num_nodes: int, dropout: float = 0.0
    ) -> dict[str, Tensor]:
        """``feature_loss`` (L^f local) and, with ``lambda_c > 0``, ``task_loss`` (L^c), not yet multiplied by lambdas.

        Args:
            batch: The impaired graph.
            rows: Nodes of V̄ whose neighbours are generated, shape ``(B,)``.
            u: Their z + eps, shape ``(B, d_z)``.
            slots: Their drawn slots, bool, shape ``(B, P)``.
            num_nodes: |V̄|, the divisor of L^f.
            dropout: In fGen.
        """
        candidates, owner = self.fgen(u, slots, dropout)
        owner = rows[owner]
        terms = {
            "feature_loss": local_feature_loss(
                candidates, owner, batch.pair_ptr, batch.pair_target, batch.hidden_x.to(candidates), num_nodes
            )
        }
        if self.classifier is not None:
            logits = self.classifier(*attach(batch.x, batch.edge_index, candidates, owner))[: len(batch.y)]
            labelled = batch.train_mask & (batch.y >= 0)
            loss = F.cross_entropy(logits[labelled], batch.y[labelled], reduction="sum")
            terms["task_loss"] = loss / labelled.sum().clamp(min=1)
        return terms

    # ---- phase 2: federated training of fGen ------------------------------------------------------------------------

    def freeze(self) -> None:  # type: ignore[override]  # of other extent than Lightning's
        """Only fGen trains from here on (Lightning's own ``freeze`` stops it too); the rest is in eval mode."""
        for module in (self.encoder, self.dgen, self.classifier):
            if module is not None:
                module.requires_grad_(False).eval()

    @torch.no_grad()
    def query(self, batch: Any, seed: int) -> Query:
        """The generator request of one round; the same module, batch and seed give the same bits on any later call.

        k_v is sent as clip(round ñ_v, 0, P): the training rule would tell n_v. The local term keeps the training rule,
        and of the nodes that are sent it takes the sent slots first. eps follows from the client's own graph as well as
        from the seed, which others know.

        Args:
            batch: The impaired graph.
            seed: Public seed of this client and round; the slots follow from it (``slot_seed`` of `peer_gradient`).
        """
        z = self._embed_eval(batch)
        predicted = self.dgen(z)
        sent_counts, counts = mend_counts(predicted, self.num_slots), self._training_counts(predicted, batch)
        noise = np.random.default_rng(_private_key(batch, seed))
        rows, num_nodes = self._sample(self._participants(counts), len(counts), noise)
        rows = torch.cat([rows[sent_counts[rows] > 0], rows[sent_counts[rows] == 0]])
        sent_counts = sent_counts[rows][sent_counts[rows] > 0]
        generator, sent = torch.Generator().manual_seed(seed), len(sent_counts)
        ranks = [slot_ranks(n, self.num_slots, self.sampler, generator) for n in (sent, len(rows) - sent)]
        eps = torch.from_numpy(noise.standard_normal((len(rows), z.shape[1]), dtype=np.float32))
        slots = torch.cat(ranks).to(rows.device) < counts[rows, None]
        return Query(rows, z[rows] + eps.to(z), slots, sent_counts, num_nodes)

    def generator_weights(self) -> dict[str, Tensor]:
        """θ^f by name, detached clones: the weights of a request."""
        return {name: parameter.detach().clone() for name, parameter in self.fgen.named_parameters()}

    def local_gradient(self, batch: Any, query: Query) -> Gradient:
        """Gradient of lambda_f L^f local (+ lambda_c L^c) with respect to θ^f, at the current θ^f and the query's U."""
        names, parameters = zip(*self.fgen.named_parameters(), strict=True)
        terms = self.generator_terms(batch, query.rows, query.u, query.slots, query.num_nodes)
        return dict(zip(names, torch.autograd.grad(self._weighted(terms), parameters), strict=True))

    def exchange_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of phase 2: the module's own, over θ^f alone."""
        return self.optimizer(self.fgen.parameters())

    def exchange_step(
        self, batch: Any, query: Query, peer_gradients: Gradient | None, optimizer: torch.optim.Optimizer
    ) -> None:
        """One step of θ^f with lambda_f (grad L^f local + ĝ) (+ lambda_c grad L^c).

        Args:
            batch: The impaired graph.
            query: The one that the peers answered; θ^f must not have changed since.
            peer_gradients: ĝ = sum over j of g_{j->i}, or None without an answer.
            optimizer: From `exchange_optimizer`.
        """
        gradient = self.local_gradient(batch, query)
        for name, parameter in self.fgen.named_parameters():
            parameter.grad = gradient[name]
            if peer_gradients is not None:
                parameter.grad += self.lambda_f * peer_gradients[name].to(parameter)
        total = {name: p.grad for name, p in self.fgen.named_parameters() if p.grad is not None}
        check_finite(total, "of a generator step")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    # ---- how good it is ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def report(self, batch: Any, seed: int = 0) -> dict[str, float]:
        """Quality on an impaired graph; an entry that has no sample is left out.

        ``generator_error``: mean over nodes with held-out hidden neighbours and all P slots of min_u ||x̃ - x_u||^2 over
        those neighbours; ``zero_error``, ``mean_error``: the same for the zero vector and the client's mean vector;
        ``train_generator_error``, ``train_zero_error``, ``train_mean_error``: on the pairs trained on. ``count_mae``,
        ``mean_count_mae``: |ñ - n| on held-out nodes, and that of the constant mean(n). ``count_saturation``: share of
        nodes with round ñ > P. ``generated_per_node`` and ``missing_per_node``: mean k and mean n.
        """
        z = self._embed_eval(batch)
        predicted, missing = self.dgen(z), batch.missing_count.to(z.dtype)
        values = {}
        mean = mean_features(batch.x).to(z)
        hidden_x = batch.hidden_x.to(z)
        for prefix, part in (("", "holdout"), ("train_", "pair")):
            pointer, target = batch[f"{part}_ptr"], batch[f"{part}_target"]
            rows = pointer.diff().nonzero().squeeze(1)
            if len(rows) == 0:
                continue
            generator = torch.Generator().manual_seed(seed)
            u = z[rows] + torch.randn(len(rows), z.shape[1], generator=generator).to(z)
            candidates, owner = self.fgen(u, torch.ones(len(rows), self.num_slots, dtype=torch.bool, device=z.device))
            for name, vectors, nodes in (
                ("generator_error", candidates, rows[owner]),
                ("zero_error", torch.zeros_like(mean).expand(len(rows), -1), rows),
                ("mean_error", mean.expand(len(rows), -1), rows),
            ):
                nearest = nearest_hidden(vectors, nodes, pointer, target, hidden_x)
                values[prefix + name] = float((vectors - hidden_x[nearest]).square().sum(-1).mean())
        known, unseen = batch.count_mask, ~batch.count_mask
        if bool(unseen.any()) and bool(known.any()):
            values["count_mae"] = float((predicted - missing)[unseen].abs().mean())
            values["mean_count_mae"] = float((missing[known].mean() - missing[unseen]).abs().mean())
        if len(predicted):
            values["count_saturation"] = float((predicted.round() > self.num_slots).float().mean())
            values["generated_per_node"] = float(mend_counts(predicted, self.num_slots).float().mean())
            values["missing_per_node"] = float(missing.mean())
        return values

    def on_validation_epoch_start(self) -> None:
        pass

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log_dict({f"val/{name}": value for name, value in self.report(batch).items()}, batch_size=1)

    def on_validation_epoch_end(self) -> None:
        pass

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _weighted(self, terms: dict[str, Tensor]) -> Tensor:
        loss = self.lambda_f * terms["feature_loss"]
        return loss + self.lambda_c * terms["task_loss"] if "task_loss" in terms else loss

    def _training_counts(self, predicted: Tensor, batch: Any) -> Tensor:
        if self.train_count == "predicted":
            return mend_counts(predicted, self.num_slots)
        return train_counts(predicted, batch.pair_ptr.diff(), self.num_slots)

    @staticmethod
    def _participants(counts: Tensor) -> Tensor:
        return (counts > 0).nonzero().squeeze(1)

    def _sample(self, rows: Tensor, num_nodes: int, rng: np.random.Generator | None) -> tuple[Tensor, int]:
        """At most ``max_rows`` of the rows, and the divisor that keeps the loss unbiased."""
        if self.max_rows is None or len(rows) <= self.max_rows:
            return rows, num_nodes
        order = torch.randperm(len(rows)) if rng is None else torch.from_numpy(rng.permutation(len(rows)))
        chosen = order[: self.max_rows].sort().values.to(rows.device)
        return rows[chosen], max(1, round(num_nodes * self.max_rows / len(rows)))


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
