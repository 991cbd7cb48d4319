"""The code blocks of README.md and docs/ run as written, and the configs that they name parse."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from datamodules import SyntheticCitationDataModule
from fl_lightning import FederatedTrainer
from lit_models import GraphSAGE, LitNodeClassifier

ROOT = Path(__file__).resolve().parent.parent


def blocks(path: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(encoding="utf-8"), re.DOTALL)


def test_readme_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, then, ours = blocks("README.md")
    names: dict = {"__name__": "readme"}
    exec(compile(first, "README.md", "exec"), names)
    assert names["results"]["test"]["mean"] < 1.0  # an untrained model scores about 4
    assert (names["trainer"].run_dir / "results.json").is_file()
    exec(compile(then, "README.md", "exec"), names)
    best, loaded = names["model"].state_dict(), names["loaded"].state_dict()
    assert best.keys() == loaded.keys() and all(torch.equal(best[name], loaded[name]) for name in best)
    exec(compile(ours, "README.md", "exec"), names)
    (batch,) = names["predictions"]
    assert batch["probabilities"].shape == (200, names["data"].schema["num_classes"])
    weights, again = names["loaded"].state_dict(), names["module"].state_dict()
    assert weights.keys() == again.keys() and all(torch.equal(weights[name], again[name]) for name in weights)


def test_the_tutorial_for_an_own_module_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "own_module"}
    for code in blocks("docs/own_module.md"):
        exec(compile(code, "docs/own_module.md", "exec"), names)
    assert names["results"]["test"]["mean"] < 0.1 and names["trainer"].run_dir.name == "version_0"
    sent = (names["personal"].run_dir / "ledger.jsonl").read_text()
    assert "layer.weight" in sent and "layer.bias" not in sent
    assert "layer" not in (names["alone"].run_dir / "ledger.jsonl").read_text()


@pytest.fixture(scope="module")
def examples() -> dict:
    names: dict = {"__name__": "extending"}
    for code in blocks("docs/extending.md"):
        exec(compile(code, "docs/extending.md", "exec"), names)
    return names


def train(tmp_path, strategy, objective=None, rounds=3, ckpt_path=None, name="docs"):
    trainer = FederatedTrainer(
        num_rounds=rounds,
        strategy=strategy,
        seed=0,
        name=name,
        trainer={"accelerator": "cpu", "logger": False, "default_root_dir": str(tmp_path)},
    )
    module = LitNodeClassifier(GraphSAGE(hidden_channels=8), objective)
    results = trainer.fit(module, SyntheticCitationDataModule(num_nodes=150, num_features=40), ckpt_path)
    return results, {n: t.clone() for n, t in module.state_dict().items()}


def test_documented_strategy_trains_and_resumes(examples, tmp_path):
    whole = train(tmp_path / "a", examples["FedAvgM"](0.5), rounds=4)
    train(tmp_path / "b", examples["FedAvgM"](0.5), rounds=2)
    resumed = train(tmp_path / "b", examples["FedAvgM"](0.5), rounds=4, ckpt_path="last")
    assert all(torch.equal(a, b) for a, b in zip(whole[1].values(), resumed[1].values(), strict=True))
    assert whole[0]["test"] == resumed[0]["test"]


def test_documented_upload_transform_sends_signs(examples):
    update = {"w": torch.tensor([2.0, -0.1, 0.0])}
    assert examples["Signs"](0.5)(update, None)["w"].tolist() == [0.5, -0.5, 0.0]


def test_documented_strategy_forgets_its_velocity_between_fits(examples, tmp_path):
    strategy = examples["FedAvgM"](0.9)
    first, second = train(tmp_path / "a", strategy), train(tmp_path / "b", strategy)
    assert all(torch.equal(a, b) for a, b in zip(first[1].values(), second[1].values(), strict=True))


def test_documented_strategy_without_momentum_is_fedavg(examples, tmp_path):
    from fl_lightning import FedAvg

    momentum, plain = train(tmp_path / "a", examples["FedAvgM"](0.0)), train(tmp_path / "b", FedAvg())
    for a, b in zip(momentum[1].values(), plain[1].values(), strict=True):
        torch.testing.assert_close(a, b)


def test_documented_objective_by_hand(examples):
    """p = 0.9, gamma = 2: (0.1)^2 * 0.1053605 = 0.00105361 (docs/papers/fedchem.md#hand-values, 1)."""

    class Module:
        def __call__(self, batch):
            return None

        def losses(self, outputs, batch):
            from lit_models import SampleLosses

            return SampleLosses(-torch.tensor([[0.9]]).log(), torch.ones(1, 1, dtype=torch.bool), torch.zeros(1).long())

    torch.testing.assert_close(examples["Focal"](2.0)(Module(), None), torch.tensor(0.00105361), atol=1e-7, rtol=0)


def test_documented_objective_trains(examples, tmp_path):
    from fl_lightning import FedAvg

    assert train(tmp_path, FedAvg(), examples["Focal"]())[0]["failures"] == []


def test_documented_module_shares_a_row_among_those_who_trained_it(examples, tmp_path):
    # The gradient of mean(w^2) over 2 x 16 numbers is w / 16, the learning rate .1: each word that was seen shrinks alike.
    import lightning as L
    from torch.utils.data import Subset

    module = examples["Words"](size=4)
    before = module.table.weight.detach().clone()
    data = [L.LightningDataModule.from_datasets(Subset(range(4), words), batch_size=2) for words in ([0, 1], [1, 2])]
    trainer = {"accelerator": "cpu", "max_epochs": 1, "logger": False, "default_root_dir": str(tmp_path)}
    FederatedTrainer(num_rounds=1, seed=0, trainer=trainer).fit(module, data)
    factor = torch.tensor([1 - 0.1 * 2 / 32] * 3 + [1.0])  # word 3: nobody has seen it
    torch.testing.assert_close(module.table.weight.detach(), factor[:, None] * before)


def test_documented_encoder_of_nodes_by_hand(examples):
    """Path 0-1-2, node 3 alone, W_1 = 2, W_2 = 10, b = 1, x = (1, 2, 4, 8): 2 x + 10 (2, 5, 2, 0) + 1."""
    encoder = examples["SumNeighbours"](num_layers=1)
    encoder.build(1, 1)
    with torch.no_grad():
        for parameter, value in (
            (encoder.convs[0].lin_root.weight, 2.0),
            (encoder.convs[0].lin_rel.weight, 10.0),
            (encoder.convs[0].lin_rel.bias, 1.0),
        ):
            parameter.fill_(value)
    x, edge_index = torch.tensor([[1.0], [2.0], [4.0], [8.0]]), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    expected = torch.tensor([[23.0], [55.0], [29.0], [17.0]])
    torch.testing.assert_close(encoder(x, edge_index), expected)
    torch.testing.assert_close(encoder(x.to_sparse_csr(), edge_index), expected)


def test_documented_encoder_without_the_base_by_hand(examples):
    """Path 0-1-2, node 3 alone, x = (1, 2, 4, 8): means (2, 2.5, 2, 0), then (2.5, 2, 2.5, 0); maps 1, 10, 100."""
    encoder = examples["Hops"](hops=2)
    encoder.build(1, 1)
    with torch.no_grad():
        for linear, value in zip(encoder.maps, (1.0, 10.0, 100.0), strict=True):
            linear.weight.fill_(value)
            linear.bias.zero_()
    x, edge_index = torch.tensor([[1.0], [2.0], [4.0], [8.0]]), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    expected = torch.tensor([[271.0], [227.0], [274.0], [8.0]])
    torch.testing.assert_close(encoder(x, edge_index), expected)
    torch.testing.assert_close(encoder(x.to_sparse_csr(), edge_index), expected)


def test_documented_data_sets_and_encoders_train_in_a_federation(examples, tmp_path):
    from fl_lightning import FedAvg
    from lit_models import LitMoleculePredictor

    chains = examples["Alcohols"](num_clients=2, partition="iid", client_holdout=0.2, cache_dir=None)
    for name, module, data in (
        ("nodes", LitNodeClassifier(examples["SumNeighbours"](hidden_channels=8)), examples["Ring"](num_clients=2)),
        ("without the base", LitNodeClassifier(examples["Hops"]()), examples["Ring"](num_clients=2)),
        ("molecules", LitMoleculePredictor(examples["AtomBag"](8)), chains),
    ):
        trainer = FederatedTrainer(
            num_rounds=1,
            strategy=FedAvg(),
            seed=0,
            name=name,
            trainer={"max_steps": 1, "accelerator": "cpu", "logger": False, "default_root_dir": str(tmp_path)},
        )
        results = trainer.fit(module, data)
        assert results["failures"] == [] and results["num_clients"] == 2 and results["test"]["global"] is not None


def test_documented_data_sets_are_what_they_say(examples):
    ring = examples["Ring"](num_clients=3)
    ring.setup()
    degree = torch.bincount(ring.data.edge_index[0])
    assert ring.schema == {"num_features": 3, "num_classes": 3} and degree.tolist() == [2] * 120
    assert torch.equal(torch.bincount(ring.data.y), torch.tensor([40, 40, 40]))
    chains = examples["Alcohols"](num_clients=2, partition="iid", cache_dir=None)
    chains.setup()
    packed = chains.molecules.packed
    assert len(chains.molecules) == 40 and chains.dropped_rows == []
    assert packed.y[:4, 0].tolist() == [1, 2, 2, 3]  # C, CO, CC, CCO


def test_documented_encoder_of_molecules_by_hand(examples):
    """Two molecules of atoms (1, 3) and (5,), W = 1, b = 0: means 2 and 5; a disturbed input is used in their place."""
    from types import SimpleNamespace

    encoder = examples["AtomBag"](1)
    encoder.build({"atom_features": 1, "num_tasks": 1})
    with torch.no_grad():
        encoder.atom.weight.fill_(1.0)
        encoder.atom.bias.zero_()
    batch = SimpleNamespace(x=torch.tensor([[1.0], [3.0], [5.0]]), batch=torch.tensor([0, 0, 1]), sample_id=torch.arange(2))
    torch.testing.assert_close(encoder.embed(batch), torch.tensor([[2.0], [5.0]]))
    torch.testing.assert_close(encoder.embed(batch, x=batch.x + 1), torch.tensor([[3.0], [6.0]]))


CONFIGS = sorted(p.name for p in (ROOT / "configs").glob("*.yaml"))
SIZES = [name for name in CONFIGS if re.fullmatch(r"fedsage_plus_\w+_(5|10)\.yaml", name)]


def test_every_config_parses(capsys):
    """One process for all: each with ``--print_config``, which validates every key and class."""
    script = (
        "import sys, contextlib, io\n"
        "from fl_lightning.cli import FederatedCLI\n"
        "for path in sys.argv[1:]:\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        try:\n"
        "            FederatedCLI(['fit', '--config', path, '--print_config'])\n"
        "        except SystemExit as stop:\n"
        "            assert stop.code in (0, None), path\n"
    )
    paths = [str(ROOT / "configs" / name) for name in CONFIGS if name not in SIZES]
    done = subprocess.run([sys.executable, "-c", script, *paths], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {"demo.yaml", "fedsage_cora.yaml"} <= set(CONFIGS)


@pytest.mark.parametrize("name", SIZES)
def test_configs_for_more_clients_differ_in_nothing_else(name):
    data, size = re.fullmatch(r"(fedsage_plus_\w+)_(5|10)\.yaml", name).groups()
    base = (ROOT / "configs" / f"{data}.yaml").read_text(encoding="utf-8")
    expected = base.replace("3 clients", f"{size} clients").replace(f"{data}.yaml", name)
    assert expected.replace("num_clients: 3", f"num_clients: {size}") == (ROOT / "configs" / name).read_text(encoding="utf-8")


def test_readme_names_only_configs_that_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r"configs/([\w{},]+)\.yaml", text):
        stems = [name]
        while any("{" in s for s in stems):
            stems = [
                re.sub(r"\{[^}]*\}", part, s, count=1)
                for s in stems
                for part in re.search(r"\{([^}]*)\}", s).group(1).split(",")
            ]
        for stem in stems:
            assert f"{stem}.yaml" in CONFIGS, stem
