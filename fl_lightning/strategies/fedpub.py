r"""FED-PUB, server half: personalised subgraph federated learning (Baek, Jeong, Jin, Yoon, Hwang; ICML 2023).

G~            SBM of 5 x 100 nodes, p_in .1, p_out 0, features N(0, 1)      proxy_graph
h_i           mean over the nodes of f(G~; theta_i), at the client          lit_models.functional_embedding
S(i, j)       cos(h_i, h_j)                                                 mixtures.cosine_similarity
alpha_ij      exp(tau S_ij) / sum_k exp(tau S_ik), k includes i             mixtures.similarity_weights
theta_bar_i   sum_j alpha_ij theta_j                                        mixtures.personal_average

Not in the paper: rows of an entry that a client has not trained (`mixtures.py`).

The client half (masks, L1 and proximal terms) is ``lit_models/masks.py`` and ``lit_models/objectives/fedpub.py``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import lightning as L
import networkx as nx
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

from fl_lightning.engine.client import Client, ClientHalf
from fl_lightning.engine.entries import check_layout
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.replies import Expected, fit_reply
from fl_lightning.engine.seeds import derive
from fl_lightning.strategies.mixtures import Mixtures
from lit_models.functional_embedding import functional_embedding
from lit_models.masks import PRIVATE_MASKS, mask_statistics, masked_weights, named_masks

EMBEDDING = "functional_embedding"


def proxy_graph(
    num_features: int, num_blocks: int = 5, block_size: int = 100, p_in: float = 0.1, p_out: float = 0.0, seed: int = 0
) -> Data:
    r"""The random graph :math:`\tilde G` on which clients are compared: a stochastic block model with normal features.

    It depends on nothing but the arguments (no client data), so every site can build the same one.

    Args:
        num_features: Features per node, as the clients' graphs have.
        num_blocks: Communities.
        block_size: Nodes per community.
        p_in: Probability of an edge within a community.
        p_out: Probability of an edge between communities.
        seed: Seeds the edges (networkx) and the features (torch), each with a generator of its own.

    Returns:
        ``Data`` with ``x`` ``(N, num_features)`` and ``edge_index`` ``(2, E)``, both directions, no self loops, sorted.
    """
    if num_features < 1 or num_blocks < 1 or block_size < 1:
        raise ValueError(
            "A proxy graph needs at least one feature, block and node, but was asked for "
            f"num_features={num_features}, num_blocks={num_blocks}, block_size={block_size}."
        )
    if not (0 <= p_in <= 1 and 0 <= p_out <= 1):
        raise ValueError(f"`p_in` and `p_out` are probabilities, but are {p_in} and {p_out}.")
    num_nodes = num_blocks * block_size
    graph = nx.random_partition_graph([block_size] * num_blocks, p_in, p_out, seed=seed)
    edges = torch.tensor(list(graph.edges), dtype=torch.int64).reshape(-1, 2).T
    edge_index = coalesce(torch.cat([edges, edges.flip(0)], dim=1), num_nodes=num_nodes)
    generator = torch.Generator().manual_seed(_feature_seed(seed))
    x = torch.randn(num_nodes, num_features, generator=generator)
    return Data(x=x, edge_index=edge_index, num_nodes=num_nodes)


def _feature_seed(seed: int) -> int:
    """The features' own random stream, independent of the edges'."""
    return int.from_bytes(hashlib.sha256(f"fedpub proxy features {seed}".encode()).digest()[:7], "big")


class FedPub(Mixtures):
    """Every client receives its own mixture of the participants' weights, by the similarity of their models.

    Masks and the optimiser's state stay with the clients. A client that sits a round out keeps its last mixture and
    mask. In rows that a client has not trained (``untrained_rows`` of the module) it weighs nothing, as in ``FedAvg``; it
    receives the mixture of those who have, by their similarity to it.

    Args:
        tau: Scale of the similarities; 3 is the authors' choice for disjoint, 5 for overlapping subgraphs, 0 the plain
            mean.
        aggregate: What is uploaded and mixed: ``raw``, the weights W (as the authors' code), or ``masked``, W * mu (as
            the mission's note; the next mask then acts on weights that are masked already).
        p_in: Probability of an edge within a community of the proxy graph.
        p_out: Probability of an edge between its communities.
    """

    carry_optimizer_state = True
    pictures = "fedpub"

    def __init__(
        self, tau: float = 3.0, aggregate: Literal["raw", "masked"] = "raw", p_in: float = 0.1, p_out: float = 0.0
    ) -> None:
        if aggregate not in ("raw", "masked"):
            raise ValueError(f"`federation.strategy.init_args.aggregate` must be `raw` or `masked`, got `{aggregate}`.")
        if not math.isfinite(tau):
            raise ValueError(f"`federation.strategy.init_args.tau` must be a finite number, got {tau}.")
        for name, probability in (("p_in", p_in), ("p_out", p_out)):
            if not 0 <= probability <= 1:
                raise ValueError(f"`federation.strategy.init_args.{name}` is a probability, from 0 to 1, got {probability}.")
        self.tau = tau
        self.mixes = aggregate
        self.p_in, self.p_out = p_in, p_out

    def client_half(self) -> ClientHalf:
        return FedPubClient(self.mixes, self.p_in, self.p_out)

    def check(
        self,
        module: L.LightningModule,
        datamodules: Sequence[L.LightningDataModule],
        server_data: L.LightningDataModule | None,
    ) -> None:
        if not named_masks(module):
            raise ValueError(
                f"`FedPub` learns personal masks, but `{type(module).__name__}` has no parameter named `*.mask`. "
                "Use `model.init_args.encoder: lit_models.MaskedGCN`, or `federation.strategy: FedAvg`."
            )
        if not hasattr(module, "encoder") or "num_features" not in (getattr(module, "schema", None) or {}):
            raise ValueError(
                "`FedPub` compares clients by what `model.encoder` makes of a random graph, but "
                f"`{type(module).__name__}` has no `encoder` built for graphs. Use `lit_models.LitNodeClassifier`."
            )

    def start(self, initial: dict[str, Tensor], private: Sequence[str]) -> None:
        leaking = [name for name in initial if any(name.endswith(p.removeprefix("*")) for p in PRIVATE_MASKS)]
        if leaking:
            raise ValueError(f"Masks would leave the clients: {', '.join(leaking)}.")
        super().start(initial, private)

    def aggregate(self, federation: Federation, round: int, replies: Mapping[int, Payload]) -> None:
        embeddings = torch.stack([reply.tensors[EMBEDDING] for reply in replies.values()])
        self.mix_by_similarity(replies, embeddings, self.tau)

    def fit_reply(self) -> Expected:
        """The weights, and an embedding of the same width from each client."""
        weights = {n: self.weights[n] for n in self._names}
        expected = fit_reply(weights)

        def fault(payload: Payload) -> str | None:
            if payload.values["num_samples"] == 0:
                return None
            embedding = payload.tensors.get(EMBEDDING)
            if embedding is None or embedding.dim() != 1 or not embedding.is_floating_point():
                return "its update does not fit the model: no functional embedding (a vector of floats)"
            wrong = check_layout({n: t for n, t in payload.tensors.items() if n != EMBEDDING}, weights)
            return None if wrong is None else f"its update does not fit the model: {wrong}"

        def alike(payload: Payload) -> dict[str, Hashable]:
            things = {} if expected.alike is None else dict(expected.alike(payload))
            if payload.values["num_samples"]:
                embedding = payload.tensors[EMBEDDING]
                things["the functional embedding"] = (str(embedding.dtype), len(embedding))
            return things

        return replace(expected, layout=None, tensors=fault, alike=alike)


class FedPubClient(ClientHalf):
    """Uploads the weights without masks, and the functional embedding of the trained, masked model."""

    def __init__(self, mixes: str, p_in: float, p_out: float) -> None:
        super().__init__(personal=True)
        self.mixes, self.p_in, self.p_out = mixes, p_in, p_out

    def reply_tensors(self, client: Client) -> dict[str, Tensor]:
        module = client.module
        sent = client.upload()
        if self.mixes == "masked":
            sent |= {name: w.detach().to("cpu", copy=True) for name, w in masked_weights(module).items() if name in sent}
        seed = derive(client.settings.seed, "fedpub proxy graph") % 2**31
        x, edge_index = _proxy(int(module.schema["num_features"]), self.p_in, self.p_out, seed)
        sent[EMBEDDING] = functional_embedding(module.encoder, x, edge_index)
        return sent

    def fit(self, client: Client, request: Payload) -> Payload:
        reply = super().fit(client, request)
        if reply.values["num_samples"] == 0:
            return reply
        masks = {
            f"mask/{layer}/{name}": value
            for layer, values in mask_statistics(client.module).items()
            for name, value in values.items()
        }
        return Payload(reply.tensors, {**reply.values, "metrics": {**reply.values["metrics"], **masks}})


@lru_cache(maxsize=4)
def _proxy(num_features: int, p_in: float, p_out: float, seed: int) -> tuple[Tensor, Tensor]:
    graph = proxy_graph(num_features, p_in=p_in, p_out=p_out, seed=seed)
    return graph.x, graph.edge_index
