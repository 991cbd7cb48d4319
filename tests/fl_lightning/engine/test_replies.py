"""Replies that say something wrong are named and left out, whatever the strategy; the others' round goes on."""

import math
import sys
from dataclasses import replace

import pytest
import torch
from federations import CPU, Central, Linear, Table, clients, federate

from fl_lightning import FedAvg, FederatedTrainer, FedPub, FedSagePlus, LocalOnly
from fl_lightning.engine import InProcess
from fl_lightning.engine.client import ClientHalf
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.remote import CONTACT
from fl_lightning.engine.replies import (
    Expected,
    evaluate_reply,
    figures_reply,
    fit_reply,
    histograms,
    histograms_or_tables,
    odd_ones_out,
    positive_count,
    predict_reply,
    rows_of,
    sample_count,
    scores,
    scores_or_none,
)
from fl_lightning.errors import FederationError
from fl_lightning.strategies.fedpub import EMBEDDING

INITIAL = {"w": torch.zeros(2, 3), "b": torch.zeros(2), "count": torch.zeros((), dtype=torch.int64)}
STRATEGIES = {"FedAvg": FedAvg, "uniform": lambda: FedAvg("uniform"), "FedPub": FedPub, "FedSagePlus": FedSagePlus}


class Scripted:
    """An engine whose clients say what a script says; client 1 is the one that may lie."""

    threads = 1

    def __init__(self, good, bad=None):
        self.good, self.bad = good, bad or {}

    def exchange(self, messages, timeout):
        for message in messages:
            payload = self.good(message.kind, message.client)
            if message.client == 1 and message.kind in self.bad:
                payload = self.bad[message.kind](payload)
            yield replace(message, payload=payload)


def good(kind, client):
    tensors = {"w": torch.full((2, 3), 1.0 + client), "b": torch.full((2,), 2.0 * client), EMBEDDING: torch.ones(4)}
    return Payload(tensors, {"num_samples": 5, "metrics": {"loss": 0.5}, "pictures": {"weights": [1, 2, 3]}})


def without_embedding(kind, client):
    reply = good(kind, client)
    return Payload({n: t for n, t in reply.tensors.items() if n != EMBEDDING}, reply.values)


def values(**changed):
    """The same reply with other values; ``...`` takes one away."""

    def change(reply):
        kept = {name: value for name, value in {**reply.values, **changed}.items() if value is not ...}
        return Payload(reply.tensors, kept)

    return change


def tensors(**changed):
    def change(reply):
        return Payload({n: t for n, t in {**reply.tensors, **changed}.items() if t is not ...}, reply.values)

    return change


