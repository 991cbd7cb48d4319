"""Permuting known labels of some rows, each task for itself."""

import torch

from datamodules import SyntheticCitationDataModule
from datamodules.molecules import ChEMBLDataModule
from datamodules.relabelling import permute_known

NAN = float("nan")


def generator():
    return torch.Generator().manual_seed(1)


def test_only_known_labels_outside_move_and_all_stay_there():
    labels = torch.tensor([0, 1, 2, 3, -1, 5, 6, 7])
    outside = torch.tensor([True, False, True, True, True, True, True, False])
    permuted, number = permute_known(labels, outside, generator())
    assert permuted[[1, 4, 7]].tolist() == [1, -1, 7] and sorted(permuted.tolist()) == sorted(labels.tolist())
    assert number == int((permuted != labels).sum()) > 0 and labels.tolist() == [0, 1, 2, 3, -1, 5, 6, 7]


def test_tasks_are_permuted_apart_and_missing_values_stay_missing():
    labels = torch.tensor([[1.0, 10], [2, NAN], [3, 30], [NAN, 40], [5, 50]])
    permuted, number = permute_known(labels, torch.tensor([True, True, True, True, False]), generator())
    assert torch.equal(permuted.isnan(), labels.isnan()) and permuted[4].tolist() == [5, 50]
    assert sorted(permuted[:3, 0].tolist()) == [1, 2, 3] and sorted(permuted[[0, 2, 3], 1].tolist()) == [10, 30, 40]
    assert number == int((permuted != labels).sum()) - 2  # nan is never itself


def test_graphs_keep_the_labels_of_training_nodes():
    data = SyntheticCitationDataModule(num_nodes=60, num_classes=3, num_features=12, num_clients=2)
    data.setup("fit")
    before, number = data.data, data.permute_labels(generator())
    after = next(iter(data.val_dataloader()))
    assert after is data.data and torch.equal(before.y[before.train_mask], after.y[before.train_mask])
    assert number == int((before.y != after.y).sum()) > 0 and torch.equal(before.x.to_dense(), after.x.to_dense())


def test_molecules_keep_the_labels_of_training_molecules():
    data = ChEMBLDataModule(num_clients=2, partition="scaffold_lda", client_holdout=0.3, cache_dir=None)
    data.setup("fit")
    own = data.client_datamodules()[0]
    before, number = own.packed.y.clone(), own.permute_labels(generator())
    train = own.part("train").positions
    assert number == int((before != own.packed.y).sum()) > 0 and torch.equal(before[train], own.packed.y[train])
    batch = next(iter(own.test_dataloader()))
    assert torch.equal(batch.y, own.packed.y[own.part("test").positions][: len(batch.y)])
    assert data.permute_labels(generator()) > 0  # the server's validation and test molecules
