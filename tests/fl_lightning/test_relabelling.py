"""Data in which labels outside the training part are others: foreign data modules, whose batches are changed."""

import copy
from collections import namedtuple

import pytest
import torch
from federations import Table
from lightning import LightningDataModule
from torch.utils.data import DataLoader
from torch_geometric.data import Data

from fl_lightning.relabelling import Relabelled, labels_of, with_labels

Pair = namedtuple("Pair", "x y")


def everything(loader):
    return [tuple(batch) for batch in loader]


def test_a_foreign_client_validates_on_others_labels_and_trains_on_its_own():
    table = Table(12, seed=1, batch_size=3, shuffle=False)
    table.setup()
    before = [everything(getattr(table, f"{part}_dataloader")()) for part in ("train", "val", "test")]
    changed = copy.deepcopy(table)
    relabelled = Relabelled([changed], seed=0)
    after = [everything(getattr(changed, f"{part}_dataloader")()) for part in ("train", "val", "test")]
    assert all(torch.equal(a, b) for old, new in zip(before[0], after[0], strict=True) for a, b in zip(old, new, strict=True))
    for old, new in zip(before[1:], after[1:], strict=True):
        assert all(torch.equal(a[0], b[0]) for a, b in zip(old, new, strict=True))
        labels = [torch.cat([batch[1] for batch in batches]) for batches in (old, new)]
        assert not torch.equal(*labels) and torch.equal(labels[0].sort(0).values, labels[1].sort(0).values)
    assert relabelled.changed["client 0"] > 8
    loader = changed.val_dataloader()
    first, second = everything(loader), everything(loader)
    assert all(torch.equal(a[1], b[1]) for a, b in zip(first, second, strict=True))  # the same in every pass


class Masked(LightningDataModule):
    """A user's own full-batch graph: one batch for all stages."""

    def __init__(self):
        super().__init__()
        nodes = torch.arange(10)
        self.graph = Data(x=torch.rand(10, 2), y=nodes % 5, train_mask=nodes < 4, val_mask=nodes >= 4, num_nodes=10)

    def train_dataloader(self):
        return DataLoader([self.graph], batch_size=None, collate_fn=copy.copy)

    val_dataloader = train_dataloader


def test_of_a_graph_with_masks_training_batches_change_too_but_for_their_own_nodes():
    data = Masked()
    Relabelled([data], seed=0)
    for make in (data.train_dataloader, data.val_dataloader):
        (batch,) = make()
        assert not torch.equal(batch.y[4:], data.graph.y[4:])
    (batch,) = data.train_dataloader()
    assert torch.equal(batch.y[:4], data.graph.y[:4])


@pytest.mark.parametrize(
    "batch",
    [
        (torch.zeros(2, 3), torch.tensor([1, 2])),
        [torch.zeros(2, 3), torch.tensor([1, 2])],
        Pair(torch.zeros(2, 3), torch.tensor([1, 2])),
        {"x": torch.zeros(2, 3), "target": torch.tensor([1, 2])},
        Data(x=torch.zeros(2, 3), y=torch.tensor([1, 2])),
    ],
)
def test_labels_of_a_batch_are_found_and_replaced_in_a_copy(batch):
    changed = with_labels(batch, torch.tensor([2, 1]))
    assert labels_of(batch).tolist() == [1, 2] and labels_of(changed).tolist() == [2, 1] and type(changed) is type(batch)


@pytest.mark.parametrize("batch", [torch.zeros(2), {"x": torch.zeros(2)}, Data(x=torch.zeros(2, 1)), (torch.zeros(2),), "text"])
def test_where_labels_are_unknown_the_method_to_write_is_named(batch):
    with pytest.raises(
        ValueError, match=rf"labels in a batch of type `{type(batch).__name__}`.*`permute_labels\(generator\) -> int`"
    ):
        labels_of(batch)
