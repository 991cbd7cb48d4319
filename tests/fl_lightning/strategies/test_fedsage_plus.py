"""FedSage+ through the engine: what crosses (docs/papers/fedsage_plus.md#protocol), equality with FedSage and with one
process, resume, controls."""

import csv
import json

import pytest
import torch
from federations import Spy
from lightning import LightningDataModule

from datamodules import SyntheticCitationDataModule
from fl_lightning import FedAvg, FederatedTrainer, FedSagePlus
from fl_lightning.engine import InProcess, WorkerProcesses
from fl_lightning.engine.messages import Message, Payload
from lit_models import GraphSAGE, LitNodeClassifier
from lit_models.neighgen import LitNeighGen

CLIENTS, FEATURES, SLOTS, Z = 3, 60, 3, 16
GENERATOR = {"embedding_channels": Z, "num_slots": SLOTS, "hidden_channels": [12]}


def data(**options):
    settings = {"num_nodes": 240, "num_classes": 3, "num_features": FEATURES, "num_clients": CLIENTS, **options}
    return SyntheticCitationDataModule(**settings)


def plus(**options) -> FedSagePlus:
    generator = LitNeighGen(**GENERATOR, encoder=GraphSAGE(hidden_channels=8))
    settings = {"pretrain_steps": 4, "draws": 2, "exchange_rounds": 3, "min_batch": 4, "generator": generator, **options}
    return FedSagePlus(**settings)


def run(tmp_path, strategy, rounds=2, engine=None, ckpt_path=None, datamodule=None, **settings):
    trainer = FederatedTrainer(
        num_rounds=rounds,
        strategy=strategy,
        engine=engine,
        seed=3,
        **settings,
        trainer={"max_epochs": 2, "accelerator": "cpu", "default_root_dir": str(tmp_path), "logger": False},
    )
    module = LitNodeClassifier(GraphSAGE(hidden_channels=8))
    results = trainer.fit(module, datamodule or data(), ckpt_path)
    return results, {n: t.clone() for n, t in module.state_dict().items()}, trainer


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


@pytest.fixture(scope="module")
def spied(tmp_path_factory):
    """One run with a spy; its data module, and the generator's weights before and after are not needed elsewhere."""
    spy, datamodule = Spy(), data()
    results, weights, trainer = run(tmp_path_factory.mktemp("spied"), plus(), engine=spy, datamodule=datamodule)
    assert results["failures"] == []
    return spy, datamodule, results, weights, trainer


def test_only_the_whitelist_crosses(spied):
    """T10: kinds, names and shapes of docs/papers/fedsage_plus.md#protocol, and nothing else."""
    theta_f = {n: tuple(t.shape) for n, t in _generator().fgen.named_parameters()}
    classifier = {n: tuple(t.shape) for n, t in LitModel().state_dict().items()}
    kinds = set()
    for direction, message in spied[0].seen:
        kinds.add(message.kind)
        shapes = {n: tuple(t.shape) for n, t in message.payload.tensors.items()}
        match message.kind, direction:
            case "pretrain" | "mend", _:
                assert shapes == {}
            case "query", "down":
                assert shapes == {} and not message.payload.values
            case "query", "up":
                sent = shapes.pop("u")[0]
                assert shapes.pop("counts") == (sent,)
                assert shapes == {f"theta_f/{n}": s for n, s in theta_f.items()}
                assert message.payload.tensors["u"].shape == (sent, Z)
                assert set(message.payload.values) == {"num_nodes"}
            case "peer_gradient", "down":
                askers = {n.split("/")[0] for n in shapes}
                assert str(message.client) not in askers and len(askers) == CLIENTS - 1
                assert {n.split("/", 2)[1] for n in shapes} == {"u", "counts", "theta_f"}
            case "peer_gradient", "up":
                askers = {n.split("/")[0] for n in shapes}
                assert shapes == {f"{a}/{n}": s for a in askers for n, s in theta_f.items()}
                assert not message.payload.values
            case "exchange", "down":
                assert shapes == theta_f  # one list summed over the peers, never one per peer
            case "exchange", "up":
                assert shapes == {}
            case "fit", _:
                assert shapes == classifier
            case "evaluate", "down":
                assert shapes == classifier
            case "evaluate", "up":
                assert shapes == {}
            case _:
                raise AssertionError(f"{message.kind} {direction} is not in the whitelist")
    assert kinds == {"pretrain", "query", "peer_gradient", "exchange", "mend", "fit", "evaluate"}


