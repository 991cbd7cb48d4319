"""A synthetic citation graph, so that everything can be tried with nothing downloaded."""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules.graph import GraphDataModule
from datamodules.seeds import generator
from datamodules.sparse import csr_from_entries


class SyntheticCitationDataModule(GraphDataModule):
    r"""Stochastic block model with class-dependent bag-of-words features.

    Each class has several research groups (blocks). Two papers cite each other with a probability that depends on
    their groups
    only: the same group, another group of the same class, or another class. A paper draws ``words_per_node`` words,
    each with probability ``topic_share`` from its class's own part of the vocabulary and otherwise from all of it.
    Groups are what Louvain finds, so clients get few classes, as on Cora.

    Args:
        num_nodes: N.
        num_classes: C.
        num_features: Size of the vocabulary.
        blocks_per_class: Groups per class; the groups' sizes differ by at most one node.
        degree: Expected number of neighbours ``(same group, other group of the class, other class)``.
        words_per_node: Draws per paper; repeated words count once.
        topic_share: Share of draws from the class's own words; 0 makes the features useless.
        graph_seed: Fixes the graph; ``seed`` fixes the split and the partition.
        options: As for :class:`~datamodules.graph.GraphDataModule`.
    """

    def __init__(
        self,
        num_nodes: int = 1000,
        num_classes: int = 6,
        num_features: int = 500,
        blocks_per_class: int = 3,
        degree: tuple[float, float, float] = (2.6, 0.5, 0.7),
        words_per_node: int = 12,
        topic_share: float = 0.2,
        graph_seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        sizes = {"num_classes": num_classes, "blocks_per_class": blocks_per_class, "words_per_node": words_per_node}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"`data.init_args.{name}` is {value}, but must be at least 1.")
        for name, value in (("num_nodes", num_nodes), ("num_features", num_features)):
            if value < num_classes:
                raise ValueError(
                    f"`data.init_args.{name}` is {value}, but must be at least the number of classes, {num_classes}."
                )
        if not 0 <= topic_share <= 1:
            raise ValueError(f"`data.init_args.topic_share` is {topic_share}, but must be between 0 and 1.")
        self.num_nodes, self.num_classes, self.num_features = num_nodes, num_classes, num_features
        self.blocks_per_class, self.degree = blocks_per_class, tuple(degree)
        self.words_per_node, self.topic_share, self.graph_seed = words_per_node, topic_share, graph_seed

    def load(self) -> Data:
        num_blocks = self.num_classes * self.blocks_per_class
        block = torch.arange(self.num_nodes) % num_blocks
        block = block[torch.randperm(self.num_nodes, generator=generator(self.graph_seed, "citation", "order"))]
        y = block % self.num_classes
        edge_index = block_model_edges(block, self._probabilities(block), generator(self.graph_seed, "citation", "edges"))
        x = bag_of_words(
            y, self.num_classes, self.num_features, self.words_per_node, self.topic_share,
            generator(self.graph_seed, "citation", "words"),
        )  # fmt: skip
        return Data(x=x, y=y, edge_index=edge_index, num_nodes=self.num_nodes, num_classes=self.num_classes)

    def _probabilities(self, block: Tensor) -> Tensor:
        """Probability of an edge between nodes of two blocks, ``(B, B)``, from the expected degrees."""
        num_blocks = self.num_classes * self.blocks_per_class
        label = torch.arange(num_blocks) % self.num_classes
        same_class = label[:, None] == label[None, :]
        same_block = torch.eye(num_blocks, dtype=torch.bool)
        per_block = self.num_nodes / num_blocks
        reach = (per_block, per_block * (self.blocks_per_class - 1), self.num_nodes - per_block * self.blocks_per_class)
        own, near, far = (
            min(1.0, degree / nodes) if nodes > 0 else 0.0 for degree, nodes in zip(self.degree, reach, strict=True)
        )
        inside = torch.where(same_block, own, near)
        return torch.where(same_class, inside, torch.full_like(inside, far))


def block_model_edges(block: Tensor, probabilities: Tensor, random: torch.Generator) -> Tensor:
    """Stochastic block model: each unordered pair of nodes is an edge with the probability of its blocks. Shape ``(2,
    E)``, u < v."""
    members = [(block == number).nonzero().view(-1) for number in range(probabilities.size(0))]
    edges = []
    for a, rows in enumerate(members):
        for b, cols in enumerate(members[a:], start=a):
            hit = torch.rand(rows.numel(), cols.numel(), generator=random) < probabilities[a, b]
            if a == b:
                hit = hit.triu(diagonal=1)
            i, j = hit.nonzero(as_tuple=True)
            edges.append(torch.stack([torch.minimum(rows[i], cols[j]), torch.maximum(rows[i], cols[j])]))
    return torch.cat(edges, dim=1)


def bag_of_words(
    y: Tensor, num_classes: int, num_features: int, words: int, topic_share: float, random: torch.Generator
) -> Tensor:
    """Binary CSR features ``(N, F)``: ``words`` draws per node, from its class's words with probability
    ``topic_share``, else from all."""
    topic = num_features // num_classes
    shape = (y.numel(), words)
    own = y[:, None] * topic + torch.randint(topic, shape, generator=random)
    common = torch.randint(num_features, shape, generator=random)
    word = torch.where(torch.rand(shape, generator=random) < topic_share, own, common)
    row = torch.arange(y.numel())[:, None].expand(shape)
    x = csr_from_entries(row.reshape(-1), word.reshape(-1), torch.ones(word.numel()), (y.numel(), num_features))
    x.values().fill_(1)
    return x
