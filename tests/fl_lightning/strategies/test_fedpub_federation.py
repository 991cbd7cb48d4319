"""FED-PUB through the engine: against a plain stacked loop, what crosses the border, what stays, what resumes.

Equations alone are in ``test_fedpub_equations.py``; masks and objective in ``tests/lit_models``.
"""

import csv
import json

import pytest
import torch
import torch.nn.functional as F
from federations import assert_same_bits, checkpoint_tensors, federate, without_times

from datamodules.planted import PlantedDataModule
from fl_lightning import FedAvg, FederatedTrainer, FedPub
from fl_lightning.engine import InProcess, WorkerProcesses
from fl_lightning.engine.client import Client, LocalSettings, Worker
from fl_lightning.engine.seeds import derive
from fl_lightning.engine.store import ClientStore
from fl_lightning.errors import FederationError
from fl_lightning.reporting.monitor import is_better
from fl_lightning.reporting.scores import summarise
from fl_lightning.strategies.fedpub import EMBEDDING, FedPubClient, proxy_graph
from fl_lightning.strategies.mixtures import cosine_similarity, similarity_weights
from lit_models import GraphSAGE, LitNodeClassifier, MaskedGCN
from lit_models.masked_gcn import GCNWithHead
from lit_models.objectives import ERM, MaskedProximal

FEATURES, CLASSES, HIDDEN = 40, 4, 8
MASKS = ("encoder.convs.0.lin.mask", "encoder.convs.1.lin.mask", "encoder.head.mask")
SHARED = {
    "encoder.convs.0.lin.weight": [HIDDEN, FEATURES], "encoder.convs.0.bias": [HIDDEN],
    "encoder.convs.1.lin.weight": [HIDDEN, HIDDEN], "encoder.convs.1.bias": [HIDDEN],
    "encoder.head.weight": [CLASSES, HIDDEN], "encoder.head.bias": [CLASSES],
}  # fmt: skip


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01, weight_decay=1e-6)


def model(dropout=0.0, objective=None, encoder=MaskedGCN):
    return LitNodeClassifier(
        encoder(HIDDEN, dropout=dropout), objective or MaskedProximal(l1=1e-4, l2=1e-2, l1_reduction="mean"), adam
    )


def graphs(clients=4, seed=0):
    return PlantedDataModule(
        num_clients=clients, num_groups=min(clients, 2), nodes_per_client=30, num_features=FEATURES, seed=seed,
        split="random_20_40_40",
    )  # fmt: skip


def run(folder, strategy=None, module=None, data=None, **federation):
    """A short federation which keeps all its checkpoints."""
    settings = {"num_rounds": 3, "keep_last": 99, "name": "fedpub", **federation}
    return federate(
        folder, model() if module is None else module, graphs() if data is None else data,
        strategy=FedPub() if strategy is None else strategy, **settings,
    )  # fmt: skip


def states(fed):
    """All tensors of the checkpoint after each round, by ``server.pt/...`` and ``client_0000k.pt/...``."""
    return [checkpoint_tensors(folder) for folder in sorted((fed.run_dir / "checkpoints").glob("round_*"))]


def ledger(fed):
    return [json.loads(line) for line in (fed.run_dir / "ledger.jsonl").read_text().splitlines()]


def mask(state, client, layer=0):
    return state[f"client_{client:05d}.pt/module/{MASKS[layer]}"]


# ---- EQ: the strategy is the mathematics -----------------------------------------------------------------------------


class Recording(FedPub):
    """Keeps the similarities and mixtures of every round."""

    def aggregate(self, federation, round, replies):
        super().aggregate(federation, round, replies)
        self.__dict__.setdefault("_seen", []).append((self._last["similarity"], dict(self._mixtures)))


