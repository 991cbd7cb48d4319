"""FedPer: FedAvg with a private head to the bit, whose head never crosses; what it needs and says."""

import json

import pytest
import torch
from federations import Central, Deep, Linear, assert_same_bits, checkpoint_tensors, clients, federate, last_checkpoint

from fl_lightning import FedAvg, FederatedTrainer, FedPer, load_model
from fl_lightning.reporting.forecast import forecast
from fl_lightning.settings import FederationSettings


class Two(Linear):
    """A body and a head, and no word of which is private."""

    head_entries = ("head.*",)

    def __init__(self, lr=0.05):
        super().__init__(lr)
        self.net, self.head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.net(x).relu())


def test_it_is_fedavg_with_the_head_private_and_the_head_never_crosses(tmp_path):
    data = Central(*clients((10, 16)))
    run = federate(tmp_path / "a", Two, data, num_rounds=3, strategy=FedPer())
    private = federate(tmp_path / "b", Two, data, num_rounds=3, strategy=FedAvg(), private=["head.*"])
    plain = federate(tmp_path / "c", Two, data, num_rounds=3, strategy=FedAvg())
    tensors = checkpoint_tensors(last_checkpoint(run.run_dir))
    assert_same_bits(tensors, checkpoint_tensors(last_checkpoint(private.run_dir)))
    heads = [tensors[f"client_0000{c}.pt/module/head.weight"] for c in (0, 1)]
    assert not torch.equal(*heads) and "server.pt/head.weight" not in tensors
    lines = [json.loads(line) for line in (run.run_dir / "ledger.jsonl").read_text().splitlines()]
    sent = {name for line in lines for name in line["tensors"]}
    assert sent == {"net.weight", "net.bias"} and run.results["val"]["global"] is None
    assert plain.results["test"]["mean"] != run.results["test"]["mean"]


def test_a_clients_own_model_is_loaded_and_there_is_no_global_one(tmp_path):
    run = federate(tmp_path, Two, num_rounds=2, strategy=FedPer(), name="per")
    tensors = checkpoint_tensors(last_checkpoint(run.run_dir))
    found = load_model(run.run_dir, client=1, checkpoint="last").state_dict()
    assert torch.equal(found["head.weight"], tensors["client_00001.pt/module/head.weight"])
    assert torch.equal(found["net.weight"], tensors["server.pt/net.weight"])
    with pytest.raises(ValueError, match="has no global model: some entries stay with the clients"):
        load_model(run.run_dir)


def test_patterns_of_ones_own_and_the_forecast():
    settings = FederationSettings(strategy=FedPer(head=["head.*", "net.bias"]))
    cost = forecast(Two(), Central(*clients((10, 16))), settings, 0)
    assert cost["bytes_up_per_round"] == 2 * 12 * 4  # two clients, 3 x 4 weights


@pytest.mark.parametrize(
    ("module", "options", "text"),
    [
        (Linear, {}, r"`FedPer` keeps the head .* but `Linear` does not say .*init_args.head`.*: net.weight, net.bias\."),
        (
            Two,
            {"head": ["top.*"]},
            r"`federation.strategy.init_args.head` names `top.\*`, which no entry of `Two` matches",
        ),
        (Two, {"head": ["*"]}, "`FedPer` shares all but the head, but nothing is left to be shared: net.weight"),
    ],
)
def test_what_does_not_fit_is_told_before_round_1(module, options, text, tmp_path):
    with pytest.raises(ValueError, match=text):
        federate(tmp_path, module, strategy=FedPer(**options))
    assert not list(tmp_path.rglob("ledger.jsonl"))


def test_a_modules_own_head_that_is_none_is_told(tmp_path):
    class Wrong(Two):
        head_entries = ("top.*",)

    with pytest.raises(ValueError, match=r"`Wrong.head_entries` names `top.\*`, which no entry"):
        federate(tmp_path, Wrong, strategy=FedPer())


@pytest.mark.parametrize("head", ["net.*", []])
def test_the_head_is_a_list(head):
    with pytest.raises(ValueError, match="`federation.strategy.init_args.head` is a list of at least one pattern, got "):
        FedPer(head=head)


def test_entries_that_the_module_keeps_stay_private_too(tmp_path):
    federation = {"num_rounds": 1, "strategy": FedPer(head=["net.4.*"])}
    fed = federate(tmp_path, Deep, clients((10, 16)), **federation)
    kept = {name.split("/")[-1] for name in checkpoint_tensors(last_checkpoint(fed.run_dir)) if "/module/" in name}
    assert kept == {"net.4.weight", "net.4.bias", "head.weight", "head.bias"}
    assert FederatedTrainer(**federation).settings.describe()["strategy"]["head"] == ["net.4.*"]