MALFORMED = {
    "no number": values(num_samples=...),
    "text": values(num_samples="many"),
    "negative": values(num_samples=-5),
    "huge": values(num_samples=1e308),
    "beyond floats": values(num_samples=2**53 + 1),
    "half a sample": values(num_samples=2.5),
    "bool": values(num_samples=True),
    "null": values(num_samples=None),
    "a list of samples": values(num_samples=[5]),
    "nan samples": values(num_samples=math.nan),
    "no metrics": values(metrics=...),
    "metrics are a list": values(metrics=[1]),
    "metrics are null": values(metrics=None),
    "metrics are a number": values(metrics=0.5),
    "a metric is text": values(metrics={"loss": "low"}),
    "a metric is a list": values(metrics={"loss": [0.5]}),
    "a metric is a bool": values(metrics={"loss": True}),
    "a metric is infinite": values(metrics={"loss": math.inf}),
    "a metric is no float": values(metrics={"loss": 10**400}),
    "samples beyond all floats": values(num_samples=10**400),
    "pictures are a list": values(pictures=[1]),
    "a picture is a number": values(pictures={"weights": 3}),
    "a picture is empty": values(pictures={"weights": []}),
    "a picture has another length": values(pictures={"weights": [1, 2]}),
    "a picture of halves": values(pictures={"weights": [1, 2.5, 3]}),
    "a picture of negatives": values(pictures={"weights": [1, -2, 3]}),
    "a picture is a table": values(pictures={"weights": [[1, 2, 3]]}),
    "untrained is a list": values(untrained_rows=[0]),
    "untrained of no entry": values(untrained_rows={"other": [0]}),
    "untrained of no row": values(untrained_rows={"w": [2]}),
    "untrained twice": values(untrained_rows={"w": [1, 1]}),
    "untrained of a scalar": values(untrained_rows={"count": [0]}),
    "watched are numbers": values(watches=["loss", 1]),
    "watched is text": values(watches="val_loss"),
    "values are a list": lambda reply: Payload(reply.tensors, [1]),
    "another shape": tensors(w=torch.zeros(3, 2)),
    "another type": tensors(w=torch.zeros(2, 3, dtype=torch.float64)),
    "an entry is missing": tensors(b=...),
    "an entry too many": tensors(mask=torch.zeros(2)),
    "not a number": tensors(w=torch.full((2, 3), torch.nan)),
    "infinite": tensors(b=torch.tensor([0.0, torch.inf])),
    "nothing": lambda reply: Payload(),
}
EMBEDDINGS = {
    "no embedding": tensors(**{EMBEDDING: ...}),
    "another width": tensors(**{EMBEDDING: torch.ones(3)}),
    "a matrix": tensors(**{EMBEDDING: torch.ones(2, 2)}),
    "whole numbers": tensors(**{EMBEDDING: torch.ones(4, dtype=torch.int64)}),
    "another type": tensors(**{EMBEDDING: torch.ones(4, dtype=torch.float64)}),
    "empty": tensors(**{EMBEDDING: torch.ones(0)}),
    "a number": tensors(**{EMBEDDING: torch.tensor(1.0)}),
    "not a number": tensors(**{EMBEDDING: torch.full((4,), torch.nan)}),
}


def one_round(strategy, bad=None, min_clients=1):
    strategy.start({name: tensor.clone() for name, tensor in INITIAL.items()}, ())
    script = good if isinstance(strategy, FedPub) else without_embedding
    federation = Federation(Scripted(script, bad), "run", (0, 1, 2), min_clients=min_clients)
    metrics = strategy.round(federation, 0, (0, 1, 2))
    return federation, metrics


@pytest.mark.parametrize("what", MALFORMED)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_malformed_reply_is_named_and_left_out(name, what):
    strategy = STRATEGIES[name]()
    federation, metrics = one_round(strategy, {"fit": MALFORMED[what]})
    assert [(f["client"], f["kind"], f["round"]) for f in federation.failures] == [(1, "fit", 0)]
    assert list(metrics) == [0, 2]
    result = strategy.download(0).tensors  # clients 0 and 2 have (1, 0) and (3, 4): equal weights, and for FedPub equal models
    torch.testing.assert_close(result["w"], torch.full((2, 3), 2.0))
    torch.testing.assert_close(result["b"], torch.full((2,), 2.0))


@pytest.mark.parametrize("what", EMBEDDINGS)
def test_a_malformed_embedding_is_named_and_left_out(what):
    federation, metrics = one_round(FedPub(), {"fit": EMBEDDINGS[what]})
    assert [f["client"] for f in federation.failures] == [1] and list(metrics) == [0, 2]


@pytest.mark.parametrize("name", STRATEGIES)
def test_good_replies_are_all_taken(name):
    federation, metrics = one_round(STRATEGIES[name]())
    assert federation.failures == [] and list(metrics) == [0, 1, 2]


def test_a_client_with_nothing_to_train_on_sends_no_tensors():
    federation, metrics = one_round(FedPub(), {"fit": lambda reply: Payload(values={"num_samples": 0, "metrics": {}})})
    assert federation.failures == [] and list(metrics) == [0, 2]


