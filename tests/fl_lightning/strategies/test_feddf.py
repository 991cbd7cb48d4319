"""FedDF: closed forms of the distillation, labels that no model sees, tasks that some have not learnt, errors."""

import copy
import math

import pytest
import torch
from lightning import LightningDataModule, LightningModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from datamodules import SyntheticCitationDataModule, UnlabelledMolecules
from fl_lightning import FedAvg, FedDF
from fl_lightning.engine.messages import Payload
from lit_models import GCN, GINMolecule, LitMoleculePredictor, LitNodeClassifier

ONES = torch.ones(4, 1)


class Square(LightningModule):
    """f(x) = w^2 x: the mean of two outputs is not the output of the mean."""

    output_kind = "values"

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, 1))

    def forward(self, x):
        return x * self.w.T.square()


class Rows(LightningDataModule):
    def __init__(self, *batches):
        super().__init__()
        self.batches = batches

    def predict_dataloader(self):
        return list(self.batches)


def reply(w, num_samples=1, **values):
    return Payload({"w": torch.tensor([[w]] if isinstance(w, float) else w)}, {"num_samples": num_samples, **values})


def started(strategy, module=None, datamodules=(), server=None):
    module = Square() if module is None else module
    strategy.check(module, list(datamodules), server)
    strategy.start({name: tensor.clone() for name, tensor in module.state_dict().items()}, ())
    return strategy


def test_a_step_by_hand():
    # w = 1 and 3: mean output 5, average w = 2 with output 4. The gradient 2 (4 - 5) 2w is negative: Adam's first step is + lr.
    strategy = started(FedDF(Rows(ONES), steps=1, lr=0.125))
    strategy.aggregate(None, 0, {0: reply(1.0), 1: reply(3.0)})
    torch.testing.assert_close(strategy.weights["w"], torch.tensor([[2.125]]))
    assert set(strategy.state()) == {"w"}  # Adam begins anew: nothing to remember


def test_many_steps_reach_the_mean_of_the_outputs_with_teachers_weighing_alike():
    for weights in ((1, 1), (1, 9)):  # of FedAvg's average, where it begins
        strategy = started(FedDF(Rows(ONES), steps=400, lr=0.05))
        strategy.aggregate(None, 0, {c: reply(w, n) for c, w, n in zip((0, 1), (1.0, 3.0), weights, strict=True)})
        assert strategy.weights["w"].item() == pytest.approx(math.sqrt(5.0), abs=1e-3)


def test_the_rate_falls_by_a_cosine():
    # Far away, Adam's steps are its rates: lr (1 + cos(pi j / 4)) / 2 for j = 0..3 is lr (1 + .853553 + .5 + .146447) = 2.5 lr
    strategy = started(FedDF(Rows(ONES), steps=4, lr=1e-4))
    strategy.aggregate(None, 0, {0: reply(1.0), 1: reply(3.0)})
    assert strategy.weights["w"].item() - 2 == pytest.approx(2.5e-4, rel=2e-2)


def test_batches_are_taken_in_turn():
    strategy = started(FedDF(Rows(ONES, 0 * ONES), steps=2, lr=0.1))
    strategy.aggregate(None, 0, {0: reply(1.0), 1: reply(3.0)})
    # step 0 has a gradient g = -8, step 1 none: m = .9 (.1 g), corrected by 1 - .81; v = .999 (.001 g^2), by 1 - .999^2
    second = (0.09 / 0.19) / math.sqrt(0.000999 / (1 - 0.999**2)) * 0.05
    assert strategy.weights["w"].item() == pytest.approx(2 + 0.1 + second, abs=1e-5)


def test_where_one_client_has_trained_the_model_is_its_own():
    module = LitNodeClassifier(GCN(hidden_channels=4), num_classes=3, in_channels=6)  # of whose rounding Adam makes steps
    strategy = started(FedDF(steps=3, lr=0.1), module)
    sent = {name: tensor + 0.1 for name, tensor in strategy.weights.items()}
    strategy.aggregate(None, 0, {4: Payload(sent, {"num_samples": 5})})
    assert all(torch.equal(strategy.weights[name], tensor) for name, tensor in sent.items())


def graph_replies(module, number=3):
    torch.manual_seed(1)
    states = [{n: t + 0.5 * torch.randn_like(t) for n, t in module.state_dict().items()} for _ in range(number)]
    return {c: Payload(state, {"num_samples": 1 + c}) for c, state in enumerate(states)}


def test_on_a_random_graph_the_student_comes_nearer_to_its_teachers():
    module = LitNodeClassifier(GCN(hidden_channels=4), num_classes=3, in_channels=6)
    replies, near = graph_replies(module), []
    for strategy in (FedAvg(), FedDF(steps=30, lr=0.02)):
        started(strategy, module).aggregate(None, 0, replies)
        near.append(strategy.weights)
    one = started(FedDF(), module)
    (graph,), outputs = one._batches, []
    assert "y" not in graph and graph.x.shape == (500, 6)
    for weights in (*near, *(reply.tensors for reply in replies.values())):
        one._entries.set(weights)
        outputs.append(one._module(graph).detach())
    target = torch.stack(outputs[2:]).mean(0).softmax(-1)
    average, student = ((target * (target.log() - output.log_softmax(-1))).sum(-1).mean() for output in outputs[:2])
    assert student < 0.5 * average


