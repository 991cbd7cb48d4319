"""The pass over all training data: which loader it takes, and that nothing of the loader's own randomness is used up."""

import copy

import pytest
import torch
from objective_samples import Linear, Rows, make_trainer, rows_data
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from lit_models.objectives import FLIT
from lit_models.objectives.support.received import SampleTable, batch_size_of, in_order


class Trainer:
    """What `in_order` asks a trainer for."""

    def __init__(self, loader):
        self.train_dataloader, self.datamodule = loader, None


class OwnIteration(DataLoader):
    def __iter__(self):
        return iter([[3], [1]])


class OwnIterator(DataLoader):
    def _get_iterator(self):
        return iter([[3], [1]])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


def test_a_loader_with_a_way_of_its_own_is_taken_as_it_is():
    """A loader over its data set would give other batches, or none."""
    for loader in (OwnIteration(range(4)), OwnIterator(range(4)), DataLoader(Stream()), [[1], [2]]):
        assert in_order(Trainer(loader)) is loader


def test_any_other_is_read_in_order_without_dropping_in_batches_of_its_size():
    data, collate = list(range(10, 17)), lambda rows: list(rows)
    batches = [[10, 11, 12], [13, 14, 15], [16]]
    for loader in (
        DataLoader(data, batch_size=3, shuffle=True, drop_last=True, collate_fn=collate),
        DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 3, drop_last=True), collate_fn=collate),
    ):
        assert list(in_order(Trainer(loader))) == batches
    listed = DataLoader(data, batch_sampler=[[3, 0, 1], [2]], collate_fn=collate)  # no size that could be asked for
    assert list(in_order(Trainer(listed))) == [[row] for row in data]
    whole = DataLoader(data, batch_size=None, sampler=RandomSampler(data))
    assert list(in_order(Trainer(whole))) == data
    assert batch_size_of(Trainer(DataLoader(data, batch_size=3))) == 3 and batch_size_of(Trainer([1])) is None


class Drawing(OwnIteration):
    """Batches in an order of its own, drawn from its own generator."""

    def __iter__(self):
        for rows in torch.randperm(len(self.dataset), generator=self.generator).split(self.batch_size):
            yield self.collate_fn(rows)


def test_the_generators_of_a_loader_are_as_before():
    """With FLIT, which looks at all data when training begins, the batches are those of training without it."""
    drawn = []
    for objective in (None, FLIT()):
        data = rows_data()
        data.loader = Drawing(range(9), batch_size=4, collate_fn=data.batch, generator=torch.Generator().manual_seed(5))
        module = Linear(objective)
        module.build(data.schema)
        seen = []
        module.on_train_batch_start = lambda batch, index, seen=seen: seen.append(batch.sample_id.tolist())
        make_trainer(max_epochs=2).fit(module, data)
        drawn.append(seen)
    assert drawn[0] == drawn[1] and drawn[0][:3] != drawn[0][3:]


def test_the_generator_of_a_sampler_is_as_before():
    data = rows_data()
    generator = torch.Generator().manual_seed(5)
    sampler = RandomSampler(range(9), generator=generator)
    data.loader = OwnBatches(range(9), batch_size=4, sampler=sampler, collate_fn=data.batch)
    module = Linear(FLIT())
    module.build(data.schema)
    expected = torch.randperm(9, generator=torch.Generator().manual_seed(5))  # as if nobody had drawn before
    seen = []
    module.on_train_batch_start = lambda batch, index: seen.append(batch.sample_id)
    make_trainer(max_epochs=1).fit(module, data)
    assert torch.equal(torch.cat(seen), data.ids[expected])


class OwnBatches(DataLoader):
    def _get_iterator(self):
        return super()._get_iterator()


def test_of_a_repeated_id_the_first_row_counts():
    table = SampleTable(torch.tensor([7, 5, 7, 5]), {"loss": torch.tensor([1.0, 2.0, 3.0, 4.0])})
    assert table.at(torch.tensor([5, 7, 5]))["loss"].tolist() == [2.0, 1.0, 2.0]


def test_values_of_several_batches_are_joined_by_name():
    parts = [(torch.tensor([4, 2]), {"a": torch.tensor([40.0, 20.0]), "b": torch.tensor([4.0, 2.0])}),
             (torch.tensor([3]), {"a": torch.tensor([30.0]), "b": torch.tensor([3.0])})]  # fmt: skip
    found = SampleTable.of(copy.deepcopy(parts)).at(torch.tensor([3, 4]))
    assert found["a"].tolist() == [30.0, 40.0] and found["b"].tolist() == [3.0, 4.0]


def test_a_batch_sampler_that_does_not_tell_its_size_is_read_one_by_one():
    loader = DataLoader(list(range(3)), batch_sampler=[[0, 1], [2]], collate_fn=lambda rows: list(rows))
    assert list(in_order(Trainer(loader))) == [[0], [1], [2]]


def test_of_many_rows_with_the_same_id_the_first_counts_too():
    table = SampleTable(torch.tensor([7, 5]).repeat(500), {"row": torch.arange(1000)})
    assert table.at(torch.tensor([5, 7]))["row"].tolist() == [1, 0]


def test_a_table_of_one_sample_or_of_none_knows_no_other():
    one, none = SampleTable(torch.tensor([3]), {"loss": torch.ones(1)}), SampleTable.of([])
    assert one.rows(torch.tensor([3, 3])).tolist() == [0, 0]
    for table, ids in ((one, (0, 2, 4, 99)), (none, (0, 1, 3))):
        for unknown in ids:
            with pytest.raises(ValueError, match=f"Sample {unknown} is trained on but was not among"):
                table.rows(torch.tensor([unknown]))


class Indexed:
    """Can be read by position alone."""

    def __getitem__(self, position):
        return [[1], [2]][position]


def test_a_loader_that_is_no_data_loader_is_taken_as_it_is():
    loader = Indexed()
    assert in_order(Trainer(loader)) is loader


def test_batches_are_read_without_worker_processes():
    found = in_order(Trainer(DataLoader(range(4), batch_size=2, num_workers=2)))
    assert (found.num_workers, found.batch_size) == (0, 2)


HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


@pytest.mark.parametrize(("of_data", "who"), [(True, "Data"), (False, "Module")])
def test_the_pass_over_all_data_calls_the_hooks_that_training_calls(of_data, who):
    calls = []

    class Data(Rows):
        pass

    class Module(Linear):
        pass

    for owner in (Data, Module) if of_data else (Module,):
        for name in HOOKS:
            inherited = getattr(owner, name)

            def hook(self, batch, *arguments, inherited=inherited, name=name):
                calls.append((type(self).__name__, name, arguments[-1]))
                return inherited(self, batch, *arguments)

            setattr(owner, name, hook)
    rows = rows_data()
    make_trainer(max_epochs=1).fit(Module(FLIT()), Data(rows.x, rows.y, batch_size=4))
    assert calls == [(who, name, 0) for _ in range(3 + 3) for name in HOOKS]  # three batches, measured and trained on


def test_without_a_data_module_the_hooks_are_the_modules():
    calls, data = [], rows_data()

    class Module(Linear):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            calls.append(dataloader_idx)
            return batch

    module = Module(FLIT())
    module.build(data.schema)
    make_trainer(max_epochs=1).fit(module, data.train_dataloader())
    assert calls == [0] * 6
