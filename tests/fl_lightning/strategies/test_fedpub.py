"""FED-PUB step by step, without a run: what the server does with replies, and what a client's reply holds.

Whole runs are in ``test_fedpub_federation.py``, equations in ``test_fedpub_equations.py``.
"""

import copy
import math

import pytest
import torch

from datamodules.planted import PlantedDataModule
from fl_lightning import FedPub
from fl_lightning.engine.client import Client, LocalSettings, Worker
from fl_lightning.engine.messages import Message, Payload
from fl_lightning.engine.seeds import derive
from fl_lightning.engine.store import ClientStore
from fl_lightning.strategies.fedpub import EMBEDDING, FedPubClient, proxy_graph
from lit_models import GraphSAGE, LitNodeClassifier, MaskedGCN
from lit_models.functional_embedding import functional_embedding

INITIAL = {"w": torch.zeros(2, 1), "b": torch.zeros(2), "count": torch.tensor(7)}


def started(**options) -> FedPub:
    strategy = FedPub(**options)
    strategy.start({n: t.clone() for n, t in INITIAL.items()}, ())
    return strategy


def reply(embedding, w, b=(0.0, 0.0), **values):
    tensors = {"w": torch.tensor(w).view(2, 1), "b": torch.tensor(b), EMBEDDING: torch.tensor(embedding)}
    return Payload(tensors, {"num_samples": 1, "metrics": {}, **values})


def mixed(strategy, client, name="w"):
    return strategy.download(client).tensors[name].flatten().tolist()


REPLIES = {3: reply([1.0, 0.0], [4.0, 40.0], (1.0, 0.0)), 5: reply([0.0, 2.0], [8.0, 80.0], (0.0, 3.0))}


def test_a_round_by_hand():
    """Orthogonal clients, tau = log 3: each gets three quarters of its own and a quarter of the other's."""
    strategy = started(tau=math.log(3.0))
    assert mixed(strategy, 3) == [0.0, 0.0]  # before the first round: the initial weights
    strategy.aggregate(None, 0, REPLIES)
    assert mixed(strategy, 3) == pytest.approx([5.0, 50.0]) and mixed(strategy, 5) == pytest.approx([7.0, 70.0])
    assert mixed(strategy, 3, "b") == pytest.approx([0.75, 0.75]) and mixed(strategy, 5, "b") == pytest.approx([0.25, 2.25])
    assert strategy.download(3).tensors["count"].item() == 7  # never averaged
    assert mixed(strategy, 9) == [0.0, 0.0]  # who has not taken part
    found = strategy.diagnose()
    assert found.clients == [3, 5] and found.matrices["fedpub/similarity"].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    torch.testing.assert_close(found.matrices["fedpub/alpha"].float(), torch.tensor([[0.75, 0.25], [0.25, 0.75]]))


def test_rows_that_one_has_not_trained_come_from_the_others():
    """Row 1 of ``w`` is client 5's alone; row 0, and ``b``, are mixed as ever."""
    strategy = started(tau=math.log(3.0))
    first = reply([1.0, 0.0], [4.0, 40.0], untrained_rows={"w": [1]})
    strategy.aggregate(None, 0, {3: first, 5: REPLIES[5]})
    assert mixed(strategy, 3) == pytest.approx([5.0, 80.0]) and mixed(strategy, 5) == pytest.approx([7.0, 80.0])


def test_rows_that_nobody_has_trained_stay_as_each_has_them():
    strategy = started(tau=math.log(3.0))
    replies = {c: reply([1.0, 0.0], w, untrained_rows={"w": [0]}) for c, w in ((1, [4.0, 40.0]), (2, [8.0, 80.0]))}
    strategy.aggregate(None, 0, replies)
    assert mixed(strategy, 1) == pytest.approx([4.0, 60.0]) and mixed(strategy, 2) == pytest.approx([8.0, 60.0])


def test_a_learner_is_weighed_by_its_similarity_to_the_receiver():
    """Row 1, learnt by 1 and 2; client 0 is like client 1 (cos 1) and orthogonal to 2: weights 3 : 1."""
    strategy = started(tau=math.log(3.0))
    strategy.aggregate(None, 0, {
        0: reply([1.0, 0.0], [0.0, 999.0], untrained_rows={"w": [1]}),
        1: reply([1.0, 0.0], [0.0, 4.0]), 2: reply([0.0, 1.0], [0.0, 8.0]),
    })  # fmt: skip
    assert [mixed(strategy, c)[1] for c in range(3)] == pytest.approx([5.0, 5.0, 7.0])


