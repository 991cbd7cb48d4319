r"""How the nodes of one graph are shared out among clients.

Pure functions ``(edge_index, num_nodes, num_clients, seed) -> [ids of client 0, ids of client 1, ...]``:

- ``louvain``      FedSage (docs/papers/fedsage.md#partition): communities, none above floor(N/M) - delta nodes, packed
- ``metis``        FED-PUB disjoint (docs/papers/fedpub.md#data): METIS k-way, as few edges cut as possible
- ``overlapping``  FED-PUB overlapping: METIS into K/5 parts, of each 5 random halves
- ``random``       a random permutation in M equal slices

Each gives sorted int64 ids, terminates for every client count from 1 to the node count, and depends on the set of
edges and the seed only, not on the order of the edges. All but ``overlapping`` are disjoint, cover every node and
leave no client empty.
"""

import hashlib
import heapq
import itertools
from dataclasses import dataclass

import networkx as nx
import torch
from torch import Tensor

from datamodules.seeds import derive_seed, generator
from datamodules.sparse import row_pointers
from datamodules.topology import connected_components, membership_vector, undirected_edges

PARTITIONS = ("louvain", "metis", "overlapping", "random")
CLIENTS_PER_PART = 5


@dataclass(frozen=True)
class Partition:
    """Outcome of :func:`partition_graph`: ``clients`` (sorted node ids each), the method that was used in the end,
    and why it differs."""

    clients: list[Tensor]
    method: str
    note: str = ""


def partition_graph(method: str, edge_index: Tensor, num_nodes: int, num_clients: int, seed: int) -> Partition:
    """Partition by name, and say so when METIS could not do it and Louvain communities were used instead.

    Raises:
        ValueError: unknown method, ``num_clients`` below 1 or above ``num_nodes``.
    """
    check_partition(method)
    _check_count(num_nodes, num_clients)
    edge_index = undirected_edges(edge_index, num_nodes)
    if method == "random":
        return Partition(random(edge_index, num_nodes, num_clients, seed), method)
    if method == "louvain":
        return Partition(louvain(edge_index, num_nodes, num_clients, seed), method)
    parts = num_clients if method == "metis" else _parts(num_clients)
    membership, note = _metis_membership(edge_index, num_nodes, parts)
    if membership is None:
        clients, used = louvain(edge_index, num_nodes, parts, seed), "louvain"
    else:
        clients, used = [(membership == part).nonzero().view(-1) for part in range(parts)], "metis"
    if method == "metis":
        return Partition(clients, used, note)
    return Partition(_halves(clients, num_clients, seed), f"overlapping halves of {used} parts", note)


def check_partition(method: str) -> None:
    """Raise a ``ValueError`` with the choices if there is no such partition."""
    if method not in PARTITIONS:
        raise ValueError(f"`data.init_args.partition` is {method!r}, but must be one of: {', '.join(PARTITIONS)}.")


def _check_count(num_nodes: int, num_clients: int) -> None:
    if num_clients < 1:
        raise ValueError(f"`data.init_args.num_clients` is {num_clients}, but must be at least 1.")
    if num_clients > num_nodes:
        raise ValueError(
            f"`data.init_args.num_clients` is {num_clients}, but the graph has only {num_nodes} nodes and each "
            f"client needs one. Use at most {num_nodes} clients."
        )


def random(edge_index: Tensor, num_nodes: int, num_clients: int, seed: int) -> list[Tensor]:
    """A seeded permutation of the nodes in ``num_clients`` slices whose sizes differ by at most one."""
    _check_count(num_nodes, num_clients)
    order = torch.randperm(num_nodes, generator=generator(seed, "random", num_clients))
    return [part.sort().values for part in order.tensor_split(num_clients)]