def test_what_a_client_that_has_not_trained_sends_all_the_same_is_nobodys_business():
    odd = {EMBEDDING: torch.tensor(1.0), "w": torch.zeros(1)}
    federation, metrics = one_round(FedPub(), {"fit": lambda reply: Payload(odd, {"num_samples": 0, "metrics": {}})})
    assert federation.failures == [] and list(metrics) == [0, 2]


def test_clients_alone_send_no_tensors():
    def script(kind, client):
        return Payload(values=good(kind, client).values)

    for bad in (tensors(w=torch.zeros(2, 3)), values(metrics=[1])):
        strategy = LocalOnly()
        strategy.start({}, ())
        federation = Federation(Scripted(script, {"fit": bad}), "run", (0, 1, 2))
        assert list(strategy.round(federation, 0, (0, 1, 2))) == [0, 2] and [f["client"] for f in federation.failures] == [1]


@pytest.mark.parametrize("wrong", [{"num_train_samples": "5"}, {"num_train_samples": -5}, {"schema": [1]}, {"initial": 3}])
def test_the_first_contact_is_checked_by_name(wrong):
    told = {"num_train_samples": 5, "schema": {"num_tasks": 2}, "fingerprint": [1], "initial": "ab", "versions": {}}
    told |= {"start": {}, "statistics": {}, "unlearnt": {}}
    ((name, _),) = wrong.items()
    assert CONTACT.fault(Payload(values=told)) is None
    assert CONTACT.fault(Payload(values={**told, **wrong})).startswith(f"`{name}` of its reply must be ")
    assert CONTACT.fault(Payload(values={k: v for k, v in told.items() if k != name})) == f"its reply has no `{name}`"


def test_the_reasons_say_what_was_needed_and_found():
    federation, _ = one_round(FedAvg(), {"fit": values(num_samples=-5)})
    reason = federation.failures[0]["reason"]
    assert reason == "`num_samples` of its reply must be a whole number from 0 to 9007199254740992, but is -5"
    federation, _ = one_round(FedAvg(), {"fit": values(pictures={"weights": [1, 2]})})
    assert federation.failures[0]["reason"] == "the number of bins of `weights` is 2 in its reply and 3 in the others'"


def test_too_few_good_replies_end_the_round():
    wanted = r"step `fit`: 2 client\(s\) answered, 3 needed(.|\n)*client 1: its reply has no `metrics`"
    with pytest.raises(FederationError, match=wanted):
        one_round(FedAvg(), {"fit": values(metrics=...)}, min_clients=3)


# ---- FedSage+'s exchange ------------------------------------------------------------------------------------------------


def exchange(kind, client):
    weights = {"theta_f/out.weight": torch.ones(2, 3), "theta_f/out.bias": torch.ones(2)}
    if kind == "query":
        return Payload({"u": torch.ones(40, 4), "counts": torch.ones(40, dtype=torch.int64), **weights}, {"num_nodes": 50})
    if kind == "peer_gradient":
        grad = {name.removeprefix("theta_f/"): t * (client + 1) for name, t in weights.items()}
        return Payload({f"{asker}/{name}": t for asker in range(3) if asker != client for name, t in grad.items()})
    return Payload(values={"metrics": {"count_loss": 0.5}, "pictures": {"table": [[1, 2], [3, 4]]}})


