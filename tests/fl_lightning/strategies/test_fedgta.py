"""FedGTA's server by hand, and what a client's reply holds, against dense matrices.

Client equations: ``tests/lit_models/test_label_propagation.py``; resuming, the canary: ``tests/whole``, ``test_canary.py``.
"""

import math

import lightning as L
import pytest
import torch
from federations import Spy, Table, federate

from datamodules import PlantedDataModule
from fl_lightning import FedGTA, load_model
from fl_lightning.engine.client import LocalSettings, Worker
from fl_lightning.engine.messages import Message, Payload
from fl_lightning.strategies.fedgta import CONFIDENCE, VECTOR, mixing_weights
from lit_models import GCN, LitNodeClassifier

M = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])  # cosines 1/sqrt 2, 0, 1/sqrt 2
H = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)


def double(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_who_is_averaged_with_whom_by_hand():
    found = mixing_weights(M, H, tau=0.5)  # S = {0, 1}, {0, 1, 2}, {1, 2}
    torch.testing.assert_close(found, double([1 / 4, 3 / 4, 0], [1 / 6, 3 / 6, 2 / 6], [0, 3 / 5, 2 / 5]))
    assert torch.equal(mixing_weights(M, H, tau=0.8), torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(mixing_weights(M, H, tau=-1.0), double([1 / 6, 3 / 6, 2 / 6]).expand(3, 3))


def test_each_is_its_own_neighbour_and_never_divides_by_zero():
    """Client 0 has no moments (cosine 0 with all, itself too), 1 and 2 are alike and without links."""
    moments, confidence = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]), double(4.0, 0.0, 0.0)
    found = mixing_weights(moments, confidence, tau=0.5)
    assert torch.equal(found, double([1, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]))
    assert torch.equal(mixing_weights(moments[:2], double(1.0, 1.0), tau=0.5), torch.eye(2, dtype=torch.float64))


def test_senders_that_are_left():
    """Without client 0: S_0 is empty then, so that all weigh by H; of those that are left H may be 0."""
    torch.testing.assert_close(mixing_weights(M, H, 0.8, [1, 2]), double([0.6, 0.4], [1, 0], [0, 1]))
    torch.testing.assert_close(mixing_weights(M, double(1.0, 0.0, 0.0), 0.8, [1, 2])[0], double(0.5, 0.5))


INITIAL = {"w": torch.zeros(2, 1), "count": torch.tensor(7)}


def started(**options):
    strategy = FedGTA(**options)
    strategy.start({n: t.clone() for n, t in INITIAL.items()}, ())
    return strategy


def reply(client, w, **values):
    return Payload(
        {"w": torch.tensor(w).view(2, 1), CONFIDENCE: H[client], VECTOR: M[client]}, {"num_samples": 1, "metrics": {}, **values}
    )


def test_a_round_by_hand():
    strategy, again = started(), started()
    strategy.aggregate(None, 0, {0: reply(0, [4.0, 0.0]), 1: reply(1, [8.0, 0.0]), 2: reply(2, [0.0, 6.0])})
    got = {client: strategy.download(client).tensors["w"].flatten().tolist() for client in (0, 1, 2, 5)}
    assert got == {0: [7.0, 0.0], 1: pytest.approx([28 / 6, 2.0]), 2: pytest.approx([4.8, 2.4]), 5: [0.0, 0.0]}
    assert strategy.download(1).tensors["count"].item() == 7
    again.load_state(strategy.state())
    for client in (0, 1, 2, 5):  # whoever sits out keeps it; it is scored with it, too
        assert torch.equal(again.evaluation(client).tensors["w"], strategy.download(client).tensors["w"])
    found = strategy.diagnose()
    assert found.clients == [0, 1, 2] and found.matrices["fedgta/weights"][0].tolist() == [0.25, 0.75, 0.0]
    assert found.matrices["fedgta/similarity"][0, 1].item() == pytest.approx(0.5**0.5)


def test_rows_that_a_client_has_not_trained_come_from_those_like_it():
    strategy = started()
    strategy.aggregate(
        None, 0, {0: reply(0, [4.0, 99.0], untrained_rows={"w": [1]}), 1: reply(1, [8.0, 1.0]), 2: reply(2, [0.0, 6.0])}
    )
    got = [strategy.download(client).tensors["w"][1].item() for client in range(3)]
    assert got == pytest.approx([1.0, 3.0, 3.0])  # S_0 without 0: client 1; S_1 and S_2 without 0: H = 3 : 2


# ---- what is asked for before round 1 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tau": math.nan}, "tau` is compared with a cosine"),
        ({"tau": 1.1}, "tau` is compared with a cosine, so it must be from -1 to 1, got 1.1"),
        ({"order": 1}, "`order` must be at least 2 and `num_steps` at least 1, got 1 and 5"),
        ({"num_steps": 0}, "got 6 and 0"),
        ({"moments": "hybrid"}, "moments` must be one of raw, central, mixed, got `hybrid`"),
        ({"temperature": 0.0}, "temperature` must be a number above 0, got 0.0"),
    ],
)
def test_impossible_options_are_refused(options, text):
    with pytest.raises(ValueError, match=f"federation.strategy.init_args.*{text}"):
        FedGTA(**options)


def planted(**options):
    data = PlantedDataModule(num_clients=2, nodes_per_client=15, num_features=9, **options)
    data.setup("fit")
    return data.client_datamodules()


