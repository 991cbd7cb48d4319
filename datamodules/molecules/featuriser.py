r"""SMILES -> graph tensors: 74 atom and 13 bond features (DGL-LifeSci's canonical features, docs/papers/fedchem.md#features).

Atoms (74)  symbol 43 | degree 0..10 | implicit valence 0..6 | formal charge | radical electrons | hybridisation 5
            | aromatic | total hydrogens 0..4
Bonds (13)  SINGLE, DOUBLE, TRIPLE, AROMATIC | conjugated | in ring | stereo NONE, ANY, Z, E, CIS, TRANS | self-loop
Edges       bond b gives the edges 2b (u -> v) and 2b + 1 (v -> u); then one self-loop an atom.

A value outside a one-hot's list (a dummy atom, a dative bond, an atropisomer, seven hydrogens) gives all zeros there.
Atoms are in RDKit's canonical order and bonds sorted, so that the writing of the SMILES does not matter.

Molecules are handled as integer codes (one per atom, one per bond) and decoded to features only when batched: a bond's
code *is* its 13 bits, ``code = sum(bit_i << i)``, so the type of a bond means the same in every batch and data set.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import torch
from rdkit import Chem, rdBase
from rdkit.Chem.rdchem import BondStereo, BondType, HybridizationType
from torch import Tensor

SYMBOLS = (
    "C N O S F Si P Cl Br Mg Na Ca Fe As Al I B V K Tl Yb Sb Sn Ag Pd Co Se Ti Zn H Li Ge Cu Au Ni Cd In Mn Zr Cr Pt Hg Pb"
).split()
HYBRIDISATIONS = tuple(getattr(HybridizationType, name) for name in ("SP", "SP2", "SP3", "SP3D", "SP3D2"))
BOND_TYPES = (BondType.SINGLE, BondType.DOUBLE, BondType.TRIPLE, BondType.AROMATIC)
BOND_STEREO = tuple(getattr(BondStereo, f"STEREO{name}") for name in ("NONE", "ANY", "Z", "E", "CIS", "TRANS"))
NUM_ATOM_FEATURES = 74
NUM_BOND_FEATURES = 13
FEATURISER = "DGL-LifeSci canonical"  # what the numbers below mean; another meaning needs another name
CONJUGATED, IN_RING, SELF_LOOP = 1 << 4, 1 << 5, 1 << 12

_SYMBOL = {name: i for i, name in enumerate(SYMBOLS)}
_HYBRIDISATION = {value: i for i, value in enumerate(HYBRIDISATIONS)}
_BOND_TYPE = {value: 1 << i for i, value in enumerate(BOND_TYPES)}
_BOND_STEREO = {value: 1 << (6 + i) for i, value in enumerate(BOND_STEREO)}
_IMPLICIT = Chem.ValenceType.IMPLICIT
# Fields of an atom's code as (name, offset, bits); a one-hot field equal to its size or above means "none of these".
_FIELDS = {
    "symbol": (0, 6),
    "degree": (6, 5),
    "valence": (11, 5),
    "charge": (16, 16),
    "radicals": (32, 8),
    "hybridisation": (40, 3),
    "aromatic": (43, 1),
    "hydrogens": (44, 5),
}
_CHARGE_ZERO = 1 << 15
_CXSMILES = re.compile(r"\S+\s+\|[^|\r\n]*\|")  # a SMILES and its extension, such as `CC |$;R1$|`


@dataclass(frozen=True)
class MoleculeGraph:
    """One molecule with ``n`` atoms and ``b`` bonds.

    Attributes:
        x: Atom features, float ``(n, 74)``.
        edge_index: Both directions of each bond, then the self-loops, int64 ``(2, 2b + n)``.
        edge_attr: Bond features, float ``(2b + n, 13)``.
        edge_type: Code of each row of ``edge_attr``, int64 ``(2b + n,)``.
    """

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor
    edge_type: Tensor


def parse_smiles(smiles: str) -> Chem.Mol:
    """The sanitised molecule with implicit hydrogens.

    Raises:
        ValueError: An empty string, one with a blank inside, one that RDKit rejects (with RDKit's reason), or a molecule
            without atoms. RDKit takes what follows a blank for a name: `CC (=O)O` would be ethane.
    """
    text = smiles.strip() if isinstance(smiles, str) else ""
    if not text:
        raise ValueError("empty SMILES")
    blank = next((place for place, sign in enumerate(text) if sign.isspace()), None)
    if blank is not None and not _CXSMILES.fullmatch(text):
        raise ValueError(f"has a blank at position {blank}: what follows it is no part of a SMILES")
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(text)
        if mol is None:
            raise ValueError(f"invalid SMILES: {_problem(text)}")
    if mol.GetNumAtoms() == 0:
        raise ValueError("no atoms")
    return mol


def _problem(text: str) -> str:
    mol = Chem.MolFromSmiles(text, sanitize=False)
    if mol is None:
        return "syntax error"
    problems = Chem.DetectChemistryProblems(mol)
    return " ".join(problems[0].Message().split()) if problems else "rejected by RDKit"


def atom_code(atom: Chem.Atom) -> int:
    """The eight properties of an atom packed into one integer (see ``decode_atoms``)."""
    return (
        _SYMBOL.get(atom.GetSymbol(), 63)
        | min(atom.GetDegree(), 31) << 6
        | min(atom.GetValence(_IMPLICIT), 31) << 11
        | (atom.GetFormalCharge() + _CHARGE_ZERO) << 16
        | min(atom.GetNumRadicalElectrons(), 255) << 32
        | _HYBRIDISATION.get(atom.GetHybridization(), 7) << 40
        | atom.GetIsAromatic() << 43
        | min(atom.GetTotalNumHs(), 31) << 44
    )


def bond_code(bond: Chem.Bond) -> int:
    """The 13 binary features of a bond as the bits of one integer: ``sum(bit_i << i)``."""
    return (
        _BOND_TYPE.get(bond.GetBondType(), 0)
        | (CONJUGATED if bond.GetIsConjugated() else 0)
        | (IN_RING if bond.IsInRing() else 0)
        | _BOND_STEREO.get(bond.GetStereo(), 0)
    )


def encode_molecule(mol: Chem.Mol) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Atom codes in canonical order, and bonds ``(u, v, code)`` with ``u < v``, sorted."""
    rank = list(Chem.CanonicalRankAtoms(mol))
    atoms = [0] * len(rank)
    for i, position in enumerate(rank):
        atoms[position] = atom_code(mol.GetAtomWithIdx(i))
    bonds = []
    for bond in map(mol.GetBondWithIdx, range(mol.GetNumBonds())):  # many times faster than mol.GetBonds()
        u, v = rank[bond.GetBeginAtomIdx()], rank[bond.GetEndAtomIdx()]
        bonds.append((u, v, bond_code(bond)) if u < v else (v, u, bond_code(bond)))
    return atoms, sorted(bonds)


def decode_atoms(codes: Tensor) -> Tensor:
    """Features of atom codes: int64 ``(...,)`` -> float ``(..., 74)``."""

    def field(name: str) -> Tensor:
        offset, bits = _FIELDS[name]
        return (codes >> offset) & ((1 << bits) - 1)

    def one_hot(name: str, size: int) -> Tensor:
        return (field(name).unsqueeze(-1) == torch.arange(size, device=codes.device)).float()

    def number(name: str, zero: int = 0) -> Tensor:
        return (field(name) - zero).float().unsqueeze(-1)

    return torch.cat(
        [
            one_hot("symbol", len(SYMBOLS)),
            one_hot("degree", 11),
            one_hot("valence", 7),
            number("charge", _CHARGE_ZERO),
            number("radicals"),
            one_hot("hybridisation", 5),
            number("aromatic"),
            one_hot("hydrogens", 5),
        ],
        dim=-1,
    )


def decode_bonds(codes: Tensor) -> Tensor:
    """The bits of bond codes: int ``(...,)`` -> float ``(..., 13)``."""
    return ((codes.long().unsqueeze(-1) >> torch.arange(NUM_BOND_FEATURES, device=codes.device)) & 1).float()


def directed_edges(num_atoms: int, bonds: np.ndarray) -> np.ndarray:
    """Rows ``(source, target, code)`` of one molecule: bond b as 2b and 2b + 1, then the self-loops.

    Args:
        num_atoms: ``n``.
        bonds: Rows ``(u, v, code)``, shape ``(b, 3)``; ``b`` may be zero.

    Returns:
        Shape ``(2b + n, 3)``, int32.
    """
    edges = np.empty((2 * len(bonds) + num_atoms, 3), dtype=np.int32)
    edges[0 : 2 * len(bonds) : 2] = bonds
    edges[1 : 2 * len(bonds) : 2] = bonds[:, [1, 0, 2]]
    loop = np.arange(num_atoms)
    edges[2 * len(bonds) :, 0], edges[2 * len(bonds) :, 1], edges[2 * len(bonds) :, 2] = loop, loop, SELF_LOOP
    return edges


def featurise(smiles: str) -> MoleculeGraph:
    """The graph of one SMILES; every fragment of a salt or mixture is kept.

    Raises:
        ValueError: As ``parse_smiles``.

    Example:
        >>> graph = featurise("CCO")
        >>> tuple(graph.x.shape), tuple(graph.edge_attr.shape)
        ((3, 74), (7, 13))
    """
    atoms, bonds = encode_molecule(parse_smiles(smiles))
    edges = torch.from_numpy(directed_edges(len(atoms), np.array(bonds, dtype=np.int32).reshape(-1, 3))).long()
    return MoleculeGraph(
        x=decode_atoms(torch.tensor(atoms)),
        edge_index=edges[:, :2].T.contiguous(),
        edge_attr=decode_bonds(edges[:, 2]),
        edge_type=edges[:, 2].contiguous(),
    )