QUERIES = {
    "no counts": tensors(counts=...),
    "more than there are slots": tensors(counts=torch.full((40,), 6)),
    "counts of zero": tensors(counts=torch.zeros(40, dtype=torch.int64)),
    "float counts": tensors(counts=torch.ones(40)),
    "too few counts": tensors(counts=torch.ones(39, dtype=torch.int64)),
    "u is a vector": tensors(u=torch.ones(40)),
    "u of another width": tensors(u=torch.ones(40, 5)),
    "a weight is missing": tensors(**{"theta_f/out.bias": ...}),
    "a weight of another shape": tensors(**{"theta_f/out.bias": torch.ones(3)}),
    "something else": tensors(x=torch.ones(2)),
    "no nodes": values(num_nodes=0),
    "no number of nodes": values(num_nodes=...),
}
ANSWERS = {
    "a gradient is missing": lambda reply: Payload(dict(list(reply.tensors.items())[1:])),
    "of another shape": tensors(**{"0/out.bias": torch.ones(3)}),
    "of another type": tensors(**{"0/out.bias": torch.ones(2, dtype=torch.float64)}),
    "for nobody": tensors(**{"7/out.bias": torch.ones(2)}),
    "for itself": tensors(**{"1/out.bias": torch.ones(2)}),
}
FIGURES = {"metrics are a list": values(metrics=[1]), "a ragged table": values(pictures={"table": [[1], [3, 4]]}),
           "another table": values(pictures={"table": [[1]]})}  # fmt: skip


class Recording(Scripted):
    """Keeps what the clients were asked."""

    def exchange(self, messages, timeout):
        self.asked = {**getattr(self, "asked", {}), messages[0].kind: {m.client: m.payload for m in messages}}
        yield from super().exchange(messages, timeout)


def exchange_step(bad=None):
    engine = Recording(exchange, bad)
    federation = Federation(engine, "run", (0, 1, 2))
    strategy = FedSagePlus()
    strategy.start({}, ())
    return federation, engine, strategy._exchange(federation, 0)


def test_the_sum_of_the_peers_gradients_arrives():
    # Client 0 gets what 1 and 2 say, 2 + 3; client 1 gets 1 + 3; client 2 gets 1 + 2.
    federation, engine, _ = exchange_step()
    assert federation.failures == []
    for client, total in enumerate((5.0, 4.0, 3.0)):
        sums = engine.asked["exchange"][client].tensors
        assert torch.equal(sums["out.weight"], torch.full((2, 3), total))
        assert torch.equal(sums["out.bias"], torch.full((2,), total))


@pytest.mark.parametrize("what", QUERIES)
def test_a_malformed_query_reaches_no_peer(what):
    federation, engine, _ = exchange_step({"query": QUERIES[what]})
    assert [(f["client"], f["kind"]) for f in federation.failures if f["kind"] == "query"] == [(1, "query")]
    asked = engine.asked["peer_gradient"]
    assert not any(name.startswith("1/") for payload in asked.values() for name in payload.tensors)


@pytest.mark.parametrize("what", ANSWERS)
def test_a_malformed_answer_is_in_no_sum(what):
    federation, engine, _ = exchange_step({"peer_gradient": ANSWERS[what]})
    assert [(f["client"], f["kind"]) for f in federation.failures] == [(1, "peer_gradient")]
    assert torch.equal(engine.asked["exchange"][0].tensors["out.bias"], torch.full((2,), 3.0))  # client 2's alone
    assert torch.equal(engine.asked["exchange"][1].tensors["out.bias"], torch.full((2,), 4.0))


@pytest.mark.parametrize("what", FIGURES)
def test_malformed_figures_are_in_no_mean(what):
    federation, _, figures = exchange_step({"exchange": FIGURES[what]})
    assert [(f["client"], f["kind"]) for f in federation.failures] == [(1, "exchange")]
    assert {name for name in figures if name.startswith("clients/")} == {"clients/0/count_loss", "clients/2/count_loss"}


# ---- evaluation and predictions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [{}, {"val": [1]}, {"val": {"loss": "low"}}, {"val": 0.5}, {"test": {"loss": 1.0}}])
def test_a_malformed_evaluation_is_named_and_the_run_goes_on(tmp_path, bad):
    class Half(ClientHalf):
        def evaluate(self, client, request):
            reply = super().evaluate(client, request)
            return Payload(values=bad) if client.id == 1 else reply

    class Strange(FedAvg):
        def client_half(self):
            return Half()

    fed = federate(tmp_path, data=clients((10, 12, 14)), strategy=Strange(), num_rounds=1)
    assert {(f["client"], f["kind"]) for f in fed.results["failures"]} == {(1, "evaluate")}
    scores = fed.results["last"]["val"]["per_client"]
    assert scores[1] is None and scores[0] is not None and scores[2] is not None
    assert (fed.run_dir / "results.json").is_file()


