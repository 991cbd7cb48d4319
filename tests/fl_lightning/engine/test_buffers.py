"""Buffers and frozen parameters: what differs between clients is refused by name; normalisation layers may stay local."""

import pytest
import torch
from federations import Linear, assert_same_bits, clients, federate
from torch import nn

from fl_lightning import load_model
from fl_lightning.engine.buffers import check_alike, hashes, normalisation_entries, unlearnt


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scaler = nn.Module()
        self.scaler.register_buffer("mean", torch.zeros(3))
        self.scaler.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.norm, self.layer, self.frozen = nn.BatchNorm1d(3), nn.Linear(3, 1), nn.Linear(2, 2, bias=False)
        self.frozen.requires_grad_(False)


def test_what_training_does_not_learn():
    net = Net()
    assert unlearnt(net) == ["frozen.weight", "scaler.mean"]
    assert unlearnt(net, ["scaler.*"]) == ["frozen.weight"] and unlearnt(net, ["*"]) == []
    assert normalisation_entries(net) == {f"norm.{n}" for n in ("weight", "bias", "running_mean", "running_var",
                                                                 "num_batches_tracked")}  # fmt: skip
    assert normalisation_entries(nn.BatchNorm1d(2)) >= {"weight", "running_mean"}


def test_hashes_tell_values_types_and_shapes_apart():
    def sha(tensor):
        net = nn.Module()
        net.register_buffer("x", tensor)
        return hashes(net, ["x"])["x"]

    same = [sha(torch.tensor([1.0, 2.0])), sha(torch.tensor([1.0, 0.0, 2.0])[::2])]
    assert same[0] == same[1]
    others = [torch.tensor([1.0, 2.5]), torch.tensor([[1.0, 2.0]]), torch.tensor([1.0, 2.0], dtype=torch.float64),
              torch.zeros(0), torch.tensor(1.0), torch.tensor([1.0, 2.0], dtype=torch.bfloat16)]  # fmt: skip
    assert len({same[0], *map(sha, others)}) == 7


def test_what_differs_is_named_with_the_remedies():
    check_alike({})
    check_alike({0: {"a": "1"}, 1: {"a": "1"}})
    with pytest.raises(
        ValueError,
        match=r"`a` \(and 1 more: b\) is a buffer or a frozen parameter that the clients begin with "
        r"in 2 versions \(client 0, site-b\).*`statistics\(\)`.*`federation.private: \[a\]`.*"
        r"`federation.average: \[a\]`",
    ):
        check_alike({0: {"a": "1", "b": "2", "c": "3"}, 1: {"a": "2", "b": "1", "c": "3"}}, {1: "site-b"})
    with pytest.raises(ValueError, match="in 2 versions"):
        check_alike({0: {"a": "1"}, 1: {}})


class Scaling(Linear):
    """Makes a scaler of its client's data in `setup`, as users do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(3))

    def setup(self, stage):
        if stage == "fit":
            self.center.copy_(self.trainer.datamodule.train.tensors[0].mean(dim=0))

    def forward(self, x):
        return super().forward(x - self.center)


def test_a_scaler_of_each_clients_own_data_is_refused_before_round_one(tmp_path):
    with pytest.raises(ValueError, match=r"`center` is a buffer .* in 4 versions \(client 0, client 1, client 2, client 3\)"):
        federate(tmp_path, Scaling, clients())
    assert not list(tmp_path.rglob("round_*"))


def test_the_three_remedies(tmp_path):
    private = federate(tmp_path / "a", Scaling, clients(), private=["center"], num_rounds=1)
    assert not private.results["failures"] and "center" not in (private.run_dir / "ledger.jsonl").read_text()
    averaged = federate(tmp_path / "b", Scaling, clients(), average=["center"], num_rounds=1)
    assert not averaged.results["failures"] and "center" in (averaged.run_dir / "ledger.jsonl").read_text()

    class Same(Scaling):
        def setup(self, stage):
            self.center.fill_(0.5)

    assert not federate(tmp_path / "c", Same, clients(), num_rounds=1).results["failures"]


def test_frozen_parameters_that_differ_are_refused_too(tmp_path):
    class Frozen(Linear):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(3, 2)
            self.table.requires_grad_(False)

        def on_fit_start(self):
            self.table.weight.fill_(len(self.trainer.datamodule.train))

    with pytest.raises(ValueError, match="`table.weight` is a buffer or a frozen parameter"):
        federate(tmp_path, Frozen, clients((8, 12)))


class Normed(Linear):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))


def test_normalisation_layers_are_averaged_or_local(tmp_path):
    averaged = federate(tmp_path / "a", Normed, clients((10, 16)), num_rounds=2)
    assert "net.0.running_mean" in (averaged.run_dir / "ledger.jsonl").read_text()
    local = federate(tmp_path / "b", Normed, clients((10, 16)), num_rounds=2, batch_norm="local")
    sent = (local.run_dir / "ledger.jsonl").read_text()
    assert "net.1.weight" in sent and "net.0." not in sent
    one, other = (load_model(local.run_dir, client=client, checkpoint="last").state_dict() for client in (0, 1))
    assert not torch.equal(one["net.0.running_mean"], other["net.0.running_mean"])  # FedBN: each its own
    assert not torch.equal(one["net.0.weight"], other["net.0.weight"])
    assert_same_bits({"w": one["net.1.weight"]}, {"w": other["net.1.weight"]})
    with pytest.raises(ValueError, match="`federation.batch_norm: local` keeps .* but `Linear` has no BatchNorm"):
        federate(tmp_path, Linear, clients(), batch_norm="local")
    with pytest.raises(ValueError, match="`federation.batch_norm` is `average` or `local`, got 'none'"):
        federate(tmp_path, Linear, clients(), batch_norm="none")
