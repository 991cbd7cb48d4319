"""FedRep against a plain PyTorch loop: head first, then body; what rests is moved by nothing."""

import copy

import pytest
import torch
import torch.nn.functional as F
from federations import Linear, checkpoint_tensors, clients, federate, last_checkpoint, points

from fl_lightning import FedAvg, FederatedTrainer, FedRep
from fl_lightning.strategies.fedrep import HeadThenBody


class Two(Linear):
    """Adam with weight decay and its memory: what would move a layer that has no gradient."""

    head_entries = ("head.*",)

    def __init__(self, frozen=False, lr=0.05):
        super().__init__(lr)
        self.net, self.head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        self.head.requires_grad_(not frozen)

    def forward(self, x):
        return self.head(self.net(x).tanh())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.1)


class Manual(Two):
    """Sets the gradients of what its optimiser holds to zero after a step, not before: others would add up."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        self.manual_backward(F.mse_loss(self(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()


def steps(optimizer, net, head, x, y, number):
    for _ in range(number):
        optimizer.zero_grad()
        F.mse_loss(head(net(x).tanh()), y).backward()
        optimizer.step()


@pytest.mark.parametrize(("module", "fast_loops"), [(Two, True), (Two, False), (Manual, True)])
def test_head_epochs_then_body_epochs_equal_a_plain_loop(tmp_path, module, fast_loops):
    # Two clients, three rounds: two steps of the head alone, one of the body alone, uniform mean of the bodies.
    torch.manual_seed(0)
    start = module()
    body, heads = copy.deepcopy(start.net), [copy.deepcopy(start.head) for _ in range(2)]
    data = [points(n, 10 + i) for i, n in enumerate((10, 16))]
    for _ in range(3):
        bodies = []
        for head, (x, y) in zip(heads, data, strict=True):
            own = copy.deepcopy(body)
            steps(torch.optim.AdamW(head.parameters(), lr=0.05, weight_decay=0.1), own, head, x, y, 2)
            steps(torch.optim.AdamW(own.parameters(), lr=0.05, weight_decay=0.1), own, head, x, y, 1)
            bodies.append(own.state_dict())
        body.load_state_dict({name: (bodies[0][name] + bodies[1][name]) / 2 for name in bodies[0]})
    run = federate(tmp_path, module, clients((10, 16)), {"max_epochs": 3}, num_rounds=3, strategy=FedRep(head_epochs=2),
                   fast_loops=fast_loops)  # fmt: skip
    found = checkpoint_tensors(last_checkpoint(run.run_dir))
    for name, expected in body.state_dict().items():
        torch.testing.assert_close(found[f"server.pt/net.{name}"], expected, atol=1e-6, rtol=1e-5)
    for client, head in enumerate(heads):
        for name, expected in head.state_dict().items():
            torch.testing.assert_close(found[f"client_0000{client}.pt/module/head.{name}"], expected, atol=1e-6, rtol=1e-5)


def test_without_a_head_epoch_it_is_fedavg_of_the_body_under_the_initial_head(tmp_path):
    fit = {"data": clients((10, 16)), "trainer": {"max_epochs": 2}, "num_rounds": 2}
    rep = federate(tmp_path / "a", Two, strategy=FedRep(head_epochs=0), **fit)
    frozen = federate(tmp_path / "b", lambda: Two(frozen=True), strategy=FedAvg("uniform"), **fit)
    found, expected = (checkpoint_tensors(last_checkpoint(run.run_dir)) for run in (rep, frozen))
    for name in ("net.weight", "net.bias"):
        assert torch.equal(found[f"server.pt/{name}"], expected[f"server.pt/{name}"])
    assert torch.equal(found["client_00000.pt/module/head.weight"], found["client_00001.pt/module/head.weight"])


def test_the_optimiser_has_all_its_parameters_again_after_a_fit_and_after_an_error():
    module = Two()
    optimizer = module.configure_optimizers()
    trainer = type("T", (), {"optimizers": [optimizer]})()
    for end in ("on_train_end", "on_exception"):
        callback = HeadThenBody(["head.*"], 1)
        callback.on_train_start(trainer, module)
        for names in (["head.weight", "head.bias"], ["net.weight", "net.bias"], ["net.weight", "net.bias"]):
            callback.on_train_epoch_start(trainer, module)
            assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(module.get_parameter(n)) for n in names]
        getattr(callback, end)(trainer, module, *([ValueError()] if end == "on_exception" else []))
        assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in module.parameters()]


def test_an_optimiser_that_takes_all_parameters_as_one_vector_is_refused():
    module = Two()
    trainer = type("T", (), {"optimizers": [torch.optim.LBFGS(module.parameters())]})()
    with pytest.raises(ValueError, match="`FedRep` trains head and body in turn, but LBFGS .* Use another optimiser"):
        HeadThenBody(["head.*"], 1).on_train_start(trainer, module)


@pytest.mark.parametrize(
    ("trainer", "text"),
    [
        ({"max_epochs": 2}, r"first 2 local epochs .*`trainer.max_epochs` is 2, so .* Write `trainer.max_epochs: 3` or more"),
        ({"max_epochs": None}, "but `trainer.max_epochs` is 1, so that no epoch is left for the body"),
        (
            {"max_steps": 3},
            "counts .* in epochs, but `trainer.max_steps` is 3. Write `trainer.max_epochs: 3`",
        ),
    ],
)
def test_epochs_that_leave_nothing_for_the_body_are_told_before_any_work(trainer, text):
    with pytest.raises(ValueError, match=text):
        FederatedTrainer(trainer=trainer, strategy=FedRep(head_epochs=2))
    FederatedTrainer(trainer={"fast_dev_run": True, **trainer}, strategy=FedRep(head_epochs=2))


def test_arguments():
    with pytest.raises(ValueError, match="`federation.strategy.init_args.head_epochs` must be at least 0, got -1"):
        FedRep(head_epochs=-1)
    assert FedRep().weighting == "uniform"