def test_no_payload_row_equals_a_feature_row_of_any_client(spied):
    rows = torch.cat([c.data.x.to_dense() for c in spied[1].client_datamodules()]).unique(dim=0)
    rows = rows[rows.abs().sum(1) > 0]
    for _, message in spied[0].seen:
        for name, tensor in message.payload.tensors.items():
            if tensor.is_floating_point() and tensor.dim() >= 1 and tensor.shape[-1] % FEATURES == 0:
                chunks = tensor.reshape(-1, FEATURES)
                assert not any(bool((rows == chunk).all(1).any()) for chunk in chunks), (message.kind, name)


def test_no_request_below_min_batch(spied, tmp_path):
    for direction, message in spied[0].seen:
        if message.kind == "query" and direction == "up" and message.payload.tensors:
            assert int(message.payload.tensors["counts"].sum()) >= 4
    spy = Spy()
    results, _, _ = run(tmp_path, plus(min_batch=10_000), engine=spy)
    assert results["failures"] == []
    assert not any(m.payload.tensors for _, m in spy.seen if m.kind in ("query", "peer_gradient", "exchange"))


def test_the_ledger_lists_what_the_spy_saw(spied):
    lines = [json.loads(line) for line in (spied[4].run_dir / "ledger.jsonl").read_text().splitlines()]
    assert len(lines) == len(spied[0].seen)
    assert sorted((x["direction"], x["kind"], x["client"], x["bytes"]) for x in lines) == sorted(
        (d, m.kind, m.client, m.nbytes) for d, m in spied[0].seen
    )


def test_generated_neighbours_reach_the_classifier(spied, tmp_path):
    """Bug 2: with generated nodes that no real node hears, FedSage+ would equal FedSage."""
    assert not same(spied[3], run(tmp_path, FedAvg(weighting="uniform"))[1])


def test_hiding_nothing_is_fedsage_bit_for_bit(tmp_path):
    """Property f."""
    fed, plain = run(tmp_path / "a", plus(hide_portion=0.0)), run(tmp_path / "b", FedAvg(weighting="uniform"))
    assert same(fed[1], plain[1])
    assert fed[0]["test"] == plain[0]["test"]


def test_alpha_zero_exchanges_nothing_and_equals_local_generators(tmp_path):
    """Property e: phase 2 without the cross term is local training, whatever the other clients hold."""
    spy = Spy()
    run(tmp_path, plus(alpha=0.0), engine=spy)
    assert not any(m.payload.tensors for _, m in spy.seen if m.kind in ("query", "peer_gradient", "exchange"))
    refused = run(tmp_path / "b", plus(alpha=1.0, min_batch=10_000))  # asked, but never answered
    assert same(run(tmp_path / "c", plus(alpha=0.0))[1], refused[1])


@pytest.mark.parametrize(
    "engine",
    [lambda: InProcess(rebuild_clients=True), pytest.param(lambda: WorkerProcesses(num_workers=2), marks=pytest.mark.slow)],
)
def test_rebuilt_clients_and_worker_processes_give_the_same_bits(spied, tmp_path, engine):
    results, weights, _ = run(tmp_path, plus(), engine=engine())
    assert same(weights, spied[3])
    assert results["test"] == spied[2]["test"] and results["bytes"] == spied[2]["bytes"]


