"""FedSage on subgraphs mended with class prototypes (ours, no paper's): FedSage+ without a generator.

What a node's missing neighbours are worth to a classifier is mostly that they are there, and of which class
(docs/fedsage_prototype.md). Both can be told without anybody's rows: protocol and what leaves a client in ``prototypes.py``,
equations in ``datamodules/prototypes.py``.
"""

from __future__ import annotations

from typing import Literal

from fl_lightning.strategies.fedsage import FedSagePlus
from fl_lightning.strategies.prototypes import Prototypes
from lit_models.neighgen import LitNeighGen


class FedSagePrototype(FedSagePlus):
    """Sums over the training nodes of each class go to the server once; from its means, and from what the model says of a
    node's class, each client gives its nodes the neighbours that they miss; the rounds are FedSage's.

    Args:
        weighting: As in ``FedAvg``; ``uniform`` is FedSage's.
        counts: How many neighbours a node gets: one if it misses ``any``, where its client knows which links lead elsewhere
            (``ClientGraphDataModule.links_elsewhere``), else one; ``one``, whatever it misses; the ``mean`` number of links
            that lead elsewhere, over the clients that know theirs, at least 1; as many as are ``known`` to be missing; or as
            many as the ``generator``'s dGen has ``predicted``. In a mean over neighbours more of one kind outweigh the others.
        min_nodes: A client says nothing of a class of which it has fewer training nodes.
        warm_up: Share of the rounds in which graphs stay as they are, until the model knows something of the classes.
        every: Rounds from one look at the classes of the nodes to the next.
        labels: Training nodes' classes are their labels; else what the model says of them, like of all others.
        nodes: Which get neighbours: ``all``, or only ``train``ing nodes (a control).
        generator: NeighGen, whose dGen counts with ``counts: predicted``.
        hide_portion: As in ``FedSagePlus``, for ``counts: predicted``.
        pretrain_steps: The same.
    """

    def __init__(
        self,
        weighting: Literal["uniform", "num_samples"] = "uniform",
        counts: Literal["any", "one", "mean", "known", "predicted"] = "any",
        min_nodes: int = 3,
        warm_up: float = 0.1,
        every: int = 5,
        labels: bool = False,
        nodes: Literal["all", "train"] = "all",
        generator: LitNeighGen | None = None,
        hide_portion: float = 0.15,
        pretrain_steps: int = 200,
    ) -> None:
        super().__init__(
            weighting,
            generator,
            hide_portion,
            pretrain_steps,
            mending="prototype",
            counts=counts,
            prototypes=Prototypes(min_nodes, warm_up, every, labels, nodes),
        )
