r"""LitAdaptiveNodeClassifier: a classifier of nodes with a shared encoder and heads of the client's own (AdaFGL, ICDE 2024).

Before the personal step it is `LitNodeClassifier` with the shared encoder, to the bit. In the personal step the encoder stays
as it is, the heads of `adaptive_propagation.py` are trained with the loss that stands there, and what is scored and predicted
are their combined probabilities. Which step it is, ``homophily`` tells: HCS of the client, or -1 before the personal step. A
federation sets it (``fl_lightning.strategies.AdaFGL``); with any other strategy, or under a stock Trainer, it stays at -1.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn

from lit_models.adaptive_propagation import AdaptivePropagation, Branches, View, combine
from lit_models.node_classifier import LitNodeClassifier
from lit_models.objectives.base import Objective, masked_mean

HOMOPHILY = "homophily"
"""Name of the entry that holds HCS."""


class LitAdaptiveNodeClassifier(LitNodeClassifier):
    """Node classification with a shared encoder and, in the personal step, heads that never leave the client.

    It needs whole graphs as batches: the heads compare all pairs of nodes.

    Args:
        encoder: The shared one, as for `LitNodeClassifier`.
        personal: The client's heads. Default: those of AdaFGL's authors.
        objective: What the shared encoder is trained with; the heads have AdaFGL's own loss. Default: `ERM`.
        optimizer: Callable ``parameters -> Optimizer``, for both steps. Default: Adam, lr 1e-2, weight decay 5e-4.
        lr_scheduler: Callable ``optimizer -> scheduler``, stepped once an epoch. Default: none.
    """

    homophily: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        personal: AdaptivePropagation | None = None,
        objective: Objective | None = None,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__(encoder, objective, optimizer, lr_scheduler=lr_scheduler)
        self.personal = AdaptivePropagation() if personal is None else personal
        self.register_buffer(HOMOPHILY, torch.tensor(-1.0))
        self.private_entries = (*self.private_entries, "personal.*", HOMOPHILY)

    def build_layers(self, schema: dict[str, int | str]) -> None:
        super().build_layers(schema)  # first: the shared encoder begins as it would without heads
        self.personal.build(int(schema["num_features"]), int(schema["num_classes"]))

    @property
    def is_personal(self) -> bool:
        """Is it the personal step?"""
        return float(self.homophily) >= 0

    def branches(self, batch: Any) -> tuple[Branches, View]:
        """Logits of the heads for all nodes of a graph, and the graph as the shared encoder sees it."""
        view = self.personal.view(self.encoder, batch.x, batch.edge_index)
        return self.personal(view), view

    def forward(self, batch: Any, **replaced_inputs: Tensor) -> Tensor:
        """Logits of all nodes, ``(N, C)``; in the personal step the logarithm of the combined probabilities.

        ``x=`` replaces the batch's features before the personal step.
        """
        if not self.is_personal:
            return super().forward(batch, **replaced_inputs)
        branches, view = self.branches(batch)
        found = combine(branches, view.p, self.homophily)
        return found.clamp_min(torch.finfo(found.dtype).tiny).log()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if not self.is_personal:
            return super().training_step(batch, batch_idx)
        branches, view = self.branches(batch)
        loss = (branches.z - view.p).square().mean()
        for logits in branches:
            losses = self.losses(logits, batch)
            loss = loss + masked_mean(losses.loss, losses.mask)
        self.observe({"loss": loss})
        return loss
