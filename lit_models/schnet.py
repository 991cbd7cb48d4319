r"""SchNet: continuous-filter convolutions over atoms in space (Schuett et al., NeurIPS 2017), with T outputs.

.. math::
    x_i^{l+1} = x_i^l + V^l\Big(\sum_{j \ne i,\ d_{ij} \le r} (U^l x_j^l) \circ f^l(d_{ij}) C(d_{ij})\Big), \qquad
    y = \sum_i \mathrm{MLP}(x_i^L)

``f^l`` is an MLP of ``d`` expanded in Gaussians and :math:`C(d) = (\cos(\pi d / r) + 1) / 2`. The formulas and initial
distributions are those of PyG's ``SchNet``, but neighbours come from plain PyTorch and are never capped, and each
filter is computed once per *pair*, since it is the same in both directions: half the work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lit_models.molecule_encoder import MoleculeEncoder, molecule_of_atom, schema_entry
from lit_models.row_sum import RowSum


def atom_pairs(molecule: Tensor, num_molecules: int) -> Tensor:
    """All unordered pairs of atoms of the same molecule, int64 [2, P]; ``molecule`` [n] in any order."""
    order = torch.argsort(molecule, stable=True)
    end = torch.bincount(molecule, minlength=num_molecules).cumsum(0)[molecule[order]]  # of each atom's molecule
    position = torch.arange(molecule.numel(), device=molecule.device)
    later = end - position - 1  # partners behind an atom in its molecule
    first = torch.repeat_interleave(position, later)
    start = torch.repeat_interleave(later.cumsum(0) - later, later)
    second = first + 1 + torch.arange(first.numel(), device=molecule.device) - start
    return order[torch.stack([first, second])]


def radius_pairs(pos: Tensor, molecule: Tensor, num_molecules: int, cutoff: float) -> tuple[Tensor, Tensor]:
    """Unordered pairs of one molecule within ``cutoff``, [2, P], and their distances [P], differentiable in ``pos``."""
    pairs = atom_pairs(molecule, num_molecules)
    with torch.no_grad():
        pairs = pairs[:, torch.linalg.vector_norm(pos[pairs[0]] - pos[pairs[1]], dim=1) <= cutoff]
    return pairs, torch.linalg.vector_norm(pos[pairs[0]] - pos[pairs[1]], dim=1)


class ShiftedSoftplus(nn.Module):
    """``log((1 + exp(x)) / 2)``, zero at zero."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x) - math.log(2.0)


class Interaction(nn.Module):
    """One interaction block: the sum in the equation above, its filter network, and the layers U and V around it."""

    def __init__(self, hidden_channels: int, num_filters: int, num_gaussians: int) -> None:
        super().__init__()
        self.filter = nn.Sequential(
            nn.Linear(num_gaussians, num_filters), ShiftedSoftplus(), nn.Linear(num_filters, num_filters)
        )
        self.lin_in = nn.Linear(hidden_channels, num_filters, bias=False)
        self.lin_out = nn.Linear(num_filters, hidden_channels)
        self.act = ShiftedSoftplus()
        self.lin = nn.Linear(hidden_channels, hidden_channels)
        xavier(self)

    def forward(self, x: Tensor, expanded: Tensor, envelope: Tensor, gather: RowSum, scatter: RowSum) -> Tensor:
        """Of ``x`` [n, H], ``expanded`` [P, G], ``envelope`` [P, 1]; ``gather``, ``scatter``: both directions of each pair."""
        weight = self.filter(expanded) * envelope
        neighbours = gather(self.lin_in(x)).view(2, *weight.shape)
        summed = scatter((neighbours * weight).flatten(0, 1))
        return self.lin(self.act(self.lin_out(summed)))


