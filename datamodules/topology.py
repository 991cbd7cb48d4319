"""Pure functions on edges: cleaning, components, induced subgraphs and what a partition loses."""

import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules.sparse import select_rows


def undirected_edges(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Both directions of every edge once, without self loops, sorted by (source, target): shape ``(2, E)``, int64.

    The result does not depend on the order, the direction or the repetition of the edges given.

    Raises:
        ValueError: an end of an edge is no node.
    """
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ValueError(f"`edge_index` must have shape (2, E), but it has shape {tuple(edge_index.shape)}.")
    edge_index = edge_index.long()
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < num_nodes:
        raise ValueError(
            f"`edge_index` names nodes {int(edge_index.min())} to {int(edge_index.max())}, but the graph has nodes "
            f"0 to {num_nodes - 1}."
        )
    source, target = edge_index[:, edge_index[0] != edge_index[1]]
    key = torch.unique(torch.cat([source * num_nodes + target, target * num_nodes + source]))
    return torch.stack([torch.div(key, max(num_nodes, 1), rounding_mode="floor"), key % max(num_nodes, 1)])


def connected_components(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Smallest node id in each node's connected component, shape ``(N,)`` (minimum label with pointer jumping)."""
    label = torch.arange(num_nodes)
    source, target = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    while True:
        lower = label.scatter_reduce(0, target, label[source], "amin")
        lower = lower[lower]
        if torch.equal(lower, label):
            return label
        label = lower


def largest_component(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Sorted ids of the nodes in the largest connected component; of equally large ones, that with the smallest id."""
    label = connected_components(edge_index, num_nodes)
    return (label == torch.bincount(label, minlength=1).argmax()).nonzero().view(-1)


def subgraph_of(graph: Data, ids: Tensor) -> Data:
    """Induced subgraph on ``ids``: local node ``i`` is node ``ids[i]`` of ``graph``; edges that leave ``ids`` are
    dropped.

    Every node-level tensor (``x`` dense or CSR, ``y``, masks, ``node_id``) and every edge-level tensor is remapped
    together, and ``num_nodes`` is set. The result shares no storage with ``graph``.

    Args:
        graph: A graph with ``num_nodes``.
        ids: Distinct positions in ``graph``, int64 ``(n,)``.

    Raises:
        ValueError: an id is repeated or is no node.
    """
    num_nodes, ids = int(graph.num_nodes), ids.long()
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes:
        raise ValueError(f"A subgraph needs ids from 0 to {num_nodes - 1}, but got {int(ids.min())} to {int(ids.max())}.")
    local = torch.full((num_nodes,), -1, dtype=torch.long)
    local[ids] = torch.arange(ids.numel())
    if int((local >= 0).sum()) != ids.numel():
        raise ValueError("A subgraph needs distinct ids, but some are repeated.")
    ends = local[graph.edge_index]
    kept = (ends >= 0).all(dim=0)
    part = Data()
    for key, value in graph.to_dict().items():
        if key == "edge_index":
            part[key] = ends[:, kept]
        elif key == "x":
            part[key] = select_rows(value, ids)
        elif isinstance(value, Tensor) and graph.is_edge_attr(key):
            part[key] = value[kept]
        elif isinstance(value, Tensor) and graph.is_node_attr(key):
            part[key] = value[ids]
        else:
            part[key] = value
    part.num_nodes = ids.numel()
    return part


def links_elsewhere(whole: Data, ids: Tensor) -> Tensor:
    """How many links of each node of a client lead to a node that the client does not have, int64 ``(n,)``.

    Args:
        whole: The graph of all.
        ids: The client's nodes, positions in ``whole``, ``(n,)``.
    """
    inside = torch.zeros(int(whole.num_nodes), dtype=torch.bool)
    inside[ids] = True
    source, target = whole.edge_index
    return torch.bincount(source[~inside[target]], minlength=int(whole.num_nodes))[ids]


def membership_vector(clients: list[Tensor], num_nodes: int) -> Tensor | None:
    """Client of each node, int64 ``(N,)``; ``None`` if a node belongs to no client or to several."""
    ids = torch.cat([torch.zeros(0, dtype=torch.long), *clients])
    if ids.numel() != num_nodes or torch.unique(ids).numel() != num_nodes:
        return None
    vector = torch.empty(num_nodes, dtype=torch.long)
    for client, members in enumerate(clients):
        vector[members] = client
    return vector


def lost_edges(edge_index: Tensor, clients: list[Tensor], num_nodes: int) -> int:
    """Number of undirected edges that no client holds: their ends are in no common client.

    Args:
        edge_index: Both directions of every edge, ``(2, E)``.
        clients: Node ids per client; a node may belong to several (overlapping partitions) or to none.
        num_nodes: N.
    """
    source, target = edge_index
    vector = membership_vector(clients, num_nodes)
    if vector is not None:
        return int((vector[source] != vector[target]).sum()) // 2
    held = torch.zeros(source.numel(), dtype=torch.bool)
    for members in clients:
        inside = torch.zeros(num_nodes, dtype=torch.bool)
        inside[members] = True
        held |= inside[source] & inside[target]
    return int((~held).sum()) // 2


def edges_between(edge_index: Tensor, clients: list[Tensor], num_nodes: int) -> list[list[int]] | None:
    """Undirected edges within each client (diagonal) and between two (both triangles), K lists of K.

    ``None`` where a node may belong to several clients. Arguments as for :func:`lost_edges`.
    """
    vector = torch.full((num_nodes,), -1, dtype=torch.long)
    for client, members in enumerate(clients):
        if bool((vector[members] >= 0).any()):
            return None
        vector[members] = client
    number = len(clients)
    ends = vector[edge_index]
    ends = ends[:, (ends >= 0).all(dim=0)]
    counts = torch.bincount(ends[0] * number + ends[1], minlength=number * number).view(number, number)
    return (counts - torch.diag(torch.div(counts.diagonal(), 2, rounding_mode="floor"))).tolist()
