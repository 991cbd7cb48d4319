"""Each step of a fit is seen, and no other; what is no plain SGD is named."""

import pytest
import torch
from federations import Linear, clients, federate
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.engine.client import ClientHalf
from fl_lightning.engine.optimizer_steps import after_each_step, check_plain_sgd


def test_steps_of_this_modules_optimisers_are_seen_with_their_gradients():
    module, other = nn.Linear(1, 1), nn.Linear(1, 1)
    mine, its = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (module, other))
    seen = []
    with after_each_step(module, lambda optimizer: seen.append((optimizer, module.weight.grad.item()))):
        for one, optimizer in ((module, mine), (other, its)):
            one(torch.full((1, 1), 3.0)).sum().backward()
            optimizer.step()
    mine.step()
    assert seen == [(mine, 3.0)]


def test_nothing_is_left_behind_by_an_error():
    module, seen = nn.Linear(1, 1), []
    with pytest.raises(RuntimeError, match="in the fit"), after_each_step(module, seen.append):
        raise RuntimeError("in the fit")
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    assert seen == []


class Counts(ClientHalf):
    def fit(self, client, request):
        steps = []
        with after_each_step(client.module, lambda optimizer: steps.append(optimizer.param_groups[0]["lr"])):
            reply = super().fit(client, request)
        COUNTED.append(len(steps))
        return reply


class Counted(FedAvg):
    def client_half(self):
        return Counts()


COUNTED: list[int] = []


@pytest.mark.parametrize(
    ("trainer", "fast_loops", "steps"),
    [
        ({"max_epochs": 2}, True, [4, 4]),  # the second fit of a client goes the short way; ceil(10 / 5) x 2
        ({"max_epochs": 2}, False, [4, 4]),
        ({"max_epochs": 2, "accumulate_grad_batches": 2}, True, [2, 2]),
        ({"max_steps": 3, "max_epochs": -1}, True, [3, 3]),
    ],
)
def test_the_steps_of_a_fit(tmp_path, trainer, fast_loops, steps):
    COUNTED.clear()
    data = clients((10,), batch_size=5)
    federate(tmp_path, Linear, data, trainer, strategy=Counted(), num_rounds=2, fast_loops=fast_loops)
    assert COUNTED == steps


def sgd(**more):
    return torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1, **more)


@pytest.mark.parametrize(
    ("optimizers", "found"),
    [
        ([torch.optim.Adam(nn.Linear(1, 1).parameters())], "Adam"),
        ([type("Mine", (torch.optim.SGD,), {})(nn.Linear(1, 1).parameters(), lr=0.1)], "Mine"),
        ([sgd(momentum=0.9)], "SGD with `momentum: 0.9`"),
        ([sgd(weight_decay=0.01)], "SGD with `weight_decay: 0.01`"),
        ([sgd(maximize=True)], "SGD with `maximize: True`"),
        ([sgd(), sgd()], "2 optimisers"),
        ([], "0 optimisers"),
    ],
)
def test_what_is_not_plain_sgd_is_named(optimizers, found):
    check_plain_sgd("Scaffold", nn.Linear(1, 1), [sgd(dampening=0.1)])
    with pytest.raises(ValueError) as error:
        check_plain_sgd("Scaffold", nn.Linear(1, 1), optimizers)
    assert str(error.value) == (
        "`federation.strategy: Scaffold` needs plain SGD at the clients: one optimiser, without momentum and weight decay. "
        f"`Linear.configure_optimizers` gives {found}. Write `model.init_args.optimizer: {{class_path: torch.optim.SGD, "
        "init_args: {lr: 0.1, momentum: 0, weight_decay: 0}}` (in a module of your own `torch.optim.SGD(self.parameters(), "
        "lr=0.1)`), or take a strategy that goes with any optimiser: `FedAvg`, `FedAdam`."
    )
