r"""GCNMolecule: graph convolutions (Kipf, Welling; ICLR 2017) over the atoms of a molecule; bonds only connect.

.. math:: X^{l+1} = \mathrm{ReLU}(\hat D^{-1/2} \hat A \hat D^{-1/2} X^l W^l), \qquad \hat A = A + I
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from lit_models.molecule_encoder import MoleculeEncoder, check_readout, mlp_head, pool, schema_entry


class GCNMolecule(MoleculeEncoder):
    """GCN layers, a readout and a two-layer head. Self-loop bonds of the data are used once, never added twice.

    Args:
        hidden_channels: Width of the atom states and of the embedding.
        num_layers: Convolutions.
        readout: ``"add"`` or ``"mean"``.
        perturb: Inputs for virtual adversarial training: ``"vertex"`` (projected atom features, the default), ``"x"``.
    """

    choices = ("vertex", "x")

    def __init__(
        self, hidden_channels: int = 64, num_layers: int = 3, readout: str = "mean", perturb: Sequence[str] | None = None
    ) -> None:
        super().__init__(perturb)
        self.hidden_channels, self.num_layers, self.readout = hidden_channels, num_layers, check_readout(readout)

    def build_layers(self, schema: Mapping[str, Any]) -> None:
        hidden = self.hidden_channels
        self.project_vertex = nn.Linear(schema_entry(schema, "atom_features", "GCNMolecule"), hidden)
        self.convs = nn.ModuleList(GCNConv(hidden, hidden) for _ in range(self.num_layers))
        self.head = mlp_head(hidden, hidden, schema_entry(schema, "num_tasks", "GCNMolecule"))

    def inputs(self, name: str, batch: Any) -> Tensor:
        return self.project_vertex(batch.x) if name == "vertex" else getattr(batch, name)

    def embed(  # type: ignore[override]  # its own names of `choices`
        self, batch: Any, *, vertex: Tensor | None = None, x: Tensor | None = None
    ) -> Tensor:
        """Pooled atom states, [B, H]. Keywords replace the inputs."""
        if vertex is None:
            vertex = self.project_vertex(batch.x if x is None else x)
        for conv in self.convs:
            vertex = F.relu(conv(vertex, batch.edge_index))
        return pool(vertex, batch, self.readout)