def test_no_label_of_the_servers_data_reaches_a_model():
    module, bits = LitNodeClassifier(GCN(hidden_channels=4)), []
    for shift in (0, 1):
        data = SyntheticCitationDataModule(num_nodes=60, num_classes=3, num_features=30, num_clients=1, seed=5)
        data.setup()
        data.data.y = (data.data.y + shift) % 3
        data.data.train_mask = ~data.data.train_mask
        module.build(data.schema)
        strategy = started(FedDF(data, steps=2), module)
        assert not {"y", "train_mask", "val_mask", "test_mask"} & set(strategy._batches[0].keys())
        assert "y" in data.data  # the user's own stays as it is
        strategy.aggregate(None, 0, graph_replies(module))
        bits.append(strategy.weights)
    assert all(torch.equal(bits[0][name], bits[1][name]) for name in bits[0])


def test_molecules_in_rows_of_a_task_teachers_have_the_averages(tmp_path):
    (tmp_path / "m.csv").write_text("smiles,y\nCCO,1\nno molecule,0\nc1ccccc1,0\n")
    schema = {"task": "classification", "num_tasks": 2, "atom_features": 74, "bond_features": 13, "positions": False}
    module = LitMoleculePredictor(GINMolecule(4, num_layers=1))
    module.build(schema)
    strategy = started(FedDF(UnlabelledMolecules(str(tmp_path / "m.csv")), steps=1), module)
    assert [batch.num_graphs for batch in strategy._batches] == [2]
    replies = graph_replies(module, 2)
    head = next(name for name in list(module.state_dict())[::-1] if name.endswith("bias"))
    known = replies[0].tensors[head].clone()
    replies[1].values["untrained_rows"] = {head: [1]}
    replies[1].tensors[head][1] = 1e6
    assert all(output.abs().max() < 1e3 for output in _after_average(strategy, replies))
    replies[1].values["untrained_rows"] = {head: [1]}
    replies[0].values["untrained_rows"] = {head: [1]}
    before = strategy.weights[head][1].clone()
    strategy.aggregate(None, 0, replies)
    assert strategy.weights[head][1] == before and torch.equal(replies[0].tensors[head], known)


def _after_average(strategy, replies):
    twin = copy.copy(strategy)
    FedAvg.aggregate(twin, None, 0, replies)
    return twin._teachers(replies)


def test_data_and_modules_that_will_not_do_are_named():
    strategy, own = FedDF(Rows(ONES)), Rows(ONES)
    module = Square()
    module.output_kind = "logits"
    with pytest.raises(
        ValueError, match="are classes, labels, values; `Square.output_kind` is 'logits'.*output_kind = \"classes\""
    ):
        strategy.check(module, [], None)
    with pytest.raises(ValueError, match=r"`Square` is none for graphs.*datamodules.UnlabelledMolecules"):
        FedDF().check(Square(), [], None)
    with pytest.raises(ValueError, match="data: LightningDataModule` has no `predict_dataloader`"):
        FedDF(LightningDataModule()).check(Square(), [], None)
    for datamodules, server in (([own], None), ([], own)):
        with pytest.raises(ValueError, match="data: Rows` is data of the federation"):
            FedDF(own).check(Square(), datamodules, server)
    strategy.check(Square(), [], None)
    with pytest.raises(
        ValueError, match="runs the clients' models at the server, but w stay with them. Leave out `federation.private`"
    ):
        strategy.start({}, ("w",))
    with pytest.raises(ValueError, match="data: Rows` gives no batch"):
        started(FedDF(Rows()))
    with pytest.raises(ValueError, match="batches that are list, in which `FedDF` cannot tell labels from inputs"):
        started(FedDF(Rows(*DataLoader(TensorDataset(ONES, ONES)))))


def test_the_same_data_read_twice_and_other_features_are_refused():
    module = LitNodeClassifier(GCN(hidden_channels=4))
    made = [SyntheticCitationDataModule(num_nodes=60, num_classes=3, num_features=30, num_clients=1) for _ in range(2)]
    for data in made:
        data.setup()
    module.build(made[0].schema)
    with pytest.raises(ValueError, match="data: SyntheticCitationDataModule` is data of the federation"):
        started(FedDF(made[0]), module, server=made[1])
    other = SyntheticCitationDataModule(num_nodes=60, num_classes=3, num_features=40, num_clients=1)
    with pytest.raises(ValueError, match="has num_features: 40, but the clients' data have 30"):
        started(FedDF(other), module)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"steps": 0}, "init_args.steps` must be at least 1, got 0"),
        ({"lr": 0.0}, "init_args.lr` must be a number above 0, got 0.0"),
        ({"temperature": math.inf}, "init_args.temperature` must be a number above 0, got inf"),
        ({"weighting": "mean"}, "init_args.weighting` must be"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(ValueError, match=text):
        FedDF(**arguments)
