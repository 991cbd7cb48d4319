"""The 74 + 13 features (docs/papers/fedchem.md#features), the table encoder, its cache and its bad rows."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from rdkit import Chem

from datamodules.molecules.cache import cached, content_key, pack_strings, unpack_strings
from datamodules.molecules.encode import encode_table
from datamodules.molecules.featuriser import SYMBOLS, decode_bonds, featurise, parse_smiles
from datamodules.molecules.packed import pack
from datamodules.molecules.parallel import map_chunks
from datamodules.molecules.table import MoleculeTable, molecule_set

SINGLE, DOUBLE, AROMATIC, CONJUGATED, RING, NONE, ANY, Z, E, LOOP = 0, 1, 3, 4, 5, 6, 7, 8, 9, 12


def literal_features(mol):
    """The features written down a second time, from lists of choices, one atom and one bond at a time."""

    def one_hot(value, choices):
        return [float(value == choice) for choice in choices]

    x = []
    for atom in mol.GetAtoms():
        x.append(
            one_hot(
                atom.GetSymbol(),
                "C N O S F Si P Cl Br Mg Na Ca Fe As Al I B V K Tl Yb Sb Sn Ag Pd Co Se Ti "
                "Zn H Li Ge Cu Au Ni Cd In Mn Zr Cr Pt Hg Pb".split(),
            )
            + one_hot(len(atom.GetNeighbors()), range(11))
            + one_hot(atom.GetTotalNumHs() - atom.GetNumExplicitHs(), range(7))
            + [float(atom.GetFormalCharge()), float(atom.GetNumRadicalElectrons())]
            + one_hot(str(atom.GetHybridization()), ["SP", "SP2", "SP3", "SP3D", "SP3D2"])
            + [float(atom.GetIsAromatic())]
            + one_hot(atom.GetTotalNumHs(), range(5))
        )
    edges = {}
    for bond in mol.GetBonds():
        row = (
            one_hot(str(bond.GetBondType()), ["SINGLE", "DOUBLE", "TRIPLE", "AROMATIC"])
            + [float(bond.GetIsConjugated()), float(bond.IsInRing())]
            + one_hot(str(bond.GetStereo()), [f"STEREO{s}" for s in ("NONE", "ANY", "Z", "E", "CIS", "TRANS")])
            + [0.0]
        )
        edges[bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()] = edges[bond.GetEndAtomIdx(), bond.GetBeginAtomIdx()] = row
    return np.array(x), edges


MOLECULES = [
    "CCO",
    "C",
    "c1ccccc1O",
    "CC(=O)Oc1ccccc1C(=O)[O-].[Na+]",
    "C/C=C/C",
    "C/C=C\\C",
    "C#N",
    "[NH4+].[Cl-]",
    "[CH3]",
    "*CC",
    "OS(=O)(=O)C(F)(F)F",
    "N[C@@H](C)C(=O)O",
    "[NH3]->[Pt](Cl)Cl",
    "C1CC1C=C",
    "FS(F)(F)(F)(F)F",
    "[H][H]",
]


@pytest.mark.parametrize("smiles", MOLECULES)
def test_features_equal_a_literal_second_writing(smiles):
    graph, mol = featurise(smiles), Chem.MolFromSmiles(smiles)
    x, edges = literal_features(mol)
    order = np.argsort(list(Chem.CanonicalRankAtoms(mol)))
    n, b = mol.GetNumAtoms(), mol.GetNumBonds()
    assert graph.x.numpy().tolist() == x[order].tolist()
    assert graph.edge_index.shape == (2, 2 * b + n) and graph.edge_index.dtype == torch.int64
    u, v = graph.edge_index[:, : 2 * b]
    assert (u[::2] == v[1::2]).all() and (v[::2] == u[1::2]).all()  # 2b, 2b + 1
    for i in range(2 * b):
        assert graph.edge_attr[i].tolist() == edges[order[int(u[i])], order[int(v[i])]]
    assert graph.edge_index[:, 2 * b :].tolist() == [list(range(n))] * 2  # then the self-loops
    assert graph.edge_attr[2 * b :].tolist() == [[0.0] * 12 + [1.0]] * n


def test_shapes_and_rows_by_hand():
    ethanol = featurise("CCO")
    assert ethanol.x.shape == (3, 74) and ethanol.edge_attr.shape == (7, 13)
    methane = featurise("C")
    assert methane.edge_attr.tolist() == [[0.0] * 12 + [1.0]] and methane.edge_index.tolist() == [[0], [0]]
    # carbon, degree 0, implicit valence 4, sp3, 4 hydrogens: 43 + 11 + 7 + 2 + 5 + 1 + 5
    assert methane.x[0].nonzero().flatten().tolist() == [0, 43, 43 + 11 + 4, 43 + 11 + 7 + 2 + 2, 69 + 4]
    assert len(SYMBOLS) == 43

    def bond(smiles):
        return featurise(smiles).edge_attr[0].nonzero().flatten().tolist()

    assert bond("CC") == [SINGLE, NONE] and bond("C=C") == [DOUBLE, NONE]
    assert bond("c1ccccc1") == [AROMATIC, CONJUGATED, RING, NONE]
    assert [row.nonzero().flatten().tolist() for row in featurise("C/C=C/C").edge_attr if row[1]] == [[DOUBLE, E]] * 2
    assert [row.nonzero().flatten().tolist() for row in featurise("C/C=C\\C").edge_attr if row[1]] == [[DOUBLE, Z]] * 2


def test_values_outside_the_lists_are_all_zero():
    dummy = featurise("*")
    assert dummy.x[0, :43].sum() == 0
    dative = featurise("[NH3]->[Pt]")
    assert dative.edge_attr[0, :4].sum() == 0 and dative.edge_attr[0, NONE] == 1
    atropisomer = Chem.MolFromSmiles("Cc1cccc(Cl)c1-c1c(Br)cccc1C |wU:7.6|")
    assert any("ATROP" in str(bond.GetStereo()) for bond in atropisomer.GetBonds())
    rows = featurise("Cc1cccc(Cl)c1-c1c(Br)cccc1C |wU:7.6|").edge_attr
    assert ((rows[:, 6:12].sum(1) == 0) & (rows[:, LOOP] == 0)).sum() == 2  # that bond, both directions
    assert featurise("[UH6]").x[0, 69:].sum() == 0  # six hydrogens
    assert featurise("F[Xe](F)(F)(F)(F)F").x.shape == (7, 74)
    assert featurise("[Fe+3].[O-2]").x[:, 61].sort().values.tolist() == [-2, 3]  # the charge is a number
    assert featurise("[CH2]").x[0, 62] == 2  # so are radicals


def test_edge_type_is_the_bits_of_the_features():
    for smiles in MOLECULES:
        graph = featurise(smiles)
        weights = 2 ** torch.arange(13)
        assert (graph.edge_attr.long() * weights).sum(1).tolist() == graph.edge_type.tolist()
    assert decode_bonds(torch.tensor([1 << 12, 0b1000001])).nonzero().tolist() == [[0, 12], [1, 0], [1, 6]]


def test_writing_of_the_smiles_does_not_matter():
    rng = random.Random(0)
    for smiles in MOLECULES:
        mol = Chem.MolFromSmiles(smiles)
        order = list(range(mol.GetNumAtoms()))
        rng.shuffle(order)
        other = Chem.MolToSmiles(Chem.RenumberAtoms(mol, order), canonical=False)
        a, b = featurise(smiles), featurise(other)
        assert all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("x", "edge_index", "edge_type"))


@pytest.mark.parametrize(
    "smiles, reason",
    [
        ("", "empty SMILES"),
        ("   ", "empty SMILES"),
        (None, "empty SMILES"),
        (float("nan"), "empty SMILES"),
        ("[]", "invalid SMILES: syntax error"),
        ("C1CC", "invalid SMILES: syntax error"),
        ("c1cccc1", "invalid SMILES: Can't kekulize mol"),
        ("CC(=O)(C)C", "invalid SMILES: Explicit valence for atom # 1 C, 5"),
        ("|$_AV:$|", "no atoms|invalid SMILES"),
        ("CC (=O)O", "has a blank at position 2"),
        ("CC\tO", "has a blank at position 2"),
        ("C\nC", "has a blank at position 1"),
        (" CCO ethanol ", "has a blank at position 3"),
        ("CC\u00a0O", "has a blank at position 2"),
        ("CC |$;$| name", "has a blank at position 2"),
        ("CC |$;$|O", "has a blank at position 2"),
        ("CC ,", "has a blank at position 2"),
    ],
)
def test_bad_rows_have_a_reason(smiles, reason):
    with pytest.raises(ValueError, match=reason):
        parse_smiles(smiles)


def test_an_extension_may_follow_a_smiles():
    for text, same in ((" CC(=O)O |$;;;$| ", "CC(=O)O"), ("C |^1:0|", "[CH3]"), ("CCO", "CCO")):
        assert Chem.MolToSmiles(parse_smiles(text)) == same


def test_table_keeps_row_numbers_and_lists_what_it_drops():
    smiles = ["CCO", "C1CC", "[Na+].[Cl-]", "", None, "C"]
    table = MoleculeTable(smiles, np.arange(6.0).reshape(6, 1), ["t"], {"site": list("abcdef")})
    kept = molecule_set(table)
    assert kept.packed.sample_id.tolist() == [0, 2, 5] and kept.packed.y[:, 0].tolist() == [0, 2, 5]
    assert kept.columns["site"] == ["a", "c", "f"] and kept.num_fragments.tolist() == [1, 2, 1]
    assert [(drop["row"], drop["reason"]) for drop in kept.dropped_rows] == [
        (1, "invalid SMILES: syntax error"),
        (3, "empty SMILES"),
        (4, "empty SMILES"),
    ]
    with pytest.raises(ValueError, match=r"3 of 6 rows cannot be used: row 1 'C1CC'.*`data.init_args.invalid: drop`"):
        molecule_set(table, invalid="raise")
    with pytest.raises(ValueError, match="none of 1 rows can be used"):
        molecule_set(MoleculeTable(["x"], np.zeros((1, 1)), ["t"]))
    with pytest.raises(ValueError, match="invalid` must be one of raise, drop"):
        molecule_set(table, invalid="ignore")


def test_largest_fragment():
    encoded = encode_table(["CC(=O)[O-].[Na+]", "[Na+].[Cl-]", "CCO"], fragments="largest")
    assert encoded.canonical[0] == "CC(=O)[O-]" and encoded.atom_count.tolist() == [4, 1, 3]
    assert encoded.num_fragments.tolist() == [2, 2, 1]
    with pytest.raises(ValueError, match="fragments` must be one of all, largest"):
        encode_table(["C"], fragments="some")


def test_packed_molecules_equal_single_graphs():
    encoded = encode_table(MOLECULES)
    packed = pack(encoded, np.arange(len(MOLECULES)), np.zeros((len(MOLECULES), 1)), np.arange(len(MOLECULES)))
    for smiles, data in zip(MOLECULES, packed.data_list(), strict=True):
        graph = featurise(smiles)
        for name in ("x", "edge_index", "edge_attr", "edge_type"):
            assert torch.equal(data[name], getattr(graph, name)), (smiles, name)


def test_worker_processes_give_the_same():
    smiles = MOLECULES * 40 + ["bad", ""]
    alone, shared = encode_table(smiles), encode_table(smiles, num_workers=2)
    assert alone.canonical == shared.canonical and alone.reason == shared.reason and alone.scaffold == shared.scaffold
    for name in ("atom_count", "bond_count", "atom_code", "bonds", "num_fragments"):
        assert (getattr(alone, name) == getattr(shared, name)).all()
    assert map_chunks(len, []) == []


def test_cache_is_keyed_by_content_and_survives_damage(tmp_path, monkeypatch):
    first = encode_table(["CCO", "c1ccccc1", "bad"], cache_dir=tmp_path)
    [file] = tmp_path.iterdir()
    monkeypatch.setattr("datamodules.molecules.encode.map_chunks", lambda *_: pytest.fail("was computed again"))
    again = encode_table(["CCO", "c1ccccc1", "bad"], cache_dir=tmp_path)
    assert again.reason == first.reason and (again.bonds == first.bonds).all() and again.scaffold == first.scaffold
    monkeypatch.undo()
    encode_table(["CCO"], cache_dir=tmp_path)
    encode_table(["CCO"], fragments="largest", cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3  # no temporary files either
    file.write_bytes(file.read_bytes()[:200])
    assert encode_table(["CCO", "c1ccccc1", "bad"], cache_dir=tmp_path).canonical == first.canonical
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None  # repaired
    assert content_key("smiles", "", ["ab", "c"]) != content_key("smiles", "", ["a", "bc"])
    monkeypatch.setattr("datamodules.molecules.cache.rdBase.rdkitVersion", "other")
    encode_table(["CCO"], cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda arrays: arrays.pop("bonds"),
        lambda arrays: arrays.update(scaffold=pack_strings(["", ""])),
        lambda arrays: arrays.update(atom_count=arrays["atom_count"][:1]),
        lambda arrays: arrays.update(atom_code=arrays["atom_code"][:-1]),
        lambda arrays: arrays.update(bonds=arrays["bonds"].astype(np.int64)),
        lambda arrays: arrays.update(bonds=arrays["bonds"][:, :2]),
        lambda arrays: arrays.update(bond_count=arrays["bond_count"] + 1),
        lambda arrays: arrays.update(other=np.arange(2)),
    ],
)
def test_a_cache_file_of_other_arrays_is_no_cache(tmp_path, caplog, damage):
    rows = ["CCO", "c1ccccc1", "bad"]
    first = encode_table(rows, cache_dir=tmp_path)
    [file] = tmp_path.iterdir()
    with np.load(file) as stored:
        arrays = dict(stored)
    damage(arrays)
    np.savez(file, **arrays)
    again = encode_table(rows, cache_dir=tmp_path)
    assert "does not hold what it should" in caplog.text
    assert again.scaffold == first.scaffold and (again.bonds == first.bonds).all() and again.reason == first.reason
    caplog.clear()
    encode_table(rows, cache_dir=tmp_path)
    assert caplog.text == ""  # remade


def test_a_cache_file_with_any_bytes_changed_gives_the_same(tmp_path):
    rows, rng = ["CCO", "c1ccccc1"], np.random.default_rng(0)
    first = encode_table(rows, cache_dir=tmp_path)
    [file] = tmp_path.iterdir()
    whole = file.read_bytes()
    for _ in range(100):
        data = bytearray(whole)
        for place in rng.integers(len(data), size=3):
            data[place] = rng.integers(256)
        file.write_bytes(data)
        again = encode_table(rows, cache_dir=tmp_path)
        assert again.canonical == first.canonical and (again.atom_code == first.atom_code).all()


def test_cache_runs_no_code_and_can_do_without_a_folder(tmp_path):
    path = tmp_path / "key.npz"
    np.savez(path, x=np.array([Path("evil")], dtype=object), allow_pickle=True)
    assert cached(tmp_path, "key", lambda: {"x": np.arange(2)}, lambda _: "")["x"].tolist() == [0, 1]
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert cached(blocked / "below", "key", lambda: {"x": np.arange(2)}, lambda _: "")["x"].tolist() == [0, 1]
    assert unpack_strings(pack_strings(["", "C", "é"])) == ["", "C", "é"] and unpack_strings(pack_strings([])) == []