@pytest.mark.parametrize(
    "reply",
    [Payload({"output": torch.ones(2)}), Payload({"x/output": torch.ones(2)}), Payload({"1/output": torch.ones(2)}),
     Payload({"0/output": torch.ones(2), "2/output": torch.ones(2)})],
)  # fmt: skip
def test_predictions_come_batch_by_batch(reply):
    assert predict_reply().fault(reply).startswith("its predictions must be tensors named")
    assert predict_reply().fault(Payload({"0/output": torch.ones(2), "1/output": torch.ones(1)})) is None
    assert predict_reply().fault(Payload()) is None


def test_undefined_scores_are_no_fault():
    expected = evaluate_reply(("val", "test"))
    assert expected.fault(Payload(values={"val": None, "test": {"auroc": None, "loss": 1}})) is None
    assert expected.fault(Payload(values={"val": None})) == "its reply has no `test`"


def test_of_equally_many_the_first_clients_thing_counts():
    assert odd_ones_out({0: {"bins": 3}, 4: {"bins": 5}}) == {4: "bins is 5 in its reply and 3 in the others'"}
    assert odd_ones_out({0: {"bins": 3}, 4: {"bins": 5}, 7: {"bins": 5}}) == {0: "bins is 3 in its reply and 5 in the others'"}
    assert odd_ones_out({0: {"a": 1}, 1: {"b": 2}, 2: {}}) == {}


def test_replies_are_reduced_in_the_order_of_the_clients():
    """Float sums depend on their order; the order in which replies arrive must not show."""
    sums = []
    for arrival in ((0, 1, 2), (2, 0, 1)):

        class Shuffled(Scripted):
            def exchange(self, messages, timeout, arrival=arrival):
                replies = list(super().exchange(messages, timeout))
                yield from (replies[i] for i in arrival)

        strategy = FedAvg()
        strategy.start({"w": torch.zeros(1), "b": torch.zeros(1)}, ())
        big = {0: 1e17, 1: 1.0, 2: -1e17}

        def script(kind, client, big=big):
            tensors = {"w": torch.tensor([big[client]], dtype=torch.float64).float(), "b": torch.zeros(1)}
            return Payload(tensors, {"num_samples": 1 + client, "metrics": {}})

        federation = Federation(Shuffled(script), "run", (0, 1, 2))
        assert list(federation.call("fit", {c: Payload() for c in range(3)}, 0)) == [0, 1, 2]
        strategy.round(federation, 0, (0, 1, 2))
        sums.append(strategy.weights["w"])
    assert torch.equal(*sums)


def test_weights_stay_with_their_clients_when_one_is_left_out():
    # n = 1, 5, 3; client 1 is left out: (1 * 1 + 3 * 3) / 4 = 2.5.
    def script(kind, client):
        reply = without_embedding(kind, client)
        return Payload(reply.tensors, {**reply.values, "num_samples": (1, 5, 3)[client]})

    strategy = FedAvg()
    strategy.start({name: tensor.clone() for name, tensor in INITIAL.items()}, ())
    strategy.round(Federation(Scripted(script, {"fit": tensors(b=...)}), "run", (0, 1, 2)), 0, (0, 1, 2))
    assert torch.equal(strategy.weights["w"], torch.full((2, 3), 2.5))