def test_the_state_goes_through_a_checkpoint():
    strategy, again = started(tau=1.0), started()
    strategy.aggregate(None, 0, REPLIES)
    state = strategy.state()
    assert {n.split("/")[0] for n in state} == {"initial", "3", "5"}
    again.load_state(state)
    for client in (3, 5, 9):
        assert all(torch.equal(t, again.download(client).tensors[n]) for n, t in strategy.download(client).tensors.items())


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({}, None), ({EMBEDDING: None}, "no functional embedding"), ({EMBEDDING: torch.ones(1, 2)}, "no functional embedding"),
        ({EMBEDDING: torch.ones(2, dtype=torch.long)}, "no functional embedding"), ({"w": torch.zeros(3, 1)}, "entry `w`"),
        ({"b": None}, "entries missing: ['b']"), ({"mask": torch.ones(1)}, "unexpected: ['mask']"),
    ],
)  # fmt: skip
def test_what_a_reply_must_hold(tensors, reason):
    expected, good = started().fit_reply(), REPLIES[3]
    changed = {n: t for n, t in {**good.tensors, **tensors}.items() if t is not None}
    fault = expected.fault(Payload(changed, good.values))
    assert fault is None if reason is None else reason in fault
    assert expected.fault(Payload({}, {**good.values, "num_samples": 0})) is None  # it has not trained
    assert expected.alike(good) == {"the functional embedding": ("torch.float32", 2)}  # of all clients the same
    shown = expected.alike(Payload(good.tensors, {**good.values, "pictures": {"weights": [1, 2, 3]}}))
    assert shown == {"the number of bins of `weights`": 3, "the functional embedding": ("torch.float32", 2)}
    assert expected.alike(Payload({}, {**good.values, "num_samples": 0})) == {}


def test_masks_among_the_shared_entries_are_refused():
    with pytest.raises(ValueError, match="Masks would leave the clients: a.mask"):
        FedPub().start({"a.mask": torch.ones(1), "a.weight": torch.ones(1)}, ())


def _without(module, name):
    module = copy.deepcopy(module)
    delattr(module, name)
    return module


def test_what_the_model_must_have():
    schema = {"num_features": 3, "num_classes": 2}
    plain, masked = LitNodeClassifier(GraphSAGE(hidden_channels=4)), LitNodeClassifier(MaskedGCN(hidden_channels=4))
    plain.build(schema), masked.build(schema)
    FedPub().check(masked, [], None)
    with pytest.raises(ValueError, match="has no parameter named `\\*.mask`.*MaskedGCN"):
        FedPub().check(plain, [], None)
    bare = torch.nn.Module()
    bare.net, bare.schema = masked.encoder, schema
    for wrong in (bare, _without(masked, "schema")):
        with pytest.raises(ValueError, match=f"`{type(wrong).__name__}` has no `encoder` built for graphs"):
            FedPub().check(wrong, [], None)
    masked.schema = {"task": "regression"}
    with pytest.raises(ValueError, match="has no `encoder` built for graphs"):
        FedPub().check(masked, [], None)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"aggregate": "x"}, "aggregate"),
        ({"tau": math.inf}, "tau"),
        ({"tau": math.nan}, "tau"),
        ({"p_in": 1.1}, "p_in"),
        ({"p_in": -0.1}, "p_in"),
        ({"p_out": -0.1}, "p_out"),
        ({"p_out": 1.1}, "p_out"),
    ],
)
def test_impossible_options_are_refused(options, text):
    with pytest.raises(ValueError, match=f"federation.strategy.init_args.{text}`"):
        FedPub(**options)


@pytest.mark.parametrize("name", ["num_features", "num_blocks", "block_size"])
def test_a_proxy_graph_has_one_of_everything_at_least(name):
    assert proxy_graph(**{"num_features": 2, "num_blocks": 2, "block_size": 2, name: 1}).num_nodes in (2, 4)
    with pytest.raises(ValueError, match=f"at least one feature, block and node, but was asked for .*{name}=0"):
        proxy_graph(**{"num_features": 2, name: 0})


@pytest.mark.parametrize(("p_in", "p_out"), [(-0.1, 0.5), (1.1, 0.5), (0.5, -0.1), (0.5, 1.1)])
def test_a_proxy_graph_has_probabilities(p_in, p_out):
    with pytest.raises(ValueError, match=f"`p_in` and `p_out` are probabilities, but are {p_in} and {p_out}"):
        proxy_graph(2, 2, 2, p_in=p_in, p_out=p_out)


