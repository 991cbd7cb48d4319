"""The base: hooks of the objective under a stock Trainer, copies, resuming, what a subclass must implement."""

import copy
import pickle
from fnmatch import fnmatch

import pytest
import torch
from torch import nn

from lit_models import GCN, GraphSAGE, LitGraphModule, LitNodeClassifier, snapshot
from lit_models.base import frozen_copy
from lit_models.objectives import ERM, Objective


class Recorder(ERM):
    """Writes down its calls and what it saw of the module's weights."""

    def __init__(self):
        self.calls, self.received, self.sent, self.memory = [], {}, {}, {}

    def on_round_start(self, module, round, num_rounds):
        self.calls.append(f"round {round}/{num_rounds}")

    def on_train_start(self, module):
        self.calls.append("start")
        self.received = snapshot(module)

    def __call__(self, module, batch):
        self.calls.append("batch")
        return super().__call__(module, batch)

    def on_train_end(self, module):
        self.calls.append("end")
        self.sent = snapshot(module)

    def state(self):
        return {name: value.clone() for name, value in self.memory.items()}

    def load_state(self, state):
        self.memory = dict(state)


def classifier(**arguments):
    return LitNodeClassifier(GraphSAGE(hidden_channels=8), **arguments)


def built(**arguments):
    return classifier(num_classes=3, in_channels=12, **arguments)


def test_objective_hooks_in_order_under_a_stock_trainer(graph, data, trainer):
    module = built(objective=Recorder())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.on_round_start(3, 10)
    trainer(max_epochs=2).fit(module, data(graph(), graph(seed=1)))
    objective = module.objective
    assert objective.calls == ["round 3/10", "start", "batch", "batch", "batch", "batch", "end"]
    for name, value in before.items():  # the sanity validation before must not have moved them
        torch.testing.assert_close(objective.received[name], value, rtol=0, atol=0)
        torch.testing.assert_close(objective.sent[name], module.state_dict()[name], rtol=0, atol=0)
    assert any(not torch.equal(objective.received[name], objective.sent[name]) for name in before)


def test_private_state_is_the_objectives(graph):
    module = built(objective=Recorder())
    module.load_private_state({"previous": torch.ones(2)})
    assert torch.equal(module.private_state()["previous"], torch.ones(2))
    assert built().private_state() == {}
    assert LitGraphModule.private_entries == ()


def test_snapshot_does_not_move_and_has_tied_weights_once():
    module = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    module["b"].weight = module["a"].weight
    taken = snapshot(module)
    assert list(taken) == ["a.weight"]
    value = taken["a.weight"].clone()
    with torch.no_grad():
        module["a"].weight.add_(1.0)
    assert torch.equal(taken["a.weight"], value) and not taken["a.weight"].requires_grad


def test_frozen_copy_keeps_its_weights_and_wants_no_gradient(graph):
    module, batch = built(), graph()
    reference = frozen_copy(module)
    expected = reference(batch)
    with torch.no_grad():
        module.encoder.convs[0].lin_l.weight.add_(1.0)
    torch.testing.assert_close(reference(batch), expected)
    assert not expected.requires_grad and not reference.training and module.training


def test_functional_call_gives_outputs_under_other_weights(graph):
    """How FLIT and MOON may evaluate a received model without a second module."""
    module, batch = built().eval(), graph()
    received, expected = snapshot(module), module(batch)
    with torch.no_grad():
        module.encoder.convs[0].lin_l.weight.add_(1.0)
    torch.testing.assert_close(torch.func.functional_call(module, received, (batch,)), expected)


def test_a_deep_copy_trains_alone(graph, data, trainer):
    module = built(objective=Recorder())
    trainer().fit(module, data(graph()))  # attached to a Trainer and with an objective that has seen weights
    twin = copy.deepcopy(module)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    calls = list(module.objective.calls)
    trainer(max_epochs=2).fit(twin, data(graph()))
    for name, value in before.items():
        assert torch.equal(module.state_dict()[name], value)
        assert not torch.equal(twin.state_dict()[name], value)
    assert module.objective.calls == calls and twin.objective is not module.objective


def test_modules_go_to_worker_processes(graph):
    module, batch = built().eval(), graph()
    other = pickle.loads(pickle.dumps(module))
    torch.testing.assert_close(other(batch), module(batch))
    assert isinstance(other.configure_optimizers(), torch.optim.Adam)


def test_optimizer_callable_is_used_and_the_default_is_adam():
    group = built().configure_optimizers().param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (1e-2, 5e-4)
    assert isinstance(built(optimizer=lambda p: torch.optim.SGD(p, lr=0.5)).configure_optimizers(), torch.optim.SGD)


def test_private_entries_are_the_encoders(graph):
    encoder = GraphSAGE(hidden_channels=8)
    encoder.private_entries = ("convs.1.*",)
    module = LitNodeClassifier(encoder, num_classes=3, in_channels=12)
    private = [name for name in module.state_dict() if fnmatch(name, module.private_entries[0])]
    assert private == [f"encoder.convs.1.{name}" for name in ("lin_l.weight", "lin_l.bias", "lin_r.weight")]
    assert built().private_entries == ()


def test_default_optimizer_steps_as_plain_adam(graph):
    module, batch = built(), graph()
    twin = copy.deepcopy(module)
    plain = torch.optim.Adam(twin.parameters(), lr=1e-2, weight_decay=5e-4, foreach=False)
    for m, optimizer in ((module, module.configure_optimizers()), (twin, plain)):
        for step in range(5):
            torch.manual_seed(step)
            optimizer.zero_grad()
            m.training_step(batch, 0).backward()
            optimizer.step()
    for a, b in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_training_loss_is_logged_once_an_epoch(graph, data, trainer):
    class Constant(Objective):
        def __init__(self):
            self.values = iter([1.0, 3.0])

        def __call__(self, module, batch):
            return 0.0 * module(batch).sum() + next(self.values)

    run = trainer()
    run.fit(built(objective=Constant()), data(graph(), graph(seed=1)))
    assert run.callback_metrics["train/loss"] == 2.0


def test_resume_under_a_stock_trainer_equals_one_run(graph, data, trainer, tmp_path):
    def fit(epochs, **arguments):
        torch.manual_seed(0)
        module = LitNodeClassifier(GCN(hidden_channels=8, dropout=0.0))
        run = trainer(max_epochs=epochs)
        run.fit(module, data(graph()), **arguments)
        return module, run

    whole, _ = fit(4)
    _, half = fit(2)
    half.save_checkpoint(tmp_path / "half.ckpt")
    resumed, _ = fit(4, ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_what_a_subclass_must_implement_is_named(graph):
    module = LitGraphModule()
    with pytest.raises(NotImplementedError, match=r"LitGraphModule must implement `build_layers\(schema\)`"):
        module.build({})
    for call in (
        lambda: module(None),
        lambda: module.embed(None),
        lambda: module.losses(None, None),
        lambda: module.perturbable(None),
        lambda: module.divergence(None, None, None),
    ):
        with pytest.raises(NotImplementedError, match="LitGraphModule must implement"):
            call()
