"""Message passing over distinct atom environments instead of atoms: the same numbers, each computed once.

After t steps of message passing, an atom's state depends on its environment of radius t alone (the data's
``environment``, int64 [n, R + 1], equal in column t exactly for equal environments). `ClassLevel` t holds one atom for
each of them; `class_steps` says how level t + 1 comes from level t: along the edges into its atoms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_models.fast_nnconv import BondGroups
from lit_models.row_sum import RowSum


@dataclass(frozen=True)
class ClassLevel:
    """Classes of equal atoms.

    Attributes:
        atom: One atom of each of the C classes, int64 [C].
        class_of: Class of each atom, int64 [n].
    """

    atom: Tensor
    class_of: Tensor

    @classmethod
    def of(cls, environment: Tensor) -> ClassLevel:
        """From one column of ``environment``, int64 [n]."""
        ids, class_of = torch.unique(environment, return_inverse=True)
        atom = torch.empty_like(ids)
        atom[class_of] = torch.arange(class_of.numel(), device=ids.device)  # which of the equal ones does not matter
        return cls(atom, class_of)

    def to_atoms(self) -> RowSum:
        """Class rows [C, H] -> atom rows [n, H]."""
        return RowSum.gather(self.class_of, self.atom.numel())


@dataclass(frozen=True)
class ClassStep:
    """From the classes of level t to those of level t + 1.

    Attributes:
        groups: The edges into the atoms of level t + 1, from class rows of level t, by bond type.
        edge: For each bond type, one edge of the batch that has it, int64 [K].
        before: Rows of level t -> for each class of level t + 1, the row of its atom.
    """

    groups: BondGroups
    edge: Tensor
    before: RowSum


def class_step(start: ClassLevel, end: ClassLevel, edge_index: Tensor, edge_type: Tensor) -> ClassStep:
    """See `ClassStep`. Every bond type of the batch occurs, since every atom is like one of level t + 1."""
    source, target = edge_index
    chosen = torch.zeros(end.class_of.numel(), dtype=torch.bool, device=source.device)
    chosen[end.atom] = True
    edges = chosen[target].nonzero().flatten()
    ends = torch.stack([start.class_of[source[edges]], end.class_of[target[edges]]])
    groups = BondGroups.from_types(ends, edge_type[edges], start.atom.numel(), end.atom.numel())
    return ClassStep(groups, edges[groups.representative], RowSum.gather(start.class_of[end.atom], start.atom.numel()))
