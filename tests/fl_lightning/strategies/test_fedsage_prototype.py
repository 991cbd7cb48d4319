"""FedSagePrototype through the engine: what crosses, what the graphs become, same bits everywhere, resume, memory."""

import csv

import pytest
import torch
from federations import Spy
from torch_geometric.utils import degree

from datamodules import SyntheticCitationDataModule
from datamodules.prototypes import class_sums, prototypes
from fl_lightning import FedAvg, FederatedTrainer, FedSagePlus, FedSagePrototype
from fl_lightning.engine import InProcess, WorkerProcesses
from fl_lightning.strategies.prototypes import Prototypes
from lit_models import GraphSAGE, LitNodeClassifier
from lit_models.neighgen import LitNeighGen

CLIENTS, CLASSES, FEATURES = 3, 3, 60


def data(**options):
    settings = {"num_nodes": 240, "num_classes": CLASSES, "num_features": FEATURES, "num_clients": CLIENTS, **options}
    return SyntheticCitationDataModule(**settings)


def proto(**options):
    return FedSagePrototype(**{"counts": "mean", "warm_up": 0.25, "every": 2, **options})


def run(tmp_path, strategy, rounds=4, engine=None, ckpt_path=None, datamodule=None, module=None, **settings):
    trainer = FederatedTrainer(
        num_rounds=rounds, strategy=strategy, engine=engine, seed=3, **settings,
        trainer={"max_epochs": 1, "accelerator": "cpu", "default_root_dir": str(tmp_path), "logger": False},
    )  # fmt: skip
    module = module or LitNodeClassifier(GraphSAGE(hidden_channels=8))
    results = trainer.fit(module, datamodule or data(), ckpt_path)
    return results, {n: t.clone() for n, t in module.state_dict().items()}, trainer


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


@pytest.fixture(scope="module")
def spied(tmp_path_factory):
    spy, datamodule = Spy(), data()
    results, weights, trainer = run(tmp_path_factory.mktemp("spied"), proto(), engine=spy, datamodule=datamodule)
    assert results["failures"] == []
    return spy, datamodule, results, weights, trainer


def test_only_sums_counts_and_weights_cross(spied):
    classifier = {n: tuple(t.shape) for n, t in spied[3].items()}
    up = {"features": (CLASSES, FEATURES), "nodes": (CLASSES,), "links": (CLASSES, CLASSES)}
    told = {
        ("class_sums", "down"): {}, ("class_sums", "up"): up, ("mend", "up"): {},
        ("mend", "down"): {"mu": (CLASSES, FEATURES), "transitions": (CLASSES, CLASSES)},
        ("fit", "down"): classifier, ("fit", "up"): classifier, ("evaluate", "down"): classifier, ("evaluate", "up"): {},
    }  # fmt: skip
    found = {(m.kind, way): {n: tuple(t.shape) for n, t in m.payload.tensors.items()} for way, m in spied[0].seen}
    assert found == told
    values = {frozenset(m.payload.values) for way, m in spied[0].seen if (m.kind, way) == ("class_sums", "up")}
    assert values == {frozenset({"num_nodes", "links_elsewhere"})}


def test_no_class_of_fewer_training_nodes_is_told(tmp_path):
    spy, datamodule = Spy(), data(num_nodes=150)
    run(tmp_path, proto(min_nodes=12), engine=spy, datamodule=datamodule, rounds=1)
    sums = {m.client: m.payload.tensors for way, m in spy.seen if (m.kind, way) == ("class_sums", "up")}
    left_out = 0
    for client, part in enumerate(datamodule.client_datamodules()):
        own = torch.bincount(part.data.y[part.data.train_mask], minlength=CLASSES)
        few = own < 12
        left_out += int((few & (own > 0)).sum())
        assert not sums[client]["features"][few].any() and not sums[client]["nodes"][few].any()
        assert not sums[client]["links"][few].any() and not sums[client]["links"][:, few].any()
    assert left_out


