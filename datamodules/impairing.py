r"""Impairing: hide a share h of a client's nodes, so that NeighGen can learn to predict what is missing (FedSage+).

V^h is drawn uniformly, |V^h| = round(h N), and the graph that stays is induced on \bar V = V \ V^h. For v in \bar V,

    N^h(v) = N(v) \cap V^h        the hidden neighbours (targets of the feature generator)
    n_v    = |N^h(v)|             the missing count (target of the count generator)

Edges inside V^h vanish and are no targets: sum_v n_v = |cut(\bar V, V^h)|.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules.seeds import generator
from datamodules.sparse import row_pointers, select_rows
from datamodules.topology import subgraph_of


def impair(data: Data, hide_portion: float, seed: int, holdout: float = 0.0) -> Data:
    """The impaired graph with its targets.

    Args:
        data: A client's graph; ``x`` dense or sparse CSR, ``edge_index`` in both directions.
        hide_portion: h in [0, 1). |V^h| is Python's ``round`` (half to even) of h N; one node always stays.
        seed: Seed of the draw.
        holdout: Share of the hidden nodes, and of the remaining nodes' counts, kept out of training to measure the
            generator on. A held-out hidden node is seen nowhere: neither as an input nor as a target.

    Returns:
        The graph on V̄ in the same fields, plus

        - ``missing_count`` int64 ``(N̄,)``: n_v, all hidden neighbours;
        - ``count_mask`` bool ``(N̄,)``: True where n_v is for training (all, if ``holdout=0``);
        - ``hidden_x`` float, dense, ``(H, F)`` and ``hidden_id`` int64 ``(H,)``: the removed nodes;
        - ``pair_ptr`` int64 ``(N̄ + 1,)``, ``pair_target`` int64 ``(E_h,)``: CSR of the pairs (v, row of ``hidden_x``)
          to train on;
        - ``holdout_ptr``, ``holdout_target``: the same for the pairs held out.

    Raises:
        ValueError: h is not in [0, 1), or the graph has no node.
    """
    if not 0.0 <= hide_portion < 1.0:
        raise ValueError(f"`hide_portion: {hide_portion}` must be at least 0 and below 1: one node has to stay.")
    if not 0.0 <= holdout < 1.0:
        raise ValueError(f"`holdout: {holdout}` must be at least 0 and below 1: something has to be trained on.")
    num_nodes = int(data.num_nodes or 0)
    if num_nodes == 0:
        raise ValueError("A graph without nodes cannot be impaired; leave this client out.")
    stream = generator(seed, "impair")
    order = torch.randperm(num_nodes, generator=stream)
    num_hidden = min(round(hide_portion * num_nodes), num_nodes - 1)
    hidden, kept = order[:num_hidden].sort().values, order[num_hidden:].sort().values
    is_hidden = torch.zeros(num_nodes, dtype=torch.bool)
    is_hidden[hidden] = True
    position = torch.empty(num_nodes, dtype=torch.long)  # of a node among the kept or among the hidden ones
    position[kept], position[hidden] = torch.arange(len(kept)), torch.arange(num_hidden)

    source, target = data.edge_index
    cut = ~is_hidden[source] & is_hidden[target]  # each cut edge once, seen from the node that stays
    owner, hidden_neighbour = position[source[cut]], position[target[cut]]
    held_out = _random_mask(num_hidden, holdout, stream)
    hidden_x = select_rows(data.x, hidden)

    impaired = subgraph_of(data, kept)
    impaired.missing_count = torch.bincount(owner, minlength=len(kept))
    impaired.count_mask = ~_random_mask(len(kept), holdout, stream)
    impaired.hidden_x = hidden_x if hidden_x.layout == torch.strided else hidden_x.to_dense()
    impaired.hidden_id = data.node_id[hidden] if "node_id" in data else hidden
    for name, chosen in (("pair", ~held_out), ("holdout", held_out)):
        use = chosen[hidden_neighbour]
        impaired[f"{name}_ptr"], impaired[f"{name}_target"] = _to_csr(owner[use], hidden_neighbour[use], len(kept))
    return impaired


def _random_mask(size: int, share: float, stream: torch.Generator) -> Tensor:
    """True for round(share * size) places, drawn uniformly."""
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.randperm(size, generator=stream)[: round(share * size)]] = True
    return mask


def _to_csr(row: Tensor, column: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Pointer and columns of the pairs (row, column), sorted by both."""
    order = torch.argsort(column, stable=True)
    order = order[torch.argsort(row[order], stable=True)]
    return row_pointers(row, num_rows), column[order]
