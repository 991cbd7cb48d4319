"""Node classification as a federated data module: one central graph, and one data module per client with a subgraph
of it.

A dataset is a subclass of :class:`GraphDataModule` with a single method, ``load() -> Data``; cleaning, splitting,
partitioning, loaders, records and reports are here. Batches are PyG ``Data``: see :class:`GraphLoaders`.
"""

import copy
import hashlib
import sys
from collections.abc import Sequence
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader
from torch_geometric.data import Data

from datamodules import split as splits
from datamodules.partition import Partition, check_partition, membership_sha256, partition_graph
from datamodules.report import client_findings, graph_findings, isolated_nodes, label_counts, label_distance
from datamodules.sampling import ALL, NeighborSampler, check_num_neighbors
from datamodules.seeds import derive_seed
from datamodules.sparse import csr_from_entries, normalize_rows
from datamodules.topology import (
    edges_between,
    largest_component,
    links_elsewhere,
    lost_edges,
    subgraph_of,
    undirected_edges,
)

PartitionName = Literal["louvain", "metis", "overlapping", "random"]
SplitName = Literal["stratified_60_20_20", "random_20_40_40", "public"]
STAGES = ("train", "val", "test")


class GraphLoaders(LightningDataModule):
    """Loaders over one graph, built once and then reused in every round.

    A batch is a ``Data`` with ``x`` (dense float or CSR, ``(N, F)``), ``edge_index`` (``(2, E)``, both directions, no
    self loops), ``y`` (int64 ``(N,)``, -1 = unlabeled), ``train_mask``, ``val_mask``, ``test_mask`` (bool ``(N,)``),
    ``node_id`` (int64 ``(N,)``) and ``num_nodes``. Full batch (``batch_size=None``): the very same object every time.
    With a ``batch_size``, training batches come from :class:`~datamodules.sampling.NeighborSampler` in an order drawn
    from torch's global stream: each training node is a seed exactly once per epoch and the last, short batch is kept.
    Evaluation is on the full graph, or, with ``eval_batch_size``, on batches with all neighbours (and one hop more
    than in training, so that degrees are exact too); prediction is always on the full graph.
    """

    def __init__(self, batch_size: int | None, num_neighbors: Sequence[int], eval_batch_size: int | None) -> None:
        super().__init__()
        for name, size in (("batch_size", batch_size), ("eval_batch_size", eval_batch_size)):
            if size is not None and size < 1:
                raise ValueError(
                    f"`data.init_args.{name}` is {size}, but must be at least 1, or null for the full graph."
                )
        check_num_neighbors(num_neighbors)
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.num_neighbors = tuple(num_neighbors)
        self._graph: Data | None = None
        self._asked: Data | None = None
        self._loaders: dict[str, DataLoader] = {}
        self._on_device: tuple[torch.device, Data] | None = None

    @property
    def data(self) -> Data:
        """The graph, on the CPU."""
        if self._graph is None:
            raise ValueError(f"`{type(self).__name__}` has no data yet: call `setup()` first.")
        return self._graph

    @property
    def num_train_samples(self) -> int:
        """Number of training nodes; 0 means that there is nothing to train on."""
        return int(self.data.train_mask.sum())

    @property
    def num_val_samples(self) -> int:
        return int(self.data.val_mask.sum())

    @property
    def num_test_samples(self) -> int:
        return int(self.data.test_mask.sum())

    def set_predicted(self, graph: Data | None) -> None:
        """Predict this graph in place of the module's own."""
        self._asked = graph
        self._loaders.pop("predict", None)

    def train_dataloader(self) -> DataLoader:
        return self._loader("train")

    def val_dataloader(self) -> DataLoader:
        return self._loader("val")

    def test_dataloader(self) -> DataLoader:
        return self._loader("test")

    def predict_dataloader(self) -> DataLoader:
        return self._loader("predict")

    def _loader(self, stage: str) -> DataLoader:
        if stage not in self._loaders:
            self._loaders[stage] = self._build_loader(stage)
        return self._loaders[stage]

    def _build_loader(self, stage: str) -> DataLoader:
        size = self.batch_size if stage == "train" else self.eval_batch_size
        if size is None or stage == "predict":
            graph = self._asked if stage == "predict" and self._asked is not None else self.data
            whole: Any = [graph]  # a list will do for a Dataset
            return DataLoader(whole, batch_size=None, collate_fn=_same, num_workers=0)
        seeds = self.data[f"{stage}_mask"].nonzero().view(-1)
        fanouts = self.num_neighbors if stage == "train" else (ALL,) * (len(self.num_neighbors) + 1)
        sampler = NeighborSampler(self.data, fanouts)
        # without a seed there is nothing to shuffle, and PyTorch's RandomSampler refuses an empty set
        shuffle = stage == "train" and seeds.numel() > 0
        return DataLoader(seeds.tolist(), batch_size=size, shuffle=shuffle, collate_fn=sampler, num_workers=0)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Lightning's hook. The full graph is copied to an accelerator once; the CPU copy stays where it is
        (``Data.to`` moves in place)."""
        if batch is not self._graph:
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        if device.type == "cpu":
            return batch
        if self._on_device is None or self._on_device[0] != device:
            self._on_device = (device, copy.copy(self.data).to(device))
        return self._on_device[1]


def _same(data: Data) -> Data:
    return data


class ClientGraphDataModule(GraphLoaders):
    """One client's subgraph.

    Args:
        data: The subgraph, with the fields that :class:`GraphLoaders` lists. Training goes on without a training
            node, an edge, a second class or a second node: ``num_train_samples`` tells.
        schema: ``{"num_features": F, "num_classes": C}`` of the whole federation.
        batch_size: Seed nodes of a training batch; ``None`` for the full graph.
        num_neighbors: Fan-out per layer, used with a ``batch_size``.
        eval_batch_size: The same for evaluation; ``None`` for the full graph.
        links_elsewhere: How many links of each node lead to nodes that the client does not have, int64 ``(N,)``, if it
            knows.
    """

    def __init__(
        self,
        data: Data,
        schema: dict[str, Any],
        batch_size: int | None = None,
        num_neighbors: Sequence[int] = (10, 10),
        eval_batch_size: int | None = None,
        links_elsewhere: Tensor | None = None,
    ) -> None:
        super().__init__(batch_size, num_neighbors, eval_batch_size)
        self._graph, self.schema, self.links_elsewhere = data, dict(schema), links_elsewhere

    def with_data(self, data: Data) -> "ClientGraphDataModule":
        """The same loaders over another graph, for example a mended one."""
        other = ClientGraphDataModule(data, self.schema, self.batch_size, self.num_neighbors, self.eval_batch_size)
        other.set_predicted(self._asked)
        return other

    def fingerprint(self) -> str:
        """SHA-256 of everything that training on this client depends on."""
        return _sha256_of(self.data, () if self.links_elsewhere is None else (self.links_elsewhere,))


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
        raise NotImplementedError(
            f"`{type(self).__name__}` must define `load(self) -> Data`, which gives the whole graph."
        )

    def share_out(self, graph: Data) -> Partition:
        """Positions in ``graph`` of each client's nodes; a dataset that brings its own clients overrides this."""
        seed = derive_seed(self.seed, "partition")
        return partition_graph(self.partition, graph.edge_index, int(graph.num_nodes), self.num_clients, seed)

    # Lightning

    def setup(self, stage: str | None = None) -> None:
        """Load, clean, split and partition. Does nothing the second time."""
        if self._graph is not None:
            return
        graph = self._cleaned(self.load())
        if self.largest_component:
            kept = largest_component(graph.edge_index, int(graph.num_nodes))
            inside = torch.zeros(int(graph.num_nodes), dtype=torch.bool).index_fill_(0, kept, True)
            self._dropped = graph.node_id[~inside].tolist()
            graph = subgraph_of(graph, kept)
        if self.normalize_features:
            graph.x = normalize_rows(graph.x)
        self._split(graph)
        self._partition = self.share_out(graph)
        graph.x = _with_layout(graph.x, self.sparse_features)
        self._graph = graph

    def _cleaned(self, raw: Data) -> Data:
        """The fields of the contract and no others, checked."""
        num_nodes, name = raw.y.numel(), type(self).__name__
        if num_nodes == 0 or raw.x.size(0) != num_nodes:
            raise ValueError(
                f"`{name}` needs one feature row per node, but has {raw.x.size(0)} rows and {num_nodes} labels."
            )
        y = raw.y.long()
        largest = int(y.max())
        self._num_classes = int(raw["num_classes"]) if "num_classes" in raw else largest + 1
        wrong = ((y < -1) | (y >= self._num_classes)).nonzero().view(-1)
        if wrong.numel():
            raise ValueError(
                f"`{name}`: node {int(wrong[0])} has label {int(y[wrong[0]])}, but labels must be 0 to "
                f"{self._num_classes - 1}, or -1 for unlabeled ({wrong.numel()} such nodes). Correct the labels or the "
                "number of classes."
            )
        if self._num_classes < 1:
            raise ValueError(f"`{name}`: no node has a label. Give at least some nodes a class from 0 upwards.")
        values = raw.x.values() if raw.x.layout == torch.sparse_csr else raw.x
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"`{name}`: some features are NaN or infinite. Fill them in or drop those nodes.")
        graph = Data(x=raw.x, edge_index=undirected_edges(raw.edge_index, num_nodes), y=y, num_nodes=num_nodes)
        graph.node_id = raw.node_id.long() if "node_id" in raw else torch.arange(num_nodes)
        for stage in STAGES:
            if f"{stage}_mask" in raw:
                graph[f"{stage}_mask"] = raw[f"{stage}_mask"] & (y >= 0)
        return graph

    def _split(self, graph: Data) -> None:
        if self.split == "public":
            missing = [f"{stage}_mask" for stage in STAGES if f"{stage}_mask" not in graph]
            if missing:
                raise ValueError(
                    f"`data.init_args.split` is 'public', but `{type(self).__name__}` comes without a published split. "
                    "Use `stratified_60_20_20` or `random_20_40_40`."
                )
            return
        masks = getattr(splits, self.split)(graph.y, derive_seed(self.seed, "split"))
        for stage, mask in zip(STAGES, masks, strict=True):
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
                ClientGraphDataModule(subgraph_of(self.data, ids), *options, self._links_elsewhere(ids))
                for ids in self._partitioned().clients
            ]
        return self._clients

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
        sha = hashlib.sha256(_sha256_of(self.data).encode())
        sha.update(membership_sha256(self._partitioned().clients, int(self.data.num_nodes)).encode())
        return sha.hexdigest()

    def report(self) -> dict[str, Any]:
        """What ``inspect`` shows: sizes, labels per client and their distance to the whole, lost edges, findings with
        remedies."""
        graph, clients, lost = self.data, self.client_datamodules(), self._lost_edges()
        whole = label_counts(graph.y, self._num_classes)
        labels = [label_counts(client.data.y, self._num_classes) for client in clients]
        partition = self._partitioned()
        findings = graph_findings(graph, lost, partition.note)
        for number, client in enumerate(clients):
            findings += client_findings(number, client.data)
        edges = graph.edge_index.size(1) // 2
        return {
            "dataset": type(self).__name__,
            "partition": partition.method,
            "split": self.split,
            "num_nodes": int(graph.num_nodes),
            "num_edges": edges,
            **self.schema,
            "isolated_nodes": isolated_nodes(graph),
            "num_clients": self.num_clients,
            "client_sizes": [int(client.data.num_nodes) for client in clients],
            "client_edges": [client.data.edge_index.size(1) // 2 for client in clients],
            "client_samples": {
                stage: [int(client.data[f"{stage}_mask"].sum()) for client in clients] for stage in STAGES
            },
            "samples": {stage: int(graph[f"{stage}_mask"].sum()) for stage in STAGES},
            "labels": labels,
            "labels_whole": whole,
            "label_distance": [label_distance(counts, whole) for counts in labels],
            "lost_edges": lost,
            "lost_edges_share": lost / edges if edges else 0.0,
            "edges_between": edges_between(graph.edge_index, partition.clients, int(graph.num_nodes)),
            "bytes": sum(_nbytes(part.data) for part in (self, *clients)),
            "findings": findings,
            "dropped_rows": self.dropped_rows,
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


def _with_layout(x: Tensor, sparse: bool) -> Tensor:
    if x.layout == torch.sparse_csr:
        return x.float() if sparse else x.to_dense().float()
    if not sparse:
        return x.float()
    row, col = x.nonzero(as_tuple=True)
    return csr_from_entries(row, col, x[row, col].float(), (x.size(0), x.size(1)))


def _has_version(module: str) -> bool:
    return hasattr(sys.modules.get(module), "__version__")


def _nbytes(graph: Data) -> int:
    """Bytes that a graph's tensors take."""
    x = graph.x
    parts = [x.crow_indices(), x.col_indices(), x.values()] if x.layout == torch.sparse_csr else [x]
    parts += [value for key, value in graph.to_dict().items() if isinstance(value, Tensor) and key != "x"]
    return sum(part.numel() * part.element_size() for part in parts)


def _sha256_of(graph: Data, more: Sequence[Tensor] = ()) -> str:
    x = graph.x
    parts = [x.crow_indices(), x.col_indices(), x.values()] if x.layout == torch.sparse_csr else [x]
    parts += [graph.edge_index, graph.y, graph.node_id] + [graph[f"{stage}_mask"] for stage in STAGES] + [*more]
    sha = hashlib.sha256(str(tuple(x.shape)).encode())
    for part in parts:
        array = part.detach().cpu().contiguous().numpy()
        sha.update(f"{array.dtype.str}{array.shape}".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()
