"""One federation, every engine, the same bits: kept clients, rebuilt clients, one worker process, two of them."""

import json

import pytest
import torch
from federations import (
    Central,
    Deep,
    assert_same_bits,
    checkpoint_tensors,
    clients,
    federate,
    last_checkpoint,
    without_times,
)

from datamodules import SyntheticCitationDataModule
from fl_lightning import FedAvg, FederatedTrainer
from fl_lightning.engine import InProcess, WorkerProcesses
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.sampling import participants
from fl_lightning.engine.worker_processes import _on_own_device
from lit_models import GraphSAGE, LitNodeClassifier
from lit_models.sparse import is_sparse

SIZES = (12, 9, 20, 7, 17)  # dropout, BatchNorm, shuffled mini-batches, a personal head, memory, Adam carried, sampling
SETTINGS = {"num_rounds": 4, "clients_per_round": 0.6, "carry_optimizer_state": True, "keep_last": 9, "name": "deep"}
ENGINES = {
    "kept": InProcess,
    "rebuilt": lambda: InProcess(rebuild_clients=True),
    "one worker": lambda: WorkerProcesses(1),
    "two workers": lambda: WorkerProcesses(2),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            data = Central(*clients(SIZES, batch_size=5))
            made[name] = federate(
                tmp_path_factory.mktemp("run"), Deep, data, {"max_epochs": 2}, engine=ENGINES[name](), **SETTINGS
            )
        return made[name]

    return get


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "kept"])
def test_weights_memories_results_and_ledger_are_the_same(runs, name):
    first, other = runs("kept"), runs(name)
    rounds = sorted(p.name for p in (first.run_dir / "checkpoints").glob("round_*"))
    assert len(rounds) == 4
    for round in rounds:
        tensors = checkpoint_tensors(first.run_dir / "checkpoints" / round)
        assert_same_bits(tensors, checkpoint_tensors(other.run_dir / "checkpoints" / round))
    assert {n.split("/")[1] for n in tensors if n.startswith("client")} == {"module", "optimizer", "objective"}
    assert without_times(first.results) == without_times(other.results)
    assert first.results["last"]["test"]["mean"] is not None and first.results["failures"] == []

    def sorted_lines(fed):  # replies arrive in any order
        return sorted((fed.run_dir / "ledger.jsonl").read_text().splitlines())

    assert sorted_lines(first) == sorted_lines(other)


def test_the_rounds_are_really_sampled_and_memories_are_per_client(runs):
    fed = runs("kept")
    lines = [json.loads(x) for x in (fed.run_dir / "ledger.jsonl").read_text().splitlines()]
    took_part = [tuple(x["client"] for x in lines if x["round"] == r and x["kind"] == "fit" and x["direction"] == "up")
                 for r in range(4)]  # fmt: skip
    assert all(len(t) == 3 for t in took_part) and len(set(took_part)) > 1
    memories = checkpoint_tensors(last_checkpoint(fed.run_dir))
    for client in range(5):
        times = sum(client in t for t in took_part)
        count = memories.get(f"client_{client:05d}.pt/objective/count")
        assert (0 if count is None else count.item()) == times


def test_sparse_graphs_travel_to_worker_processes(tmp_path):
    results = []
    for engine in (InProcess(), WorkerProcesses(1)):
        data = SyntheticCitationDataModule(num_nodes=120, num_classes=3, num_features=30, num_clients=3, blocks_per_class=2)
        fed = federate(tmp_path, lambda: LitNodeClassifier(GraphSAGE(hidden_channels=8)), data, engine=engine)
        assert any(is_sparse(part.data.x) for part in data.client_datamodules())
        results.append((fed, checkpoint_tensors(last_checkpoint(fed.run_dir))))
    assert_same_bits(results[0][1], results[1][1])
    assert without_times(results[0][0].results) == without_times(results[1][0].results)


