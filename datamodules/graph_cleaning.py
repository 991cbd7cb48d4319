"""From the graph that a data set gives to the one that is trained on: checked, undirected, with features in one layout."""

import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules.sparse import csr_from_entries
from datamodules.split import STAGES
from datamodules.topology import undirected_edges


def clean_graph(raw: Data, name: str) -> tuple[Data, int]:
    """The fields of the contract and no others, checked; and the number of classes.

    Args:
        raw: What ``GraphDataModule.load`` gives.
        name: Of the data set's class, for messages.

    Raises:
        ValueError: No node, labels out of range or none at all, features that are no numbers.
    """
    num_nodes = raw.y.numel()
    if num_nodes == 0 or raw.x.size(0) != num_nodes:
        raise ValueError(f"`{name}` needs one feature row per node, but has {raw.x.size(0)} rows and {num_nodes} labels.")
    y = raw.y.long()
    num_classes = int(raw["num_classes"]) if "num_classes" in raw else int(y.max()) + 1
    _check_labels(y, num_classes, name)
    values = raw.x.values() if raw.x.layout == torch.sparse_csr else raw.x
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"`{name}`: some features are NaN or infinite. Fill them in or drop those nodes.")
    graph = Data(x=raw.x, edge_index=undirected_edges(raw.edge_index, num_nodes), y=y, num_nodes=num_nodes)
    graph.node_id = raw.node_id.long() if "node_id" in raw else torch.arange(num_nodes)
    for stage in STAGES:
        if f"{stage}_mask" in raw:
            graph[f"{stage}_mask"] = raw[f"{stage}_mask"] & (y >= 0)
    return graph, num_classes


def _check_labels(y: Tensor, num_classes: int, name: str) -> None:
    wrong = ((y < -1) | (y >= num_classes)).nonzero().view(-1)
    if wrong.numel():
        raise ValueError(
            f"`{name}`: node {int(wrong[0])} has label {int(y[wrong[0]])}, but labels must be 0 to "
            f"{num_classes - 1}, or -1 for unlabeled ({wrong.numel()} such nodes). Correct the labels or the "
            "number of classes."
        )
    if num_classes < 1:
        raise ValueError(f"`{name}`: no node has a label. Give at least some nodes a class from 0 upwards.")


def set_layout(x: Tensor, sparse: bool) -> Tensor:
    """Features as float32, CSR (``sparse``) or dense."""
    if x.layout == torch.sparse_csr:
        return x.float() if sparse else x.to_dense().float()
    if not sparse:
        return x.float()
    row, col = x.nonzero(as_tuple=True)
    return csr_from_entries(row, col, x[row, col].float(), (x.size(0), x.size(1)))
