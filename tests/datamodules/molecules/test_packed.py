"""Loaders over packed molecules: which positions a batch asks for. What a batch holds is in ``test_datamodule.py``."""

import torch

from datamodules.molecules.packed import Part, make_loader


class Positions:
    """In the place of the molecules: a batch is the list of positions that was asked for."""

    def collate(self, chosen):
        return chosen.tolist()


PART = Part(Positions(), [10, 20, 30, 40, 50])


def test_a_batch_has_the_order_that_was_asked_for():
    assert PART.__getitems__([4, 0, 2]) == [50, 10, 30] and PART[3] == [40] and len(PART) == 5


def test_loaders_shuffle_only_if_they_are_told_to():
    for _ in range(2):
        assert list(make_loader(PART, 2, shuffle=False)) == [[10, 20], [30, 40], [50]]
    torch.manual_seed(0)
    epochs = [list(make_loader(PART, 2, shuffle=True)) for _ in range(6)]
    assert len({str(batches) for batches in epochs}) > 1
    assert all(sorted(sum(batches, [])) == [10, 20, 30, 40, 50] and len(batches[-1]) == 1 for batches in epochs)


def test_one_batch_is_not_shuffled_and_draws_nothing():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for size in (5, 100):
        loader = make_loader(PART, size, shuffle=True)
        assert loader.batch_size == 5 and type(loader.sampler).__name__ == "SequentialSampler"
    assert torch.equal(torch.get_rng_state(), before)
    assert make_loader(Part(Positions(), []), 2, shuffle=True) == []
