r"""Impairing: hide a share h of a client's nodes, so that NeighGen can learn to predict what is missing (FedSage+).

V^h is drawn uniformly, |V^h| = round(h N), and the graph that stays is induced on V̄ = V without V^h. For v in V̄,

    N^h(v) = N(v) & V^h        the hidden neighbours: targets of the feature generator
    n_v    = |N^h(v)|          the missing count: target of the count generator

Edges inside V^h vanish and are no targets: sum_v n_v = |cut(V̄, V^h)|.

One draw leaves few targets (Cora, 3 clients: 135 hidden nodes of 1433 features), which a generator memorises.
Several draws of V^h from one graph show it all nodes but the held-out ones.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import Data

from datamodules.seeds import generator
from datamodules.sparse import row_pointers, select_rows
from datamodules.topology import subgraph_of


def impair(data: Data, hide_portion: float, seed: int, holdout: float = 0.0, draw: int = 0) -> Data:
    """The impaired graph with its targets.

    Args:
        data: A client's graph; ``x`` dense or sparse CSR, ``edge_index`` in both directions.
        hide_portion: h in [0, 1). |V^h| is Python's ``round`` (half to even) of h N; one node always stays.
        seed: Seed of all draws.
        holdout: Share of the hidden nodes, and of all nodes' counts, kept out of training to measure the generator on.
            They are the same in all draws of a seed, and a held-out hidden node is seen nowhere: hidden in every draw,
            a target in none.
        draw: Which draw of V^h.

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
    num_hidden = min(round(Fraction(str(hide_portion)) * num_nodes), num_nodes - 1)  # of h as written: .35 of 90 is 31.5
    num_held_out = round(holdout * num_hidden)
    order = torch.randperm(num_nodes, generator=generator(seed, "impair"))
    always, others = order[:num_held_out], order[num_held_out:]
    others = others[torch.randperm(len(others), generator=generator(seed, "impair", draw))]
    is_hidden = torch.zeros(num_nodes, dtype=torch.bool)
    is_hidden[always] = True
    is_hidden[others[: num_hidden - num_held_out]] = True
    hidden, kept = is_hidden.nonzero().squeeze(1), (~is_hidden).nonzero().squeeze(1)
    position = torch.empty(num_nodes, dtype=torch.long)  # of a node among the kept or among the hidden ones
    position[kept], position[hidden] = torch.arange(len(kept)), torch.arange(num_hidden)

    source, target = data.edge_index
    cut = ~is_hidden[source] & is_hidden[target]  # each cut edge once, seen from the node that stays
    owner, hidden_neighbour = position[source[cut]], position[target[cut]]
    held_out = torch.isin(hidden, always)
    uncounted = torch.randperm(num_nodes, generator=generator(seed, "count"))[: round(holdout * num_nodes)]
    hidden_x = select_rows(data.x, hidden)

    impaired = subgraph_of(data, kept)
    impaired.missing_count = torch.bincount(owner, minlength=len(kept))
    impaired.count_mask = ~torch.isin(kept, uncounted)
    impaired.hidden_x = hidden_x if hidden_x.layout == torch.strided else hidden_x.to_dense()
    impaired.hidden_id = data.node_id[hidden] if "node_id" in data else hidden
    for name, chosen in (("pair", ~held_out), ("holdout", held_out)):
        use = chosen[hidden_neighbour]
        impaired[f"{name}_ptr"], impaired[f"{name}_target"] = _to_csr(owner[use], hidden_neighbour[use], len(kept))
    return impaired


def _to_csr(row: Tensor, column: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Pointer and columns of the pairs (row, column), sorted by both."""
    order = torch.argsort(column, stable=True)
    order = order[torch.argsort(row[order], stable=True)]
    return row_pointers(row, num_rows), column[order]


class _Draws(Dataset):
    """Impaired graphs, each made when it is asked for: a hundred of them at once would fill the memory."""

    def __init__(self, data: Data, hide_portion: float, seed: int, holdout: float, draws: range) -> None:
        self.arguments, self.draws = (data, hide_portion, seed, holdout), draws

    def __len__(self) -> int:
        return len(self.draws)

    def __getitem__(self, position: int) -> Data:
        return impair(*self.arguments, draw=self.draws[position])


class ImpairedDataModule(LightningDataModule):
    """Impaired versions of one client's graph, for NeighGen under a stock ``Trainer``: one draw a step.

    Args:
        client: A data module with ``data`` (the client's graph) and ``schema``, for example a `ClientGraphDataModule`.
        hide_portion: h.
        draws: Number of draws, in turn; an epoch shows each once. ``1`` is one fixed impairment.
        holdout: As in `impair`; validation is on draw 0.
        seed: Seed of the draws.
        first_draw: Number of the first draw, so that each of several fits sees new ones.
    """

    def __init__(
        self,
        client: Any,
        hide_portion: float = 0.15,
        draws: int = 50,
        holdout: float = 0.1,
        seed: int = 0,
        first_draw: int = 0,
    ) -> None:
        super().__init__()
        if draws < 1:
            raise ValueError(f"`draws: {draws}` must be at least 1.")
        self.client, self.hide_portion, self.draws, self.holdout, self.seed = client, hide_portion, draws, holdout, seed
        self.first_draw = first_draw
        self._loaders: dict[range, DataLoader] = {}

    @property
    def schema(self) -> dict[str, int | str]:
        return self.client.schema

    def train_dataloader(self) -> DataLoader:
        return self._loader(range(self.first_draw, self.first_draw + self.draws))

    def val_dataloader(self) -> DataLoader:
        return self._loader(range(1))

    def _loader(self, draws: range) -> DataLoader:
        if draws not in self._loaders:
            dataset = _Draws(self.client.data, self.hide_portion, self.seed, self.holdout, draws)
            self._loaders[draws] = DataLoader(dataset, batch_size=None, num_workers=0)
        return self._loaders[draws]