def test_mixtures_too_are_made_in_the_order_of_the_clients():
    generator = torch.Generator().manual_seed(0)
    sent = [{"w": torch.randn(9, generator=generator), EMBEDDING: torch.randn(4, generator=generator)} for _ in range(5)]

    class Shuffled(Scripted):
        def exchange(self, messages, timeout):
            yield from reversed(list(super().exchange(messages, timeout)))

    found = []
    for engine in (Scripted, Shuffled):
        strategy = FedPub()
        strategy.start({"w": torch.zeros(9)}, ())
        script = engine(lambda kind, client: Payload(sent[client], {"num_samples": 1, "metrics": {}}))
        strategy.round(Federation(script, "run", tuple(range(5))), 0, range(5))
        shown = strategy.diagnose()
        matrices = {name: matrix.tolist() for name, matrix in shown.matrices.items()} | {"clients": list(shown.clients)}
        found.append((matrices, [strategy.download(client).tensors["w"] for client in range(5)]))
    assert found[0][0] == found[1][0] and found[0][0]["clients"] == [0, 1, 2, 3, 4]
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))


# ---- whole runs ---------------------------------------------------------------------------------------------------------


class Tampering(InProcess):
    """Client 1's replies of one kind are changed on their way."""

    def __init__(self, kind, change):
        super().__init__()
        self.kind, self.change = kind, change

    def exchange(self, requests, timeout):
        for reply in super().exchange(requests, timeout):
            hit = (reply.kind, reply.client) == (self.kind, 1)
            yield replace(reply, payload=self.change(reply.payload)) if hit else reply


def test_a_run_with_a_client_that_always_answers_wrongly_is_one_without_it(tmp_path):
    data = clients((10, 16, 24))
    whole = federate(tmp_path, data=data, engine=Tampering("fit", values(num_samples=1e308)))
    assert [(f["client"], f["kind"]) for f in whole.results["failures"]] == [(1, "fit")] * 2
    alone = federate(tmp_path / "b", data=[data[0], data[2]])
    for mine, other in zip(whole.module.parameters(), alone.module.parameters(), strict=True):
        assert torch.equal(mine, other)


class Predicts(Table):
    predict_dataloader = Table.val_dataloader


def test_malformed_predictions_are_none(tmp_path):
    engine = Tampering("predict", lambda reply: Payload({"1/output": torch.ones(1)}))
    data = [Predicts(n, seed=n) for n in (10, 16, 24)]
    fed = federate(tmp_path, data=data, engine=engine, num_rounds=1)
    found = fed.predict(fed.module, data, "last")
    assert list(found) == [0, 2] and [len(batch["output"]) for batches in found.values() for batch in batches] == [8, 8]


@pytest.mark.parametrize("what", ["nothing", "an entry more", "an entry less", "another shape"])
def test_a_malformed_model_has_no_score_and_nobody_elses(tmp_path, what):
    change = {
        "nothing": lambda reply: Payload(),
        "an entry more": tensors(x=torch.ones(1)),
        "an entry less": tensors(**{"net.bias": ...}),
        "another shape": tensors(**{"net.bias": torch.ones(2)}),
    }[what]
    results = []
    for engine in (None, Tampering("model", change)):
        data = Central(*clients((10, 16, 24)))
        fed = federate(tmp_path / str(engine is None), data=data, engine=engine, strategy=LocalOnly(), num_rounds=1)
        results.append(fed.results)
    wanted = results[0]["test"]["each_on_global"]
    assert None not in wanted and results[1]["test"]["each_on_global"] == [wanted[0], None, wanted[2]]
    assert [(f["client"], f["kind"]) for f in results[1]["failures"]] == [(1, "model")]


# ---- rows in which a client has learnt nothing ----------------------------------------------------------------------------


