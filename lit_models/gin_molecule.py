r"""GINMolecule: graph isomorphism network with bond features (GINE; Hu et al., ICLR 2020), no BatchNorm.

.. math:: x_i^{l+1} = \mathrm{MLP}^l\Big((1 + \epsilon^l) x_i^l + \sum_{j \in N(i)} (x_j^l + W^l e_{ji})_+\Big)

Molecules are sums (or means) of atom states. Without BatchNorm a batch of one is no special case and nothing but
parameters is exchanged between clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GINEConv

from lit_models.molecule_encoder import MoleculeEncoder, check_readout, mlp_head, pool, schema_entry


class GINMolecule(MoleculeEncoder):
    """GINE layers, a readout and a two-layer head.

    Args:
        hidden_channels: Width of the atom states and of the embedding.
        num_layers: Message passing layers.
        readout: ``"add"`` or ``"mean"``.
        perturb: Inputs for virtual adversarial training: ``"vertex"`` (projected atom features, the default), ``"x"``
            or ``"edge_attr"`` (raw).
    """

    choices = ("vertex", "x", "edge_attr")

    def __init__(
        self, hidden_channels: int = 64, num_layers: int = 3, readout: str = "add", perturb: Sequence[str] | None = None
    ) -> None:
        super().__init__(perturb)
        self.hidden_channels, self.num_layers, self.readout = hidden_channels, num_layers, check_readout(readout)

    def build_layers(self, schema: Mapping[str, Any]) -> None:
        hidden, bond = self.hidden_channels, schema_entry(schema, "bond_features", "GINMolecule")
        self.project_vertex = nn.Linear(schema_entry(schema, "atom_features", "GINMolecule"), hidden)
        self.convs = nn.ModuleList(
            GINEConv(
                nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)), train_eps=True, edge_dim=bond
            )
            for _ in range(self.num_layers)
        )
        self.head = mlp_head(hidden, hidden, schema_entry(schema, "num_tasks", "GINMolecule"))

    def inputs(self, name: str, batch: Any) -> Tensor:
        return self.project_vertex(batch.x) if name == "vertex" else getattr(batch, name)

    def embed(  # type: ignore[override]  # its own names of `choices`
        self, batch: Any, *, vertex: Tensor | None = None, x: Tensor | None = None, edge_attr: Tensor | None = None
    ) -> Tensor:
        """Pooled atom states, [B, H]. Keywords replace the inputs."""
        if vertex is None:
            vertex = self.project_vertex(batch.x if x is None else x)
        edge_attr = batch.edge_attr if edge_attr is None else edge_attr
        for conv in self.convs:
            vertex = F.relu(conv(vertex, batch.edge_index, edge_attr))
        return pool(vertex, batch, self.readout)
