"""What our modules log of an epoch is the mean over all its batches, in every way in which an epoch can end."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from objective_samples import Linear, Rows, make_trainer

from lit_models.epoch_means import EpochMeans
from lit_models.objectives import ERM, FedProx
from lit_models.objectives.base import Objective


def test_means_by_hand():
    means = EpochMeans()
    means.add({"scalar": torch.tensor(1.0), "each": torch.tensor([1.0, 2.0, 3.0])})
    means.add({"scalar": torch.tensor(4.0), "each": torch.tensor([10.0])})
    found = means.pop()
    assert found["scalar"] == 2.5  # a batch is a batch
    assert found["each"] == 4.0  # 16 / 4 samples, not the mean 6 of the batches' means 2 and 10
    assert means.pop() == {}


def test_only_what_is_labelled_counts():
    means = EpochMeans()
    means.add({"x": torch.tensor([[1.0, float("nan")], [3.0, 7.0]])}, torch.tensor([[True, False], [False, True]]))
    means.add({"x": torch.tensor([[4.0, 9.0]])}, torch.tensor([[True, False]]))
    means.add({"never": torch.tensor([5.0])}, torch.tensor([False]))
    assert means.pop() == {"x": torch.tensor(4.0)}  # (1 + 7 + 4) / 3


def test_no_graph_is_kept():
    means, weight = EpochMeans(), torch.ones(1, requires_grad=True)
    means.add({"x": weight * 2})
    assert not means.pop()["x"].requires_grad


class Numbered(Objective):
    """Logs 1, 2, 3, ... batch by batch."""

    def __init__(self):
        self.batch = 0

    def __call__(self, module, batch):
        self.batch += 1
        module.observe({"number": torch.tensor(float(self.batch))})
        return ERM()(module, batch)


class StopAfterTwo(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        trainer.should_stop = index == 1


@pytest.mark.parametrize(
    ("arguments", "mean"),
    [
        ({"max_epochs": 1}, 2.5),
        ({"max_epochs": 2}, 6.5),  # the last epoch: 5, 6, 7, 8
        ({"max_steps": 3}, 2.0),
        ({"max_steps": 1, "accumulate_grad_batches": 2}, 1.5),
        ({"max_epochs": 1, "limit_train_batches": 3}, 2.0),
        ({"max_epochs": 3, "callbacks": [StopAfterTwo()]}, 1.5),
    ],
)
def test_the_mean_over_the_epoch_however_it_ends(arguments, mean):
    trainer = make_trainer(**arguments)
    trainer.fit(Linear(Numbered(), [[1.0]]), Rows([[1.0]] * 4, [[0.0]] * 4, batch_size=1))
    assert trainer.callback_metrics["train/number"] == mean


def test_two_objectives_in_one_another_keep_their_means_apart():
    trainer = make_trainer(max_epochs=1)
    trainer.fit(Linear(FedProx(mu=2.0, base=Numbered()), [[1.0]], lr=0.0), Rows([[1.0]] * 2, [[0.0]] * 2, batch_size=1))
    assert trainer.callback_metrics["train/number"] == 1.5 and trainer.callback_metrics["train/proximal"] == 0.0


def test_without_a_trainer_nothing_piles_up():
    module = Linear(Numbered(), [[1.0]])
    data = Rows([[1.0]], [[0.0]])
    module.build(data.schema)
    module.training_step(data.batch(), 0)
    assert module._means.pop() == {}
