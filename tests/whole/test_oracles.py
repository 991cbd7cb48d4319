"""Exact oracles: what federated training must equal, each computed by a plain PyTorch loop without Lightning."""

import copy

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from federations import (
    CPU,
    Central,
    Deep,
    Linear,
    Table,
    TrainOnly,
    assert_same_bits,
    checkpoint_tensors,
    clients,
    federate,
    last_checkpoint,
    points,
)
from torch import nn

from datamodules import SyntheticCitationDataModule
from fl_lightning import FedAvg, FederatedTrainer, LocalOnly
from fl_lightning.engine import InProcess
from lit_models import GraphSAGE, LitNodeClassifier


def loop(net, x, y, steps, optimizer):
    """Full-batch gradient descent on the squared error."""
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
    return net


def assert_equal(net, module, atol=1e-6):
    for mine, theirs in zip(net.state_dict().values(), module.net.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=atol, rtol=0)


@pytest.mark.parametrize(
    ("sizes", "weighting"), [((10, 16, 24, 8), "num_samples"), ((12, 12, 12), "uniform"), ((12, 12, 12), "num_samples")]
)
def test_one_full_batch_sgd_step_a_round_is_centralised_sgd_on_the_union(tmp_path, sizes, weighting):
    module = Linear(lr=0.1)
    net = copy.deepcopy(module.net)
    x, y = (torch.cat(t) for t in zip(*(points(n, 10 + i) for i, n in enumerate(sizes)), strict=True))
    loop(net, x, y, 7, torch.optim.SGD(net.parameters(), lr=0.1))
    fed = federate(tmp_path, module, clients(sizes, held_out=0), num_rounds=7, strategy=FedAvg(weighting))
    assert_equal(net, fed.module)


def test_uniform_weights_on_unequal_clients_are_not_the_union(tmp_path):
    module = Linear(lr=0.1)
    net = copy.deepcopy(module.net)
    x, y = (torch.cat(t) for t in zip(*(points(n, 10 + i) for i, n in enumerate((4, 40))), strict=True))
    loop(net, x, y, 3, torch.optim.SGD(net.parameters(), lr=0.1))
    fed = federate(tmp_path, module, clients((4, 40), held_out=0), num_rounds=3, strategy=FedAvg("uniform"))
    assert (net.weight - fed.module.net.weight).abs().max() > 1e-3


def test_one_client_is_centralised_training(tmp_path):
    # 3 rounds x 2 local epochs of one full batch = 6 steps; SGD has no state to lose between rounds.
    module = Linear(lr=0.1)
    net = copy.deepcopy(module.net)
    loop(net, *points(20, 10), 6, torch.optim.SGD(net.parameters(), lr=0.1))
    fed = federate(tmp_path, module, clients((20,), held_out=0), num_rounds=3, trainer={"max_epochs": 2})
    assert_equal(net, fed.module, atol=0)


class WithAdam(Linear):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


def test_adam_carried_is_one_long_run_and_adam_reset_is_many_short_ones(tmp_path):
    module = WithAdam()
    x, y = points(20, 10)
    long, short = copy.deepcopy(module.net), copy.deepcopy(module.net)
    loop(long, x, y, 6, torch.optim.Adam(long.parameters(), lr=0.1))
    for _ in range(3):
        loop(short, x, y, 2, torch.optim.Adam(short.parameters(), lr=0.1))
    assert (long.weight - short.weight).abs().max() > 1e-3
    for carry, net in ((True, long), (False, short)):
        fed = federate(
            tmp_path, copy.deepcopy(module), clients((20,), held_out=0), num_rounds=3,
            trainer={"max_epochs": 2}, carry_optimizer_state=carry,
        )  # fmt: skip
        assert_equal(net, fed.module, atol=0)


