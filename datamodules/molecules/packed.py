"""Molecules of a data set in a few long tensors, and batches cut from them without a loop over molecules.

Atoms and edges are stored as codes; a batch looks their features up in a table of the distinct ones. What comes out
equals ``Batch.from_data_list`` of the single graphs, at a fraction of its cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import Batch, Data

from datamodules.molecules.encode import EncodedTable
from datamodules.molecules.environments import atom_environments
from datamodules.molecules.featuriser import NUM_BOND_FEATURES, SELF_LOOP, decode_atoms, decode_bonds
from datamodules.sparse import expand_rows

BOND_FEATURES = decode_bonds(torch.arange(1 << NUM_BOND_FEATURES))  # (8192, 13): row c = features of bond code c


@dataclass(frozen=True)
class PackedMolecules:
    """M molecules with N atoms and E directed edges (self-loops included) in all.

    Attributes:
        y: Labels, float ``(M, T)``; ``nan`` where missing.
        sample_id: Row of each molecule in the original table, int64 ``(M,)``.
        node_ptr, edge_ptr: Where each molecule's atoms and edges start, int64 ``(M + 1,)``.
        atom_table: Features of the distinct atoms, float ``(A, 74)``.
        nodes: Per-atom tensors ``(N, ...)``: ``atom`` (row of ``atom_table``) and/or ``z``, ``pos``.
        edges: Per-edge tensors, edge last: ``ends`` (source and target, as atom numbers within the molecule) ``(2, E)``
            and ``code`` ``(E,)``.
        scaffold: Scaffold group of each molecule, int64 ``(M,)``, if known.
        fingerprint: ECFP counts of each molecule, uint8 ``(M, S)``, if asked for (``fingerprints.py``).
    """

    y: Tensor
    sample_id: Tensor
    node_ptr: Tensor
    edge_ptr: Tensor
    atom_table: Tensor
    nodes: dict[str, Tensor] = field(default_factory=dict)
    edges: dict[str, Tensor] = field(default_factory=dict)
    scaffold: Tensor | None = None
    fingerprint: Tensor | None = None

    def __len__(self) -> int:
        return len(self.sample_id)

    def collate(self, indices: list[int] | Tensor) -> Batch:
        """The molecules at ``indices`` as one PyG batch.

        Returns:
            ``y`` float ``(B, T)``, ``sample_id`` ``(B,)``, ``scaffold`` ``(B,)`` and ``fingerprint`` ``(B, S)`` if known,
            ``batch``, ``ptr``; with bonds ``x`` float ``(n, 74)``, ``edge_index`` int64 ``(2, e)``, ``edge_attr`` float
            ``(e, 13)``, ``edge_type`` int64 ``(e,)`` (the bond code), ``environment`` int64 ``(n, 4)``
            (``atom_environments``); with geometry ``z`` int64 ``(n,)`` and ``pos`` float ``(n, 3)`` in angstrom.
        """
        chosen = torch.as_tensor(indices, dtype=torch.long)
        atom, owner, ptr = expand_rows(self.node_ptr, chosen)
        values: dict[str, Tensor] = {}
        slices = {}
        if "atom" in self.nodes:
            values["x"] = self.atom_table.index_select(0, self.nodes["atom"].index_select(0, atom))
            values["environment"] = self.environments.index_select(0, atom)
            edge, edge_owner, edge_slice = expand_rows(self.edge_ptr, chosen)
            values["edge_index"] = self.edges["ends"].index_select(1, edge) + ptr.index_select(0, edge_owner)
            values["edge_type"] = self.edges["code"].index_select(0, edge).long()
            values["edge_attr"] = BOND_FEATURES.index_select(0, values["edge_type"])
            slices = dict.fromkeys(("edge_index", "edge_type", "edge_attr"), edge_slice)
        if "pos" in self.nodes:
            values["z"] = self.nodes["z"].index_select(0, atom).long()
            values["pos"] = self.nodes["pos"].index_select(0, atom)
        known = {"y": self.y, "sample_id": self.sample_id, "scaffold": self.scaffold, "fingerprint": self.fingerprint}
        each = {name: value.index_select(0, chosen) for name, value in known.items() if value is not None}
        batch = Batch(**values, **each, batch=owner, ptr=ptr)
        size = len(chosen)
        one_each, none = torch.arange(size + 1), torch.zeros(size, dtype=torch.long)
        cuts = {name: slices.get(name, ptr) for name in values} | dict.fromkeys(each, one_each)
        batch._slice_dict = cuts  # noqa: SLF001  what `Batch.from_data_list` sets, without its loop over graphs; so below
        batch._inc_dict = dict.fromkeys(cuts, none) | ({"edge_index": ptr[:-1]} if slices else {})  # noqa: SLF001
        return batch

    def data_list(self) -> list[Data]:
        """Every molecule as its own ``Data`` object."""
        return self.collate(torch.arange(len(self))).to_data_list()

    def select(self, indices: np.ndarray | list[int] | Tensor) -> PackedMolecules:
        """A copy that holds the molecules at ``indices`` and nothing of the others."""
        chosen = torch.as_tensor(indices, dtype=torch.long)
        atom, _, node_ptr = expand_rows(self.node_ptr, chosen)
        edge, _, edge_ptr = expand_rows(self.edge_ptr, chosen)
        return replace(
            self,
            y=self.y[chosen],
            sample_id=self.sample_id[chosen],
            node_ptr=node_ptr,
            edge_ptr=edge_ptr,
            scaffold=None if self.scaffold is None else self.scaffold[chosen],
            fingerprint=None if self.fingerprint is None else self.fingerprint[chosen],
            nodes={name: value[atom] for name, value in self.nodes.items()},
            edges={name: value[..., edge] for name, value in self.edges.items()},
        )

    @cached_property
    def environments(self) -> Tensor:
        """``atom_environments`` of all atoms, int64 ``(N, 4)``; worked out when the first batch is made."""
        ends = self.edges["ends"].numpy() + np.repeat(self.node_ptr[:-1].numpy(), self.edge_ptr.diff().numpy())
        return torch.from_numpy(atom_environments(self.nodes["atom"].numpy(), ends, self.edges["code"].numpy()))

    @property
    def num_atoms(self) -> Tensor:
        """Atoms of each molecule, int64 ``(M,)``."""
        return self.node_ptr.diff()

    @property
    def nbytes(self) -> int:
        """Bytes that the tensors take."""
        tensors = [self.y, self.sample_id, self.node_ptr, self.edge_ptr, self.atom_table]
        tensors += [] if self.fingerprint is None else [self.fingerprint]
        return sum(t.numel() * t.element_size() for t in [*tensors, *self.nodes.values(), *self.edges.values()])


def pack(encoded: EncodedTable, rows: np.ndarray, y: np.ndarray, sample_id: np.ndarray) -> PackedMolecules:
    """The usable ``rows`` of an encoded table with their labels.

    Args:
        encoded: Codes of R rows.
        rows: Positions of the M rows to keep, ascending.
        y: Labels of those rows, ``(M, T)``.
        sample_id: Stable id of those rows, ``(M,)``.
    """
    atoms, bonds = encoded.atom_count[rows], encoded.bond_count[rows]
    distinct, atom = np.unique(encoded.atom_code, return_inverse=True)
    atom_rows, _, node_ptr = (t.numpy() for t in expand_rows(_pointer(encoded.atom_count), torch.as_tensor(rows)))
    bond_rows, bond_owner, bond_ptr = (t.numpy() for t in expand_rows(_pointer(encoded.bond_count), torch.as_tensor(rows)))
    edge_ptr = np.concatenate([[0], np.cumsum(2 * bonds + atoms)])

    # Edges of a molecule: bond b of b_m at 2b and 2b + 1, then one self-loop per atom.
    edges = np.empty((edge_ptr[-1], 3), dtype=np.int32)
    at = edge_ptr[bond_owner] + 2 * (np.arange(len(bond_rows)) - bond_ptr[bond_owner])
    edges[at] = encoded.bonds[bond_rows]
    edges[at + 1] = encoded.bonds[bond_rows][:, [1, 0, 2]]
    owner = np.repeat(np.arange(len(rows)), atoms)
    number = np.arange(len(owner)) - node_ptr[owner]
    edges[(edge_ptr[:-1] + 2 * bonds)[owner] + number] = np.stack([number, number, np.full_like(number, SELF_LOOP)], axis=1)

    columns = torch.from_numpy(edges).T.contiguous()
    return PackedMolecules(
        y=torch.as_tensor(y, dtype=torch.float32).reshape(len(rows), -1),
        sample_id=torch.as_tensor(sample_id).long(),
        node_ptr=torch.from_numpy(node_ptr),
        edge_ptr=torch.from_numpy(edge_ptr),
        atom_table=decode_atoms(torch.from_numpy(distinct)),
        nodes={"atom": torch.from_numpy(atom[atom_rows].astype(np.int32))},
        edges={"ends": columns[:2].contiguous(), "code": columns[2].to(torch.int16)},
    )


class Part(Dataset):
    """The molecules at some positions of a set, without a copy.

    Args:
        molecules: The set.
        positions: Which of its molecules, in this order, int64 ``(P,)``.
    """

    def __init__(self, molecules: PackedMolecules, positions: np.ndarray | Tensor) -> None:
        self.molecules, self.positions = molecules, torch.as_tensor(positions, dtype=torch.long)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Batch:
        return self.molecules.collate(self.positions[index].view(1))

    def __getitems__(self, indices: list[int]) -> Batch:
        """What a DataLoader's fetcher calls with all indices of a batch at once."""
        return self.molecules.collate(self.positions[torch.tensor(indices)])


def make_loader(part: Part, batch_size: int, shuffle: bool) -> DataLoader | list:
    """A loader whose batch is never larger than the part and whose last, short batch is kept; ``[]`` for an empty part.

    Shuffles, if there is more than one batch, from torch's global random state.
    """
    if len(part) == 0:
        return []
    batch_size = min(batch_size, len(part))
    return DataLoader(part, batch_size=batch_size, shuffle=shuffle and batch_size < len(part), collate_fn=_as_is, num_workers=0)


def _as_is(batch: Batch) -> Batch:
    return batch


def _pointer(counts: np.ndarray) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
