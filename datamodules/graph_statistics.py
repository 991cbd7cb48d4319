"""Numbers that describe a graph or a client's part of it: labels, their distance to the whole, nodes without an edge, bytes."""

import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules.sparse import stored_tensors


def label_counts(y: Tensor, num_classes: int) -> list[int]:
    """Number of nodes of each class; unlabeled nodes (-1) are not counted."""
    return torch.bincount(y[y >= 0], minlength=num_classes).tolist()


def label_distance(counts: list[int], whole: list[int]) -> float | None:
    r"""Total variation :math:`\frac12 \sum_c |p_c - q_c|` between two label distributions: 0 equal, 1 disjoint;
    ``None`` if one is empty."""
    if not sum(counts) or not sum(whole):
        return None
    return sum(abs(a / sum(counts) - b / sum(whole)) for a, b in zip(counts, whole, strict=True)) / 2


def isolated_nodes(graph: Data) -> int:
    """Number of nodes without an edge."""
    return int(graph.num_nodes) - torch.unique(graph.edge_index).numel()


def num_bytes(graph: Data) -> int:
    """Bytes that a graph's tensors take."""
    parts = stored_tensors(graph.x)
    parts += [value for key, value in graph.to_dict().items() if isinstance(value, Tensor) and key != "x"]
    return sum(part.numel() * part.element_size() for part in parts)