def test_adam_of_each_client_goes_on_where_that_client_stopped(tmp_path):
    module = WithAdam()
    data = [points(n, 10 + i) for i, n in enumerate((10, 16))]
    net = copy.deepcopy(module.net)
    own = [copy.deepcopy(net) for _ in data]
    optimizers = [torch.optim.Adam(n.parameters(), lr=0.1) for n in own]
    for _ in range(4):
        for mine, optimizer, (x, y) in zip(own, optimizers, data, strict=True):
            mine.load_state_dict(net.state_dict())
            loop(mine, x, y, 1, optimizer)
        with torch.no_grad():
            for p, *parts in zip(net.parameters(), *(m.parameters() for m in own), strict=True):
                p.copy_(sum(part.double() for part in parts) / 2)
    fed = federate(
        tmp_path, module, clients((10, 16), held_out=0), num_rounds=4, strategy=FedAvg("uniform"), carry_optimizer_state=True
    )
    assert_equal(net, fed.module)


@pytest.mark.parametrize("rebuild", [False, True])
def test_local_only_is_independent_training(tmp_path, rebuild):
    module = WithAdam()
    expected = []
    for i, n in enumerate((10, 16, 24)):
        net = copy.deepcopy(module.net)
        x, y = points(n, 10 + i)
        for _ in range(3):
            loop(net, x, y, 2, torch.optim.Adam(net.parameters(), lr=0.1))
        held = points(8, 10_010 + i)
        expected.append(F.mse_loss(net(held[0]), held[1]).item())
    fed = federate(
        tmp_path, module, clients((10, 16, 24)), num_rounds=3, strategy=LocalOnly(),
        trainer={"max_epochs": 2}, engine=InProcess(rebuild_clients=rebuild),
    )  # fmt: skip
    torch.testing.assert_close(fed.results["last"]["val"]["per_client"], expected)
    assert fed.results["val"]["global"] is None


def test_each_clients_own_model_is_scored_on_the_servers_data(tmp_path):
    # LocalOnly: two rounds of one step each; then every client's own weights on the union's test points.
    module, expected = Linear(), []
    for i, n in enumerate((10, 16)):
        net = copy.deepcopy(module.net)
        loop(net, *points(n, 10 + i), 2, torch.optim.SGD(net.parameters(), lr=0.05))
        x, y = points(16, 77)
        expected.append(F.mse_loss(net(x), y).item())
    fed = federate(tmp_path, module, Central(*clients((10, 16))), strategy=LocalOnly(), monitor="loss")
    assert fed.results["best_round"] == 1
    torch.testing.assert_close(fed.results["test"]["each_on_global"], expected)


def test_on_request_fedavg_scores_the_model_that_its_clients_have(tmp_path):
    fed = federate(tmp_path, data=Central(*clients((10, 16))), score_each_on_global=True)
    test = fed.results["test"]
    assert test["each_on_global"] == [test["global"]] * 2


def test_any_lightning_module_on_its_own_data_modules_is_federated_unchanged(tmp_path):
    class Plain(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 1)

        def training_step(self, batch, batch_idx):
            return F.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Plain()
    net = copy.deepcopy(module.net)
    x, y = (torch.cat(t) for t in zip(points(10, 1), points(10, 2), strict=True))
    loop(net, x, y, 2, torch.optim.SGD(net.parameters(), lr=0.1))
    fed = federate(tmp_path, module, [TrainOnly(10, 1), TrainOnly(10, 2)])
    assert_equal(net, fed.module)
    assert fed.results["val"]["mean"] is None and fed.results["best_round"] == 1


def test_a_data_module_is_set_up_before_its_loaders_are_asked_for(tmp_path):
    assert federate(tmp_path, data=[Table(10, 1), Table(6, 2)]).results["rounds_run"] == 2


class RandomSplit(Table):
    """Splits at random in every `setup`, as many users' data modules do."""

    def setup(self, stage=None):
        x, y = points(self.n, self.seed)
        order = torch.randperm(self.n)
        self.train = torch.utils.data.TensorDataset(x[order[:-4]], y[order[:-4]])
        self.held = torch.utils.data.TensorDataset(x[order[-4:]], y[order[-4:]])


