"""Small molecules as graphs for the tests, featurised here (74 atom, 13 bond features, dgl-lifesci's layout)."""

from __future__ import annotations

import torch
from rdkit import Chem
from torch import Tensor
from torch_geometric.data import Batch, Data

SYMBOLS = (
    "C N O S F Si P Cl Br Mg Na Ca Fe As Al I B V K Tl Yb Sb Sn Ag Pd Co Se Ti Zn H Li Ge Cu Au Ni Cd In Mn Zr Cr Pt Hg Pb"
).split()
HYBRIDS = [Chem.HybridizationType.names[name] for name in ("SP", "SP2", "SP3", "SP3D", "SP3D2")]
BONDS = [Chem.BondType.names[name] for name in ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")]
STEREO = [Chem.BondStereo.names[f"STEREO{name}"] for name in ("NONE", "ANY", "Z", "E", "CIS", "TRANS")]

# Aromatic, aliphatic, charged, a salt without bonds, a single atom, triple bonds, stereo.
SMILES = ["CCO", "c1ccccc1O", "CC(=O)Nc1ccccc1", "[K+].[I-]", "C", "C#N", "C/C=C/C", "CC(C)(C)c1ccc2ncccc2c1", "[NH4+]"]


def one_hot(value, choices) -> list[float]:
    return [float(value == choice) for choice in choices]


def molecule(smiles: str, sample_id: int = 0, y: list[float] | None = None, edge_type: bool = False) -> Data:
    mol = Chem.MolFromSmiles(smiles)
    x = [
        one_hot(a.GetSymbol(), SYMBOLS)
        + one_hot(a.GetDegree(), range(11))
        + one_hot(a.GetTotalNumHs() - a.GetNumExplicitHs(), range(7))
        + [float(a.GetFormalCharge()), float(a.GetNumRadicalElectrons())]
        + one_hot(a.GetHybridization(), HYBRIDS)
        + [float(a.GetIsAromatic())]
        + one_hot(a.GetTotalNumHs(), range(5))
        for a in mol.GetAtoms()
    ]
    edges, features = [], []
    for bond in mol.GetBonds():
        row = one_hot(bond.GetBondType(), BONDS) + [float(bond.GetIsConjugated()), float(bond.IsInRing())]
        row += one_hot(bond.GetStereo(), STEREO) + [0.0]
        u, v = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        edges += [(u, v), (v, u)]
        features += [row, row]
    edges += [(i, i) for i in range(mol.GetNumAtoms())]
    features += [[0.0] * 12 + [1.0]] * mol.GetNumAtoms()
    data = Data(
        x=torch.tensor(x),
        edge_index=torch.tensor(edges).T.contiguous(),
        edge_attr=torch.tensor(features),
        y=torch.tensor([[0.0] if y is None else y]),
        sample_id=torch.tensor([sample_id]),
        num_nodes=len(x),
    )
    if edge_type:
        data.edge_type = (data.edge_attr.long() << torch.arange(13)).sum(1)
    return data


def batch_of(smiles: list[str], labels: list[list[float]] | None = None, edge_type: bool = False) -> Data:
    labels = [None] * len(smiles) if labels is None else labels
    rows = enumerate(zip(smiles, labels, strict=True))
    return Batch.from_data_list([molecule(s, i, y, edge_type) for i, (s, y) in rows])


def generated_smiles(number: int, seed: int = 0) -> list[str]:
    """Random drug-like strings: rings joined to chains and groups. All parse."""
    pick = torch.Generator().manual_seed(seed)

    def one(choices: list[str]) -> str:
        return choices[int(torch.randint(len(choices), (1,), generator=pick))]

    rings = ["c1ccccc1", "C1CCCCC1", "c1ccncc1", "c1ccsc1", "C1CCNCC1", "c1ccc2ccccc2c1"]
    chains = ["", "C", "CC", "C(=O)N", "C(=O)O", "CN", "C=C", "C#C", "S(=O)(=O)N", "OCC"]
    starts = ["C", "O", "Cl", "F", "N", "Br", "CC", "OC", "FC(F)(F)", "CC(C)"]
    ends = ["C", "O", "Cl", "F", "N", "Br", "C#N", "C(=O)O", "C(F)(F)F", "[N+](=O)[O-]"]
    return [one(starts) + one(chains) + one(rings) + one(chains) + one(ends) for _ in range(number)]


def permuted(data: Data, order: Tensor) -> Data:
    """The same single molecule with atom ``order[k]`` at place k and its edges shuffled accordingly."""
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel())
    edges = torch.randperm(data.edge_index.size(1), generator=torch.Generator().manual_seed(3))
    out = data.clone()
    out.x, out.edge_index, out.edge_attr = data.x[order], place[data.edge_index[:, edges]], data.edge_attr[edges]
    return out
