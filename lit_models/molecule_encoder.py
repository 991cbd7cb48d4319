"""What every molecule encoder shares: built from the data's schema, from a batch of molecules to one row per molecule.

A batch has ``x`` [n, F], ``edge_index`` [2, E], ``edge_attr`` [E, D] (or ``z`` [n], ``pos`` [n, 3]), ``batch`` [n] and,
for training, ``y`` [B, T], ``sample_id`` [B]. ``edge_type`` [E] and ``environment`` [n, R + 1] (which atoms are alike up to
R bonds away) are optional: with them each distinct thing is computed once. Without ``batch`` it is one molecule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lit_models.row_sum import RowSum


def molecule_of_atom(batch: Any) -> tuple[Tensor, int]:
    """The molecule of each atom, int64 [n], and the number of molecules (those without an atom included)."""
    inputs = batch.z if getattr(batch, "x", None) is None else batch.x
    index = getattr(batch, "batch", None)
    if index is None:
        return torch.zeros(inputs.size(0), dtype=torch.long, device=inputs.device), 1
    for count in ("sample_id", "y"):
        if getattr(batch, count, None) is not None:
            return index, getattr(batch, count).size(0)
    return index, int(index.max()) + 1 if index.numel() else 0


class MoleculeEncoder(nn.Module):
    """Base class. Subclasses implement ``build_layers``, which sets ``head``, ``embed`` and, if needed, ``inputs``.

    Args:
        perturb: Names of the inputs that ``perturbable`` offers to virtual adversarial training, from ``choices``;
            default: the first of them.
    """

    choices: tuple[str, ...] = ("x",)
    head_entries: tuple[str, ...] = ("head.*",)
    uses_positions = False

    def __init__(self, perturb: Sequence[str] | None = None) -> None:
        super().__init__()
        self.perturb = self.choices[:1] if perturb is None else tuple(perturb)
        unknown = sorted(set(self.perturb) - set(self.choices))
        if unknown or not self.perturb:
            raise ValueError(
                f"`{type(self).__name__}.perturb` must name some of {list(self.choices)}; found {list(self.perturb)}."
            )
        self.head: Any = None  # a module once it is built

    def build(self, schema: Mapping[str, Any]) -> None:
        """Create the layers for data of this ``schema``; does nothing if there are any.

        Raises:
            ValueError: The data have positions in place of bonds, or bonds in place of positions.
        """
        encoder = f"`model.init_args.encoder: {type(self).__name__}`"
        if self.uses_positions and schema.get("positions") is False:
            raise ValueError(
                f"{encoder} learns from positions, but the data have bonds alone. Use data with positions (QM9, or SDF files "
                "with `data.init_args.geometry: true`), or an encoder on bonds: `lit_models.MPNN`."
            )
        if not self.uses_positions and schema.get("atom_features") == 0:
            raise ValueError(
                f"{encoder} learns from bonds, but the data have positions in place of them. Use `lit_models.SchNet`, or for "
                "SDF files `data.init_args.geometry: false`."
            )
        if self.head is None:
            self.build_layers(schema)

    def build_layers(self, schema: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def embed(self, batch: Any, **replaced: Tensor) -> Tensor:
        """Representation of each molecule, [B, H]. ``replaced``: inputs to use instead, by name in ``choices``."""
        raise NotImplementedError

    def inputs(self, name: str, batch: Any) -> Tensor:
        """The input ``name`` of ``choices`` for this batch."""
        return getattr(batch, name)

    def forward(self, batch: Any, **replaced: Tensor) -> Tensor:
        """Predictions [B, T]: logits or (normalised) values."""
        return self.head(self.embed(batch, **replaced))

    def perturbable(self, batch: Any) -> dict[str, Tensor]:
        """The inputs named by ``perturb``, without gradient; hand disturbed ones to ``forward`` by the same names."""
        with torch.no_grad():
            return {name: self.inputs(name, batch).detach().clone() for name in self.perturb}


def mlp_head(in_channels: int, hidden_channels: int, num_tasks: int) -> nn.Sequential:
    """Linear - ReLU - Linear."""
    return nn.Sequential(nn.Linear(in_channels, hidden_channels), nn.ReLU(), nn.Linear(hidden_channels, num_tasks))


def schema_entry(schema: Mapping[str, Any], name: str, who: str) -> int:
    """``schema[name]``, or an error that says what the data lacks."""
    if name not in schema:
        raise ValueError(f"`{who}` needs {name!r} in the data's schema, which has {sorted(schema)}.")
    return int(schema[name])


def check_readout(readout: str) -> str:
    """``readout``, if it is a known one; else a ``ValueError`` with the choices."""
    if readout not in ("add", "mean"):
        raise ValueError(f"`readout` must be 'add' or 'mean', found {readout!r}.")
    return readout


def pool(atoms: Tensor, batch: Any, readout: str) -> Tensor:
    """Sum ("add") or mean of the atom rows of each molecule, [n, H] -> [B, H]; a molecule without atoms gives zeros."""
    molecule, num_molecules = molecule_of_atom(batch)
    summed = RowSum.gather(molecule, num_molecules).T(atoms)
    if readout == "add":
        return summed
    return summed / torch.bincount(molecule, minlength=num_molecules).clamp(min=1).unsqueeze(1)