def test_a_random_split_in_setup_is_the_same_in_every_stage_and_for_rebuilt_clients(tmp_path):
    results = []
    for rebuild in (False, True):
        data = [RandomSplit(20, seed) for seed in (1, 2)]
        fed = federate(tmp_path, Deep, data, engine=InProcess(rebuild_clients=rebuild))
        results.append(fed.results["last"])
        for own in data:
            train, held = ({tuple(row.tolist()) for row in part.tensors[0]} for part in (own.train, own.held))
            assert len(train) == 16 and len(held) == 4 and not train & held
    assert results[0] == results[1]


class OwnGenerator(Table):
    """Shuffles from a generator of its own."""

    def train_dataloader(self):
        generator = torch.Generator().manual_seed(5)
        return torch.utils.data.DataLoader(self.train, batch_size=4, shuffle=True, generator=generator)


def test_a_loaders_own_generator_does_not_remember_rounds(tmp_path):
    def weights(rounds, again):
        module = Linear()
        fed = federate(tmp_path / str(again), module, [OwnGenerator(20, 1)], num_rounds=rounds, keep_last=9)
        if again:  # three rounds in a new process would have new loaders
            trainer = FederatedTrainer(
                trainer={**CPU, "logger": False, "default_root_dir": str(tmp_path / str(again))}, num_rounds=4, seed=0
            )
            trainer.fit(Linear(), [OwnGenerator(20, 1)], ckpt_path=str(fed.run_dir))
            return trainer.results["last"]
        return fed.results["last"]

    torch.manual_seed(0)
    straight = weights(4, False)
    torch.manual_seed(0)
    assert weights(2, True) == straight


@pytest.fixture(scope="module")
def sage(tmp_path_factory):
    """A GraphSAGE trained federated for two rounds on an embedded graph."""
    data = SyntheticCitationDataModule(num_nodes=120, num_classes=3, num_features=30, num_clients=3, blocks_per_class=2)
    module = LitNodeClassifier(GraphSAGE(hidden_channels=8))
    fed = federate(tmp_path_factory.mktemp("sage"), module, data)
    return fed, data


def test_a_federated_graphsage_loads_into_a_stock_trainer_and_predicts_the_same(sage):
    fed, data = sage
    stock = LitNodeClassifier(GraphSAGE(hidden_channels=8))
    stock.build(data.schema)
    stock.load_state_dict(fed.module.state_dict())
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(accelerator="cpu", **quiet)
    mine = trainer.predict(stock, datamodule=data)[0]
    theirs = fed.predict(fed.module, data)[None][0]
    assert torch.equal(mine["node_id"], theirs["node_id"])
    assert torch.equal(mine["probabilities"], theirs["probabilities"])
    score = trainer.test(stock, datamodule=data, verbose=False)[0]["test/accuracy"]
    assert score == fed.results["test"]["global"]


def test_the_federated_score_is_that_of_plain_counting(sage):
    fed, data = sage
    graph = data.data
    with torch.no_grad():
        fed.module.eval()
        right = (fed.module(graph).argmax(-1) == graph.y)[graph.test_mask].float().mean().item()
    assert fed.results["test"]["global"] == pytest.approx(right)


def test_labels_of_validation_and_test_nodes_do_not_enter_training(tmp_path):
    weights = []
    for poison in (None, -1, 2):
        data = SyntheticCitationDataModule(num_nodes=120, num_classes=3, num_features=30, num_clients=3, blocks_per_class=2)
        data.prepare_data()
        data.setup("fit")
        if poison is not None:
            for part in (data, *data.client_datamodules()):
                part.data.y[~part.data.train_mask] = poison
        fed = federate(tmp_path / str(poison), lambda: LitNodeClassifier(GraphSAGE(hidden_channels=8)), data)
        assert (fed.results["last"]["val"]["mean"] is None) == (poison == -1)
        weights.append(checkpoint_tensors(last_checkpoint(fed.run_dir)))
    assert_same_bits(weights[0], weights[1])
    assert_same_bits(weights[0], weights[2])


def test_models_with_private_entries_are_not_scored_on_the_servers_data(tmp_path):
    with pytest.raises(ValueError, match="score_each_on_global.*some entries are private"):
        federate(tmp_path, lambda: Deep(), data=Central(*clients((10, 16))), score_each_on_global=True)