def test_on_round_start_is_called_once_before_each_fit_with_the_rounds(tmp_path):
    seen = []

    class Tells(Deep):
        def on_round_start(self, round, num_rounds):
            seen.append((round, num_rounds))

    federate(tmp_path, Tells, clients((10, 12)), num_rounds=3)
    assert seen == [(r, 3) for r in range(3) for _ in range(2)]


def test_a_late_joiner_gets_the_current_model_and_fresh_personal_state(tmp_path):
    # One of six a round: whoever trains in round 1 for the first time starts from the initial head.
    heads = {}
    seed = next(s for s in range(9) if participants(range(6), 1, s, 0) != participants(range(6), 1, s, 1))
    seed = next(s for s in range(9) if participants(range(6), 1, s, 0) != participants(range(6), 1, s, 1))

    class Watches(Deep):
        def on_train_start(self):
            heads.setdefault(len(heads), (self.head.weight.detach().clone(), self.net[0].weight.detach().clone()))

    for rebuild in (False, True):
        heads.clear()
        federate(tmp_path, Watches, clients((10,) * 6), num_rounds=2, clients_per_round=1, seed=seed,
                 engine=InProcess(rebuild_clients=rebuild))  # fmt: skip
        assert torch.equal(heads[0][0], heads[1][0]) and not torch.equal(heads[0][1], heads[1][1])


def test_a_client_set_up_anew_starts_from_the_initial_weights_not_from_the_servers(tmp_path):
    # The server puts the global model into its own module to score it; a rebuilt client must not begin there.
    class Half(FedAvg):
        """Sends the bias only: the weight that a client starts from is the initial one."""

        def download(self, client):
            return Payload({"net.bias": self.weights["net.bias"]})

    results = []
    for rebuild in (False, True):
        engine = InProcess(rebuild_clients=rebuild)
        fed = federate(tmp_path, data=Central(*clients((10, 16))), engine=engine, num_rounds=3, strategy=Half())
        results.append(checkpoint_tensors(last_checkpoint(fed.run_dir)))
    assert_same_bits(*results)


def test_what_the_caller_does_with_random_numbers_changes_nothing_and_is_not_changed(tmp_path):
    results = []
    for extra in (0, 5):
        torch.manual_seed(0)
        module = Deep()
        torch.rand(extra)
        before = torch.get_rng_state()
        fed = FederatedTrainer(
            trainer={"accelerator": "cpu", "logger": False, "default_root_dir": str(tmp_path)}, num_rounds=2, seed=3
        )
        fed.fit(module, clients((10, 12)))
        assert torch.equal(torch.get_rng_state(), before)
        results.append(without_times(fed.results))
    assert results[0] == results[1]


def test_another_seed_gives_other_bits(tmp_path):
    losses = {federate(tmp_path, Deep, clients((10, 12)), seed=seed).results["last"]["val"]["mean"] for seed in range(3)}
    assert len(losses) == 3


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"accelerator": "cpu", "devices": 4}, {"accelerator": "cpu", "devices": 1}),
        ({"accelerator": "auto"}, {"accelerator": "auto", "devices": 1}),
    ],
)
def test_a_worker_process_uses_one_device(args, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert _on_own_device(args, 3) == expected


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("auto", [0, 1, 2, 3, 0]),
        (2, [0, 1, 0, 1, 0]),
        ([1, 3], [1, 3, 1, 3, 1]),
        ("2,3", [2, 3, 2, 3, 2]),
        (-1, [0, 1, 2, 3, 0]),
    ],
)
def test_workers_are_spread_over_the_devices(devices, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    args = {"accelerator": "gpu", "devices": devices}
    assert [_on_own_device(args, i)["devices"] for i in range(5)] == [[d] for d in expected]


@pytest.mark.parametrize("name", ["num_workers", "threads"])
def test_engine_arguments_are_checked(name):
    with pytest.raises(ValueError, match=f"`federation.engine.init_args.{name}` must be at least 1, got 0"):
        WorkerProcesses(**{name: 0})
    with pytest.raises(ValueError, match="threads` must be at least 1"):
        InProcess(threads=0)
