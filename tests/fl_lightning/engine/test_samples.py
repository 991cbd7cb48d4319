"""How many samples a loader draws, and whether its last batch has only one, by hand."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler

from fl_lightning.engine.samples import _trained_batches, count_samples, lone_batch, no_sample_in_words, samples_of


class Data:
    def __init__(self, loader=None, **attributes):
        self.loader = loader
        vars(self).update(attributes)

    def train_dataloader(self):
        return self.loader


class Endless(IterableDataset):
    def __iter__(self):
        yield from range(8)


def test_a_number_that_is_given_is_taken_as_it_is():
    assert count_samples(Data(num_train_samples=3.0)) == 3 and count_samples(Data(num_train_samples=0)) == 0
    assert count_samples(Data(DataLoader(range(7), batch_size=2))) == 7


class Shuffled(Data):
    def train_dataloader(self):
        return DataLoader(range(self.number), shuffle=True)


def test_a_client_of_no_sample_has_none_also_where_torch_refuses_to_shuffle_it():
    assert count_samples(Shuffled(number=0)) == 0 and count_samples(Shuffled(number=3)) == 3

    class Broken(Data):
        def train_dataloader(self):
            raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        count_samples(Broken())
    with pytest.raises(ValueError, match="no such file"), no_sample_in_words(Broken()):
        Broken().train_dataloader()
    with pytest.raises(ValueError, match="^`data: Shuffled` has no training sample; check the split"), \
            no_sample_in_words(Shuffled(number=0)):  # fmt: skip
        Shuffled(number=0).train_dataloader()


def test_the_sampler_comes_before_the_data_set_and_the_loader_last():
    assert samples_of(DataLoader(range(9), sampler=SubsetRandomSampler([1, 2])), Data()) == 2
    assert samples_of(SimpleNamespace(dataset=range(4)), Data()) == 4
    assert samples_of(["a batch", "another"], Data()) == 2 and samples_of([], Data()) == 0
    with pytest.raises(ValueError, match=r"the training set of `data: Data` \(Endless\) has no length"):
        samples_of(DataLoader(Endless(), batch_size=2), Data())
    with pytest.raises(ValueError, match=r"the training set of `data: Data` \(object\) has no length"):
        samples_of(object(), Data())


@pytest.mark.parametrize(("number", "size", "fails"), [(5, 8, True), (8, 8, False), (9, 8, False)])
def test_dropping_all_samples_is_an_error(number, size, fails):
    loader = DataLoader(range(number), batch_size=size, drop_last=True)
    if fails:
        with pytest.raises(ValueError, match=f"`drop_last=True` with {number} samples and batches of {size}"):
            samples_of(loader, Data())
    else:
        assert samples_of(loader, Data()) == number
    assert samples_of(DataLoader(range(number), batch_size=size), Data()) == number


@pytest.mark.parametrize(
    ("batches", "arguments", "trained"),
    [
        (10, {}, 10), (10, {"limit_train_batches": 3}, 3), (10, {"limit_train_batches": 0.55}, 5),
        (10, {"limit_train_batches": 1.0}, 10), (10, {"limit_train_batches": 30}, 10), (10, {"fast_dev_run": True}, 1),
        (10, {"fast_dev_run": 4}, 4), (10, {"fast_dev_run": False}, 10), (10, {"max_steps": 4}, 4),
        (10, {"max_steps": 4, "accumulate_grad_batches": 2}, 8), (10, {"max_steps": 40}, 10), (10, {"max_steps": -1}, 10),
        (10, {"max_steps": None}, 10), (10, {"max_steps": 3, "accumulate_grad_batches": None}, 3),
    ],
)  # fmt: skip
def test_how_many_batches_of_an_epoch_are_trained_on(batches, arguments, trained):
    assert _trained_batches(batches, arguments) == trained


def test_a_lone_last_batch_by_hand():
    assert lone_batch(DataLoader(range(5), batch_size=2), {}) == "5 samples in batches of 2"
    assert lone_batch(DataLoader(range(5), batch_size=2), {"max_steps": 3}) == "5 samples in batches of 2"
    assert lone_batch(DataLoader(range(5), batch_size=2), {"max_steps": 2}) is None  # it is not reached
    assert lone_batch(DataLoader(range(4), batch_size=2), {}) is None
    assert lone_batch(DataLoader(range(1), batch_size=1), {}) == "1 sample in batches of 1"
    assert lone_batch(DataLoader(range(5), batch_size=2, sampler=SubsetRandomSampler([])), {}) is None
    assert lone_batch(DataLoader(range(5), batch_size=1, sampler=SubsetRandomSampler([])), {}) is None
    assert lone_batch(DataLoader(Endless(), batch_size=2), {}) is None and lone_batch(torch.ones(1), {}) is None


def test_an_empty_data_set_is_no_error_whatever_is_dropped():
    assert samples_of(DataLoader(range(0), batch_size=2, drop_last=True), Data()) == 0


def test_what_has_a_loader_in_it_is_several_loaders():
    one, two = DataLoader(range(2)), DataLoader(range(3))
    for several in ([one, "a batch"], (one, two), {"a": one}, CombinedLoader([one, two])):
        with pytest.raises(ValueError, match="`train_dataloader` of `data: Data` gives several loaders"):
            samples_of(several, Data())


def test_a_last_batch_that_is_dropped_or_that_nobody_makes_is_no_lone_one():
    assert lone_batch(DataLoader(range(5), batch_size=2, drop_last=True), {}) is None
    assert lone_batch(DataLoader(range(5), batch_size=None), {}) is None


def test_all_batches_as_a_fraction_reach_the_last_one():
    assert lone_batch(DataLoader(range(5), batch_size=2), {"limit_train_batches": 1.0}) == "5 samples in batches of 2"
    assert lone_batch(DataLoader(range(5), batch_size=2), {"limit_train_batches": 0.7}) is None  # two of three
