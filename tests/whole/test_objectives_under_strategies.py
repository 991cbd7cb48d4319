"""A local objective under a server strategy it was not published with: FLIT under FED-PUB, FedProx under FedSage+."""

import pytest
import torch
from federations import federate

from datamodules import SyntheticCitationDataModule
from fl_lightning import FedPub, FedSagePlus
from lit_models import GraphSAGE, LitNeighGen, LitNodeClassifier, MaskedGCN
from lit_models.objectives import FLIT, FedProx, MaskedProximal


def citation():
    return SyntheticCitationDataModule(num_nodes=150, num_classes=3, num_features=30, num_clients=3)


def run(folder, encoder, objective, strategy, **federation):
    """Weights of the server after each round, what each client logged in the last one, and names of what was sent."""
    states, logged, uploads = [], {}, set()
    aggregate = strategy.aggregate

    def watch(federation, round, replies):
        logged.update({client: reply.values["metrics"] for client, reply in replies.items()})
        uploads.update(name for reply in replies.values() for name in reply.tensors)
        aggregate(federation, round, replies)
        states.append({name: tensor.clone() for name, tensor in strategy.state().items()})

    strategy.aggregate = watch
    settings = {"num_rounds": 3, "trainer": {"max_epochs": 3}, **federation}
    fed = federate(folder, lambda: LitNodeClassifier(encoder(), objective()), citation(), strategy=strategy, **settings)
    assert fed.results["failures"] == [] and len(logged) == 3
    return states, logged, uploads


def differ(first, second):
    """Of two runs: after the last round."""
    return any(not torch.equal(tensor, second[-1][name]) for name, tensor in first[-1].items())


@pytest.mark.parametrize("with_mask_terms", [False, True])
def test_flit_under_fedpub(tmp_path, with_mask_terms):
    def masked():
        return MaskedGCN(8, dropout=0.0)

    def objective(**options):
        return MaskedProximal(l2=1e-3, base=FLIT(**options)) if with_mask_terms else FLIT(**options)

    flit, logged, uploads = run(tmp_path, masked, objective, FedPub())
    for metrics in logged.values():
        assert 0 <= metrics["train/less_sure"] <= 1 and 0 < metrics["train/lr_factor"] < 1
    assert not any("mask" in name for name in uploads)  # masks stay, whatever the objective is
    plain, _, _ = run(tmp_path, masked, lambda: objective(gamma=0.0), FedPub())
    warm, logged, _ = run(tmp_path, masked, lambda: objective(warmup_rounds=3), FedPub())
    assert differ(flit, plain)
    assert not differ(warm, plain) and not any("train/less_sure" in metrics for metrics in logged.values())


def test_fedprox_under_fedsage_plus(tmp_path):
    def strategy():
        generator = LitNeighGen(embedding_channels=8, num_slots=2, hidden_channels=[8], encoder=GraphSAGE(hidden_channels=8))
        return FedSagePlus(generator=generator, pretrain_steps=2, draws=1, exchange_rounds=1, min_batch=4)

    def moved(states):
        """In the second round; the first one is without the term."""
        return sum(float((states[1][name] - weight).square().sum()) for name, weight in states[0].items())

    def sage():
        return GraphSAGE(hidden_channels=8)

    results = {}
    for mu in (None, 0.0, 1.0, 1000.0):
        objective = (lambda: None) if mu is None else (lambda mu=mu: FedProx(mu=mu))
        results[mu] = run(tmp_path, sage, objective, strategy(), num_rounds=2)
    assert not differ(results[None][0], results[0.0][0])  # mu = 0 is FedSage+ itself, bit for bit
    assert all(metrics["train/proximal"] > 0 for metrics in results[1.0][1].values())
    assert 0 < moved(results[1000.0][0]) < moved(results[1.0][0]) < moved(results[0.0][0])


def test_weights_by_scaffold_reach_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from datamodules import ChEMBLDataModule
    from fl_lightning import FedAvg
    from lit_models import GINMolecule, LitMoleculePredictor

    sent = {}

    class Watches(FedAvg):
        def aggregate(self, federation, round, replies):
            sent[round] = [reply.values.get("pictures") for reply in replies.values()]
            super().aggregate(federation, round, replies)

    data = ChEMBLDataModule(num_clients=2, cache_dir=str(tmp_path))
    fed = federate(
        tmp_path, lambda: LitMoleculePredictor(GINMolecule(8), FLIT()), data, strategy=Watches(),
        num_rounds=2, trainer={"max_epochs": 1, "logger": True},
    )  # fmt: skip
    assert sent[0] == [None, None]  # warm-up: nothing is weighted, nothing is sent
    scaffolds = [len(client.part("train").molecules.scaffold.unique()) for client in data.client_datamodules()]
    assert [sum(pictures["weight_by_scaffold"]) for pictures in sent[1]] == scaffolds
    events = EventAccumulator(str(fed.run_dir)).Reload()
    (drawn,) = events.Histograms("train/weight_by_scaffold")
    assert drawn.step == 1 and drawn.histogram_value.num == sum(scaffolds)
    assert 0 < drawn.histogram_value.min < drawn.histogram_value.max < 1
