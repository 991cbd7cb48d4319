"""Ditto on quadratics in closed form; w is FedAvg's to the bit; the personal model stays, is scored and is predicted with."""

import json

import lightning as L
import pytest
import torch
from federations import Deep, Linear, assert_same_bits, checkpoint_tensors, clients, federate, last_checkpoint
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import Ditto, FedAvg, load_model
from fl_lightning.strategies.ditto import pulled_towards


class Target(L.LightningDataModule):
    """One target; F(v) = 1/2 |v - target|^2."""

    def __init__(self, *target):
        super().__init__()
        self.data = TensorDataset(torch.tensor([target]))

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=1)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Quadratic(L.LightningModule):
    def __init__(self, answer="tensor"):
        super().__init__()
        self.v, self.answer = torch.nn.Parameter(torch.zeros(2)), answer

    def training_step(self, batch, batch_idx):
        loss = 0.5 * (self.v - batch[0]).square().sum()
        self.log("train_loss", loss)
        return loss if self.answer == "tensor" else {"loss": loss}

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", 0.5 * (self.v - batch[0]).square().sum())

    def test_step(self, batch, batch_idx):
        self.log("test_loss", 0.5 * (self.v - batch[0]).square().sum())

    def predict_step(self, batch, batch_idx):
        return self.v.detach().unsqueeze(0).clone()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


TARGETS = torch.tensor([[4.0, 0.0], [0.0, -2.0]])
DATA = [Target(4.0, 0.0), Target(0.0, -2.0)]


def closed_form(lam, rounds, epochs, lr=0.1):
    """w_i = t_i + (1 - lr)^E (w - t_i), averaged; v_i goes to m_i = (t_i + lam w) / (1 + lam) by (1 - lr (1 + lam))^E."""
    w, v = torch.zeros(2), torch.zeros(2, 2)
    for _ in range(rounds):
        goal = (TARGETS + lam * w) / (1 + lam)
        v = goal + (1 - lr * (1 + lam)) ** epochs * (v - goal)
        w = (TARGETS + (1 - lr) ** epochs * (w - TARGETS)).mean(0)
    return w, v


@pytest.mark.parametrize("answer", ["tensor", "dict"])
@pytest.mark.parametrize("lam", [0.0, 0.5, 2.0])
def test_quadratics_in_closed_form(tmp_path, lam, answer):
    run = federate(tmp_path, Quadratic(answer), DATA, {"max_epochs": 3}, num_rounds=4, strategy=Ditto(lam))
    w, v = closed_form(lam, 4, 3)
    found = checkpoint_tensors(last_checkpoint(run.run_dir))
    torch.testing.assert_close(found["server.pt/v"], w, atol=1e-5, rtol=0)
    mine = torch.stack([found[f"client_0000{i}.pt/module/v"] for i in (0, 1)])
    torch.testing.assert_close(mine, v, atol=1e-5, rtol=0)
    scores = (0.5 * (v - TARGETS).square().sum(1)).tolist()  # the personal model is what is scored
    assert run.results["last"]["val"]["per_client"] == pytest.approx(scores, abs=1e-5)
    assert run.results["last"]["val"]["global"] is None


def test_it_is_predicted_with_and_loaded(tmp_path):
    run = federate(tmp_path, Quadratic(), DATA, num_rounds=2, strategy=Ditto(0.5))
    _, v = closed_form(0.5, 2, 1)
    predicted = run.predict(Quadratic(), DATA, ckpt_path="last")
    for client in (0, 1):
        torch.testing.assert_close(predicted[client][0]["output"][0], v[client])
        torch.testing.assert_close(load_model(run.run_dir, client, "last", Quadratic()).v.detach(), v[client])


def test_w_and_all_that_is_sent_are_fedavgs(tmp_path):
    # Dropout, BatchNorm, a private head and an objective's memory: the second training must not touch the first one's.
    fit = {"module": Deep, "data": clients((10, 17), batch_size=5), "num_rounds": 3, "carry_optimizer_state": True}
    ditto = federate(tmp_path / "a", strategy=Ditto(0.3), **fit)
    fedavg = federate(tmp_path / "b", strategy=FedAvg(), **fit)
    found, expected = (checkpoint_tensors(last_checkpoint(run.run_dir)) for run in (ditto, fedavg))
    shared = {name.replace("/shared/", "/"): tensor for name, tensor in found.items() if "/shared/" in name or "server" in name}
    assert_same_bits(shared, expected)
    for client in (0, 1):  # one fit a round in each memory
        assert found[f"client_0000{client}.pt/objective/count"] == found[f"client_0000{client}.pt/shared/objective/count"] == 3
        assert not torch.equal(
            found[f"client_0000{client}.pt/module/head.weight"], found[f"client_0000{client}.pt/shared/module/head.weight"]
        )

    def sent(run):
        lines = [json.loads(line) for line in (run.run_dir / "ledger.jsonl").read_text().splitlines()]
        return [(line["direction"], line["client"], line["tensors"]) for line in lines if line["kind"] == "fit"]

    assert sent(ditto) == sent(fedavg)


def test_a_client_without_data_has_w_and_metrics_of_both_are_told(tmp_path):
    run = federate(tmp_path, Linear, clients((10, 16, 0)), num_rounds=2, keep_last=9, strategy=Ditto(1.0))
    before, found = (checkpoint_tensors(path) for path in sorted((run.run_dir / "checkpoints").glob("round_*")))
    assert torch.equal(found["client_00002.pt/module/net.weight"], before["server.pt/net.weight"])  # as sent in the last round
    rows = (run.run_dir / "metrics.csv").read_text().splitlines()[0].split(",")
    assert "clients/0/train_loss" in rows and "clients/0/personal/train_loss" in rows


def test_the_pull_by_hand_and_the_module_is_left_as_it_was():
    # v = (1, 2), w = (0, 4): lam/2 |v - w|^2 = 1.5 (1 + 4) = 7.5; gradient lam (v - w) = (3, -6); not of what is frozen.
    module = Quadratic()
    module.log = lambda *args: None
    module.frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    with torch.no_grad():
        module.v.copy_(torch.tensor([1.0, 2.0]))
    with pulled_towards(module, {"v": torch.tensor([0.0, 4.0]), "frozen": torch.zeros(1)}, 3.0):
        loss = module.training_step([torch.tensor([1.0, 2.0])], 0)
        module.log = None
    loss.backward()
    assert loss.item() == 7.5 and module.v.grad.tolist() == [3.0, -6.0]
    assert "training_step" not in vars(module)


def test_what_does_not_fit_is_told(tmp_path):
    class Manual(Linear):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

    with pytest.raises(ValueError, match="`Ditto` adds its pull to the loss .* but `Manual` steps its optimisers itself"):
        federate(tmp_path, Manual, strategy=Ditto())
    for lam in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="`federation.strategy.init_args.lam` must be a number from 0, got"):
            Ditto(lam)