class TwoTasks(Linear):
    """Two independent outputs; a table with one column of labels has none of the second task."""

    def __init__(self, lr=0.05):
        super().__init__(lr)
        self.net = torch.nn.Linear(3, 2)
        self.seen = 2

    def training_step(self, batch, batch_idx):
        self.seen = 2 if len(batch[0]) == 10 else 1  # the site with 10 rows has both tasks
        return sum((self(batch[0])[:, task] - (task + 1) * batch[1][:, 0]).square().mean() for task in range(self.seen))

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", (self(batch[0])[:, :1] - batch[1]).square().mean())

    test_step = validation_step

    def untrained_rows(self):
        rows = torch.tensor([False, self.seen < 2])
        return {"net.weight": rows, "net.bias": rows}


@pytest.mark.parametrize("weighting", ["num_samples", "uniform"])
def test_a_task_of_one_site_is_learnt_as_if_that_site_were_alone(tmp_path, weighting):
    """The rows of the second task, bit for bit, with 0, 1 and 4 sites beside that have no label of it."""
    first, second = [], []
    for sizes in ((10,), (10, 12), (10, 12, 7, 9, 8)):
        fed = federate(tmp_path, TwoTasks, clients(sizes, held_out=0), strategy=FedAvg(weighting), num_rounds=3)
        first.append(fed.module.net.weight[0].detach().clone())
        second.append(torch.cat([fed.module.net.weight[1], fed.module.net.bias[1:]]).detach().clone())
    assert torch.equal(second[0], second[1]) and torch.equal(second[0], second[2])
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])  # the first task is everybody's


def test_a_task_of_nobody_stays_as_it_was(tmp_path):
    torch.manual_seed(0)
    initial = TwoTasks().net.weight[1].detach().clone()
    fed = federate(tmp_path, TwoTasks, clients((12, 7)), num_rounds=2)
    assert torch.equal(fed.module.net.weight[1], initial)


def test_what_a_client_has_not_learnt_is_in_the_ledger(tmp_path):
    fed = federate(tmp_path, TwoTasks, clients((10, 12)), num_rounds=1)
    lines = [line for line in (fed.run_dir / "ledger.jsonl").read_text().splitlines() if '"up"' in line and '"fit"' in line]
    assert ["untrained_rows" in line for line in lines] == [False, True]


def test_a_private_row_is_not_spoken_of(tmp_path):
    fed = FederatedTrainer(
        num_rounds=1, seed=0, private=["net.weight"], trainer={**CPU, "logger": False, "default_root_dir": str(tmp_path)}
    )
    results = fed.fit(TwoTasks(), clients((10, 12)))
    assert results["failures"] == []


# ---- rules, value by value ------------------------------------------------------------------------------------------------

