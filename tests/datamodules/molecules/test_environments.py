"""Atom environments: hand-made graphs, and a second definition by nested tuples on real molecules."""

import numpy as np
import torch

from datamodules import ChEMBLDataModule
from datamodules.molecules.environments import atom_environments

BOND, RING_BOND, LOOP = 0, 1, 7


def graph(atoms: list[int], bonds: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both directions of every bond (u, v, code), and self-loops."""
    edges = [e for u, v, code in bonds for e in ((u, v, code), (v, u, code))]
    edges += [(a, a, LOOP) for a in range(len(atoms))]
    table = np.array(edges, dtype=np.int32).reshape(-1, 3).T
    return np.array(atoms, dtype=np.int32), table[:2], table[2].astype(np.int16)


def classes(column: np.ndarray) -> list[list[int]]:
    """Atoms that share a number."""
    return sorted(np.flatnonzero(column == value).tolist() for value in np.unique(column))


def by_tuples(atoms, ends, codes, radius: int) -> list:
    """The definition, one atom at a time."""
    seen = [(int(a),) for a in atoms]
    columns = [seen]
    for _ in range(radius):
        edges = list(zip(*ends.tolist(), codes.tolist(), strict=True))
        seen = [
            (columns[-1][a], tuple(sorted((code, columns[-1][u]) for u, v, code in edges if v == a))) for a in range(len(atoms))
        ]
        columns.append(seen)
    return columns


def test_a_chain_by_hand():
    # a - a - a - a - b: the ends differ after one step, what lies beyond a neighbour after two.
    found = atom_environments(*graph([3, 3, 3, 3, 5], [(0, 1, BOND), (1, 2, BOND), (2, 3, BOND), (3, 4, BOND)]))
    assert found.shape == (5, 4) and found.dtype == np.int64
    assert classes(found[:, 0]) == [[0, 1, 2, 3], [4]]
    assert classes(found[:, 1]) == [[0], [1, 2], [3], [4]]
    assert classes(found[:, 2]) == classes(found[:, 3]) == [[0], [1], [2], [3], [4]]


def test_bond_types_and_the_number_of_equal_neighbours_count():
    pair, ring = [(0, 1, BOND)], [(2, 3, RING_BOND)]
    star = [(4, 5, BOND), (4, 6, BOND)]  # atom 4 has two neighbours like atom 0's one
    found = atom_environments(*graph([0] * 7, pair + ring + star), radius=1)
    assert classes(found[:, 1]) == [[0, 1, 5, 6], [2, 3], [4]]


def test_direction_counts_and_atoms_without_edges_are_alike():
    ends, codes = np.array([[0], [1]]), np.array([BOND])  # 0 -> 1 only
    found = atom_environments(np.zeros(4, dtype=np.int64), ends, codes, radius=2)
    assert classes(found[:, 1]) == classes(found[:, 2]) == [[0, 2, 3], [1]]
    nothing = np.zeros(0, dtype=np.int64)
    assert atom_environments(nothing, np.zeros((2, 0), dtype=np.int64), nothing).shape == (0, 4)


def test_equals_the_definition_on_real_molecules_and_travels_with_the_batch(tmp_path):
    data = ChEMBLDataModule(cache_dir=str(tmp_path))
    data.setup()
    packed = data.molecules.packed
    batch = packed.collate(list(range(0, 1000, 40)))
    wanted = by_tuples(packed.select(list(range(0, 1000, 40))).nodes["atom"], batch.edge_index, batch.edge_type, 3)
    for radius in range(4):
        number = {key: place for place, key in enumerate(dict.fromkeys(wanted[radius]))}
        expected = np.array([number[key] for key in wanted[radius]])
        assert classes(batch.environment[:, radius].numpy()) == classes(expected)
    assert torch.equal(packed.environments, packed.collate(torch.arange(len(packed))).environment)


def test_atoms_without_edges_differ_by_what_they_are():
    nothing = np.zeros((2, 0), dtype=np.int64)
    found = atom_environments(np.array([3, 5, 3]), nothing, nothing[0], radius=2)
    assert all(classes(column) == [[0, 2], [1]] for column in found.T)


def test_the_bond_is_told_from_the_neighbour():
    # Neighbour a over bond 1 and neighbour b over bond 0, or the other way round: other environments, equal sums.
    ends, codes = np.array([[0, 1, 3, 4], [2, 2, 5, 5]]), np.array([0, 1, 1, 0])
    found = atom_environments(np.array([0, 1, 7, 0, 1, 7]), ends, codes, radius=1)
    assert classes(found[:, 1]) == [[0, 3], [1, 4], [2], [5]]
