"""Mending with class prototypes (``mending: prototype``; ours, not FedSage+'s authors'): the step of the protocol, both halves.

request (down)                    reply (up)
``class_sums``                    per class the sum and number of the client's training nodes' features, the numbers of links
                                  between classes; how many nodes it has, and links elsewhere
``mend``: mu, T, mean number      nothing but scalars
``fit`` of some rounds            as ever; before it trains, the client asks the model that it has received for the classes of
                                  its nodes, and mends its graph with what follows from them

Equations: ``datamodules/prototypes.py``. A missing neighbour of v is what nodes next to one like v look like on average; the
classes of v are its label if it is a training node (``labels``), else what the model says. What leaves a client beyond FedAvg's
are sums over its training nodes of a class, of at least ``min_nodes`` nodes, and the counts: its classes' sizes, how they are
linked, and their mean features. No row and no label of a single node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from datamodules.mending import mend
from datamodules.prototypes import class_sums, expected_neighbours, prototypes
from fl_lightning.engine.client import Client
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.replies import Expected, positive_count, sample_count
from fl_lightning.strategies.node_classes import predicted_classes

KEY = "federation.strategy.init_args"
WHO = f"`{KEY}.mending: prototype`"
"""Who asks the model for the classes of nodes."""
SUMS = ("features", "nodes", "links")
PROTOTYPES = "prototypes"
"""Section of the client's store with what the server has sent."""


@dataclass(frozen=True)
class Prototypes:
    """How graphs are mended with class prototypes.

    Args:
        min_nodes: A client says nothing of a class of which it has fewer training nodes.
        warm_up: Share of the rounds in which graphs stay as they are, until the model knows something of the classes.
        every: Rounds from one look at the classes of the nodes to the next.
        labels: Training nodes' classes are their labels; else what the model says of them, like of all others.
        nodes: Which get neighbours: ``all``, or only ``train``ing nodes (a control).
    """

    min_nodes: int = 3
    warm_up: float = 0.1
    every: int = 5
    labels: bool = False
    nodes: Literal["all", "train"] = "all"

    def __post_init__(self) -> None:
        if self.min_nodes < 1 or self.every < 1 or not 0 <= self.warm_up < 1 or self.nodes not in ("all", "train"):
            raise ValueError(
                f"`{KEY}` of mending with prototypes: `min_nodes` and `every` must be at least 1, `warm_up` in [0, 1) and "
                f"`nodes` `all` or `train`; got {self.min_nodes}, {self.every}, {self.warm_up} and `{self.nodes}`."
            )

    def is_due(self, round: int, num_rounds: int, last: int | None) -> bool:
        """Is it time for a look at the classes? A client that was not asked in a round makes up for it in its next.

        Args:
            round: From 0.
            num_rounds: Of the run.
            last: The round of the last look, if there was one.
        """
        first = round_of(self.warm_up, num_rounds)
        return round >= first and (last is None or (round - first) // self.every > (last - first) // self.every)


def round_of(share: float, num_rounds: int) -> int:
    """The first round after that share of all rounds; at least one round is left."""
    return min(round(share * num_rounds), num_rounds - 1)


# ---- server -----------------------------------------------------------------------------------------------------------


def sums_reply() -> Expected:
    """``features`` float64 ``(C, F)``, ``nodes`` ``(C,)`` and ``links`` ``(C, C)``, int64 from 0, with the same C and F at all
    clients; and the numbers of nodes and links elsewhere."""

    def fault(payload: Payload) -> str | None:
        features, nodes, links = (payload.tensors.get(name) for name in SUMS)
        if features is None or features.dim() != 2 or features.dtype != torch.float64:
            return "`features` of its reply must be a float64 matrix"
        classes = features.shape[0]
        for name, counts, shape in (("nodes", nodes, (classes,)), ("links", links, (classes, classes))):
            if counts is None or counts.dtype != torch.int64 or counts.shape != shape or bool((counts < 0).any()):
                return f"`{name}` of its reply must be whole numbers from 0 of shape {list(shape)}"
        rest = [name for name in payload.tensors if name not in SUMS]
        return f"its reply has unexpected entries: {', '.join(rest)}" if rest else None

    return Expected(
        values={"num_nodes": positive_count, "links_elsewhere": lambda value: None if value is None else sample_count(value)},
        tensors=fault,
        alike=lambda payload: {"the number of classes and features": tuple(payload.tensors["features"].shape)},
    )


def mending_request(replies: Mapping[int, Payload], min_nodes: int) -> Payload:
    """Prototypes and transitions of all clients together, and how many neighbours a node misses on average: the mean over the
    clients that know, rounded, at least 1; 1 if none does.

    Raises:
        ValueError: If no client has told anything of any class.
    """
    sums = {name: sum(reply.tensors[name] for reply in replies.values()) for name in SUMS}  # in client order
    if not bool(sums["nodes"].any()):  # type: ignore[union-attr]  # a tensor: there is a reply
        raise ValueError(
            f"No client has {min_nodes} training nodes of any class, so there is no prototype to mend with. "
            f"Lower `{KEY}.min_nodes` (`prototypes.min_nodes` of FedSagePlus), or take another `mending`."
        )
    mu, transitions = prototypes(**sums)  # type: ignore[arg-type]
    told = [reply.values for reply in replies.values() if reply.values["links_elsewhere"] is not None]
    nodes = sum(values["num_nodes"] for values in told)
    mean = round(sum(values["links_elsewhere"] for values in told) / nodes) if nodes else 1
    return Payload({"mu": mu, "transitions": transitions}, {"mean_count": max(1, mean)})


# ---- client -----------------------------------------------------------------------------------------------------------


def sums_of(client: Client, min_nodes: int) -> Payload:
    """The reply to ``class_sums``."""
    data, elsewhere = client.datamodule.data, getattr(client.datamodule, "links_elsewhere", None)
    values = {"num_nodes": int(data.num_nodes), "links_elsewhere": None if elsewhere is None else int(elsewhere.sum())}
    return Payload(class_sums(data, int(client.datamodule.schema["num_classes"]), min_nodes), values)


def look(client: Client, mended: Any, labels: bool) -> None:
    """Keep q, the classes of the client's nodes, as the live module sees them on the graph as it is mended now."""
    own = client.datamodule.data
    probabilities = predicted_classes(client, mended.data, WHO)[: own.num_nodes]
    if labels:
        known = own.train_mask & (own.y >= 0)
        probabilities[known] = F.one_hot(own.y[known], probabilities.shape[1]).to(probabilities.dtype)
    client.store.put_section("classes", {"q": probabilities})
    client.store.values["looked"] = client.round


def mended_with_prototypes(client: Client, counts: Tensor, nodes: str) -> Any:
    """The client's data module over its graph with ``counts[v]`` times the neighbour that node v is expected to have."""
    original, kept = client.datamodule, client.store.section(PROTOTYPES)
    if nodes == "train":
        counts = torch.where(original.data.train_mask, counts, 0)
    rows = expected_neighbours(client.store.section("classes")["q"], kept["mu"], kept["transitions"])
    if not int(counts.sum()):
        return original
    return original.with_data(mend(original.data, counts, torch.repeat_interleave(rows, counts, dim=0)))
