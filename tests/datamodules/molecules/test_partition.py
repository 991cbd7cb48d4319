"""Scaffold groups, splits and the partitions of molecules among clients (docs/papers/fedchem.md#data)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.molecules.partition import (
    column_partition,
    dirichlet,
    iid_partition,
    label_groups,
    label_partition,
    official_partition,
    scaffold_lda,
    total_variation,
)
from datamodules.molecules.scaffold import murcko_scaffold, scaffold_labels
from datamodules.molecules.split import official_split, random_split, scaffold_split, split_sizes

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "moleculenet"
real_data = pytest.mark.skipif(not DATA.is_dir(), reason="no ../shared/data beside the checkout")


def covers(members, size):
    return sorted(np.concatenate(members).tolist()) == list(range(size))


@pytest.mark.parametrize(
    "smiles, scaffold",
    [
        ("CCO", ""),
        ("[Na+].[Cl-]", ""),
        ("Cc1ccccc1.[Na+]", "c1ccccc1"),
        ("O=C1CCCCC1C", "O=C1CCCCC1"),  # an exocyclic =O stays
        ("Cc1ccccc1.CC1CC1", "C1CC1.c1ccccc1"),  # two ring fragments: a dotted scaffold
        ("C[C@H]1CC[C@@H](c2ccccc2)O1", "c1ccc(C2CCCO2)cc1"),  # no chirality
        ("*c1ccccc1", "c1ccccc1"),
    ],
)
def test_scaffolds_by_hand(smiles, scaffold):
    assert murcko_scaffold(smiles) == scaffold


def test_labels_count_first_appearances():
    assert scaffold_labels(["b", "a", "", "b", ""]).tolist() == [0, 1, 2, 0, 2]
    assert scaffold_labels(["b", "a", "", "b", ""], spread_acyclic=True).tolist() == [0, 1, 2, 0, 3]
    assert scaffold_labels([]).tolist() == []


@real_data
@pytest.mark.parametrize(
    "path, column, groups, acyclic, sizes",
    [
        ("freesolv/raw/SAMPL.csv", 1, 63, 320, {0.1: [93, 130, 187, 102], 0.5: [133, 129, 126, 124], 1: [130, 98, 129, 155]}),
        (
            "esol/raw/delaney-processed.csv",
            -1,
            269,
            317,
            {0.1: [229, 247, 199, 226], 0.5: [234, 226, 215, 226], 1: [210, 226, 227, 238]},
        ),
        ("sider/raw/sider.csv", 0, 824, 154, {0.1: [274, 286, 286, 294], 0.5: [270, 286, 286, 298], 1: [261, 286, 286, 307]}),
    ],
)
def test_official_partition_has_the_sizes_of_the_specification(path, column, groups, acyclic, sizes):
    """The authors' code, run there; the sum is one group (here one molecule) short."""
    import pandas as pd

    smiles = pd.read_csv(DATA / path).iloc[:, column].tolist()
    scaffolds = [murcko_scaffold(text) for text in smiles]
    labels = scaffold_labels(scaffolds)
    assert labels.max() + 1 == groups
    assert scaffolds.count("") == acyclic
    train = labels[official_split(len(smiles))["train"]]
    for alpha, expected in sizes.items():
        members = official_partition(train, 4, alpha)
        assert [len(part) for part in members] == expected
        assert sum(expected) == len(train) - 1
        assert len(np.unique(np.concatenate(members))) == len(train) - 1