def test_each_node_gets_the_neighbours_that_its_classes_and_the_prototypes_say(spied):
    """The graph of the last look, made again from the equations and from what the client has kept."""
    spy, datamodule = spied[0], spied[1]
    parts = datamodule.client_datamodules()
    sums = [class_sums(part.data, CLASSES, 3) for part in parts]
    mu, transitions = prototypes(*(sum(s[name] for s in sums) for name in ("features", "nodes", "links")))
    missing = sum(int(p.links_elsewhere.sum()) for p in parts) / sum(p.data.num_nodes for p in parts)
    for client, part in enumerate(parts):
        store, mended = spy._worker.stores[client], spy._worker.memos[client, "mended"][1].data
        assert store.values["looked"] in (1, 3)  # of the best round
        q, nodes = store.section("classes")["q"], part.data.num_nodes
        torch.testing.assert_close(q.sum(1), torch.ones(nodes))
        count = max(1, round(missing))
        assert mended.num_nodes == nodes * (1 + count)
        wanted = (q @ (transitions @ mu)).repeat_interleave(count, 0)
        torch.testing.assert_close(mended.x[nodes:], wanted, rtol=1e-5, atol=1e-7)
        assert torch.equal(
            degree(mended.edge_index[0], mended.num_nodes)[:nodes], degree(part.data.edge_index[0], nodes) + count
        )
        assert not mended.train_mask[nodes:].any() and (mended.y[nodes:] == -1).all()


def test_until_the_warm_up_is_over_it_is_fedsage_bit_for_bit(tmp_path):
    def scores(strategy, name):
        folder = run(tmp_path, strategy, name=name)[2].run_dir
        rows = list(csv.DictReader((folder / "metrics.csv").open()))
        return [
            {k: v for k, v in row.items() if not k.startswith(("seconds/", "bytes/", "mending/"))}
            for row in rows
            if row["bytes/up"]
        ]

    mended, plain = scores(proto(warm_up=0.75), "mended"), scores(FedAvg("uniform"), "plain")
    assert (
        len(plain) == 4 and any("accuracy" in name for name in plain[0]) and mended[:3] == plain[:3] and mended[3] != plain[3]
    )


def test_labels_of_training_nodes_are_their_classes_if_asked(tmp_path):
    spy, datamodule = Spy(), data()
    run(tmp_path, proto(labels=True), engine=spy, datamodule=datamodule, rounds=1)
    for client, part in enumerate(datamodule.client_datamodules()):
        q, train = spy._worker.stores[client].section("classes")["q"], part.data.train_mask
        assert torch.equal(q[train], torch.nn.functional.one_hot(part.data.y[train], CLASSES).float())
        assert (q[~train].max(1).values < 1).all()


def test_known_counts_and_training_nodes_only(tmp_path):
    spy, datamodule = Spy(), data()
    run(tmp_path, proto(counts="known", nodes="train"), engine=spy, datamodule=datamodule, rounds=1)
    for client, part in enumerate(datamodule.client_datamodules()):
        wanted = torch.where(part.data.train_mask, part.links_elsewhere.clamp(max=5), 0)
        assert spy._worker.memos[client, "mended"][1].data.num_nodes == part.data.num_nodes + int(wanted.sum())


def test_fedsage_plus_mends_with_prototypes_to_the_same_bits(tmp_path):
    options = {"counts": "known", "mending": "prototype", "prototypes": Prototypes(warm_up=0.25, every=2)}
    assert same(run(tmp_path / "a", FedSagePlus(**options))[1], run(tmp_path / "b", proto(counts="known"))[1])


def test_predicted_counts_train_dgen_and_no_exchange(tmp_path):
    generator = LitNeighGen(embedding_channels=8, num_slots=3, hidden_channels=[12], encoder=GraphSAGE(hidden_channels=8))
    spy = Spy()
    strategy = proto(counts="predicted", generator=generator, pretrain_steps=50)
    assert [phase.name for phase in strategy.phases()] == ["generator", "mending"]
    results = run(tmp_path, strategy, engine=spy, rounds=1)[0]
    assert results["failures"] == [] and {"pretrain", "class_sums"} <= {m.kind for _, m in spy.seen}
    assert not {"query", "exchange"} & {m.kind for _, m in spy.seen}


