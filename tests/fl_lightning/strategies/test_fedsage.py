"""FedSage+, server half: its phases against clients that follow a script, and what it accepts.

Whole runs are in ``test_fedsage_plus.py``, malformed replies in ``engine/test_replies.py``.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fedsage_samples import NODES, SCHEMA, graph, strategy
from torch import nn

from datamodules.graph_loaders import ClientGraphDataModule
from fl_lightning import FedSagePlus
from fl_lightning.engine.diagnostics import Histogram
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.errors import FederationError
from fl_lightning.strategies.fedsage import query_reply


class Script:
    """An engine whose clients say what the test wrote down; keeps what they were asked."""

    threads = 1

    def __init__(self, answers):
        self.answers, self.asked = answers, {}

    def exchange(self, messages, timeout):
        for message in messages:
            self.asked.setdefault(message.kind, {})[message.client] = message.payload
            payload = self.answers(message.kind, message.client)
            failed = isinstance(payload, str)
            yield replace(message, payload=Payload() if failed else payload, error=payload if failed else None)


WEIGHTS = {"theta_f/w": torch.ones(2)}


def script(kind, client):
    if kind == "query":
        counts = torch.full((8,), 4, dtype=torch.int64)
        return Payload({"u": torch.full((8, 2), float(client)), "counts": counts, **WEIGHTS}, {"num_nodes": 10 + client})
    if kind == "peer_gradient":
        return Payload({f"{asker}/w": torch.full((2,), 10.0**client) for asker in range(3) if asker != client})
    return Payload()


def exchanged(answers=script, clients=(0, 1, 2), min_clients=1, **options):
    engine = Script(answers)
    federation = Federation(engine, "r", clients, min_clients=min_clients)
    plus = FedSagePlus(**options)
    plus.start({}, ())
    plus._exchange(federation, 0)
    return engine.asked, federation.failures


def test_the_peers_gradients_are_summed_and_everyone_is_asked_about_all_others():
    asked, failures = exchanged()
    assert failures == [] and list(asked) == ["query", "peer_gradient", "exchange"]
    assert [asked["exchange"][c].tensors["w"].tolist() for c in range(3)] == [[110.0] * 2, [101.0] * 2, [11.0] * 2]
    for client in range(3):
        others = [c for c in range(3) if c != client]
        question = asked["peer_gradient"][client]
        assert set(question.tensors) == {f"{c}/{n}" for c in others for n in ("u", "counts", "theta_f/w")}
        assert all(question.tensors[f"{c}/u"].eq(c).all() for c in others)
        assert question.values == {"num_nodes": {str(c): 10 + c for c in others}}
    assert all(payload == Payload() for payload in asked["query"].values())


def test_peers_that_fail_are_left_out_and_the_step_goes_on_locally_if_all_do():
    """Unlike a query or a step: an answer is a help, so `min_clients` does not count here."""

    def down(kind, clients):
        return lambda asked, c: "down" if asked == kind and c in clients else script(asked, c)

    asked, failures = exchanged(down("peer_gradient", [2]), min_clients=3)
    assert [f["client"] for f in failures] == [2]
    assert [asked["exchange"][c].tensors["w"].tolist() for c in range(3)] == [[10.0] * 2, [1.0] * 2, [11.0] * 2]
    asked, failures = exchanged(down("peer_gradient", [0, 1, 2]), min_clients=3)
    assert [f["client"] for f in failures] == [0, 1, 2]
    assert all(not payload.tensors for payload in asked["exchange"].values()) and len(asked["exchange"]) == 3
    with pytest.raises(FederationError, match="step `query`"):
        exchanged(down("query", [0]), min_clients=3)


def test_queries_below_min_batch_reach_no_peer_on_the_server_either():
    assert "peer_gradient" in exchanged(min_batch=32)[0]  # 8 rows of 4 vectors
    asked, _ = exchanged(min_batch=33)
    assert list(asked) == ["query", "exchange"] and not any(p.tensors for p in asked["exchange"].values())

    def one_silent(kind, client):
        if kind == "query" and client == 1:
            return Payload()
        if kind == "peer_gradient":
            return Payload({f"{asker}/w": torch.ones(2) for asker in (0, 2) if asker != client})
        return script(kind, client)

    asked, failures = exchanged(one_silent)
    assert failures == [] and not asked["exchange"][1].tensors
    assert asked["exchange"][0].tensors["w"].tolist() == [2.0, 2.0]  # also from the silent one


def test_without_alpha_or_with_one_client_nothing_is_exchanged():
    assert list(exchanged(alpha=0.0)[0]) == ["exchange"]
    assert list(exchanged(clients=(0,))[0]) == ["query", "exchange"]


QUESTION = {"u": torch.ones(3, 2), "counts": torch.tensor([1, 2, 3]), "theta_f/w": torch.ones(2), "theta_f/b": torch.ones(1)}


def question(num_nodes=9, **changed):
    tensors = {n: t for n, t in {**QUESTION, **changed}.items() if t is not None}
    return Payload(tensors, {} if num_nodes is None else {"num_nodes": num_nodes})


def test_a_question_from_one_neighbour_to_as_many_as_there_are_slots_and_silence_are_good():
    assert query_reply(3).fault(question()) is None and query_reply(3).fault(question(num_nodes=1)) is None
    assert query_reply(3).fault(Payload()) is None
    half = question(u=torch.ones(3, 2, dtype=torch.float16))
    assert query_reply(5).fault(half) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"u": None}, "`u` of its query must be a matrix"), ({"u": torch.ones(3)}, "`u` of its query must be a matrix"),
        ({"u": torch.ones(3, 2, 1)}, "`u` of its query must be a matrix"),
        ({"u": torch.ones(3, 2, dtype=torch.long)}, "`u` of its query must be a matrix"),
        ({"counts": None}, "`counts` of its query must be a whole number from 1 to 3 for each row"),
        ({"counts": torch.tensor([1, 2, 4])}, "`counts`"), ({"counts": torch.tensor([0, 2, 3])}, "`counts`"),
        ({"counts": torch.tensor([1.0, 2.0, 3.0])}, "`counts`"), ({"counts": torch.tensor([1, 2])}, "`counts`"),
        ({"counts": torch.tensor([[1], [2], [3]])}, "`counts`"), ({"counts": torch.tensor([1, 2, 3]).int()}, "`counts`"),
        ({"x": torch.ones(1), "y": torch.ones(1)}, "its query has unexpected entries: x, y"),
        ({"num_nodes": 0}, "`num_nodes` of its reply must be"), ({"num_nodes": None}, "has no `num_nodes`"),
    ],
)  # fmt: skip
def test_questions_with_a_fault(changed, reason):
    assert reason in query_reply(3).fault(question(**changed))


def test_questions_of_a_step_have_the_same_sizes():
    alike = query_reply(3).alike
    layout = (("theta_f/b", "torch.float32", (1,)), ("theta_f/w", "torch.float32", (2,)))
    assert alike(question()) == {"the width of `u`": 2, "the layout of fGen": layout}
    assert alike(Payload(dict(reversed(QUESTION.items())))) == alike(question(u=torch.ones(7, 2), counts=torch.ones(7)))
    assert alike(question(u=torch.ones(3, 5))) == {"the width of `u`": 5, "the layout of fGen": layout}
    assert alike(Payload()) == {}


def test_figures_are_means_over_the_clients_that_have_them():
    plus = FedSagePlus()
    replies = {
        0: Payload(values={"metrics": {"a": 1.0, "b": None}, "pictures": {"line": [1, 2], "table": [[1, 0], [0, 1]]}}),
        2: Payload(values={"metrics": {"a": 4.0, "b": 5.0}, "pictures": {"line": [1, 1, 7], "table": [[2, 0], [3, 0]]}}),
        3: Payload(),
    }
    assert plus._scalars(replies) == {"clients/0/a": 1.0, "clients/2/a": 4.0, "clients/2/b": 5.0, "a": 2.5, "b": 5.0}
    assert plus._pictures["line"].tolist() == [2.0, 3.0, 7.0] and plus._pictures["table"].tolist() == [[3, 0], [3, 1]]
    plus._scalars({0: Payload()})
    assert plus._pictures == {}


def test_pictures_are_shown_as_what_they_are():
    plus = FedSagePlus()
    plus._pictures = {"line": torch.tensor([1.0, 0.0, 2.0]), "table": torch.tensor([[0.0, 3.0], [1.0, 0.0]])}
    found = plus.diagnose_phase()
    assert list(found.tables) == ["table"] and found.tables["table"].tolist() == [[0.0, 3.0], [1.0, 0.0]]
    assert found.histograms == {"line": Histogram([1, 0, 2], unit=False)}


@pytest.mark.parametrize(
    ("options", "phases"),
    [
        ({"pretrain_steps": 200, "draws": 50}, [("generator", 4), ("exchange", 50), ("mending", 1)]),
        ({"pretrain_steps": 5, "draws": 2, "exchange_rounds": 0}, [("generator", 3), ("exchange", 0), ("mending", 1)]),
        ({"mending": "none"}, []), ({"hide_portion": 0.0}, []), ({"hide_portion": 0.0, "mending": "oracle"}, []),
        ({"mending": "oracle"}, [("mending", 1)]), ({"mending": "zero", "counts": "known"}, [("mending", 1)]),
        ({"mending": "mean", "exchange_rounds": 2}, [("generator", 4), ("exchange", 2), ("mending", 1)]),
        ({"mending": "generator", "counts": "known"}, [("generator", 4), ("exchange", 50), ("mending", 1)]),
    ],
)  # fmt: skip
def test_phases(options, phases):
    assert [(p.name, p.num_steps) for p in FedSagePlus(**options).phases()] == phases


@pytest.mark.parametrize(
    ("options", "counts", "generator"),
    [
        ({}, False, True), ({"counts": "known"}, True, True), ({"counts": "known", "mending": "mean"}, True, False),
        ({"counts": "known", "mending": "oracle"}, False, False), ({"counts": "known", "mending": "none"}, False, False),
        ({"mending": "zero"}, False, True), ({"hide_portion": 0.0}, False, False),
    ],
)  # fmt: skip
def test_what_is_needed(options, counts, generator):
    plus = FedSagePlus(**options)
    assert (plus.needs_counts, plus.needs_generator) == (counts, generator)


def test_the_oracle_needs_the_global_graph():
    clients = [ClientGraphDataModule(graph(), SCHEMA)]
    with pytest.raises(ValueError, match="mending: oracle` needs the global graph on the server"):
        strategy(mending="oracle").check(nn.Module(), clients, None)
    part = graph().subgraph(torch.arange(0, NODES, 2))
    plus = strategy(mending="oracle")
    plus.check(nn.Module(), [ClientGraphDataModule(part, SCHEMA)], ClientGraphDataModule(graph(), SCHEMA))
    counts, features = plus._oracle[0]
    assert int(counts.sum()) == len(features) == int((graph().edge_index[0] % 2 == 0).sum()) - part.num_edges


def test_defaults_are_the_documented_ones():
    plus = FedSagePlus()
    names = ("hide_portion", "pretrain_steps", "exchange_rounds", "alpha", "min_batch", "mending", "counts", "draws",
             "holdout", "diagnostics", "weighting")  # fmt: skip
    assert [getattr(plus, n) for n in names] == [0.15, 200, 50, 0.1, 32, "generator", "predicted", 50, 0.1, True, "uniform"]
    for edge in ({"hide_portion": 0.999}, {"pretrain_steps": 1}, {"draws": 1}, {"min_batch": 1}, {"alpha": 0.0}):
        FedSagePlus(**edge)
    for wrong in ({"hide_portion": 1.0}, {"hide_portion": -0.1}, {"pretrain_steps": 0}, {"exchange_rounds": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            FedSagePlus(**wrong)


@pytest.mark.parametrize("missing", ["with_data", "schema", "data"])
def test_data_modules_without_what_mending_needs_are_refused(missing):
    site = ClientGraphDataModule(graph(), SCHEMA)
    parts = {"with_data": site.with_data, "schema": SCHEMA, "data": site.data}
    strategy().check(nn.Module(), [site, SimpleNamespace(**parts)], None)
    del parts[missing]
    with pytest.raises(ValueError, match="mends subgraphs, but a client's data module is `SimpleNamespace`"):
        strategy().check(nn.Module(), [site, SimpleNamespace(**parts)], None)
