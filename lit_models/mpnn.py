r"""MPNN with a set2set readout (Gilmer et al., ICML 2017), as in FedChem (Zhu, Luo, White; Patterns 2022, Eq. 1 to 3).

Eq. 1   m_{t+1,i} = ReLU(sum_{j in N(i)} A(e_ij)^T v_{t,j} + b)        ``FastNNConv``; bonds include self-loops
Eq. 2   v_{t+1,i} = GRU(m_{t+1,i}, v_{t,i})                           t = 0..2, shared weights
Eq. 3   h = set2set({v_{3,i} : i in G}),  y = MLP(h)                   128 -> 64 -> T

with v_0 = ReLU(lin0(P_v x)) and edge features P_e e; VAT disturbs the outputs of the linear projectors P_v and P_e.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lit_models.atom_classes import ClassLevel, class_step
from lit_models.fast_nnconv import FastNNConv, bond_groups
from lit_models.molecule_encoder import MoleculeEncoder, mlp_head, molecule_of_atom, schema_entry
from lit_models.row_sum import RowSum


def gru_step(gru: Any, message: Tensor, hidden: Tensor) -> Tensor:
    """One step of a one-layer ``nn.GRU`` for rows [N, H]: what a call with sequence length 1 gives, but faster."""
    width = gru.hidden_size
    both_m, new_m = F.linear(message, gru.weight_ih_l0, gru.bias_ih_l0).split([2 * width, width], dim=1)
    both_h, new_h = F.linear(hidden, gru.weight_hh_l0, gru.bias_hh_l0).split([2 * width, width], dim=1)
    reset, update = torch.sigmoid(both_m + both_h).chunk(2, dim=1)
    new = torch.tanh(torch.addcmul(new_m, reset, new_h))
    return torch.lerp(new, hidden, update)


def lstm_step(layers: list[tuple[Tensor, Tensor]], rows: Tensor, state: list[tuple[Tensor, Tensor]]) -> Tensor:
    """One step of a stacked LSTM for rows [B, I]; replaces each layer's (h, c) [B, H] in ``state``, returns the last h.

    Args:
        layers: Per layer ``[W_ih, W_hh]`` [4 H, I + H] and ``b_ih + b_hh`` [4 H], gates in ``nn.LSTM``'s order.
        rows: What goes into the first layer.
        state: (h, c) of each layer.
    """
    for layer, (weight, bias) in enumerate(layers):
        hidden, cell = state[layer]
        gates = F.linear(torch.cat([rows, hidden], dim=1), weight, bias)
        gate_i, gate_f, _, gate_o = torch.sigmoid(gates).chunk(4, dim=1)
        cell = torch.addcmul(gate_i * torch.tanh(gates.chunk(4, dim=1)[2]), gate_f, cell)
        rows = gate_o * torch.tanh(cell)
        state[layer] = rows, cell
    return rows


class Set2Set(nn.Module):
    r"""Order-invariant readout (Vinyals et al., ICLR 2016), equal to PyG's and DGL's: [N, H] -> [B, 2 H].

    .. math::
        q_t = \mathrm{LSTM}(q^*_{t-1}), \quad \alpha_i = \mathrm{softmax}_{i \in G}(x_i \cdot q_t), \quad
        q^*_t = [q_t \Vert \sum_i \alpha_i x_i]
    """

    def __init__(self, in_channels: int, processing_steps: int, num_layers: int) -> None:
        super().__init__()
        self.in_channels, self.processing_steps = in_channels, processing_steps
        self.lstm = nn.LSTM(2 * in_channels, in_channels, num_layers)

    def forward(self, x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """A graph without atoms gets zeros for the second half."""
        to_graph = RowSum.gather(batch, num_graphs).T
        layers = self._layers()
        zero = x.new_zeros(1, self.in_channels)  # nothing is read yet: the first query is the same for every graph
        query_star, state = x.new_zeros(1, 2 * self.in_channels), [(zero, zero)] * len(layers)
        for step in range(self.processing_steps):
            query = lstm_step(layers, query_star, state)
            if step == 0:
                query = query.expand(num_graphs, -1)
                state = [(h.expand(num_graphs, -1), c.expand(num_graphs, -1)) for h, c in state]
            energy = (x * to_graph.T(query)).sum(1)
            top = energy.new_full((num_graphs,), -torch.inf).scatter_reduce(0, batch, energy.detach(), "amax")
            weight = torch.exp(energy - top[batch]).unsqueeze(1)
            read = to_graph(torch.cat([weight * x, weight], dim=1))
            query_star = torch.cat([query, read[:, :-1] / (read[:, -1:] + 1e-16)], dim=1)
        return query_star

    def _layers(self) -> list[tuple[Tensor, Tensor]]:
        lstm = self.lstm
        return [
            (
                torch.cat([getattr(lstm, f"weight_ih_l{k}"), getattr(lstm, f"weight_hh_l{k}")], dim=1),
                getattr(lstm, f"bias_ih_l{k}") + getattr(lstm, f"bias_hh_l{k}"),
            )
            for k in range(lstm.num_layers)
        ]


class MPNN(MoleculeEncoder):
    """The MPNN set2set predictor of FedChem, 229,957 parameters for 74 atom features, 13 bond features and one task.

    Args:
        hidden_channels: Width of the atom states; the embedding is twice as wide.
        edge_hidden_channels: Hidden width of the bond network.
        num_steps: Message passing steps.
        set2set_iters: Attention steps of the readout.
        set2set_layers: LSTM layers of the readout.
        perturb: Inputs for virtual adversarial training: ``"vertex"`` (projected atom features P_v x; the default),
            ``"edge"`` (projected bond features P_e e), ``"x"``, ``"edge_attr"`` (raw). Replaced bond features differ
            from edge to edge and take the slower, factorised form.
    """

    choices = ("vertex", "edge", "x", "edge_attr")

    def __init__(
        self,
        hidden_channels: int = 64,
        edge_hidden_channels: int = 16,
        num_steps: int = 3,
        set2set_iters: int = 3,
        set2set_layers: int = 3,
        perturb: Sequence[str] | None = None,
    ) -> None:
        super().__init__(perturb)
        self.hidden_channels, self.edge_hidden_channels = hidden_channels, edge_hidden_channels
        self.num_steps = num_steps
        self.set2set_iters, self.set2set_layers = set2set_iters, set2set_layers

    def build_layers(self, schema: Mapping[str, Any]) -> None:
        atom, bond = schema_entry(schema, "atom_features", "MPNN"), schema_entry(schema, "bond_features", "MPNN")
        hidden = self.hidden_channels
        self.project_vertex = nn.Linear(atom, atom)
        self.project_edge = nn.Linear(bond, bond)
        self.lin0 = nn.Linear(atom, hidden)
        edge_network = nn.Sequential(
            nn.Linear(bond, self.edge_hidden_channels), nn.ReLU(), nn.Linear(self.edge_hidden_channels, hidden * hidden)
        )
        self.conv = FastNNConv(hidden, hidden, edge_network)
        self.gru = nn.GRU(hidden, hidden)
        self.set2set = Set2Set(hidden, self.set2set_iters, self.set2set_layers)
        self.head = mlp_head(2 * hidden, hidden, schema_entry(schema, "num_tasks", "MPNN"))

    def inputs(self, name: str, batch: Any) -> Tensor:
        if name == "vertex":
            return self.project_vertex(batch.x)
        return self.project_edge(batch.edge_attr) if name == "edge" else getattr(batch, name)

    def embed(  # type: ignore[override]  # its own names of `choices`
        self,
        batch: Any,
        *,
        vertex: Tensor | None = None,
        edge: Tensor | None = None,
        x: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        """The set2set output, [B, 2 H]. Keywords replace the projected or raw inputs: [n, F], [E, D]."""
        replaced = any(given is not None for given in (vertex, edge, x, edge_attr))
        if not replaced and self.knows_environments(batch):
            return self.set2set(self.message_passing_by_class(batch), *molecule_of_atom(batch))
        if vertex is None:
            vertex = self.project_vertex(batch.x if x is None else x)
        if edge is None and edge_attr is not None:
            edge = self.project_edge(edge_attr)
        hidden = self.message_passing(vertex, batch, edge)
        return self.set2set(hidden, *molecule_of_atom(batch))

    def message_passing(self, vertex: Tensor, batch: Any, edge: Tensor | None = None) -> Tensor:
        """Eq. 1, 2: atom states [n, H]. Bonds are grouped by *raw* features; only the distinct rows are projected."""
        groups = None
        if edge is None:
            edge_type = getattr(batch, "edge_type", None)
            groups = bond_groups(batch.edge_index, batch.edge_attr, vertex.size(0), edge_type, self.conv.max_types)
            rows = batch.edge_attr if groups is None else batch.edge_attr[groups.representative]
            edge = self.project_edge(rows)
        matrices = None if groups is None else self.conv.matrices(edge)
        hidden = F.relu(self.lin0(vertex))
        for _ in range(self.num_steps):
            if groups is None or matrices is None:
                message = self.conv.factorised(hidden, batch.edge_index, edge)
            else:
                message = self.conv.grouped(hidden, matrices, groups)
            hidden = gru_step(self.gru, F.relu(message), hidden)
        return hidden

    def knows_environments(self, batch: Any) -> bool:
        """Whether the batch says which atoms are alike at every step, and its bonds have types."""
        environment, edge_type = (getattr(batch, name, None) for name in ("environment", "edge_type"))
        return environment is not None and edge_type is not None and environment.size(1) > self.num_steps

    def message_passing_by_class(self, batch: Any) -> Tensor:
        """What `message_passing` gives for the batch's own inputs, with each distinct environment computed once."""
        levels = [ClassLevel.of(batch.environment[:, radius]) for radius in range(self.num_steps + 1)]
        hidden = F.relu(self.lin0(self.project_vertex(batch.x[levels[0].atom])))
        matrices = None
        for start, end in pairwise(levels):
            step = class_step(start, end, batch.edge_index, batch.edge_type)
            if matrices is None:  # the types, in order, are those of the batch at every step
                matrices = self.conv.matrices(self.project_edge(batch.edge_attr[step.edge]))
            message = self.conv.grouped(hidden, matrices, step.groups)
            hidden = gru_step(self.gru, F.relu(message), step.before(hidden))
        return levels[-1].to_atoms()(hidden)
