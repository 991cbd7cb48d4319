"""FedSage+, client half, step by step: one site's answers against the generator used directly.

Whole runs are in ``test_fedsage_plus.py``.
"""

import copy

import pytest
import torch
from fedsage_samples import HIDE, HOLDOUT, NODES, SCHEMA, SEED, graph, strategy

import datamodules.impairing
from datamodules.graph_loaders import ClientGraphDataModule
from datamodules.impairing import impair
from datamodules.mending import mend
from fl_lightning.engine.client import Client, LocalSettings, Worker
from fl_lightning.engine.messages import Message, Payload
from fl_lightning.engine.seeds import derive
from fl_lightning.strategies.fedsage_client import REPORT_EVERY
from lit_models import GraphSAGE, LitNodeClassifier
from lit_models.neighgen.exchange import exchange_step, fgen_optimizer, make_query, peer_gradient, train_fgen_alone
from lit_models.neighgen.report import report_quality


class Seeing(LitNodeClassifier):
    """Keeps the number of nodes of every batch."""

    def __init__(self):
        super().__init__(GraphSAGE(hidden_channels=4))
        self.seen = []

    def forward(self, batch, **replaced):
        self.seen.append(batch.num_nodes)
        return super().forward(batch, **replaced)


def site(plus=None, graphs=None, **arguments):
    """A worker whose clients have the same graph, unless others are given."""
    torch.manual_seed(0)
    module = Seeing()
    module.build(SCHEMA)
    clients = [ClientGraphDataModule(g, SCHEMA) for g in ([graph(), graph()] if graphs is None else graphs)]
    settings = LocalSettings("r", SEED, 2, {"accelerator": "cpu", "max_epochs": 1, **arguments})
    return Worker(module, (plus or strategy()).client_half(), dict(enumerate(clients)), settings)


def ask(worker, kind, client=0, round=0, tensors=None, **values):
    reply = worker.handle(Message(kind, "r", round, client, Payload(dict(tensors or {}), values)))
    assert reply.error is None, reply.error
    return reply.payload


def generator_of(worker, client):
    """The client's generator, from its store."""
    module = copy.deepcopy(worker.half.template)
    module.build(SCHEMA)
    module.load_state_dict(worker.stores[client].section("generator"))
    return module


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def clear_slots(worker, client=0):
    """dGen says about one neighbour, so that requests and mended graphs are not empty."""
    store = worker.stores[client]
    kept = store.section("generator")
    store.put_section("generator", kept | {"dgen.linear.bias": torch.ones(1)})


def client_of(worker, client, round=0):
    return Client(worker, client, round, worker.stores[client])


# ---- phase 1 --------------------------------------------------------------------------------------------------------


def test_a_pass_takes_the_next_draws_of_the_clients_own_seed(monkeypatch):
    """Round r of phase 1 is on draws 2 r and 2 r + 1; what is held out (draw seed) is the same in all rounds."""
    seen, real = [], datamodules.impairing.impair

    def recorded(data, portion, seed, holdout=0.0, draw=0):
        seen.append((seed, draw, portion, holdout))
        return real(data, portion, seed, holdout, draw)

    monkeypatch.setattr(datamodules.impairing, "impair", recorded)
    worker = site(strategy(diagnostics=False), max_steps=1, limit_train_batches=1.0)
    for client, round in ((0, 0), (0, 1), (1, 0)):
        ask(worker, "pretrain", client, round)
    assert [draw for _, draw, _, _ in seen] == [0, 1, 2, 3, 0, 1]
    assert [seed for seed, *_ in seen] == [derive(SEED, "impair", client=client) for client in (0, 0, 0, 0, 1, 1)]
    assert {(portion, holdout) for _, _, portion, holdout in seen} == {(HIDE, HOLDOUT)}


def test_phase_1_goes_on_with_one_adam_and_clients_start_alike_but_train_apart():
    worker = site(strategy(diagnostics=False))
    for client in (0, 1):
        assert ask(worker, "pretrain", client).tensors == {}
    ask(worker, "pretrain", 0, 1)
    steps = [
        {int(t) for n, t in worker.stores[client].section("generator_optimizer").items() if n.endswith("/step")}
        for client in (0, 1)
    ]
    assert steps == [{4}, {2}]  # two draws a pass
    first, second = (worker.stores[client].section("generator") for client in (0, 1))
    assert not any(torch.equal(first[n], second[n]) for n in first if n.startswith("fgen."))
    fresh = [worker.half._fresh(client_of(worker, client)).state_dict() for client in (0, 1)]
    assert same(*fresh)


@pytest.mark.parametrize(("nodes", "portion", "can"), [(1, 0.9, False), (2, 0.3, True), (3, 0.1, False), (4, 0.2, True)])
def test_a_client_that_cannot_hide_one_node_has_no_generator(nodes, portion, can):
    worker = site(strategy(hide_portion=portion), [graph(num_nodes=nodes)])
    assert worker.half._can_hide(client_of(worker, 0)) == can
    if not can:
        assert ask(worker, "pretrain") == Payload() and not worker.stores[0]
        assert ask(worker, "query") == Payload() and ask(worker, "exchange") == Payload() and not worker.stores[0]


