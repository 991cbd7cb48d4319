r"""NeighGen, the missing-neighbour generator of FedSage+: client side.

z_v  = r (H^e(x, E)_v - m) / ||.||            a K-layer GraphSAGE; never leaves the client     LitNeighGen.embed
ñ_v  = softplus(w z_v + b)                    dGen, how many neighbours v misses               CountGenerator
x̃_v  = R(sigma(MLP(z_v + eps)), k_v)          fGen: P candidates, of which R draws k_v         FeatureGenerator
L^n  = lambda_d L^d + lambda_f L^f + lambda_c L^c                                              training_step

eps ~ N(0, I). L^d and L^f: ``losses.py``. L^c: cross entropy of a local classifier on the mended impaired graph. The
length r of z fixes how much of a node fGen can tell from eps: free to grow, z lets it memorise the targets; as it starts
(near 0.05) eps drowns it. m is the mean of H^e at the start (``calibration.py``).

Phase 1, local: all of it trains on impaired graphs (``datamodules.impairing``), under a stock ``Trainer``.
Phase 2, federated: fGen alone learns, from the other clients' features too (``exchange.py``).
Mending: `generate` on the whole local graph gives what ``datamodules.mending.mend`` takes.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from lit_models.encoders import GraphSAGE
from lit_models.neighgen.calibration import calibrate
from lit_models.neighgen.generators import (
    COUNT_ACTIVATIONS,
    FEATURE_RANGES,
    CountGenerator,
    FeatureGenerator,
    attach,
    check_features,
)
from lit_models.neighgen.losses import count_loss, draw_slots, local_feature_loss, mend_counts, sample_rows, train_counts
from lit_models.neighgen.report import report_quality
from lit_models.schema_module import SchemaModule

PROFILES = ("seed", "paper", "balanced")

neighgen_optimizer: OptimizerCallable = partial(torch.optim.Adam, lr=1e-3)


class LitNeighGen(SchemaModule):
    r"""NeighGen on one client's impaired graph.

    A batch is what ``datamodules.impairing.impair`` returns. Everything in here is private to the client.

    Logs per epoch ``train/loss``, ``train/count_loss`` (L^d), ``train/feature_loss`` (L^f local) and, with
    ``lambda_c > 0``, ``train/task_loss`` (L^c); in validation the entries of `report_quality`.

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
        super().__init__(neighgen_optimizer if optimizer is None else optimizer)
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
            default if given is None else given for given, default in zip(self._lambdas, defaults[self.profile], strict=True)
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
    def embed_eval(self, batch: Any) -> Tensor:
        """z_v without dropout, whatever the module's mode, which stays."""
        mode = self.encoder.training
        self.encoder.eval()
        z = self.embed(batch)
        self.encoder.train(mode)
        return z

    def forward(self, batch: Any) -> Tensor:
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
        z = self.embed_eval(batch)
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
            check_features(x, self.feature_range)
        self.started.fill_(True)
        if self.calibrate:
            calibrate(self, batch)

    # ---- phase 1: local training ------------------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.start(batch)
        z = self.embed(batch)
        predicted = self.dgen(z)
        counts = self.training_counts(predicted, batch)
        taking_part = counts if self.classifier is not None else counts * (batch.pair_ptr.diff() > 0)
        rows, num_nodes = sample_rows(taking_part.nonzero().squeeze(1), len(counts), self.max_rows, None)
        u = z[rows] + torch.randn_like(z[rows])
        slots = draw_slots(counts[rows], self.num_slots, self.sampler)
        known = batch.count_mask
        terms = {"count_loss": count_loss(predicted[known], batch.missing_count[known], self.count_beta)}
        terms |= self.generator_terms(batch, rows, u, slots, num_nodes, self.dropout)
        loss = self.lambda_d * terms["count_loss"] + self.weigh(terms)
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

    def weigh(self, terms: dict[str, Tensor]) -> Tensor:
        """lambda_f L^f + lambda_c L^c of `generator_terms`."""
        loss = self.lambda_f * terms["feature_loss"]
        return loss + self.lambda_c * terms["task_loss"] if "task_loss" in terms else loss

    def training_counts(self, predicted: Tensor, batch: Any) -> Tensor:
        """k_v while training, by the rule ``train_count``; int64, shape ``(N,)``."""
        if self.train_count == "predicted":
            return mend_counts(predicted, self.num_slots)
        return train_counts(predicted, batch.pair_ptr.diff(), self.num_slots)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log_dict({f"val/{name}": value for name, value in report_quality(self, batch).items()}, batch_size=1)
