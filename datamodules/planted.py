r"""Planted federations: clients in groups whose subgraphs share structure within a group and not between groups.

On Cora it cannot be seen whether a similarity between clients does anything (docs/papers/fedpub.md#what-the-similarity-does);
here the right answer is known. In every client, nodes of one class cite each other and share the words of one topic. Two things
depend on the group g of the client:

.. math:: \mathrm{topic}(v) = (y_v + g) \bmod C, \qquad P(y_v = c) \propto \begin{cases} \text{class\_skew} &
          \lfloor c\,G / C \rfloor = g \\ 1 & \text{else} \end{cases}

The first is what one model for all cannot learn: it must answer the same words with different classes. The second is
what communities of a citation graph look like, and what makes functional embeddings of the groups differ.
"""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules.citation import bag_of_words, block_model_edges
from datamodules.graph import GraphDataModule
from datamodules.partition import Partition
from datamodules.seeds import generator


class PlantedDataModule(GraphDataModule):
    r"""A federation with a known grouping of its clients; client k belongs to group ``k * num_groups // num_clients``.

    Every client's subgraph is a stochastic block model with one block per class; no edge joins two clients. The server
    holds the union of all subgraphs.

    With the defaults and ``split: random_20_40_40``, FED-PUB's network and optimiser, one local epoch and 40 rounds
    (one run; test accuracy in %, mean over clients): each client alone 84, FedAvg 68, masks with a plain mean (tau = 0)
    85, FED-PUB with tau = 3 85, with tau = 10 88. Mean cosine similarity within and between groups after one round: .79
    and .41.

    Args:
        num_clients: Number of clients K, at least ``num_groups``.
        num_groups: Number of groups G, from 1 (all clients alike) to ``num_classes``.
        nodes_per_client: Nodes of each client.
        num_classes: C.
        class_skew: How many times likelier a group's own classes are; 1 for the same classes everywhere.
        num_features: Size of the vocabulary.
        degree: Expected number of neighbours ``(of the same class, of other classes)``.
        words_per_node: Draws per node; repeated words count once.
        topic_share: Share of draws from the topic's own words; 0 makes the features useless.
        graph_seed: Fixes the graphs; ``seed`` fixes the split.
        options: As for :class:`~datamodules.graph.GraphDataModule`, but without ``partition``.

    Attributes:
        groups: Group of each client, ``list[int]``.
    """

    def __init__(
        self,
        num_clients: int = 10,
        num_groups: int = 2,
        nodes_per_client: int = 200,
        num_classes: int = 4,
        class_skew: float = 4.0,
        num_features: int = 200,
        degree: tuple[float, float] = (3.0, 1.0),
        words_per_node: int = 10,
        topic_share: float = 0.3,
        graph_seed: int = 0,
        **options: Any,
    ) -> None:
        if "partition" in options:
            raise ValueError("`PlantedDataModule` plants its partition: leave out `data.init_args.partition`.")
        super().__init__(num_clients=num_clients, partition="random", **options)
        if not 1 <= num_groups <= min(num_clients, num_classes):
            raise ValueError(
                f"`data.init_args.num_groups` is {num_groups}, but must be from 1 to the number of clients "
                f"({num_clients}) and of classes ({num_classes}): each group reads the topics in its own way."
            )
        for name, value, least in (
            ("nodes_per_client", nodes_per_client, num_classes),
            ("num_features", num_features, num_classes),
            ("words_per_node", words_per_node, 1),
        ):
            if value < least:
                raise ValueError(f"`data.init_args.{name}` is {value}, but must be at least {least}.")
        if not 0 <= topic_share <= 1:
            raise ValueError(f"`data.init_args.topic_share` is {topic_share}, but must be between 0 and 1.")
        if class_skew < 0:
            raise ValueError(f"`data.init_args.class_skew` is {class_skew}, but must not be negative.")
        if min(degree) < 0:
            raise ValueError(f"`data.init_args.degree` is {degree}, but expected degrees cannot be negative.")
        self.num_groups, self.nodes_per_client, self.num_classes = num_groups, nodes_per_client, num_classes
        self.class_skew, self.degree, self.graph_seed = class_skew, tuple(degree), graph_seed
        self.num_features, self.words_per_node, self.topic_share = num_features, words_per_node, topic_share
        self.groups = [client * num_groups // num_clients for client in range(num_clients)]

    def load(self) -> Data:
        labels = [self._labels(client) for client in range(self.num_clients)]
        edges = [self._edges(client, y) + client * self.nodes_per_client for client, y in enumerate(labels)]
        topics = [(y + group) % self.num_classes for y, group in zip(labels, self.groups, strict=True)]
        x = bag_of_words(
            torch.cat(topics), self.num_classes, self.num_features, self.words_per_node, self.topic_share,
            generator(self.graph_seed, "planted", "words"),
        )  # fmt: skip
        return Data(x=x, y=torch.cat(labels), edge_index=torch.cat(edges, dim=1), num_classes=self.num_classes)

    def _labels(self, client: int) -> Tensor:
        own = torch.arange(self.num_classes) * self.num_groups // self.num_classes == self.groups[client]
        weight = torch.where(own, self.class_skew, 1.0)
        random = generator(self.graph_seed, "planted", "labels", client)
        return torch.multinomial(weight, self.nodes_per_client, replacement=True, generator=random)

    def _edges(self, client: int, y: Tensor) -> Tensor:
        size = torch.bincount(y, minlength=self.num_classes).clamp(min=1)
        probabilities = torch.full((self.num_classes, self.num_classes), self.degree[1] / self.nodes_per_client)
        probabilities.diagonal().copy_(self.degree[0] / size)
        random = generator(self.graph_seed, "planted", "edges", client)
        return block_model_edges(y, probabilities.clamp(max=1.0), random)

    def setup(self, stage: str | None = None) -> None:
        """Generate and split, and give each client its own subgraph. Does nothing the second time."""
        if self._graph is not None:
            return
        super().setup(stage)
        size = self.nodes_per_client
        held_by = self.data.node_id // size  # also where `largest_component` left nodes out
        self._partition = Partition([(held_by == k).nonzero().view(-1) for k in range(self.num_clients)], "planted")

    def partition_record(self) -> dict[str, Any]:
        return {**super().partition_record(), "requested": "planted", "groups": self.groups}

    def report(self) -> dict[str, Any]:
        return {**super().report(), "groups": self.groups}