def stacked_loop(weights, data, proxy, rounds, tau, l1, l2):
    """FED-PUB on dense matrices with all clients in one ``[K, P]`` tensor and one Adam; dropout 0, no engine.

    Yields the similarities and the mixed weights of each round.
    """
    shapes = list(SHARED.values())
    sizes = [torch.Size(s).numel() for s in shapes]
    K = len(data)
    flat = torch.cat([weights[n].reshape(-1) for n in SHARED]).repeat(K, 1).requires_grad_()
    matrices = [torch.Size(s).numel() for s in shapes[::2]]
    mu = torch.ones(K, sum(matrices), requires_grad=True)
    optimizer = torch.optim.Adam([flat, mu], lr=0.01, weight_decay=1e-6)

    def adjacency(graph):
        a = torch.eye(graph.num_nodes)
        a[graph.edge_index[1], graph.edge_index[0]] = 1.0
        return a / (a.sum(1)[:, None] * a.sum(0)[None]).sqrt()

    def network(a, x, k, prune):
        parts = [p.view(s) for p, s in zip(flat[k].split(sizes), shapes, strict=True)]
        m = torch.where(mu[k].abs() < 1e-3, 0.0, mu[k]) if prune else mu[k]
        m = [p.view(s) for p, s in zip(m.split(matrices), shapes[::2], strict=True)]
        hidden = (a @ x @ (parts[0] * m[0]).T + parts[1]).relu()
        z = a @ hidden @ (parts[2] * m[1]).T + parts[3]
        return z, z.relu() @ (parts[4] * m[2]).T + parts[5]

    sides = [(adjacency(g), g.x, g.y, g.train_mask) for g in data]
    random = adjacency(proxy), proxy.x
    for _ in range(rounds):
        received = [torch.cat(flat[k].detach().split(sizes)[::2]) for k in range(K)]
        loss = sum(
            F.cross_entropy(network(a, x, k, prune=False)[1][m], y[m])
            + l1 * mu[k].abs().mean()
            + l2 * (received[k] * mu[k] - received[k]).square().sum()
            for k, (a, x, y, m) in enumerate(sides)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            h = torch.stack([network(*random, k, prune=True)[0].mean(0) for k in range(K)])
            similarity = torch.stack([F.cosine_similarity(row[None], h) for row in h])
            alpha = (tau * similarity).exp()
            flat.copy_(alpha / alpha.sum(1, keepdim=True) @ flat)
        yield similarity, flat.detach().clone(), mu.detach().clone()


def check_eq(folder):
    data, module, rounds = graphs(), model(), 5
    data.setup()
    torch.manual_seed(3)
    module.build(data.schema)
    initial = {n: t.clone() for n, t in module.state_dict().items()}
    strategy = Recording(tau=3.0)
    fed = run(folder, strategy, module, data, num_rounds=rounds)
    proxy = proxy_graph(FEATURES, seed=derive(0, "fedpub proxy graph") % 2**31)
    clients = [c.data for c in data.client_datamodules()]
    plain = stacked_loop(initial, clients, proxy, rounds, tau=3.0, l1=1e-4, l2=1e-2)
    for (similarity, mixtures), (expected, flat, mu), state in zip(strategy._seen, plain, states(fed), strict=True):
        assert expected.min() < 0.99  # else any mixing would do
        torch.testing.assert_close(similarity, expected, atol=1e-6, rtol=0)
        for k, mixture in mixtures.items():
            ours = torch.cat([mixture[n].reshape(-1) for n in SHARED])
            torch.testing.assert_close(ours, flat[k], atol=1e-5, rtol=0)
            masks = torch.cat([mask(state, k, layer).reshape(-1) for layer in range(3)])
            torch.testing.assert_close(masks, mu[k], atol=1e-5, rtol=0)


def test_equals_a_plain_stacked_loop_eq(tmp_path):
    check_eq(tmp_path)


# ---- what crosses the border -----------------------------------------------------------------------------------------


def check_border(folder):
    fed = run(folder, num_rounds=2)
    floats = {n: ["float32", s] for n, s in SHARED.items()}
    lines = ledger(fed)
    for line in lines:
        expected = {}
        if line["kind"] == "fit":
            expected = floats if line["direction"] == "down" else {**floats, EMBEDDING: ["float32", [HIDDEN]]}
        assert line["tensors"] == expected
    assert {line["kind"] for line in lines} == {"fit", "evaluate"}
    numbers = sum(torch.Size(s).numel() for s in SHARED.values())
    fits = [line for line in lines if line["kind"] == "fit"]
    assert len(fits) == 2 * 2 * 4
    for line in fits:  # 4 bytes a number; the rest is the loss, mask statistics and the number of samples as JSON
        extra = line["bytes"] - 4 * (numbers + (HIDDEN if line["direction"] == "up" else 0))
        assert 0 <= extra < (700 if line["direction"] == "up" else 10)


def test_the_ledger_shows_weights_and_embedding_and_no_mask(tmp_path):
    check_border(tmp_path)


def worker(half, **options):
    data = graphs()
    data.setup()
    module = model(**options)
    torch.manual_seed(0)
    module.build(data.schema)
    settings = LocalSettings("run", 0, 1, {"accelerator": "cpu", "max_epochs": 1}, module.private_entries)
    return Worker(module, half, dict(enumerate(data.client_datamodules())), settings)


@pytest.mark.parametrize("mixes", ["raw", "masked"])
def test_only_the_embedding_shows_a_change_of_the_mask(mixes):
    site = worker(FedPubClient(mixes, 0.1, 0.0))
    replies = []
    for factor in (1.0, 0.5):
        client = Client(site, 0, 0, ClientStore())
        client.store.put_section("module", {n: factor * site.initial[n] for n in MASKS})
        client.load({n: site.initial[n] for n in SHARED})
        replies.append(site.half.reply_tensors(client))
    first, second = replies
    assert [(n, t.dtype, t.shape) for n, t in first.items()] == [(n, t.dtype, t.shape) for n, t in second.items()]
    changed = {n for n, t in first.items() if not torch.equal(t, second[n])}
    matrices = {n for n in SHARED if n.endswith("weight")} if mixes == "masked" else set()
    assert changed == {EMBEDDING} | matrices
    for name in matrices:  # theta = W * mu
        torch.testing.assert_close(second[name], 0.5 * first[name])


def test_masked_aggregation_mixes_w_times_mu(tmp_path):
    module = model()
    strategy = Recording(tau=0.0, aggregate="masked")
    (state,) = states(run(tmp_path, strategy, module, num_rounds=1))
    name = "encoder.head.weight"
    theta = [state[f"client_{k:05d}.pt/module/{name}"] * mask(state, k, 2) for k in range(4)]
    torch.testing.assert_close(strategy._mixtures[2][name], torch.stack(theta).mean(0))


# ---- what stays ------------------------------------------------------------------------------------------------------


def check_masks_start_at_one(folder):
    state = states(run(folder, num_rounds=1))[0]
    for client in range(4):  # one Adam step moves an entry by its lr at most; a mask already moved would show .02
        for layer in range(3):
            moved = (mask(state, client, layer) - 1).abs().max()
            assert 0.005 < moved <= 0.01 * 1.001


def test_clients_that_visit_one_worker_in_turn_start_with_masks_of_one(tmp_path):
    check_masks_start_at_one(tmp_path)


def test_another_clients_update_changes_no_mask(tmp_path):
    masks = []
    for name, shift in (("a", 0), ("b", 1)):
        data = graphs()
        data.setup()
        other = data.client_datamodules()[1].data
        other.y = (other.y + shift) % CLASSES
        states_ = states(run(tmp_path / name, data=data, num_rounds=1))
        masks.append([[mask(states_[0], k, layer) for layer in range(3)] for k in range(4)])
    for k in (0, 2, 3):  # also those that come after client 1 on the same worker
        assert all(torch.equal(a, b) for a, b in zip(masks[0][k], masks[1][k], strict=True))
    assert not torch.equal(masks[0][1][2], masks[1][1][2])


def test_absent_clients_keep_mixture_mask_and_adam(tmp_path):
    fed = run(tmp_path, num_rounds=5, clients_per_round=0.5)
    saved, absences = states(fed), 0
    fits = [line for line in ledger(fed) if line["kind"] == "fit" and line["direction"] == "up"]
    for round in range(1, 5):
        present = {line["client"] for line in fits if line["round"] == round}
        assert len(present) == 2
        for client in set(range(4)) - present:
            own = (f"client_{client:05d}.pt/", f"server.pt/{client}/")
            before, after = ({n: t for n, t in s.items() if n.startswith(own)} for s in saved[round - 1 : round + 1])
            assert_same_bits(before, after)
            absences += bool(before)
        for client in present:
            name = f"server.pt/{client}/encoder.head.weight"
            assert name not in saved[round - 1] or not torch.equal(saved[round - 1][name], saved[round][name])
    assert absences > 0
    assert all(score is not None for score in fed.results["last"]["test"]["per_client"])


def test_adam_goes_on_where_the_client_stopped(tmp_path):
    final = states(run(tmp_path, num_rounds=3, clients_per_round=0.5))[-1]
    rounds = {int(name[7:12]): int(t) for name, t in final.items() if name.endswith("/step") and "optimizer/" in name}
    assert sum(rounds.values()) == 3 * 2 and max(rounds.values()) > 1  # steps of each client = rounds it took part in


# ---- special cases ---------------------------------------------------------------------------------------------------


def test_tau_zero_is_fedavg_of_the_same_model(tmp_path):
    personal = states(run(tmp_path / "a", FedPub(tau=0.0)))
    average = states(run(tmp_path / "b", FedAvg(weighting="uniform"), carry_optimizer_state=True))
    for mine, theirs in zip(personal, average, strict=True):
        for name in SHARED:
            for client in range(4):
                torch.testing.assert_close(mine[f"server.pt/{client}/{name}"], theirs[f"server.pt/{name}"], atol=1e-6, rtol=0)
                torch.testing.assert_close(mask(mine, client), mask(theirs, client), atol=1e-6, rtol=0)


def test_one_client_gets_its_own_weights_back(tmp_path):
    for state in states(run(tmp_path, data=graphs(1))):
        for name in SHARED:
            assert torch.equal(state[f"server.pt/0/{name}"], state[f"client_00000.pt/module/{name}"])


def test_the_reference_profile_is_plain_erm_and_the_default_is_not(tmp_path):
    last = [
        states(run(tmp_path / str(i), module=model(0.5, objective)))[-1]
        for i, objective in enumerate((MaskedProximal(l1=0.0, l2=0.0), ERM(), MaskedProximal()))
    ]
    assert_same_bits(last[0], last[1])
    assert not torch.equal(mask(last[0], 0), mask(last[2], 0))


# ---- same bits -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return run(tmp_path_factory.mktemp("run"), module=model(0.5), **SAMPLED)


SAMPLED = {"num_rounds": 4, "clients_per_round": 0.75}


def test_going_on_gives_the_same_bits(uninterrupted, tmp_path):
    run(tmp_path, module=model(0.5), **{**SAMPLED, "num_rounds": 2})
    torch.manual_seed(0)
    fed = FederatedTrainer(
        trainer={"max_epochs": 1, "accelerator": "cpu", "logger": False, "default_root_dir": str(tmp_path)},
        strategy=FedPub(), seed=0, keep_last=99, name="fedpub", **SAMPLED,
    )  # fmt: skip
    fed.fit(model(0.5), graphs(), ckpt_path="last")
    assert_same_bits(states(uninterrupted)[-1], states(fed)[-1])
    assert without_times(fed.results) == without_times(uninterrupted.results)


@pytest.mark.parametrize(
    "engine",
    [pytest.param(WorkerProcesses(2), marks=pytest.mark.slow), InProcess(rebuild_clients=True)],  # else: test_same_bits.py
    ids=["processes", "rebuilt"],
)
def test_worker_processes_and_rebuilt_clients_give_the_same_bits(uninterrupted, tmp_path, engine):
    fed = run(tmp_path, module=model(0.5), engine=engine, **SAMPLED)
    for mine, theirs in zip(states(fed), states(uninterrupted), strict=True):
        assert_same_bits(mine, theirs)
    assert without_times(fed.results) == without_times(uninterrupted.results)


# ---- scores and pictures ---------------------------------------------------------------------------------------------


def test_unweighted_client_mean_o9():
    # Correct 2 of 2 and 3 of 6: the clients' mean is .75; over the nodes it would be 5 / 8.
    assert summarise("accuracy", "max", None, [{"accuracy": 2 / 2}, {"accuracy": 3 / 6}])["mean"] == 0.75


def test_test_score_at_the_first_best_validation_round_o10():
    val, test, best = [0.5, 0.7, 0.7, 0.6], [0.4, 0.6, 0.65, 0.9], None
    for round, value in enumerate(val):
        if is_better(value, None if best is None else val[best], "max"):
            best = round
    assert best is not None and test[best] == 0.6


def test_scores_are_of_each_clients_own_model_after_its_local_step(tmp_path):
    data, module = graphs(), model(0.5)
    fed = run(tmp_path, module=module, data=data, num_rounds=6)
    with (fed.run_dir / "metrics.csv").open() as file:
        curve = [float(row["val/clients_mean"]) for row in csv.DictReader(file)]
    assert fed.results["best_round"] == curve.index(max(curve))  # the first of the best
    assert fed.results["val"]["mean"] == pytest.approx(max(curve))
    for key, state in (("last", states(fed)[-1]), ("best", states(fed)[fed.results["best_round"]])):
        scores = []
        for client, own in enumerate(data.client_datamodules()):
            start = f"client_{client:05d}.pt/module/"
            module.load_state_dict({n.removeprefix(start): t for n, t in state.items() if n.startswith(start)})
            graph = own.data
            with torch.no_grad():
                right = module.eval()(graph).argmax(1) == graph.y
            scores.append(right[graph.test_mask].double().mean().item())
        found = (fed.results["last"]["test"] if key == "last" else fed.results["test"])["per_client"]
        assert found == pytest.approx(scores)


def test_tensorboard_has_heat_maps_masks_and_clients(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fed = federate(
        tmp_path, model(), graphs(), {"logger": True}, num_rounds=2, strategy=FedPub(), name="fedpub"
    )  # fmt: skip
    events = EventAccumulator(str(fed.run_dir), size_guidance={"images": 0, "scalars": 0})
    events.Reload()
    for name in ("fedpub/similarity", "fedpub/alpha"):
        assert [e.step for e in events.Images(name)] == [0, 1]
    scalars = events.Tags()["scalars"]
    for client in range(4):
        for layer in ("encoder.convs.0.lin", "encoder.convs.1.lin", "encoder.head"):
            assert {f"clients/{client}/mask/{layer}/{what}" for what in ("sparsity", "mean")} <= set(scalars)
        assert {f"clients/{client}/{x}" for x in ("train/loss", "train/proximal", "val/accuracy")} <= set(scalars)


# ---- a planted federation --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Similarities, alphas and results of FED-PUB, and FedAvg's results, on six clients in two groups."""

    def data():
        return PlantedDataModule(num_clients=6, num_groups=2, split="random_20_40_40")

    class Keeps(FedPub):
        def aggregate(self, federation, round, replies):
            super().aggregate(federation, round, replies)
            self.__dict__.setdefault("_alphas", []).append(self._last["alpha"])

    folder, settings = tmp_path_factory.mktemp("planted"), {"num_rounds": 20, "check_val_every_n_rounds": 20}
    strategy = Keeps(tau=10.0)
    module = LitNodeClassifier(MaskedGCN(128), MaskedProximal(), adam)
    fedpub = federate(folder / "a", module, data(), strategy=strategy, **settings)
    fedavg = federate(
        folder / "b", LitNodeClassifier(GCNWithHead(128), ERM(), adam), data(),
        strategy=FedAvg(weighting="uniform"), carry_optimizer_state=True, **settings,
    )  # fmt: skip
    return strategy._alphas, fedpub.results, fedavg.results


def test_planted_groups_are_recovered(planted):
    group = torch.tensor([0, 0, 0, 1, 1, 1])
    same = group[:, None] == group
    others = ~torch.eye(6, dtype=torch.bool)
    for alpha in planted[0]:
        assert alpha[same & others].mean() > 3 * alpha[~same].mean()
    assert [set(row.topk(3).indices.tolist()) for row in planted[0][-1]] == [{0, 1, 2}] * 3 + [{3, 4, 5}] * 3


def test_fedpub_beats_fedavg_on_planted_groups(planted):
    _, fedpub, fedavg = planted
    assert fedpub["last"]["test"]["mean"] >= fedavg["last"]["test"]["mean"] + 0.05


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_a_model_without_masks_is_refused_with_what_to_write(tmp_path):
    with pytest.raises(ValueError) as error:
        run(tmp_path, module=LitNodeClassifier(GraphSAGE(8)))
    assert str(error.value) == (
        "`FedPub` learns personal masks, but `LitNodeClassifier` has no parameter named `*.mask`. "
        "Use `model.init_args.encoder: lit_models.MaskedGCN`, or `federation.strategy: FedAvg`."
    )


def test_masks_that_are_not_private_are_refused(tmp_path):
    module = model()
    module.private_entries = ()
    with pytest.raises(ValueError, match="Masks would leave the clients: encoder.convs.0.lin.mask"):
        run(tmp_path, module=module)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"tau": float("nan")}, "init_args.tau` must be a finite number, got nan"),
        ({"aggregate": "mean"}, "init_args.aggregate` must be `raw` or `masked`, got `mean`"),
        ({"p_in": 1.5}, "init_args.p_in` is a probability, from 0 to 1, got 1.5"),
        ({"p_out": -0.1}, "init_args.p_out` is a probability"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(ValueError, match=text):
        FedPub(**arguments)


# ---- mutants: with the bug in, the oracle fails ----------------------------------------------------------------------


def _keeps_the_last_clients_mask(self, received):
    known = {**self.store.section("module"), **received}
    live = {n: t for n, t in self._worker.entries.get(MASKS).items()}
    self._worker.entries.set({**{n: t for n, t in self._worker.initial.items() if n not in known}, **live, **known})


def _without_self(embeddings, tau, senders=None):
    return torch.softmax((tau * cosine_similarity(embeddings)).fill_diagonal_(-torch.inf), dim=-1)


HERE, MIXTURES = "fl_lightning.strategies.fedpub", "fl_lightning.strategies.mixtures"
MUTANTS = {
    "Adam's state reset": ((FedPub, "carry_optimizer_state", False), check_eq),
    "previous client's mask reused": ((Client, "load", _keeps_the_last_clients_mask), check_masks_start_at_one),
    "embedding uploaded twice": (
        (FedPubClient, "reply_tensors", lambda self, client: {**client.upload(), EMBEDDING: torch.ones(2 * HIDDEN)}),
        check_border,
    ),
    "nothing mixed": ((f"{MIXTURES}.personal_average", lambda alpha, stacked: stacked), check_eq),
    "tau dropped": ((f"{MIXTURES}.similarity_weights", lambda h, tau, senders=None: similarity_weights(h, 1.0)), check_eq),
    "self left out": ((f"{MIXTURES}.similarity_weights", _without_self), check_eq),
    "penalties detached": (
        (MaskedProximal, "penalties", lambda self, module: {n: t.detach() for n, t in PENALTIES(self, module).items()}),
        check_eq,
    ),
    "embedding before the first layer's end": (
        (f"{HERE}.functional_embedding", lambda encoder, x, edges: encoder.convs[0](x, edges).detach().mean(0)),
        check_eq,
    ),
}  # fmt: skip
PENALTIES = MaskedProximal.penalties


@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_oracle_fails_with_the_bug_in(mutant, monkeypatch, tmp_path):
    bug, oracle = MUTANTS[mutant]
    monkeypatch.setattr(*bug)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        oracle(tmp_path)


def test_a_client_that_uploads_its_masks_is_left_out(monkeypatch, tmp_path):
    honest = FedPubClient.reply_tensors

    def leaks(self, client):
        return {**honest(self, client), **client._worker.entries.get(MASKS)}

    monkeypatch.setattr(FedPubClient, "reply_tensors", leaks)
    with pytest.raises(FederationError, match=r"does not fit the model: .*unexpected: \['encoder.convs.0.lin.mask'"):
        run(tmp_path, num_rounds=1)