def classifier(clients):
    torch.manual_seed(0)
    module = LitNodeClassifier(GCN(4, dropout=0.5))
    module.build(clients[0].schema)
    return module


def test_what_model_and_data_must_have():
    clients = planted()
    FedGTA().check(classifier(clients), clients, None)
    with pytest.raises(
        ValueError, match="`LightningModule` has no `num_classes` in its `schema`. Use `model: lit_models.LitNode"
    ):
        FedGTA().check(L.LightningModule(), clients, None)
    mute = L.LightningModule()
    mute.schema = {"num_classes": 3}
    with pytest.raises(ValueError, match="`FedGTA` asks the model for the classes .* has no `predict_step`"):
        FedGTA().check(mute, clients, None)
    with pytest.raises(
        ValueError, match="`Table`, whose `data` has no `edge_index`, `y`, `train_mask`. Use a data module of nod"
    ):
        FedGTA().check(classifier(clients), [Table(4, 0)], None)


def test_what_a_reply_must_hold():
    strategy = started(num_steps=1, order=2, moments="central")
    strategy._num_classes = 2
    expected, good = strategy.fit_reply(), reply(0, [1.0, 2.0])
    assert expected.fault(good) is None and expected.fault(Payload({}, {**good.values, "num_samples": 0})) is None
    for changed, text in (
        ({CONFIDENCE: -H[0]}, "must not be negative"),
        ({CONFIDENCE: H[:1]}, "smoothing_confidence"),
        ({VECTOR: torch.zeros(3)}, "label_moments"),
    ):
        assert text in expected.fault(Payload({**good.tensors, **changed}, good.values))


# ---- the client -----------------------------------------------------------------------------------------------------------


def answer(strategy, clients, module):
    settings = LocalSettings("r", 3, 1, {"max_epochs": 1, "accelerator": "cpu"})
    reply = Worker(module, strategy.client_half(), dict(enumerate(clients)), settings).handle(Message("fit", "r", 0, 0))
    assert reply.error is None, reply.error
    return reply.payload


def test_a_reply_against_dense_matrices():
    """H and M of the trained model, all of it anew with dense float64 matrices and loops over moments."""
    clients = planted()
    module = classifier(clients)
    got = answer(FedGTA(order=3, num_steps=2, temperature=5.0), clients, module).tensors
    data = clients[0].data
    with torch.no_grad():
        p = module.eval()(data).softmax(-1).double()
    n, classes = p.shape
    adjacency = torch.zeros(n, n, dtype=torch.float64)
    adjacency[data.edge_index[0], data.edge_index[1]] = 1.0
    root = (adjacency + torch.eye(n)).sum(1).rsqrt().diag()
    hop = root @ (adjacency + torch.eye(n)) @ root
    train = data.train_mask
    assert 0 < int(train.sum()) < n
    labels = torch.eye(classes, dtype=torch.float64)[data.y]
    y0 = torch.where(train[:, None], labels, p)
    y1 = (hop @ y0 + y0) / 2
    y2 = (hop @ y1 + y0) / 2
    q = torch.where(train[:, None], labels, (y2 / 5).softmax(-1))
    entropy = -(q * q.clamp(min=1e-300).log())
    torch.testing.assert_close(got[CONFIDENCE], (adjacency.sum(1, keepdim=True) * (1 / math.e - entropy)).sum())
    vector = []
    for y in (y1, y2):
        q = torch.where(train[:, None], labels, y.softmax(-1))
        vector += [(q**order).sum(0) / n for order in (1, 2, 3)]
        vector += [((q - q.sum(0) / n) ** order).sum(0) / n for order in (2, 3)]
    torch.testing.assert_close(got[VECTOR], torch.cat(vector).float())


def test_a_client_without_links_or_training_nodes():
    clients = planted()
    module = classifier(clients)
    clients[0].data.edge_index = torch.empty(2, 0, dtype=torch.int64)
    got = answer(FedGTA(), clients, module).tensors
    assert got[CONFIDENCE] == 0 and bool(got[VECTOR].isfinite().all())
    clients[0].data.train_mask[:] = False
    assert answer(FedGTA(), clients, module).tensors == {}


def test_a_run_scores_what_clients_receive_and_can_be_loaded(tmp_path):
    """The mixtures are what is scored and loaded, also without any memory at the clients; all that crosses is in the ledger."""
    spy = Spy()
    run = federate(
        tmp_path, LitNodeClassifier(GCN(4)), PlantedDataModule(num_clients=3, nodes_per_client=15, num_features=9),
        {"max_steps": 1}, strategy=FedGTA(num_steps=2, order=2), engine=spy, num_rounds=1, carry_optimizer_state=False,
    )  # fmt: skip
    sent = {m.client: m.payload.tensors for way, m in spy.seen if way == "down" and m.kind == "evaluate" and m.round == 0}
    mixture = run.settings.strategy.download(1).tensors
    assert all(torch.equal(tensor, sent[1][name]) for name, tensor in mixture.items())
    up = next(m.payload.tensors for way, m in spy.seen if way == "up" and m.kind == "fit")
    assert set(up) == {*mixture, CONFIDENCE, VECTOR} and up[VECTOR].shape == (2 * 3 * 4,)
    ledger = (run.run_dir / "ledger.jsonl").read_text()
    assert CONFIDENCE in ledger and VECTOR in ledger
    loaded = load_model(run.run_dir, client=1, module=LitNodeClassifier(GCN(4))).state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in mixture.items())