# ---- phase 2 --------------------------------------------------------------------------------------------------------


def test_the_exchange_is_one_adam_over_new_draws_with_the_sum_that_arrives():
    """Against the generator itself: one optimiser over all rounds, round r on draw r, slots by the public seed."""
    worker = site(strategy(diagnostics=False))
    ask(worker, "pretrain", 1)
    clear_slots(worker, 1)
    mine = generator_of(worker, 1)
    train_fgen_alone(mine)
    optimizer, noise = fgen_optimizer(mine), torch.Generator().manual_seed(0)
    for round in range(3):
        sums = {n: 0.1 * torch.randn(p.shape, generator=noise) for n, p in mine.fgen.named_parameters()}
        batch = impair(graph(), HIDE, derive(SEED, "impair", client=1), HOLDOUT, round)
        query = make_query(mine, batch, derive(SEED, "slots", round, 1))
        sent = ask(worker, "query", 1, round)
        assert torch.equal(sent.tensors["u"], query.u[: query.sent]) and torch.equal(sent.tensors["counts"], query.counts)
        assert sent.values == {"num_nodes": batch.num_nodes}
        assert all(torch.equal(sent.tensors[f"theta_f/{n}"], p) for n, p in mine.fgen.named_parameters())
        ask(worker, "exchange", 1, round, sums)
        exchange_step(mine, batch, query, sums, optimizer)
        assert same(worker.stores[1].section("generator"), mine.state_dict())


def test_a_peer_answers_each_asker_with_its_own_slots_features_and_alpha():
    plus = strategy(diagnostics=False, alpha=0.25)
    worker = site(plus, [graph(0), graph(1), graph(2)])
    questions, nodes = {}, {}
    for asker in (0, 2):
        ask(worker, "pretrain", asker)
        clear_slots(worker, asker)
        sent = ask(worker, "query", asker, 4)
        questions[asker], nodes[str(asker)] = sent.tensors, sent.values["num_nodes"]
    flat = {f"{asker}/{n}": t for asker, tensors in questions.items() for n, t in tensors.items()}
    answer = ask(worker, "peer_gradient", 1, 4, flat, num_nodes=nodes).tensors
    expected = {}
    for asker, tensors in questions.items():
        weights = {n.removeprefix("theta_f/"): t for n, t in tensors.items() if n.startswith("theta_f/")}
        gradient = peer_gradient(
            generator_of(worker, asker).fgen, weights, tensors["u"], tensors["counts"], graph(1).x,
            num_nodes=nodes[str(asker)], slot_seed=derive(SEED, "slots", 4, asker), alpha=0.25, min_batch=1,
        )  # fmt: skip
        expected |= {f"{asker}/{n}": t for n, t in gradient.items()}
    assert same(dict(answer), expected)
    assert not worker.stores[1]  # it needs no generator of its own


def test_a_query_of_exactly_min_batch_vectors_is_sent_and_one_of_fewer_is_not():
    worker = site(strategy(diagnostics=False))
    ask(worker, "pretrain")
    clear_slots(worker)
    number = int(ask(worker, "query").tensors["counts"].sum())
    assert number > 2
    worker.half.min_batch = number
    assert ask(worker, "query").tensors
    worker.half.min_batch = number + 1
    assert ask(worker, "query") == Payload()


def test_figures_are_reported_every_fifth_round_and_in_the_last():
    worker = site(strategy(exchange_rounds=7))
    ask(worker, "pretrain")
    due = [round for round in range(7) if ask(worker, "exchange", 0, round).values]
    assert due == [REPORT_EVERY - 1, 6] == [4, 6]


def test_the_table_of_missing_neighbours_by_hand():
    """Rows: min(n, P) of each node of the impaired graph; columns: what dGen says, rounded and at most P."""
    worker = site()
    reply = ask(worker, "pretrain", 0, 2)
    table = torch.tensor(reply.values["pictures"]["missing_true_by_predicted"])
    batch = impair(graph(), HIDE, derive(SEED, "impair", client=0), HOLDOUT, 2)
    guess = generator_of(worker, 0).eval()(batch).detach().round().clamp(0, 3).long()
    expected = torch.zeros(4, 4, dtype=torch.long)
    for true, predicted in zip(batch.missing_count.clamp(max=3).tolist(), guess.tolist(), strict=True):
        expected[true, predicted] += 1
    assert torch.equal(table, expected) and reply.values["metrics"]["train/count_loss"] > 0
    report = report_quality(generator_of(worker, 0), batch, seed=derive(SEED, "report"))
    assert {n: v for n, v in reply.values["metrics"].items() if n in report} == report


# ---- phase 3, 4 -----------------------------------------------------------------------------------------------------


def mended_by_hand(worker, client):
    counts, features = generator_of(worker, client).generate(graph(), derive(SEED, "mend", client=client))
    return mend(graph(), counts, features)


