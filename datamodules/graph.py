"""Node classification as a federated data module: one central graph, and one data module per client with a subgraph
of it.

A dataset is a subclass of :class:`GraphDataModule` with a single method, ``load() -> Data``; cleaning, splitting,
partitioning, loaders, records and reports are here. Batches are PyG ``Data``: see
:class:`~datamodules.graph_loaders.GraphLoaders`.
"""

import hashlib
import sys
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules import split as splits
from datamodules.graph_cleaning import clean_graph, set_layout
from datamodules.graph_loaders import ClientGraphDataModule, GraphLoaders, graph_sha256
from datamodules.graph_report import report_graph
from datamodules.partition import Partition, check_partition, membership_sha256, partition_graph
from datamodules.seeds import derive_seed
from datamodules.sparse import normalize_rows
from datamodules.topology import largest_component, links_elsewhere, lost_edges, subgraph_of

PartitionName = Literal["louvain", "metis", "overlapping", "random"]
SplitName = Literal["stratified_60_20_20", "random_20_40_40", "public"]


class GraphDataModule(GraphLoaders):
    """Base of all graph datasets: the whole graph for central training and for the server's evaluation, and the
    clients' subgraphs.

    The whole graph is untouched by the partition: all edges, each node once. Splits are made on it, before it is
    partitioned, and the clients inherit them.

    Args:
        num_clients: Number of clients, from 1 to the number of nodes.
        partition: How nodes are shared out: ``louvain`` (FedSage: communities, packed), ``metis`` (FED-PUB, disjoint:
            few edges cut), ``overlapping`` (FED-PUB: random halves of METIS parts) or ``random``.
        seed: Fixes the split and the partition, with an independent stream for each.
        split: ``stratified_60_20_20`` (train/val/test per class), ``random_20_40_40`` (train/val/test as in FED-PUB:
            20 % train, 40 % test, the rest val) or ``public`` (the published masks, where the dataset has them).
        largest_component: Keep the largest connected component only, before anything else.
        normalize_features: Divide each feature row by its sum.
        sparse_features: Keep ``x`` as a CSR tensor; otherwise dense.
        batch_size: ``None`` for one full-batch step per epoch, or the seed nodes of a neighbour-sampled batch.
        num_neighbors: Fan-out of each hop with a ``batch_size``, one per layer of the model.
        eval_batch_size: ``None`` to evaluate on the full graph at once, or seed nodes per batch with all their
            neighbours.

    Raises:
        ValueError: a value that cannot work, in the names of the YAML file.
    """

    def __init__(
        self,
        num_clients: int = 3,
        partition: PartitionName = "louvain",
        seed: int = 0,
        split: SplitName = "stratified_60_20_20",
        largest_component: bool = False,
        normalize_features: bool = False,
        sparse_features: bool = True,
        batch_size: int | None = None,
        num_neighbors: Sequence[int] = (10, 10),
        eval_batch_size: int | None = None,
    ) -> None:
        super().__init__(batch_size, num_neighbors, eval_batch_size)
        if num_clients < 1:
            raise ValueError(f"`data.init_args.num_clients` is {num_clients}, but must be at least 1.")
        check_partition(partition)
        if split not in splits.SPLITS:
            raise ValueError(f"`data.init_args.split` is {split!r}, but must be one of: {', '.join(splits.SPLITS)}.")
        self.partition: str = partition  # subclasses have more
        self.num_clients, self.seed, self.split = num_clients, seed, split
        self.largest_component, self.normalize_features = largest_component, normalize_features
        self.sparse_features = sparse_features
        self._partition: Partition | None = None
        self._clients: list[ClientGraphDataModule] | None = None
        self._num_classes = 0
        self._dropped: list[int] = []

    # What a dataset implements

    def load(self) -> Data:
        """The raw graph: ``x`` (dense or CSR, ``(N, F)``), ``y`` (int64 ``(N,)``, -1 = unlabeled), ``edge_index``;
        optionally ``num_classes`` (int), ``node_id`` (int64 ``(N,)``, default 0 to N-1) and the three published
        masks."""
        raise NotImplementedError(f"`{type(self).__name__}` must define `load(self) -> Data`, which gives the whole graph.")

    def share_out(self, graph: Data) -> Partition:
        """Positions in ``graph`` of each client's nodes; a dataset that brings its own clients overrides this."""
        seed = derive_seed(self.seed, "partition")
        return partition_graph(self.partition, graph.edge_index, int(graph.num_nodes), self.num_clients, seed)

    # Lightning

    def setup(self, stage: str | None = None) -> None:
        """Load, clean, split and partition. Does nothing the second time."""
        if self._graph is not None:
            return
        graph, self._num_classes = clean_graph(self.load(), type(self).__name__)
        if self.largest_component:
            kept = largest_component(graph.edge_index, int(graph.num_nodes))
            inside = torch.zeros(int(graph.num_nodes), dtype=torch.bool).index_fill_(0, kept, True)
            self._dropped = graph.node_id[~inside].tolist()
            graph = subgraph_of(graph, kept)
        if self.normalize_features:
            graph.x = normalize_rows(graph.x)
        self._split(graph)
        self._partition = self.share_out(graph)
        graph.x = set_layout(graph.x, self.sparse_features)
        self._graph = graph

    def _split(self, graph: Data) -> None:
        if self.split == "public":
            missing = [f"{stage}_mask" for stage in splits.STAGES if f"{stage}_mask" not in graph]
            if missing:
                raise ValueError(
                    f"`data.init_args.split` is 'public', but `{type(self).__name__}` comes without a published split. "
                    "Use `stratified_60_20_20` or `random_20_40_40`."
                )
            return
        masks = getattr(splits, self.split)(graph.y, derive_seed(self.seed, "split"))
        for stage, mask in zip(splits.STAGES, masks, strict=True):
            graph[f"{stage}_mask"] = mask

    # The federation's data seam

    @property
    def schema(self) -> dict[str, Any]:
        """``{"num_features": F, "num_classes": C}``: what a model needs to build its layers; with ``normalize_features`` also
        that, since rows that sum to one are other features."""
        schema: dict[str, Any] = {"num_features": int(self.data.x.size(1)), "num_classes": self._num_classes}
        return {**schema, "normalize_features": True} if self.normalize_features else schema

    def client_datamodules(self) -> list[ClientGraphDataModule]:
        """One data module per client, client id = position; the same objects at each call."""
        if self._clients is None:
            options = (self.schema, self.batch_size, self.num_neighbors, self.eval_batch_size)
            self._clients = [
                ClientGraphDataModule(subgraph_of(self.data, ids), *options, self._links_elsewhere(ids), self._found_classes)
                for ids in self._partitioned().clients
            ]
        return self._clients

    _found_classes = False
    """Whether the classes are those that were found in the data."""

    def _links_elsewhere(self, ids: Tensor) -> Tensor:
        """What a client that holds these positions knows from its own links: how many of each node's lead to nodes of others,
        int64 ``(n,)``."""
        return links_elsewhere(self.data, ids)

    def partition_record(self) -> dict[str, Any]:
        """What ``partition.json`` holds: method, seed, membership (original node ids per client) with its SHA-256,
        lost edges, versions."""
        graph, partition = self.data, self._partitioned()
        return {
            "method": partition.method,
            "requested": self.partition,
            "note": partition.note,
            "seed": self.seed,
            "num_clients": self.num_clients,
            "num_nodes": int(graph.num_nodes),
            "num_edges": graph.edge_index.size(1) // 2,
            "lost_edges": self._lost_edges(),
            "split": self.split,
            "largest_component": self.largest_component,
            "client_sizes": [ids.numel() for ids in partition.clients],
            "membership": [graph.node_id[ids].tolist() for ids in partition.clients],
            "sha256": membership_sha256(partition.clients, int(graph.num_nodes)),
            "versions": {name: sys.modules[name].__version__ for name in ("networkx", "pymetis") if _has_version(name)},
        }

    def fingerprint(self) -> str:
        """SHA-256 over features, labels, edges, split and membership: a resumed run refuses other data."""
        sha = hashlib.sha256(graph_sha256(self.data).encode())
        sha.update(membership_sha256(self._partitioned().clients, int(self.data.num_nodes)).encode())
        return sha.hexdigest()

    def report(self) -> dict[str, Any]:
        """What ``inspect`` shows: sizes, labels per client and their distance to the whole, lost edges, findings with
        remedies."""
        clients = [client.data for client in self.client_datamodules()]
        about = {"dataset": type(self).__name__, "split": self.split, "num_clients": self.num_clients}
        return report_graph(self.data, clients, self._partitioned(), self._lost_edges(), self.schema, about) | {
            "dropped_rows": self.dropped_rows
        }

    @property
    def dropped_rows(self) -> list[dict[str, Any]]:
        """``{"row", "reason"}`` of each node of the data set that is not in the graph."""
        return [{"row": row, "reason": "outside the largest connected component"} for row in self._dropped]

    def _partitioned(self) -> Partition:
        if self._partition is None:
            raise ValueError(f"`{type(self).__name__}` has no clients yet: call `setup()` first.")
        return self._partition

    def _lost_edges(self) -> int:
        return lost_edges(self.data.edge_index, self._partitioned().clients, int(self.data.num_nodes))


def _has_version(module: str) -> bool:
    return hasattr(sys.modules.get(module), "__version__")
