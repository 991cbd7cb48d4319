r"""FedGTA: topology-aware averaging for federated graph learning (Li, Wu, Zhang, Zhu, Li, Wang; VLDB 2024, arXiv 2401.11755).

H_i, M_i   confidence and moments of propagated labels, at the client           lit_models/label_propagation.py
S_i        {j: cos(M_i, M_j) > tau}; i is always in it                          mixing_weights
W_i        sum_{j in S_i} H_j W_j / sum_{j in S_i} H_j                          mixing_weights, mixtures.personal_average

What leaves a client beside its weights: the number H_i (about how many links it has, those of training nodes counting more) and
the vector M_i (the shares of its training nodes' classes, and how sure its model is of the others). The server needs those of
each client, and the weights of each: it cannot work on sums of several. H and M leave as they are:
`federation.upload_transforms` change the weights alone.

As in the authors' code, W_i is the client's model: it is scored and predicted with, and trained on in its next round, with the
optimiser's state kept. Ours: clients that all have H = 0 (no links) weigh the same; in rows that a client has not trained
(`mixtures.py`) the sum is over those of S_i that have, by H, or where none of S_i has, over all others that have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor

from fl_lightning.engine.client import Client, ClientHalf
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.replies import Expected
from fl_lightning.strategies.mixtures import Mixtures, cosine_similarity
from fl_lightning.strategies.node_classes import check_predict_step, predicted_classes
from lit_models.label_propagation import (
    MOMENTS,
    mixed_moments,
    num_moments,
    propagate_labels,
    smoothing_confidence,
    soft_labels,
    with_labels,
)

WHO = "`FedGTA`"
CONFIDENCE, VECTOR = "smoothing_confidence", "label_moments"
"""Names of H and M among a reply's tensors."""


def mixing_weights(moments: Tensor, confidence: Tensor, tau: float, senders: Sequence[int] | None = None) -> Tensor:
    r"""Who weighs what: :math:`H_j / \sum_{l \in S_i} H_l` for j in :math:`S_i = \{j: \cos(M_i, M_j) > \tau\} \cup \{i\}`.

    Args:
        moments: M of K clients, ``(K, D)``; a zero row is like no other.
        confidence: H, float64 ``(K,)``, not negative.
        tau: Threshold.
        senders: Positions of the k clients that j runs over. Default: all.

    Returns:
        Shape ``(K, k)``, rows sum to one. Where all H of a row are 0, all of S_i weigh the same; where no sender is in S_i,
        it is all senders by H.
    """
    accepted = cosine_similarity(moments.double()) > tau
    accepted.fill_diagonal_(True)
    columns = torch.arange(len(moments)) if senders is None else torch.tensor(senders)
    inside, h = accepted[:, columns].double(), confidence[columns].double()
    weights = inside * h
    for instead in (inside, h.expand_as(weights), torch.ones_like(weights)):
        weights = torch.where(weights.sum(1, keepdim=True) > 0, weights, instead)
    return weights / weights.sum(1, keepdim=True)


