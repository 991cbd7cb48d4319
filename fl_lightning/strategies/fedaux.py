r"""FedAux, server half: personalised subgraph federated learning by auxiliary projections (Zhuo, Zhan, Yu; NeurIPS 2025).

a_k           the client's projection, learned with its model                lit_models.AuxiliaryProjection
S(k, l)       cos(a_k, a_l)                                                  mixtures.cosine_similarity
w_kl          exp(tau S_kl) / sum_m exp(tau S_km), m includes k              mixtures.similarity_weights
theta_k       sum_l w_kl theta_l                                             mixtures.personal_average

tau is the paper's alpha. In the authors' code a_k is mixed like any other weight, and all clients begin with the same a; so it
is here: a client trains on from the mixture of the projections of those that are like it. Theirs has FED-PUB's masks besides
(``lit_models.Masked`` around the encoder gives them; they stay at the clients), and no penalty on them.

Measured once (Cora, 10 METIS clients, seed 10, 128 units, 100 rounds): after the last round the cosines of all pairs of a_k are
above .999, with masks and without, so that with tau 10 every mixture is within 0.3 % of the plain mean. Client mean of test
accuracy: .661 without masks, .814 with them; LocalOnly of the model without masks .808, FedAvg .606.

What leaves a client: its weights, a_k among them, and nothing more. a_k is the direction along which the client's embeddings
are told apart, so it shows their main direction; and the server sees every client's weights singly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import lightning as L
import torch
from torch import Tensor

from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.strategies.mixtures import Mixtures
from lit_models.auxiliary_projection import PROJECTION


class FedAux(Mixtures):
    """Every client receives its own mixture of the participants' weights, by the similarity of their projections.

    A client that sits a round out keeps its last mixture. The optimiser's state stays with the client.

    Args:
        tau: Scale of the similarities (the paper's alpha); 10 is the authors' choice, 0 the plain mean.
    """

    carry_optimizer_state = True
    pictures = "fedaux"

    def __init__(self, tau: float = 10.0) -> None:
        if not math.isfinite(tau):
            raise ValueError(f"`federation.strategy.init_args.tau` must be a finite number, got {tau}.")
        self.tau = tau

    def check(
        self,
        module: L.LightningModule,
        datamodules: Sequence[L.LightningDataModule],
        server_data: L.LightningDataModule | None,
    ) -> None:
        found = [name for name, _ in module.named_parameters() if name.split(".")[-1] == PROJECTION]
        if len(found) != 1:
            raise ValueError(
                f"`FedAux` compares clients by one parameter named `{PROJECTION}`, but `{type(module).__name__}` has "
                f"{', '.join(found) or 'none'}. Use `model.init_args.encoder: {{class_path: lit_models.AuxiliaryProjection, "
                "init_args: {encoder: lit_models.GCN}}`, or `federation.strategy: FedAvg`."
            )
        self._projection = found[0]

    def start(self, initial: dict[str, Tensor], private: Sequence[str]) -> None:
        super().start(initial, private)
        if self._projection not in self._names:
            raise ValueError(
                f"`FedAux` compares clients by `{self._projection}`, but it stays with them. Take it out of "
                "`federation.private`."
            )

    def aggregate(self, federation: Federation, round: int, replies: Mapping[int, Payload]) -> None:
        projections = torch.stack([reply.tensors[self._projection].reshape(-1).float() for reply in replies.values()])
        self.mix_by_similarity(replies, projections, self.tau)