def test_the_encoder_does_not_reach_any_message_but_through_u(tmp_path):
    """T10: another theta^e with the same U would change nothing. A peer's answer does not depend on its own generator."""
    from fl_lightning.engine.client import ClientHalf, LocalSettings, Worker

    datamodule = data()
    datamodule.setup("fit")
    settings = LocalSettings(run="r", seed=3, num_rounds=1, trainer_args={"accelerator": "cpu"})
    half: ClientHalf = plus().client_half()
    worker = Worker(LitModel(), half, dict(enumerate(datamodule.client_datamodules())), settings)

    def ask(kind, client, tensors=None, **values):
        reply = worker.handle(Message(kind, "r", 0, client, Payload(tensors or {}, values)))
        assert reply.error is None, reply.error
        return reply.payload

    assert not ask("query", 0).tensors  # without phase 1 (it may have failed here) nobody asks with an untrained generator
    assert not ask("exchange", 0).values
    ask("pretrain", 0)
    query = ask("query", 0)
    question = {f"0/{n}": t for n, t in query.tensors.items()}
    first = ask("peer_gradient", 1, question, num_nodes={"0": query.values["num_nodes"]})
    ask("pretrain", 1)  # client 1's encoder, dGen and fGen are others now
    second = ask("peer_gradient", 1, question, num_nodes={"0": query.values["num_nodes"]})
    assert same(dict(first.tensors), dict(second.tensors))  # T9: and asking again changes nothing


class Stop(Exception):
    """Stands for a crash."""


class Crashing(FedSagePlus):
    """Ends the run in the given phase and step."""

    at = ("exchange", 1)

    def phases(self):
        from dataclasses import replace

        def step(phase):
            def crash(federation, index):
                if (phase.name, index) == self.at:
                    raise Stop
                return phase.step(federation, index)

            return replace(phase, step=crash)

        return [step(p) for p in super().phases()]


@pytest.mark.parametrize("at", [("generator", 1), ("exchange", 2), ("mending", 0)])
def test_resume_within_a_phase_gives_the_same_bits(spied, tmp_path, at):
    strategy = plus()
    strategy.__class__, strategy.at = Crashing, at
    with pytest.raises(Stop):
        run(tmp_path, strategy, name="crash")
    results, weights, trainer = run(tmp_path, plus(), ckpt_path="last", name="crash", force=True)
    assert same(weights, spied[3])
    seconds = ("seconds/train", "seconds/round")
    rows = [
        [{k: v for k, v in row.items() if k not in seconds} for row in csv.DictReader((folder / "metrics.csv").open())]
        for folder in (trainer.run_dir, spied[4].run_dir)
    ]
    assert rows[0] == rows[1]
    assert results["bytes"] == spied[2]["bytes"]


@pytest.mark.parametrize("mending", ["zero", "mean", "oracle", "none"])
def test_controls_run_and_differ_from_the_generator(spied, tmp_path, mending):
    results, weights, _ = run(tmp_path, plus(mending=mending))
    assert results["failures"] == [] and not same(weights, spied[3])
    if mending == "none":
        assert same(weights, run(tmp_path / "plain", FedAvg(weighting="uniform"))[1])


def test_known_counts_mend_as_many_as_are_missing_and_tell_nobody(spied, tmp_path):
    """Every node gets min(links elsewhere, P) neighbours; the exchange is bit for bit that of predicted counts."""
    spy, datamodule = Spy(), data()
    results, weights, _ = run(tmp_path, plus(counts="known"), engine=spy, datamodule=datamodule)
    assert results["failures"] == [] and not same(weights, spied[3])
    clients = datamodule.client_datamodules()
    assert max(int(client.links_elsewhere.max()) for client in clients) > SLOTS  # cut off at P
    for number, client in enumerate(clients):
        missing = client.links_elsewhere.clamp(max=SLOTS)
        mended = spy._worker.memos[number, "mended"][1].data
        owners = mended.edge_index[0][mended.edge_index[1] >= client.data.num_nodes]
        assert torch.equal(torch.bincount(owners, minlength=client.data.num_nodes), missing)
    before = [(d, m) for d, m in spied[0].seen if m.kind not in ("fit", "evaluate", "mend")]
    crossed = [(d, m) for d, m in spy.seen if m.kind not in ("fit", "evaluate", "mend")]
    assert len(crossed) == len(before)
    for (_, old), (_, new) in zip(before, crossed, strict=True):
        assert same(old.payload.tensors, new.payload.tensors)
    assert not any(m.payload.tensors for _, m in spy.seen if m.kind == "mend")


