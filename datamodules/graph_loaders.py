"""Loaders over one graph, built once and reused in every round; and the data module of one client."""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader
from torch_geometric.data import Data

from datamodules.relabelling import permute_known
from datamodules.sampling import ALL, NeighborSampler, check_num_neighbors
from datamodules.sparse import stored_tensors
from datamodules.split import STAGES
from datamodules.tables.names import sort_names


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
                raise ValueError(f"`data.init_args.{name}` is {size}, but must be at least 1, or null for the full graph.")
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

    def permute_labels(self, generator: torch.Generator) -> int:
        """Permute the labels of all nodes that are not for training; how many have become others (``canary``)."""
        changed = copy.copy(self.data)
        changed.y, number = permute_known(changed.y, ~changed.train_mask, generator)
        self._graph, self._loaders, self._on_device = changed, {}, None
        return number

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
        found_classes: Whether ``schema["class_names"]`` are those that were found here: others may have more.
    """

    def __init__(
        self,
        data: Data,
        schema: dict[str, Any],
        batch_size: int | None = None,
        num_neighbors: Sequence[int] = (10, 10),
        eval_batch_size: int | None = None,
        links_elsewhere: Tensor | None = None,
        found_classes: bool = False,
    ) -> None:
        super().__init__(batch_size, num_neighbors, eval_batch_size)
        self._graph, self.schema, self.links_elsewhere = data, dict(schema), links_elsewhere
        self.found_classes = found_classes
        self._own_classes = list(self.schema.get("class_names") or [])

    def statistics(self) -> dict[str, Any]:
        """The names of its classes, where they were found in tables and not given (``data.init_args.classes``)."""
        return {"names": {"class_names": self._own_classes}} if self._own_classes and self.found_classes else {}

    def use_statistics(self, agreed: Mapping[str, Any]) -> None:
        """Number the classes by the names that all clients have together."""
        own, names = self.schema.get("class_names"), sort_names(agreed["names"].get("class_names", ()))
        if self.found_classes and own and names and list(own) != names:
            self._graph = renumber_classes(self.data, own, names)
            self.schema |= {"class_names": names, "num_classes": len(names)}
            self._loaders = {}

    def with_data(self, data: Data) -> "ClientGraphDataModule":
        """The same loaders over another graph, for example a mended one."""
        other = ClientGraphDataModule(data, self.schema, self.batch_size, self.num_neighbors, self.eval_batch_size)
        other.set_predicted(self._asked)
        return other

    def fingerprint(self) -> str:
        """SHA-256 of everything that training on this client depends on."""
        return graph_sha256(self.data, () if self.links_elsewhere is None else (self.links_elsewhere,))


def renumber_classes(graph: Data, own: Sequence[str], names: Sequence[str]) -> Data:
    """The graph with ``y``, so far numbers in ``own``, as numbers in ``names``; -1 stays, and is what ``names`` lacks."""
    places = {name: place for place, name in enumerate(names)}
    number = torch.tensor([*(places.get(name, -1) for name in own), -1])
    changed = copy.copy(graph)
    changed.y = number[graph.y]  # -1 is the last
    if "num_classes" in changed:
        changed.num_classes = len(names)
    return changed


def graph_sha256(graph: Data, more: Sequence[Tensor] = ()) -> str:
    """SHA-256 of all that training on a graph depends on: features, edges, labels, ids and masks, and ``more``."""
    parts = [*stored_tensors(graph.x), graph.edge_index, graph.y, graph.node_id]
    parts += [graph[f"{stage}_mask"] for stage in STAGES] + [*more]
    sha = hashlib.sha256(str(tuple(graph.x.shape)).encode())
    for part in parts:
        array = part.detach().cpu().contiguous().numpy()
        sha.update(f"{array.dtype.str}{array.shape}".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()