def test_defaults_are_the_documented_ones():
    strategy = FedPub()
    assert (strategy.tau, strategy.mixes, strategy.p_in, strategy.p_out) == (3.0, "raw", 0.1, 0.0)
    assert strategy.personal and strategy.carry_optimizer_state
    assert FedPub(p_in=1.0, p_out=0.0).p_in == 1.0 and FedPub(p_in=0.0, p_out=1.0).p_out == 1.0
    graph = proxy_graph(2)
    assert graph.num_nodes == 500 and graph.edge_index.max() < 500
    assert torch.equal(graph.x, proxy_graph(2, 5, 100, 0.1, 0.0, 0).x)
    assert torch.equal(graph.edge_index, proxy_graph(2, 5, 100, 0.1, 0.0, 0).edge_index)
    tiny = proxy_graph(1, num_blocks=1, block_size=1)
    assert (tiny.num_nodes, tiny.edge_index.shape) == (1, (2, 0))


# ---- the client half ------------------------------------------------------------------------------------------------


def site(mixes="raw", p_in=0.1, p_out=0.0):
    torch.manual_seed(0)
    module = LitNodeClassifier(MaskedGCN(hidden_channels=4, dropout=0.0))
    data = PlantedDataModule(num_clients=2, nodes_per_client=30, num_classes=3, num_features=12)
    data.setup("fit")
    clients = data.client_datamodules()
    module.build(clients[0].schema)
    settings = LocalSettings("r", 3, 2, {"max_epochs": 1, "accelerator": "cpu"}, ("*.mask",))
    return Worker(module, FedPubClient(mixes, p_in, p_out), dict(enumerate(clients)), settings)


def fit(worker):
    answer = worker.handle(Message("fit", "r", 0, 0))
    assert answer.error is None, answer.error
    return answer.payload


def test_a_client_with_nothing_to_train_on_reports_no_masks():
    worker = site()
    worker.datamodules[0].data.train_mask[:] = False
    answer = fit(worker)
    assert answer.tensors == {} and answer.values == {"num_samples": 0, "metrics": {}}


def test_a_reply_has_the_embedding_on_the_runs_own_proxy_graph_and_the_masks_figures():
    worker = site(p_in=0.5, p_out=0.25)
    answer = fit(worker)
    graph = proxy_graph(12, p_in=0.5, p_out=0.25, seed=derive(3, "fedpub proxy graph") % 2**31)
    expected = functional_embedding(worker.module.encoder, graph.x, graph.edge_index)
    assert torch.equal(answer.tensors[EMBEDDING], expected)
    assert not any(n.endswith("mask") for n in answer.tensors)
    metrics = answer.values["metrics"]
    for layer in ("convs.0.lin", "convs.1.lin", "head"):
        mask = worker.module.encoder.get_submodule(layer).mask
        assert metrics[f"mask/encoder.{layer}/mean"] == pytest.approx(float(mask.detach().mean()))
        assert metrics[f"mask/encoder.{layer}/sparsity"] == 0.0
    assert metrics["train/loss"] > 0
    state = worker.stores[0].section("module")
    assert {n for n in state if n.endswith("mask")} == {f"encoder.{n}.mask" for n in ("convs.0.lin", "convs.1.lin", "head")}


def test_masked_uploads_are_the_products():
    worker = site("masked")
    client = Client(worker, 0, 0, ClientStore())
    for layer in ("convs.0.lin", "convs.1.lin", "head"):
        worker.module.encoder.get_submodule(layer).mask.data.fill_(0.5)
    raw, sent = client.upload(), worker.half.reply_tensors(client)
    for name, tensor in raw.items():
        factor = 0.5 if name.endswith("weight") else 1.0
        torch.testing.assert_close(sent[name], factor * tensor)
    assert set(sent) == {*raw, EMBEDDING}


def test_pictures_of_a_round():
    strategy = started()
    assert strategy.diagnose().matrices == {}
    strategy.aggregate(None, 0, REPLIES)
    strategy.histograms = {"omega": [1, 2]}
    found = strategy.diagnose()
    assert list(found.matrices) == ["fedpub/similarity", "fedpub/alpha"] and found.clients == [3, 5]
    assert found.histograms["train/omega"].counts == [1, 2]