@settings(max_examples=120, deadline=None)
@given(
    groups=st.lists(st.integers(0, 12), min_size=1, max_size=120),
    clients=st.integers(1, 50),
    alpha=st.sampled_from([1e-9, 1e-3, 0.1, 0.5, 1.0, 1e6]),
    seed=st.integers(0, 5),
    balanced=st.booleans(),
    data=st.data(),
)
def test_scaffold_lda_gives_every_molecule_to_one_client(groups, clients, alpha, seed, balanced, data):
    groups = np.array(groups)
    clients = min(clients, len(groups))
    min_size = data.draw(st.integers(0, len(groups) // clients))
    members = scaffold_lda(groups, clients, alpha, seed, min_size, tries=3, balanced=balanced)
    assert len(members) == clients and covers(members, len(groups))
    assert min(len(part) for part in members) >= min_size
    again = scaffold_lda(groups, clients, alpha, seed, min_size, tries=3, balanced=balanced)
    assert all((a == b).all() for a, b in zip(members, again, strict=True))


def test_scaffold_lda_special_cases():
    one = np.zeros(40, dtype=int)
    assert scaffold_lda(one, 1, 0.1)[0].tolist() == list(range(40))  # one client has everything
    assert covers(scaffold_lda(one, 4, 0.1, min_size=5), 40)  # one scaffold
    assert covers(scaffold_lda(np.arange(40), 4, 0.1, min_size=5), 40)  # singletons only
    different = {tuple(map(len, scaffold_lda(np.arange(400) // 10, 4, 0.5, seed))) for seed in range(5)}
    assert len(different) > 1  # the seed has an effect


def test_large_alpha_is_near_uniform_and_small_alpha_is_not():
    groups = np.repeat(np.arange(5), 400)
    uniform = scaffold_lda(groups, 4, 1e6, balanced=False)
    counts = np.array([np.bincount(groups[part], minlength=5) for part in uniform])
    assert (abs(counts - 100) < 5 * np.sqrt(400 * 0.25 * 0.75)).all()  # multinomial: 5 standard deviations
    assert total_variation(groups, uniform).mean() < 0.1
    assert total_variation(groups, scaffold_lda(groups, 4, 0.1)).mean() > 0.3


def test_last_group_and_singletons_are_spread():
    """The two faults of the authors' code: the last group is lost, and every singleton goes to the same client."""
    owners = np.zeros(4)
    for seed in range(200):
        members = scaffold_lda(np.array([0, 0, 0, 0, 1]), 4, 1.0, seed, balanced=False)
        owners += [4 in part for part in members]
    assert owners.sum() == 200 and owners.min() > 20  # uniform: 50 each, sd 6


def test_equal_sized_groups_get_different_draws():
    """The authors re-seed before each group, so all groups of one size are cut alike."""
    groups = np.repeat(np.arange(20), 1000)
    members = scaffold_lda(groups, 3, 0.5, balanced=False)
    share = np.bincount(groups[members[0]], minlength=20) / 1000
    assert share.std() > 0.15  # Dirichlet(.5, .5, .5): sd .30; one draw for all: .015 (multinomial)
    assert abs(share.mean() - 1 / 3) < 0.27  # four standard deviations of the mean of 20


def test_tiny_alpha_stays_a_distribution():
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = dirichlet(1e-300, 5, rng)
        assert np.isfinite(p).all() and p.sum() == pytest.approx(1)


def test_errors_name_sizes_and_the_short_client():
    with pytest.raises(ValueError, match=r"10 training mol.* give each of 4 clients 3.*\[3, 3, 2, 2\].*\[2, 3\]"):
        scaffold_lda(np.zeros(10, dtype=int), 4, 0.1, min_size=3)
    with pytest.raises(ValueError, match="num_clients.*is 11, but there are only 10"):
        scaffold_lda(np.zeros(10, dtype=int), 11, 0.1)
    with pytest.raises(ValueError, match="alpha.*positive"):
        scaffold_lda(np.zeros(10, dtype=int), 2, 0)
    with pytest.raises(ValueError, match="num_clients.*at least 1"):
        iid_partition(10, 0)
    with pytest.raises(ValueError, match="official.*short"):
        official_partition(np.arange(100) // 10, 4, 0.5, min_size=40, tries=3)


def test_other_partitions():
    parts = iid_partition(11, 3, seed=1)
    assert covers(parts, 11) and sorted(map(len, parts)) == [3, 4, 4]
    members, names = column_partition(["b", "10", "9", "b"])
    assert names == ["10", "9", "b"] and [part.tolist() for part in members] == [[1], [2], [0, 3]]
    assert column_partition([10, 9, 10])[1] == ["9", "10"]
    assert column_partition(["nan", "10", "9", "NA"])[1] == ["10", "9", "NA", "nan"]  # names, and so by letters
    assert column_partition(["10", "nan", "9"])[1] == ["10", "9", "nan"]
    with pytest.raises(ValueError, match=r"client_column.*blank for 2.*\[1, 2\]"):
        column_partition(["a", None, float("nan")])
    assert label_groups(np.array([1, 0, np.nan, 1]), regression=False).tolist() == [2, 1, 0, 2]
    bins = label_groups(np.arange(100.0), regression=True)
    assert np.bincount(bins, minlength=11).tolist() == [0] + [10] * 10
    values = np.repeat([0.0, 1.0], 100)
    by_label = label_partition(values, 2, 1e-3, regression=False, seed=0)
    assert covers(by_label, 200)
    assert total_variation(values.astype(int), by_label).max() > 0.4  # one class each


def test_total_variation_by_hand():
    groups = np.array([0, 0, 1, 1])
    tv = total_variation(groups, [np.array([0, 1]), np.array([0, 2]), np.array([], dtype=int)])
    assert tv[:2].tolist() == [0.5, 0.0] and np.isnan(tv[2])


@pytest.mark.parametrize(
    "size, expected",
    [
        (642, (513, 64, 65)),
        (1128, (902, 113, 113)),
        (1513, (1210, 151, 152)),
        (4200, (3360, 420, 420)),
        (7831, (6264, 783, 784)),
        (1, None),
    ],
)
def test_split_sizes_of_the_specification(size, expected):
    if expected is None:
        with pytest.raises(ValueError, match="no training molecule"):
            split_sizes(size)
    else:
        assert split_sizes(size) == expected


@pytest.mark.parametrize(
    "split", [lambda: random_split(101, 3), lambda: official_split(101), lambda: scaffold_split(np.arange(101) % 17)]
)
def test_splits_are_disjoint_complete_and_repeatable(split):
    parts = split()
    assert covers(list(parts.values()), 101)
    assert all((parts[name] == split()[name]).all() for name in parts)


def test_official_split_is_the_authors_and_touches_no_global_state():
    np.random.seed(5), torch.manual_seed(5)
    first = np.random.rand(), torch.rand(1).item()
    np.random.seed(5), torch.manual_seed(5)
    parts = official_split(642)
    assert (np.random.rand(), torch.rand(1).item()) == first
    order = np.random.RandomState(42).permutation(642)
    torch.manual_seed(123)
    held = order[513:][torch.randperm(129).numpy()]
    assert (parts["train"] == order[:513]).all()
    assert (parts["val"] == held[:64]).all() and (parts["test"] == held[64:]).all()


def test_scaffold_split_keeps_groups_whole():
    groups = np.array([0] * 50 + [1] * 30 + [2] * 10 + [3] * 5 + [4] * 5)
    parts = scaffold_split(groups)
    assert [sorted(set(groups[parts[name]])) for name in ("train", "val", "test")] == [[0, 1], [2], [3, 4]]


def test_balanced_clients_with_their_fair_share_get_no_more():
    """Two groups of 10 and tiny alpha, so each goes to one client: balanced, the second goes to the other; else by chance."""
    groups, sizes = np.repeat([0, 1], 10), {True: set(), False: set()}
    for balanced in sizes:
        for seed in range(20):
            parts = scaffold_lda(groups, 2, 1e-9, seed, min_size=0, balanced=balanced)
            sizes[balanced].add(tuple(map(len, parts)))
    assert sizes == {True: {(10, 10)}, False: {(10, 10), (0, 20), (20, 0)}}
    assert [len(p) for p in scaffold_lda(groups, 2, 1e-9, min_size=0)] == [10, 10]  # balanced is the default


def test_members_of_a_group_are_shuffled_before_they_are_shared_out():
    first, _ = scaffold_lda(np.zeros(100, dtype=int), 2, 1e6, balanced=False)
    assert 30 < len(first) < 70 and first.tolist() != list(range(len(first)))
    assert 25 < first.mean() < 75  # of positions 0 .. 99; a prefix of 50 has 24.5


def official_first_group(size, alpha, seed):
    """How the authors' code shares group 1 of 2 out among two clients, written down for this case."""
    rng, members = np.random.RandomState(seed), np.arange(size)
    rng.shuffle(members)
    share = rng.dirichlet([alpha, alpha])
    cut = int(share[0] / share.sum() * size)
    return [sorted(members[:cut].tolist()), sorted(members[cut:].tolist())]


def test_the_official_partition_starts_with_seed_two_and_tries_the_next():
    groups = np.array([0] * 30 + [1] * 5)  # the last group is lost
    shares = {seed: official_first_group(30, 0.5, seed) for seed in range(2, 40)}
    assert [part.tolist() for part in official_partition(groups, 2, 0.5, min_size=0)] == shares[2]
    enough = min(map(len, shares[2])) + 1
    later = next(seed for seed, parts in shares.items() if min(map(len, parts)) >= enough)
    found = official_partition(groups, 2, 0.5, min_size=enough, tries=later - 1)
    assert [part.tolist() for part in found] == shares[later]
    with pytest.raises(ValueError, match="official.*short"):
        official_partition(groups, 2, 0.5, min_size=enough, tries=later - 2)