@pytest.mark.parametrize("mending", ["zero", "mean"])
def test_known_counts_and_constants_need_no_generator(tmp_path, mending):
    spy, options = Spy(), {"mending": mending, "counts": "known"}
    results, weights, _ = run(tmp_path / "a", plus(**options), engine=spy)
    assert results["failures"] == [] and {m.kind for _, m in spy.seen} == {"mend", "fit", "evaluate"}
    assert not same(weights, run(tmp_path / "b", plus(mending=mending))[1])
    assert same(weights, run(tmp_path / "c", plus(**options), engine=InProcess(rebuild_clients=True))[1])


def test_clients_that_do_not_know_their_links_elsewhere_are_refused_by_number():
    datamodule = data()
    datamodule.setup("fit")
    clients = datamodule.client_datamodules()
    unknowing = [clients[0], clients[1].with_data(clients[1].data)]
    with pytest.raises(ValueError, match=r"counts: known` needs .* clients \[1\] have no `links_elsewhere`"):
        plus(counts="known").check(LitModel(), unknowing, datamodule)
    plus(counts="known", mending="oracle").check(LitModel(), clients, datamodule)


def test_clients_that_cannot_hide_a_node_still_answer_and_join(tmp_path):
    """A client of one node: no generator of its own, no failure, no hang."""
    results, _, _ = run(tmp_path, plus(), datamodule=data(num_nodes=24, num_clients=8, partition="random"))
    assert results["failures"] == []


def test_figures_for_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = FederatedTrainer(
        num_rounds=1,
        strategy=plus(exchange_rounds=7),
        seed=3,
        trainer={"accelerator": "cpu", "default_root_dir": str(tmp_path)},
    )
    trainer.fit(LitNodeClassifier(GraphSAGE(hidden_channels=8)), data())
    events = EventAccumulator(str(trainer.run_dir), size_guidance={"images": 0, "scalars": 0}).Reload()
    tags = events.Tags()
    for name in ("train/count_loss", "train/feature_loss", "generator_error", "zero_error", "mean_error", "count_saturation"):
        assert f"generator/{name}" in tags["scalars"], name
    assert [e.step for e in events.Scalars("exchange/generator_error")] == [4, 6]  # every fifth round, and the last
    assert "exchange/missing_true_by_predicted" in tags["images"]
    assert "mending/mended_degrees" in tags["histograms"]


def test_without_diagnostics_no_figure_of_the_generator_leaves(tmp_path):
    spy = Spy()
    run(tmp_path, plus(diagnostics=False), engine=spy)
    assert all(not m.payload.values for d, m in spy.seen if d == "up" and m.kind in ("pretrain", "exchange", "mend"))


def test_other_data_modules_are_refused_in_yaml_names():
    with pytest.raises(ValueError, match="mends subgraphs.*LightningDataModule.*ClientGraphDataModule"):
        plus().check(LitModel(), [LightningDataModule()], None)


def test_features_that_cannot_be_generated_are_refused_before_round_one(tmp_path):
    """PubMed's TF-IDF goes beyond 1: a sigmoid cannot give that, and it is no single client's fault."""
    datamodule = data()
    datamodule.setup("fit")
    clients = datamodule.client_datamodules()
    large = clients[1].with_data(clients[1].data.clone())
    large.data.x = large.data.x * 1.5
    with pytest.raises(ValueError, match="generator` and client 1: Features go from .* to 1.5.*feature_range: identity"):
        plus(generator=LitNeighGen()).check(LitModel(), [clients[0], large], datamodule)
    plus(generator=LitNeighGen(feature_range="identity")).check(LitModel(), [clients[0], large], datamodule)


@pytest.mark.parametrize(
    ("option", "value"),
    [("hide_portion", 1.0), ("mending", "magic"), ("counts", "guessed"), ("min_batch", 0), ("alpha", -1.0), ("draws", 0)],
)
def test_impossible_options_are_refused(option, value):
    with pytest.raises(ValueError, match=option):
        FedSagePlus(**{option: value})


def _generator() -> LitNeighGen:
    generator = LitNeighGen(**GENERATOR, encoder=GraphSAGE(hidden_channels=8))
    generator.build({"num_features": FEATURES, "num_classes": 3})
    return generator


def LitModel() -> LitNodeClassifier:
    module = LitNodeClassifier(GraphSAGE(hidden_channels=8))
    module.build({"num_features": FEATURES, "num_classes": 3})
    return module