def xavier(module: nn.Module) -> None:
    """Xavier-uniform weights and zero biases of all linear layers, as in PyG's SchNet."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class SchNet(MoleculeEncoder):
    """SchNet on ``z`` [n] (atomic numbers below 100) and ``pos`` [n, 3] (angstrom); 456,524 parameters for 12 tasks.

    Invariant to rotation, translation and the order of the atoms. A single atom has no neighbours and is valid.

    Args:
        hidden_channels: Width of the atom states; the embedding is half as wide.
        num_filters: Width of the filters.
        num_interactions: Interaction blocks.
        num_gaussians: Gaussians between 0 and ``cutoff`` that expand a distance.
        cutoff: Radius in angstrom; every pair of a molecule within it interacts.
        perturb: Inputs for virtual adversarial training: ``"pos"``.
    """

    choices = ("pos",)
    uses_positions = True

    def __init__(
        self,
        hidden_channels: int = 128,
        num_filters: int = 128,
        num_interactions: int = 6,
        num_gaussians: int = 50,
        cutoff: float = 10.0,
        perturb: Sequence[str] | None = None,
    ) -> None:
        super().__init__(perturb)
        if not cutoff > 0 or num_gaussians < 2:
            raise ValueError(f"`SchNet` needs cutoff > 0 and num_gaussians >= 2; found {cutoff} and {num_gaussians}.")
        self.hidden_channels, self.num_filters, self.num_interactions = hidden_channels, num_filters, num_interactions
        self.num_gaussians, self.cutoff = num_gaussians, cutoff

    def build_layers(self, schema: Mapping[str, Any]) -> None:
        hidden = self.hidden_channels
        self.embedding = nn.Embedding(100, hidden)
        self.interactions = nn.ModuleList(
            Interaction(hidden, self.num_filters, self.num_gaussians) for _ in range(self.num_interactions)
        )
        self.lin1 = nn.Linear(hidden, hidden // 2)
        self.act = ShiftedSoftplus()
        self.head = nn.Linear(hidden // 2, schema_entry(schema, "num_tasks", "SchNet"))
        xavier(self.lin1)
        xavier(self.head)

    def atom_states(self, batch: Any, pos: Tensor | None = None) -> Tensor:
        """What the readout sums, [n, H / 2]."""
        if getattr(batch, "z", None) is None or getattr(batch, "pos", None) is None:
            raise ValueError(
                "`SchNet` needs atomic numbers `z` and positions `pos` in each batch. Use data with 3D "
                "positions (QM9), or an encoder on bonds: `lit_models.MPNN`."
            )
        pos = batch.pos if pos is None else pos
        pairs, distance = radius_pairs(pos, *molecule_of_atom(batch), self.cutoff)
        gather = RowSum.gather(pairs.flip(0).flatten(), pos.size(0))
        scatter = RowSum.gather(pairs.flatten(), pos.size(0)).T
        centers = torch.linspace(0.0, self.cutoff, self.num_gaussians, device=pos.device, dtype=pos.dtype)
        width = self.cutoff / (self.num_gaussians - 1)
        expanded = torch.exp(-0.5 * ((distance.unsqueeze(1) - centers) / width) ** 2)
        envelope = 0.5 * (torch.cos(distance * (math.pi / self.cutoff)) + 1.0).unsqueeze(1)
        hidden = self.embedding(batch.z)
        for interaction in self.interactions:
            hidden = hidden + interaction(hidden, expanded, envelope, gather, scatter)
        return self.act(self.lin1(hidden))

    def embed(self, batch: Any, *, pos: Tensor | None = None) -> Tensor:  # type: ignore[override]  # its name of `choices`
        """Sum of the atom states before the last layer, [B, H / 2]. ``pos`` replaces the positions."""
        molecule, num_molecules = molecule_of_atom(batch)
        return RowSum.gather(molecule, num_molecules).T(self.atom_states(batch, pos))

    def forward(self, batch: Any, *, pos: Tensor | None = None) -> Tensor:  # type: ignore[override]  # the same
        """Predictions [B, T]: the sum of what each atom contributes, biases included."""
        molecule, num_molecules = molecule_of_atom(batch)
        return RowSum.gather(molecule, num_molecules).T(self.head(self.atom_states(batch, pos)))
