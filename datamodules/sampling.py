"""Neighbour sampling with PyTorch alone (pyg-lib and torch-sparse are not needed): mini-batches of nodes with sampled
neighbourhoods."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules.sparse import expand_rows, row_pointers, select_rows

ALL = -1  # a fan-out that takes every neighbour


class NeighborSampler:
    r"""Callable that turns seed nodes into a batch: GraphSAGE's sampled neighbourhood :math:`N_k(v)`, uniform without
    replacement.

    In hop k each node that is new draws ``num_neighbors[k]`` of its neighbours (all, if it has fewer). Edges point
    from the drawn neighbour to the node that drew it, so a K-layer network over K hops computes the seeds' outputs
    from exactly the drawn sample; with fan-outs of at least the largest degree (or -1) these outputs equal the
    full-graph ones for layers that average or sum over in-neighbours. Draws come from torch's global stream.

    Args:
        graph: Graph with ``x`` (dense or CSR), ``edge_index`` (both directions), ``y``, masks and ``node_id``.
        num_neighbors: Fan-out of each hop, the one next to the seeds first; -1 takes all neighbours.
        mask: Which mask of ``graph`` the seeds come from; it is kept at the seeds, and all masks are False elsewhere.
    """

    def __init__(self, graph: Data, num_neighbors: Sequence[int]) -> None:
        check_num_neighbors(num_neighbors)
        self.graph = graph
        self.num_neighbors = tuple(num_neighbors)
        num_nodes = int(graph.num_nodes)
        source, target = graph.edge_index
        order = torch.argsort(target * num_nodes + source)
        self._indptr, self._neighbours = row_pointers(target[order], num_nodes), source[order]
        self._local = torch.full((num_nodes,), -1, dtype=torch.long)  # scratch: position in the batch, -1 outside

    def __call__(self, seeds: Sequence[int] | Tensor) -> Data:
        """Batch around ``seeds`` (distinct node positions): the seeds come first, in the order given, and number
        ``batch.batch_size``."""
        seeds = torch.as_tensor(seeds, dtype=torch.long)
        nodes, edges, frontier, count = [seeds], [], seeds, seeds.numel()
        local = self._local
        local[seeds] = torch.arange(count)
        for fanout in self.num_neighbors:
            drawn, owner = self._draw(frontier, fanout)
            new = torch.unique(drawn[local[drawn] < 0])
            local[new] = torch.arange(count, count + new.numel())
            edges.append(torch.stack([local[drawn], local[frontier][owner]]))
            nodes.append(new)
            frontier, count = new, count + new.numel()
        chosen = torch.cat(nodes)
        local[chosen] = -1
        return self._batch(chosen, torch.cat(edges, dim=1), seeds.numel())

    def _draw(self, nodes: Tensor, fanout: int) -> tuple[Tensor, Tensor]:
        """At most ``fanout`` neighbours of each node, and for each the index into ``nodes`` of the node that drew
        it."""
        position, owner, start = expand_rows(self._indptr, nodes)
        rank = torch.arange(owner.numel()) - start[owner]  # counts the neighbours of each node
        if fanout != ALL and rank.numel() and int(rank.max()) >= fanout:
            shuffled = torch.argsort(torch.rand(owner.numel(), dtype=torch.float64))
            shuffled = shuffled[torch.argsort(owner[shuffled], stable=True)]  # by owner again, at random within each
            kept = shuffled[rank < fanout].sort().values
            owner, position = owner[kept], position[kept]
        return self._neighbours[position], owner

    def _batch(self, nodes: Tensor, edge_index: Tensor, num_seeds: int) -> Data:
        graph = self.graph
        batch = Data(x=select_rows(graph.x, nodes), edge_index=edge_index, y=graph.y[nodes], num_nodes=nodes.numel())
        batch.node_id = graph.node_id[nodes]
        for name in ("train_mask", "val_mask", "test_mask"):
            batch[name] = graph[name][nodes]
            batch[name][num_seeds:] = False
        batch.batch_size = num_seeds
        return batch


def check_num_neighbors(num_neighbors: Sequence[int]) -> None:
    """Raise a ``ValueError`` unless there is one fan-out per layer, each positive or -1 (all neighbours)."""
    if not len(num_neighbors) or any(fanout != ALL and fanout < 1 for fanout in num_neighbors):
        raise ValueError(
            f"`data.init_args.num_neighbors` is {list(num_neighbors)}, but must list one fan-out per layer, each "
            "at least 1 (or -1 for all neighbours)."
        )
