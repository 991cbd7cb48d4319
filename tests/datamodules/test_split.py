"""Splits: class-wise rounding, published fractions, seeds, unlabeled nodes."""

import torch

from datamodules.split import random_20_40_40, stratified_60_20_20


def assert_disjoint(masks):
    assert int(sum(mask.long() for mask in masks).max()) <= 1


def test_stratified_rounds_per_class():
    # 10 of class 0: 6/2/2; 7 of class 1: 4/1/2; 1 of class 2: 1/0/0; 2 of class 3: 1/0/1; 3 unlabeled: none
    y = torch.tensor([0] * 10 + [1] * 7 + [2] + [3] * 2 + [-1] * 3)
    masks = stratified_60_20_20(y, seed=5)
    assert_disjoint(masks)
    counts = [[int((mask & (y == label)).sum()) for mask in masks] for label in (0, 1, 2, 3, -1)]
    assert counts == [[6, 2, 2], [4, 1, 2], [1, 0, 0], [1, 0, 1], [0, 0, 0]]


def test_random_split_counts_of_cora():
    # docs/papers/fedpub.md#data: 2485 nodes give 497 / 994 / 994
    train, val, test = random_20_40_40(torch.zeros(2485, dtype=torch.long), seed=0)
    assert (int(train.sum()), int(val.sum()), int(test.sum())) == (497, 994, 994)
    assert_disjoint((train, val, test))


def test_unlabeled_nodes_are_in_no_split():
    y = torch.tensor([0, -1] * 20)
    assert not any(bool(mask[1::2].any()) for mask in random_20_40_40(y, seed=0))


def test_seed_fixes_the_split_and_leaves_the_global_stream_alone():
    y = torch.arange(100) % 4
    for split in (stratified_60_20_20, random_20_40_40):
        torch.manual_seed(0)
        first = split(y, seed=1)
        after = torch.rand(1)
        torch.manual_seed(0)
        assert torch.equal(torch.rand(1), after)
        assert all(torch.equal(a, b) for a, b in zip(first, split(y, seed=1), strict=True))
        assert not torch.equal(first[0], split(y, seed=2)[0])