def louvain(edge_index: Tensor, num_nodes: int, num_clients: int, seed: int, delta: int = 20) -> list[Tensor]:
    """Louvain communities, packed into clients of about N/M nodes (FedSage).

    1. Communities of the whole graph (``networkx``, sorted nodes and edges, seeded).
    2. A community above ``floor(N/M) - delta`` nodes is cut, in the order of its ids, into pieces of that size.
       ``delta`` is halved down where the clients are small: at most ``floor(N/M) / 2``. There are then at least M
       pieces.
    3. Largest piece first (ties: smallest id), each to the client with the fewest nodes so far (ties: lowest client).
       This always ends, unlike the published loop, which can turn for ever once every client is nearly full.
    """
    _check_count(num_nodes, num_clients)
    share = num_nodes // num_clients
    limit = max(1, share - min(delta, share // 2))
    pieces = []
    for community in _communities(undirected_edges(edge_index, num_nodes), num_nodes, seed):
        members = sorted(community)
        pieces += [members[start : start + limit] for start in range(0, len(members), limit)]
    clients: list[list[int]] = [[] for _ in range(num_clients)]
    load = [(0, client) for client in range(num_clients)]  # (nodes, client): a heap, all equal at first
    for piece in sorted(pieces, key=lambda piece: (-len(piece), piece[0])):
        size, client = heapq.heappop(load)
        clients[client] += piece
        heapq.heappush(load, (size + len(piece), client))
    return [torch.tensor(sorted(members), dtype=torch.long) for members in clients]


def _communities(edge_index: Tensor, num_nodes: int, seed: int) -> list[set[int]]:
    graph = nx.Graph()
    graph.add_nodes_from(range(num_nodes))
    graph.add_edges_from(edge_index[:, edge_index[0] < edge_index[1]].T.tolist())
    return nx.community.louvain_communities(graph, seed=derive_seed(seed, "louvain"))


def metis(edge_index: Tensor, num_nodes: int, num_clients: int, seed: int) -> list[Tensor]:
    """METIS k-way parts (FED-PUB, disjoint clients); METIS itself takes no seed. Louvain packing where METIS cannot
    do it."""
    return partition_graph("metis", edge_index, num_nodes, num_clients, seed).clients


def _metis_membership(edge_index: Tensor, num_nodes: int, parts: int) -> tuple[Tensor | None, str]:
    """Part of each node and a note; ``None`` if METIS is absent, unsafe for this input, or leaves a part empty.

    Native METIS is never given more parts than half the nodes nor a graph in several components (both are known to
    crash it): the components are first joined by helper edges, in a chain of their smallest ids, that exist for METIS
    only.
    """
    if parts == 1:
        return torch.zeros(num_nodes, dtype=torch.long), ""
    if num_nodes < 2 * parts:
        note = f"METIS is unsafe where {num_nodes} nodes are to make {parts} parts: Louvain packing was used."
        return None, note
    try:
        import pymetis
    except ImportError:
        return None, "pymetis is not installed (`pip install pymetis`): Louvain packing was used in place of METIS."
    note = ""
    roots = torch.unique(connected_components(edge_index, num_nodes))
    if roots.numel() > 1:
        edge_index = undirected_edges(torch.cat([edge_index, torch.stack([roots[:-1], roots[1:]])], dim=1), num_nodes)
        note = f"The graph has {roots.numel()} components; METIS saw them joined by {roots.numel() - 1} helper edges."
    indptr = row_pointers(edge_index[0], num_nodes).tolist()
    target = edge_index[1].tolist()  # sorted by source, then target: METIS' answer depends on the order
    neighbours = [target[start:end] for start, end in itertools.pairwise(indptr)]
    _, parts_of_nodes = pymetis.part_graph(parts, adjacency=neighbours, recursive=False)
    membership = torch.tensor(list(parts_of_nodes), dtype=torch.long)
    empty = parts - torch.unique(membership).numel()
    if empty:
        return None, f"METIS left {empty} of {parts} parts empty: Louvain packing was used in its place."
    return membership, note


def overlapping(edge_index: Tensor, num_nodes: int, num_clients: int, seed: int) -> list[Tensor]:
    """FED-PUB's overlapping clients: METIS into K/5 parts (rounded up), client k holds a random half of part ``k //
    5``.

    The halves of one part are drawn independently, without replacement, ``max(1, n // 2)`` nodes each, from a stream
    of this seed and K alone. Clients of one part share about half of their nodes; some nodes belong to no client.
    """
    return partition_graph("overlapping", edge_index, num_nodes, num_clients, seed).clients


def _parts(num_clients: int) -> int:
    return -(-num_clients // CLIENTS_PER_PART)


def _halves(parts: list[Tensor], num_clients: int, seed: int) -> list[Tensor]:
    stream = generator(seed, "overlapping", num_clients)
    clients = []
    for client in range(num_clients):
        part = parts[client // CLIENTS_PER_PART]
        drawn = torch.randperm(part.numel(), generator=stream)[: max(1, part.numel() // 2)]
        clients.append(part[drawn].sort().values)
    return clients


def membership_sha256(clients: list[Tensor], num_nodes: int) -> str:
    """SHA-256 of a partition. Disjoint: of the client of each node, int32 little-endian (as docs/papers/fedpub.md#data
    gives it); otherwise of each client's size followed by its ids, in the same form."""
    vector = membership_vector(clients, num_nodes)
    if vector is None:
        vector = torch.cat([torch.cat([torch.tensor([ids.numel()]), ids]) for ids in clients])
    return hashlib.sha256(vector.numpy().astype("<i4").tobytes()).hexdigest()
