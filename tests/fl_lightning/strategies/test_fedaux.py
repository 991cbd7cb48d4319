"""FedAux at the server: hand values, what crosses the border, errors. The equations it shares: `test_fedpub_equations.py`."""

import math

import pytest
import torch
from federations import CPU, Spy
from torch import nn

from datamodules import PlantedDataModule
from fl_lightning import FedAux, FederatedTrainer
from fl_lightning.engine.messages import Payload
from lit_models import GCN, AuxiliaryProjection, LitNodeClassifier, Masked


class Two(nn.Module):
    """A projection and one weight."""

    def __init__(self):
        super().__init__()
        self.projection, self.weight = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))


def reply(projection, weight):
    return Payload({"projection": torch.tensor(projection), "weight": torch.tensor([weight])}, {"num_samples": 1})


def started(tau):
    strategy = FedAux(tau)
    strategy.check(Two(), [], None)
    strategy.start({"projection": torch.zeros(2), "weight": torch.zeros(1)}, ())
    return strategy


def test_a_round_by_hand():
    # a orthogonal: cos = identity; tau = log 3: w = [[3, 1], [1, 3]] / 4. The lengths of a do not count in w, and are mixed.
    strategy = started(math.log(3.0))
    strategy.aggregate(None, 0, {0: reply([2.0, 0.0], 4.0), 3: reply([0.0, 8.0], 8.0)})
    wanted = {0: ([1.5, 2.0], [5.0]), 3: ([0.5, 6.0], [7.0]), 1: ([0.0, 0.0], [0.0])}  # 1 has sat out
    for client, (projection, weight) in wanted.items():
        got = strategy.download(client).tensors
        torch.testing.assert_close(got["projection"], torch.tensor(projection))
        torch.testing.assert_close(got["weight"], torch.tensor(weight))
    shown = strategy.diagnose()
    torch.testing.assert_close(shown.matrices["fedaux/alpha"], torch.tensor([[0.75, 0.25], [0.25, 0.75]]))
    torch.testing.assert_close(shown.matrices["fedaux/similarity"], torch.eye(2))
    assert list(shown.clients) == [0, 3]


def test_tau_zero_is_the_plain_mean_and_large_tau_keeps_each_its_own():
    for tau, weights in ((0.0, (6.0, 6.0)), (1e6, (4.0, 8.0))):
        strategy = started(tau)
        strategy.aggregate(None, 0, {0: reply([2.0, 0.0], 4.0), 1: reply([0.0, 8.0], 8.0)})
        assert [strategy.download(client).tensors["weight"].item() for client in (0, 1)] == pytest.approx(weights)


def test_only_weights_leave_and_masks_stay(tmp_path):
    encoder, spy = Masked(AuxiliaryProjection(GCN(hidden_channels=4))), Spy()
    args = {**CPU, "max_steps": 1, "logger": False, "default_root_dir": str(tmp_path)}
    fed = FederatedTrainer(trainer=args, strategy=FedAux(), engine=spy, num_rounds=1, seed=0)
    fed.fit(LitNodeClassifier(encoder), PlantedDataModule(num_clients=2, num_groups=2))
    ups = [message.payload.tensors for direction, message in spy.seen if direction == "up" and message.kind == "fit"]
    begin = "encoder.encoder."
    convs = {f"{begin}encoder.convs.{k}.{name}" for k in (0, 1) for name in ("lin.weight", "bias")}
    wanted = {f"{begin}projection", f"{begin}head.weight", f"{begin}head.bias", *convs}
    assert len(ups) == 2 and all(set(tensors) == wanted for tensors in ups)
    assert fed.settings.carry_optimizer_state is True


def test_modules_without_one_shared_projection_are_refused():
    with pytest.raises(
        ValueError, match="one parameter named `projection`, but `Linear` has none.*lit_models.AuxiliaryProjection"
    ):
        FedAux().check(nn.Linear(2, 2), [], None)
    with pytest.raises(ValueError, match=r"but `Sequential` has 0.projection, 1.projection"):
        FedAux().check(nn.Sequential(Two(), Two()), [], None)
    strategy = FedAux()
    strategy.check(Two(), [], None)
    with pytest.raises(ValueError, match="by `projection`, but it stays with them. Take it out of `federation.private`"):
        strategy.start({"weight": torch.zeros(1)}, ("projection",))
    with pytest.raises(ValueError, match="init_args.tau` must be a finite number, got nan"):
        FedAux(math.nan)