class FedGTA(Mixtures):
    """Every client receives the mean of the weights of those whose propagated labels are distributed as its own are.

    A client that sits a round out keeps its last mixture. The optimiser's state stays with the client.

    Args:
        tau: Threshold of the similarity, from -1 (all clients are averaged) to 1 (each trains alone). The authors': 0.5 on
            Cora, 0.6 on CiteSeer, 0.65 on PubMed.
        order: K, the highest order of the moments; the authors': 6, 20 and 13.
        moments: ``raw``, ``central`` or ``mixed``, which is both; the authors': ``mixed``, ``mixed`` and ``raw``.
        num_steps: k, how far labels are propagated.
        temperature: T in H: a high one makes all nodes without a label equally unsure, so that H counts links.
    """

    carry_optimizer_state = True
    pictures = "fedgta"

    def __init__(
        self,
        tau: float = 0.5,
        order: int = 6,
        moments: Literal["raw", "central", "mixed"] = "mixed",
        num_steps: int = 5,
        temperature: float = 20.0,
    ) -> None:
        key = "`federation.strategy.init_args"
        if moments not in MOMENTS:
            raise ValueError(f"{key}.moments` must be one of {', '.join(MOMENTS)}, got `{moments}`.")
        if not -1 <= tau <= 1:
            raise ValueError(f"{key}.tau` is compared with a cosine, so it must be from -1 to 1, got {tau}.")
        if order < 2 or num_steps < 1:
            raise ValueError(f"{key}`: `order` must be at least 2 and `num_steps` at least 1, got {order} and {num_steps}.")
        if not 0 < temperature < math.inf:
            raise ValueError(f"{key}.temperature` must be a number above 0, got {temperature}.")
        self.tau, self.order, self.moments = tau, order, moments
        self.num_steps, self.temperature = num_steps, temperature

    _num_classes = 0

    def client_half(self) -> ClientHalf:
        return FedGTAClient(self)

    def check(
        self,
        module: L.LightningModule,
        datamodules: Sequence[L.LightningDataModule],
        server_data: L.LightningDataModule | None,
    ) -> None:
        schema = getattr(module, "schema", None) or {}
        if "num_classes" not in schema:
            raise ValueError(
                f"{WHO} propagates the classes of nodes, but `{type(module).__name__}` has no `num_classes` in its `schema`. "
                "Use `model: lit_models.LitNodeClassifier`, or `federation.strategy: FedAvg`."
            )
        check_predict_step(module, WHO)
        for datamodule in datamodules:
            graph = getattr(datamodule, "data", None)
            missing = [name for name in ("edge_index", "y", "train_mask") if getattr(graph, name, None) is None]
            if missing:
                raise ValueError(
                    f"{WHO} propagates labels over each client's graph, but a client's data module is "
                    f"`{type(datamodule).__name__}`, whose `data` has no {', '.join(f'`{name}`' for name in missing)}. Use a "
                    "data module of nodes (`datamodules.ClientGraphDataModule`), or `federation.strategy: FedAvg`."
                )
        self._num_classes = int(schema["num_classes"])

    def uploads(self) -> Mapping[str, Tensor]:
        """The weights, H and M."""
        width = self.num_steps * num_moments(self.order, self.moments) * self._num_classes
        return {**super().uploads(), CONFIDENCE: torch.zeros((), dtype=torch.float64), VECTOR: torch.zeros(width)}

    def fit_reply(self) -> Expected:
        def fault(payload: Payload) -> str | None:
            negative = payload.values["num_samples"] != 0 and bool(payload.tensors[CONFIDENCE] < 0)
            return f"`{CONFIDENCE}` of its reply must not be negative" if negative else None

        return replace(super().fit_reply(), tensors=fault)

    def aggregate(self, federation: Federation, round: int, replies: Mapping[int, Payload]) -> None:
        moments = torch.stack([reply.tensors[VECTOR] for reply in replies.values()])
        confidence = torch.stack([reply.tensors[CONFIDENCE] for reply in replies.values()])
        self.mix(replies, lambda senders: mixing_weights(moments, confidence, self.tau, senders))
        matrices = {"similarity": cosine_similarity(moments), "weights": mixing_weights(moments, confidence, self.tau)}
        self._last = {"clients": list(replies), **matrices}

    def evaluation(self, client: int) -> Payload:
        """The client's mixture: what FedGTA's authors score."""
        return self.download(client)


class FedGTAClient(ClientHalf):
    """Uploads the weights, and H and M of the labels that the trained model propagates over the client's graph.

    Args:
        strategy: With FedGTA's settings.
    """

    def __init__(self, strategy: FedGTA) -> None:
        super().__init__()
        self.order, self.moments = strategy.order, strategy.moments
        self.num_steps, self.temperature = strategy.num_steps, strategy.temperature

    def reply_tensors(self, client: Client) -> dict[str, Tensor]:
        sent = client.upload()
        graph: Any = client.datamodule.data
        known = graph.train_mask & (graph.y >= 0)  # no other label is looked at
        start = with_labels(predicted_classes(client, graph, WHO).double(), graph.y, known)
        steps = propagate_labels(start, graph.edge_index, self.num_steps)
        degree = torch.bincount(graph.edge_index[1], minlength=len(start))
        sent[CONFIDENCE] = smoothing_confidence(soft_labels(steps[-1], graph.y, known, self.temperature), degree)
        soft = [soft_labels(step, graph.y, known) for step in steps]
        sent[VECTOR] = mixed_moments(soft, self.order, self.moments).float()
        return sent
