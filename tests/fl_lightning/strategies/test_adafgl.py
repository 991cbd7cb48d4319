"""AdaFGL: FedAvg's bits in its shared rounds; then a model that rests, heads that stay, and scores that are theirs.

Equations: ``tests/lit_models/test_adaptive_propagation.py``; resuming, the canary: ``tests/whole``, ``test_canary.py``.
"""

import copy

import pytest
import torch
from federations import Spy, Table, checkpoint_tensors, federate, last_checkpoint

from datamodules import PlantedDataModule
from fl_lightning import AdaFGL, FedAvg, load_model
from fl_lightning.engine.client import LocalSettings, Worker
from fl_lightning.engine.messages import Message, Payload
from fl_lightning.settings import FederationSettings
from lit_models import GCN, AdaptivePropagation, LitAdaptiveNodeClassifier, LitNodeClassifier

WORK = {"max_epochs": 1}


def data(**options):
    return PlantedDataModule(num_clients=2, nodes_per_client=20, num_features=9, **options)


def model():
    return LitAdaptiveNodeClassifier(GCN(4, dropout=0.5), AdaptivePropagation(4, hops=1))


def messages(spy, way, kind, round):
    return [m.payload for direction, m in spy.seen if (direction, m.kind, m.round) == (way, kind, round)]


def test_the_rounds_of_a_run(tmp_path):
    shared = federate(
        tmp_path / "a", LitNodeClassifier(GCN(4, dropout=0.5)), data(), WORK, strategy=FedAvg(), num_rounds=2,
        carry_optimizer_state=True,
    )  # fmt: skip
    spy = Spy()
    run = federate(tmp_path / "b", model(), data(), WORK, strategy=AdaFGL(shared_rounds=2), num_rounds=4, engine=spy)
    wanted, found = (
        {n.removeprefix("server.pt/"): t for n, t in checkpoint_tensors(last_checkpoint(one.run_dir)).items() if "server" in n}
        for one in (shared, run)
    )
    assert wanted.keys() == found.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in wanted.items())  # to the bit, and at rest since

    for round in range(4):
        for reply in messages(spy, "up", "fit", round):
            assert set(reply.tensors) == (set(wanted) if round < 2 else set())
            assert set(reply.values["metrics"]) == {"train/loss"}
    assert '"personal.' not in (run.run_dir / "ledger.jsonl").read_text()

    for client in range(2):  # what is scored last is the client's own model, with the heads it remembers
        own = load_model(run.run_dir, client=client, checkpoint="last", module=model())
        assert own.is_personal and all(torch.equal(own.state_dict()[name], tensor) for name, tensor in found.items())
        clients = data()
        clients.setup("fit")
        graph = clients.client_datamodules()[client].data
        right = own(graph).argmax(-1)[graph.val_mask] == graph.y[graph.val_mask]
        assert run.results["last"]["val"]["per_client"][client] == pytest.approx(right.float().mean().item())
    assert not any("homophily" in message.payload.tensors for _, message in spy.seen)


# ---- the client -----------------------------------------------------------------------------------------------------------


def worker(shared_rounds=1, num_clients=2):
    source = data()
    source.setup("fit")
    clients = source.client_datamodules()
    torch.manual_seed(0)
    module = model()
    module.build(clients[0].schema)
    settings = LocalSettings("r", 3, 9, {"max_epochs": 1, "accelerator": "cpu"}, private=module.private_entries)
    made = Worker(module, AdaFGL(shared_rounds).client_half(), dict(enumerate(clients[:num_clients])), settings)
    weights = {name: made.initial[name] for name in made.entries.shared}

    def ask(round, kind="fit", **values):
        reply = made.handle(Message(kind, "r", round, 0, Payload({n: t.clone() for n, t in weights.items()}, values)))
        assert reply.error is None, reply.error
        return reply.payload

    return made, ask


def test_the_first_personal_round_takes_hcs_from_training_labels_alone():
    made, ask = worker()
    ask(0)
    assert made.stores[0].tensors["module/homophily"] == -1
    ask(1)
    first = made.stores[0].tensors["module/homophily"]
    assert 0 <= first <= 1
    heads = made.stores[0].section("module")["personal.own.layers.0.weight"].clone()
    ask(2)
    assert torch.equal(made.stores[0].tensors["module/homophily"], first)
    assert not torch.equal(made.stores[0].section("module")["personal.own.layers.0.weight"], heads)  # they go on
    other, ask = worker()
    graph = other.datamodules[0].data
    graph.y[~graph.train_mask] = -1
    ask(1)
    assert torch.equal(other.stores[0].tensors["module/homophily"], first)


def test_who_has_not_been_personal_yet_answers_with_the_global_model():
    made, ask = worker()
    ask(5, "evaluate", stages=["val"])
    assert not made.module.is_personal
    graph = copy.copy(made.datamodules[0].data)
    made.datamodules[0].data.train_mask[:] = False
    assert ask(5).values["num_samples"] == 0 and not made.stores[0].tensors
    ask(5, "evaluate", stages=["val"])
    assert not made.module.is_personal and graph.num_nodes == 20


# ---- what is asked for before round 1 -----------------------------------------------------------------------------------


def test_numbers_of_rounds():
    with pytest.raises(ValueError, match="init_args.shared_rounds` must be at least 1, got 0"):
        AdaFGL(0)
    FederationSettings(strategy=AdaFGL(4), num_rounds=5)
    with pytest.raises(
        ValueError, match=r"after the first 5 .*`federation.num_rounds` is 5, .* Write `federation.num_rounds: 6` or"
    ):
        FederationSettings(strategy=AdaFGL(5), num_rounds=5)


def test_what_model_and_data_must_have():
    source = data()
    source.setup("fit")
    clients = source.client_datamodules()
    strategy, module = AdaFGL(1), model()
    strategy.check(module, [*clients, Table(4, 0)], None)
    with pytest.raises(ValueError, match="`LitNodeClassifier` has none. Use `model: lit_models.LitAdaptiveNodeClassifier`, or"):
        strategy.check(LitNodeClassifier(GCN(4)), clients, None)
    for name in ("batch_size", "eval_batch_size"):
        sampled = copy.copy(clients[0])
        setattr(sampled, name, 5)
        with pytest.raises(ValueError, match=f"a batch is the client's graph, but `data.init_args.{name}` is 5. Leave it out"):
            strategy.check(module, [sampled], None)
    clients[1].data.num_nodes = 10_000
    with pytest.raises(ValueError, match="at most 8192 nodes, but a client has 10000"):
        strategy.check(module, clients, None)