def test_two_clients_with_one_graph_and_one_generator_get_other_neighbours():
    worker = site()
    ask(worker, "pretrain", 0)
    clear_slots(worker, 0)
    worker.stores[1].put_section("generator", worker.stores[0].section("generator"))
    found = []
    for client in (0, 1):
        figures = ask(worker, "mend", client).values
        mended = worker.memos[client, "mended"][1].data
        expected = mended_by_hand(worker, client)
        assert torch.equal(mended.x, expected.x) and torch.equal(mended.edge_index, expected.edge_index)
        assert figures["metrics"] == {"generated_nodes": mended.num_nodes - NODES} and mended.num_nodes > NODES
        degrees = torch.bincount(torch.bincount(mended.edge_index[0], minlength=mended.num_nodes))
        assert figures["pictures"]["mended_degrees"] == degrees.tolist()
        found.append(mended.x)
    assert not torch.equal(*found)


def test_training_evaluation_and_prediction_are_on_the_mended_graph():
    worker = site()
    ask(worker, "evaluate", stages=["val"])
    assert worker.module.seen == [NODES]
    ask(worker, "pretrain")
    clear_slots(worker)
    ask(worker, "mend")
    size = mended_by_hand(worker, 0).num_nodes
    assert size > NODES and {n.split("/")[0] for n in worker.stores[0].tensors} == {"generator"}  # its optimisers are gone
    for kind, values in (("fit", {}), ("evaluate", {"stages": ["val", "test"]}), ("predict", {})):
        worker.module.seen.clear()
        ask(worker, kind, **values)
        assert set(worker.module.seen) == {size}, kind
    worker.memos.clear()  # a rebuilt client mends again
    worker.module.seen.clear()
    ask(worker, "evaluate", stages=["test"])
    assert set(worker.module.seen) == {size}


def test_a_client_without_generator_or_without_new_neighbours_keeps_its_graph():
    worker = site(strategy(diagnostics=False))
    assert ask(worker, "mend") == Payload()
    ask(worker, "pretrain", 1)
    store = worker.stores[1]
    store.put_section("generator", store.section("generator") | {"dgen.linear.bias": torch.full((1,), -50.0)})
    ask(worker, "mend", 1)
    for client in (0, 1):
        assert worker.half._mended(client_of(worker, client)) is worker.datamodules[client]
        ask(worker, "fit", client)
    assert set(worker.module.seen) == {NODES}


@pytest.mark.parametrize("mending", ["zero", "mean"])
def test_constants_take_the_place_of_the_generated_features(mending):
    worker = site(strategy(mending=mending))
    ask(worker, "pretrain")
    clear_slots(worker)
    ask(worker, "mend")
    mended, expected = worker.memos[0, "mended"][1].data, mended_by_hand(worker, 0)
    constant = torch.zeros(6) if mending == "zero" else graph().x.mean(0)
    assert torch.equal(mended.edge_index, expected.edge_index)
    torch.testing.assert_close(mended.x[NODES:], constant.expand(mended.num_nodes - NODES, -1))


def test_the_oracles_neighbours_are_those_that_were_sent():
    worker = site(strategy(mending="oracle"))
    counts, features = torch.zeros(NODES, dtype=torch.long), torch.rand(3, 6)
    counts[[4, 7]] = torch.tensor([2, 1])
    ask(worker, "mend", 0, 0, {"counts": counts, "features": features})
    expected = mend(graph(), counts, features)
    assert torch.equal(worker.memos[0, "mended"][1].data.x, expected.x)
    assert same(worker.stores[0].section("oracle"), {"counts": counts, "features": features})


@pytest.mark.parametrize("mending", ["zero", "mean"])
def test_known_counts_are_mended_without_a_generator_up_to_the_slots(mending):
    links = torch.arange(NODES) % 6  # up to 5, of 3 slots
    worker = site(strategy(mending=mending, counts="known"))
    for client in worker.datamodules.values():
        client.links_elsewhere = links
    ask(worker, "mend")
    mended = worker.memos[0, "mended"][1].data
    owners = mended.edge_index[0][mended.edge_index[1] >= NODES]
    assert torch.equal(torch.bincount(owners, minlength=NODES), links.clamp(max=3))
    constant = torch.zeros(6) if mending == "zero" else graph().x.mean(0)
    torch.testing.assert_close(mended.x[NODES:], constant.expand(len(owners), -1))


def test_known_counts_take_the_place_of_predicted_ones_and_features_are_generated():
    links = torch.arange(NODES) % 6
    worker = site(strategy(counts="known"))
    ask(worker, "pretrain")
    for client in worker.datamodules.values():
        client.links_elsewhere = links
    ask(worker, "mend")
    counts, features = generator_of(worker, 0).generate(graph(), derive(SEED, "mend", client=0), links)
    assert torch.equal(counts, links.clamp(max=3))
    assert torch.equal(worker.memos[0, "mended"][1].data.x, mend(graph(), counts, features).x)
