"""Mending (FedSage+): give a client's subgraph the neighbours that it is missing. Pure functions.

Each node v gets k_v new nodes with the given features, each joined to v by one undirected edge. Both directions are
stored: PyG's messages flow from source to target, and with the edge v -> new alone v would never hear the new node.
New nodes have degree 1, label -1, all masks False and node_id -1; the original rows, edges, labels and masks stay.

Memory: generated rows are dense, so the mended ``x`` is dense, 4 (N + sum k) F bytes. In sparse CSR a generated row
costs 12 F bytes, and its product with a weight matrix is some ten times slower.

Where the features come from: NeighGen; or, to know what NeighGen is worth, a constant (`constant_features`) or the true
neighbours on other clients (`cross_neighbours`, an oracle that needs the global graph: benchmarks only).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules.sparse import select_rows

CONSTANTS = ("zero", "mean")


def mend(data: Data, counts: Tensor, features: Tensor) -> Data:
    """Append ``counts[v]`` new neighbours to every node v.

    Args:
        data: A client's graph: ``x`` (dense or sparse CSR), ``edge_index`` and, if there, ``y``, masks, ``node_id``.
        counts: k_v, int64, shape ``(N,)``.
        features: Rows of the new nodes ordered by owner, shape ``(sum k, F)``; the first k_0 belong to node 0.

    Returns:
        New graph on N + sum k nodes, plus ``generated`` bool ``(N + sum k,)``. If all counts are 0 its tensors are
        those of ``data``, not copies. Fields not named above are not carried over.

    Raises:
        ValueError: Shapes disagree, a count is negative, or the graph has edge attributes (a new edge would have none).
    """
    num_nodes, num_new = int(data.num_nodes or 0), len(features)
    if counts.shape != (num_nodes,) or counts.is_floating_point() or bool((counts < 0).any()):
        raise ValueError(
            f"`counts` must be {num_nodes} integers >= 0, one per node; got {counts.dtype} of shape {tuple(counts.shape)}."
        )
    expected = (int(counts.sum()), data.x.shape[1])
    if features.shape != expected:
        raise ValueError(
            f"`features` must have one row per new node and one column per feature, shape {expected}; "
            f"got {tuple(features.shape)}."
        )
    for name in ("edge_attr", "edge_weight"):
        if data.get(name) is not None:
            raise ValueError(f"The graph has `{name}`, and generated edges would have none; remove it before mending.")
    mended = Data(x=data.x, edge_index=data.edge_index, num_nodes=num_nodes + num_new)
    fill: dict[str, int | bool] = {"y": -1, "train_mask": False, "val_mask": False, "test_mask": False, "node_id": -1}
    for name, value in fill.items():
        if name in data:
            new = torch.full((num_new,), value, dtype=data[name].dtype)
            mended[name] = torch.cat([data[name], new]) if num_new else data[name]
    mended.generated = torch.arange(num_nodes + num_new) >= num_nodes
    if num_new:
        original = data.x if data.x.layout == torch.strided else data.x.to_dense()
        owner = torch.repeat_interleave(counts)
        new = torch.arange(num_nodes, num_nodes + num_new)
        mended.x = torch.cat([original, features.to(original.dtype)])
        mended.edge_index = torch.cat([data.edge_index, torch.stack([owner, new]), torch.stack([new, owner])], dim=1)
    return mended


def constant_features(x: Tensor, counts: Tensor, kind: str) -> Tensor:
    """Rows for `mend` that know nothing: the ``"zero"`` vector or the ``"mean"`` row of ``x``; shape ``(sum k, F)``."""
    if kind not in CONSTANTS:
        raise ValueError(f"Unknown constant `{kind}`; use one of {', '.join(CONSTANTS)}.")
    num_new = int(counts.sum())
    if kind == "zero":
        return torch.zeros(num_new, x.shape[1])
    if x.layout == torch.strided:
        mean = x.mean(0)
    else:
        mean = torch.zeros(x.shape[1]).index_add_(0, x.col_indices(), x.values()) / x.shape[0]
    return mean.expand(num_new, -1).clone()


def cross_neighbours(local: Data, whole: Data) -> tuple[Tensor, Tensor]:
    """The oracle: true counts and features of each local node's neighbours on other clients. Needs the global graph.

    Every lost edge (v, u) becomes one new node with u's features, joined to v only: the form of a perfect NeighGen,
    which does not know that two nodes miss the same neighbour.

    Args:
        local: A client's graph; its ``node_id`` are those of ``whole``, or rows of a ``whole`` without.
        whole: The unpartitioned graph.

    Returns:
        ``counts`` int64 ``(N,)`` and ``features`` ``(sum counts, F)``, ordered by owner, for `mend`.
    """
    ids = whole.node_id if "node_id" in whole else torch.arange(int(whole.num_nodes or 0))
    order = torch.argsort(ids)
    position = torch.full((len(ids),), -1, dtype=torch.long)  # in the client's graph
    position[order[torch.searchsorted(ids[order], local.node_id)]] = torch.arange(len(local.node_id))
    owner, neighbour = position[whole.edge_index[0]], whole.edge_index[1]
    lost = (owner >= 0) & (position[neighbour] < 0)
    owner, neighbour = owner[lost], neighbour[lost]
    order = torch.argsort(owner, stable=True)
    counts = torch.bincount(owner, minlength=len(local.node_id))
    features = select_rows(whole.x, neighbour[order])
    return counts, features if features.layout == torch.strided else features.to_dense()