def test_rebuilt_clients_give_the_same_bits(spied, tmp_path):
    results, weights, _ = run(tmp_path, proto(), engine=InProcess(rebuild_clients=True))
    assert same(weights, spied[3]) and results["test"] == spied[2]["test"]


@pytest.mark.slow
def test_worker_processes_give_the_same_bits(spied, tmp_path):
    results, weights, _ = run(tmp_path, proto(), engine=WorkerProcesses(num_workers=2))
    assert same(weights, spied[3]) and results["test"] == spied[2]["test"]


class Stop(Exception):
    """Stands for a crash."""


class Crashing(FedSagePrototype):
    def round(self, federation, round, clients):
        if round == 2:
            raise Stop
        return super().round(federation, round, clients)


def test_a_run_that_ended_after_a_look_goes_on_to_the_same_bits(spied, tmp_path):
    with pytest.raises(Stop):
        run(tmp_path, Crashing(counts="mean", warm_up=0.25, every=2), name="crash")
    results, weights, _ = run(tmp_path, proto(), ckpt_path="last", name="crash", force=True)
    assert same(weights, spied[3]) and results["test"] == spied[2]["test"]


def test_graphs_of_earlier_looks_are_let_go(tmp_path):
    spy = Spy()
    run(tmp_path, proto(every=1, warm_up=0.0), engine=spy, rounds=6)
    local = spy._worker.local
    assert len(local._data) <= 2 * CLIENTS  # the clients' own graphs and the mended ones
    assert len(local.clock._replayed) <= CLIENTS


def test_a_predict_step_without_probabilities_is_told_by_client(tmp_path):
    class Silent(LitNodeClassifier):
        def predict_step(self, batch, batch_idx):
            return {"classes": self(batch).argmax(-1)}

    with pytest.raises(Exception, match=r"`Silent.predict_step` does not give a dict with `probabilities`"):
        run(tmp_path, proto(warm_up=0.0), module=Silent(GraphSAGE(hidden_channels=8)), rounds=1)


@pytest.mark.parametrize(("mending", "counts"), [("generator", "mean"), ("zero", "one"), ("mean", "any")])
def test_counts_that_are_the_same_for_all_nodes_go_with_prototypes_only(mending, counts):
    said = f"init_args.counts: {counts}` goes with `mending: prototype` only, got `mending: {mending}"
    with pytest.raises(ValueError, match=said):
        FedSagePlus(counts=counts, mending=mending)


@pytest.mark.parametrize("knows", [True, False])
def test_by_default_each_node_that_misses_any_gets_one_neighbour_and_every_node_where_none_is_known(tmp_path, knows):
    class Unknowing(SyntheticCitationDataModule):
        def client_datamodules(self):
            parts = super().client_datamodules()
            for part in parts:
                part.links_elsewhere = None
            return parts

    kind = SyntheticCitationDataModule if knows else Unknowing
    spy, datamodule = Spy(), kind(num_nodes=240, num_classes=CLASSES, num_features=FEATURES, num_clients=CLIENTS)
    run(tmp_path, FedSagePrototype(), engine=spy, datamodule=datamodule, rounds=1)
    for client, part in enumerate(datamodule.client_datamodules()):
        mended = spy._worker.memos[client, "mended"][1].data
        nodes = part.data.num_nodes
        missing = part.links_elsewhere > 0 if knows else torch.ones(nodes, dtype=torch.bool)
        assert 0 < int(missing.sum()) and (not knows or int(missing.sum()) < nodes)
        added = degree(mended.edge_index[0], mended.num_nodes)[:nodes] - degree(part.data.edge_index[0], nodes)
        assert torch.equal(added.long(), missing.long())
