"""FedChem's objectives in a federation: the same bits wherever clients live, private memory that stays and resumes."""

import pytest
import torch
from federations import assert_same_bits, checkpoint_tensors, federate, last_checkpoint, without_times

from datamodules import SyntheticCitationDataModule
from datamodules.molecules import ChEMBLDataModule
from fl_lightning import FedAvg, FederatedTrainer
from fl_lightning.engine import InProcess, WorkerProcesses
from fl_lightning.engine.sampling import participants
from lit_models import GINMolecule, GraphSAGE, LitMoleculePredictor, LitNodeClassifier
from lit_models.objectives import ERM, FLIT, MOON, FedFocal, FedProx, FedVAT, FLITPlus

RIVALS = {
    "FedProx": lambda: FedProx(mu=1.0), "MOON": lambda: MOON(mu=5.0), "FedFocal": FedFocal,
    "FedVAT": lambda: FedVAT(lam=1.0), "FLIT": FLIT, "FLIT+": FLITPlus,
    "all": lambda: FedProx(base=MOON(base=FedVAT(base=FLITPlus()))),
}  # fmt: skip


def citation(**options):
    sizes = {"num_nodes": 120, "num_classes": 3, "num_features": 30, "num_clients": 3, "blocks_per_class": 2}
    return SyntheticCitationDataModule(**sizes, **options)


def run(folder, objective, data=None, **federation):
    settings = {"num_rounds": 3, "trainer": {"max_epochs": 2}, "keep_last": 99, **federation}
    fed = federate(folder, lambda: LitNodeClassifier(GraphSAGE(8), objective()), data or citation(), **settings)
    return fed, [checkpoint_tensors(path) for path in sorted((fed.run_dir / "checkpoints").glob("round_*"))]


def weights(state):
    return {name: tensor for name, tensor in state.items() if name.startswith("server.pt")}


def differ(first, second):
    return any(not torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize("objective", ["MOON", "all"])
def test_kept_rebuilt_and_distant_clients_give_the_same_bits(tmp_path, objective):
    results = []
    engines = (InProcess(), InProcess(rebuild_clients=True), *([WorkerProcesses(2)] if objective == "all" else []))
    for engine in engines:
        fed, states = run(tmp_path, RIVALS[objective], engine=engine, clients_per_round=2)
        results.append((states[-1], without_times(fed.results)))
    for state, scores in results[1:]:
        assert_same_bits(results[0][0], state)
        assert results[0][1] == scores


def test_sampled_neighbourhoods_and_shuffled_nodes(tmp_path):
    results = []
    for rebuild in (False, True):
        data = citation(batch_size=16, num_neighbors=[3, 3])  # the cache, too, is made from sampled neighbourhoods
        _, states = run(tmp_path, RIVALS["all"], data, engine=InProcess(rebuild_clients=rebuild), clients_per_round=2)
        results.append(states[-1])
    assert_same_bits(*results)


def test_molecules_with_rebuilt_clients_give_the_same_bits(tmp_path):
    results = []
    for rebuild in (False, True):
        fed = federate(
            tmp_path, lambda: LitMoleculePredictor(GINMolecule(16), MOON(base=FLITPlus())),
            ChEMBLDataModule(num_clients=3), num_rounds=3, clients_per_round=2, trainer={"max_steps": 3},
            engine=InProcess(rebuild_clients=rebuild),
        )  # fmt: skip
        results.append(checkpoint_tensors(last_checkpoint(fed.run_dir)))
    assert_same_bits(*results)


def test_round_0_is_the_same_for_all_and_later_rounds_are_not(tmp_path):
    _, plain = run(tmp_path, ERM, num_rounds=2)
    for name, objective in RIVALS.items():
        _, states = run(tmp_path, objective, num_rounds=2)
        assert_same_bits(weights(states[0]), weights(plain[0]))
        assert differ(weights(states[1]), weights(plain[1])), name


def test_moons_previous_model_is_this_clients_own_and_never_sent(tmp_path):
    fed, states = run(tmp_path, RIVALS["MOON"], clients_per_round=2, num_rounds=4)
    took_part = [participants(range(3), 2, 0, round) for round in range(4)]
    first = next(client for client in range(3) if client not in took_part[0])  # a client first sampled late
    start = f"client_{first:05d}.pt/objective/"
    for round, state in enumerate(states):
        has_memory = any(first in chosen for chosen in took_part[: round + 1])
        assert any(name.startswith(start) for name in state) == has_memory
    memories = []
    for client in range(3):
        start = f"client_{client:05d}.pt/objective/"
        memories.append({name[len(start) :]: t for name, t in states[-1].items() if name.startswith(start)})
    assert all(any(name.startswith("previous/encoder") for name in memory) for memory in memories)
    assert differ(memories[0], memories[1]) and differ(memories[1], memories[2])
    ledger = (fed.run_dir / "ledger.jsonl").read_text()
    assert "previous" not in ledger and "objective" not in ledger
    assert "encoder.convs.0.lin_l.weight" in ledger


def test_resumed_run_gives_the_same_bits(tmp_path):
    _, states = run(tmp_path / "whole", RIVALS["all"], clients_per_round=2, num_rounds=3)
    half, _ = run(tmp_path / "half", RIVALS["all"], clients_per_round=2, num_rounds=2)
    torch.manual_seed(0)
    module = LitNodeClassifier(GraphSAGE(8), RIVALS["all"]())
    resumed = FederatedTrainer(
        trainer={"max_epochs": 2, "accelerator": "cpu", "logger": False, "default_root_dir": str(tmp_path / "half")},
        num_rounds=3, strategy=FedAvg(), seed=0, clients_per_round=2, keep_last=99,
    )  # fmt: skip
    resumed.fit(module, citation(), ckpt_path=str(half.run_dir / "checkpoints" / last_checkpoint(half.run_dir).name))
    assert_same_bits(states[-1], checkpoint_tensors(last_checkpoint(resumed.run_dir)))


def test_metrics_of_the_method_reach_the_run(tmp_path):
    logged = {}

    class Watches(FedAvg):
        def aggregate(self, federation, round, replies):
            logged[round] = [reply.values["metrics"] for reply in replies.values()]
            super().aggregate(federation, round, replies)

    run(tmp_path, FLITPlus, strategy=Watches())
    wanted = {"train/less_sure", "train/vat", "train/weight", "train/lr_factor"}
    assert not any(wanted & metrics.keys() for metrics in logged[0])  # warm-up
    for metrics in logged[1] + logged[2]:
        assert wanted <= metrics.keys() and 0 <= metrics["train/less_sure"] <= 1 and 0 < metrics["train/lr_factor"] < 1


def test_fedprox_leaves_alone_what_the_federation_keeps_private(tmp_path):
    """``federation.private`` as well as the module's own: a client never received it, so nothing may pull it back."""
    pulled = set()

    class Watched(FedProx):
        def pulled(self, module):
            found = super().pulled(module)
            pulled.update(found)
            return found

    fed, _ = run(tmp_path, Watched, private=["encoder.convs.1.*"])
    names = {name for name, _ in fed.module.named_parameters()}
    assert pulled == {name for name in names if not name.startswith("encoder.convs.1.")} != names