LAYOUT = {"w": torch.zeros(3, 2), "b": torch.zeros(2), "n": torch.zeros(())}
RULES = {
    sample_count: ([0, 1, 2**53], [-1, 2**53 + 1, True, 1.0, "1", None, [1]]),
    positive_count: ([1, 2, 2**53], [0, -1, 2**53 + 1, True, 1.5, "1", None]),
    scores: (
        [{}, {"a": 1, "b": 0.5, "c": None}, {"a": sys.float_info.max}, {"a": -sys.float_info.max},
         {"a": int(sys.float_info.max)}],
        [None, 0.5, [1], {"a": 0.5, "b": "x"}, {1: 0.5}, {"a": True}, {"a": math.nan}, {"a": math.inf}, {"a": -math.inf},
         {"a": 2 * int(sys.float_info.max)}, {"a": [0.5]}],
    ),
    scores_or_none: ([None, {}, {"a": None}], [0, {"a": "x"}, []]),
    histograms: (
        [{}, {"a": [0]}, {"a": [1, 2], "b": [3]}],
        [None, [1], {"a": []}, {"a": 3}, {"a": (1, 2)}, {"a": [1], "b": [1.5]}, {"a": [1, -2]}, {1: [1]}, {"a": [[1]]}],
    ),
    histograms_or_tables: (
        [{}, {"a": [0]}, {"a": [[1, 2], [3, 4]]}, {"a": [[1]], "b": [2, 3]}],
        [None, 3, [[1]], {"a": []}, {"a": [[]]}, {"a": [[1, 2], [3]]}, {"a": [[1], 2]}, {"a": [[1.5]]}, {"a": ([1],)}, {1: [1]},
         {"a": [1], "b": "x"}, {"a": None}],
    ),
    rows_of(LAYOUT): (
        [{}, {"w": []}, {"w": [0]}, {"w": [0, 2], "b": [1]}, {"b": [0, 1]}],
        [None, [0], {"w": [3]}, {"w": [-1]}, {"b": [2]}, {"w": [1, 1]}, {"w": [2, 1]}, {"w": [0, 2, 1]}, {"w": [True]},
         {"w": [0.0]}, {"w": [0, 1.0]}, {"w": (0,)}, {"n": [0]}, {"x": [0]}, {"w": [0], "b": [5]}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=[rule.__qualname__.split(".")[0] for rule in RULES])
def test_a_rule_at_its_borders(rule):
    good, bad = RULES[rule]
    assert [value for value in good if rule(value) is not None] == []
    assert [value for value in bad if not isinstance(rule(value), str)] == []


def test_an_empty_reply_is_good_only_where_there_may_be_nothing_to_say():
    rules = {"n": sample_count}
    assert Expected(rules).fault(Payload()) == "its reply has no `n`"
    lenient = Expected(rules, may_be_empty=True)
    assert lenient.fault(Payload()) is None and lenient.fault(Payload(values={"n": 1})) is None
    assert lenient.fault(Payload({"w": torch.ones(1)})) == "its reply has no `n`"
    assert lenient.fault(Payload(values={"m": 1})) == "its reply has no `n`"
    assert Expected(optional=rules).fault(Payload()) is None
    assert Expected(optional=rules).fault(Payload(values={"n": -1, "m": "anything"})).startswith("`n` of its reply must be")


@pytest.mark.parametrize("number", [1, 5])
def test_whoever_has_trained_on_something_sends_the_whole_update(number):
    expected = fit_reply({"w": torch.zeros(2)})
    values = {"num_samples": number, "metrics": {}}
    assert expected.fault(Payload({"w": torch.ones(2)}, values)) is None
    assert expected.fault(Payload({}, values)).startswith("its update does not fit the model: entries missing: ['w']")
    assert expected.fault(Payload({}, {**values, "num_samples": 0})) is None


def test_a_long_value_is_shown_by_its_beginning():
    text = "`n` of its reply must be a whole number from 0 to 9007199254740992, but is "
    for length, shown in ((58, repr("x" * 58)), (59, "'" + "x" * 56 + "...")):  # 60 and 61 characters with the quotes
        assert Expected({"n": sample_count}).fault(Payload(values={"n": "x" * length})) == text + shown


def test_tables_are_compared_by_rows_and_columns_and_histograms_by_bins():
    tables = figures_reply().alike(Payload(values={"pictures": {"t": [[1, 2, 3], [4, 5, 6]], "h": [7]}}))
    assert tables == {"the size of `t`": (2, 3)}
    assert fit_reply({}).alike(Payload(values={"pictures": {"h": [7, 8]}})) == {"the number of bins of `h`": 2}
    assert fit_reply({}).alike(Payload()) == figures_reply().alike(Payload()) == {}


def test_a_prediction_without_an_outputs_name_is_told():
    for names in (["0"], ["0/a", "1"], ["0/a", "/b"], ["-1/a"], ["0.0/a"], ["1/a", "2/a"]):
        wrong = Payload({name: torch.ones(1) for name in names})
        assert predict_reply().fault(wrong) == (
            "its predictions must be tensors named `0/<output>`, `1/<output>`, ... by batch"
        )
    assert predict_reply().fault(Payload({"0/a/b": torch.ones(1), "1/": torch.ones(1), "0/c": torch.ones(1)})) is None
