"""A trained model in one line, without a federation: `fl_lightning.load_model`, and Lightning's own checkpoint."""

import lightning as L
import pytest
import torch
import yaml
from federations import Central, Deep, Linear, assert_same_bits, clients, federate

from fl_lightning import LocalOnly, load_model
from fl_lightning.cli import FederatedCLI
from fl_lightning.loading import write_lightning_checkpoint
from lit_models import GraphSAGE, LitNodeClassifier


def state(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_the_best_global_model_of_a_run_from_python(tmp_path):
    fed = federate(tmp_path, Linear(lr=0.02), clients(), num_rounds=3)
    loaded = load_model(fed.run_dir)
    assert type(loaded) is Linear and loaded.hparams.lr == 0.02 and not loaded.training
    assert_same_bits(state(fed.module), state(loaded))
    last = load_model(str(fed.run_dir), checkpoint="last")
    named = load_model(fed.run_dir, checkpoint=f"round_{fed.results['best_round']:05d}")
    assert_same_bits(state(named), state(loaded))
    weights = torch.load(fed.run_dir / "checkpoints" / "round_00002" / "server.pt", weights_only=True)["tensors"]
    assert_same_bits(weights, state(last))
    with pytest.raises(ValueError, match="is no checkpoint|neither a checkpoint"):
        load_model(fed.run_dir, checkpoint="round_00077")


def test_lightnings_own_checkpoint(tmp_path):
    fed = federate(tmp_path, Linear(lr=0.02), clients(), num_rounds=2)
    loaded = Linear.load_from_checkpoint(fed.run_dir / "checkpoints" / "best.ckpt")
    assert loaded.hparams.lr == 0.02
    assert_same_bits(state(fed.module), state(loaded))


class WithObject(L.LightningModule):
    def __init__(self, width: int, net: torch.nn.Module) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = net


def test_hyperparameters_that_are_objects_are_given_again(tmp_path):
    module = WithObject(3, torch.nn.Linear(2, 1))
    write_lightning_checkpoint(module, tmp_path / "best.ckpt")
    content = torch.load(tmp_path / "best.ckpt", weights_only=True)
    assert content["hyper_parameters"] == {"width": 3}
    again = WithObject.load_from_checkpoint(tmp_path / "best.ckpt", net=torch.nn.Linear(2, 1))
    assert_same_bits(state(module), state(again))


def test_a_clients_model_has_what_it_kept_to_itself(tmp_path):
    fed = federate(tmp_path, Deep, clients(), num_rounds=2)
    assert not (fed.run_dir / "checkpoints" / "best.ckpt").exists()  # some entries are at the clients
    with pytest.raises(ValueError, match="has no global model: some entries stay with the clients.*from 0 to 3"):
        load_model(fed.run_dir)
    best = fed.run_dir / "checkpoints" / f"round_{fed.results['best_round']:05d}"
    for client in (0, 3):
        loaded = load_model(fed.run_dir, client=client)
        kept = torch.load(best / f"client_{client:05d}.pt", weights_only=True)["tensors"]
        shared = torch.load(best / "server.pt", weights_only=True)["tensors"]
        expected = shared | {n.removeprefix("module/"): t for n, t in kept.items() if n.startswith("module/")}
        assert_same_bits({name: expected[name] for name in loaded.state_dict()}, state(loaded))
        assert torch.equal(loaded.memory["previous"], kept["objective/previous"])
    with pytest.raises(ValueError, match=r"clients 0 to 3; `client=4` is none of them"):
        load_model(fed.run_dir, client=4)


def test_the_models_of_clients_that_train_alone(tmp_path):
    fed = federate(tmp_path, Linear, clients(), num_rounds=2, strategy=LocalOnly())
    loaded = [load_model(fed.run_dir, client=client) for client in range(4)]
    assert not torch.equal(loaded[0].net.weight, loaded[1].net.weight)
    with pytest.raises(ValueError, match="`LocalOnly` trains one a client. Name the client, from 0 to 3"):
        load_model(fed.run_dir)
    never = federate(tmp_path, Linear, clients(), num_rounds=1, strategy=LocalOnly(), clients_per_round=1, name="never")
    without = [c for c in range(4) if not (never.run_dir / "checkpoints" / "round_00000" / f"client_{c:05d}.pt").exists()]
    with pytest.raises(ValueError, match=f"Client {without[0]} had not trained when"):
        load_model(never.run_dir, client=without[0])


def test_a_class_that_cannot_be_made_again(tmp_path):
    class Here(Linear):
        """Of a function: nobody can import it."""

    fed = federate(tmp_path, Here, clients(), num_rounds=1)
    with pytest.raises(ValueError, match=r"The module cannot be made from .*Give one: `load_model\(run, module="):
        load_model(fed.run_dir)
    assert_same_bits(state(fed.module), state(load_model(fed.run_dir, module=Here())))
    with pytest.raises(ValueError, match="cannot be made from"):
        load_model(tmp_path)


CONFIG = {
    "seed_everything": 0,
    "federation": {"num_rounds": 1, "strategy": {"class_path": "fl_lightning.strategies.FedPub"}},
    "trainer": {"max_epochs": 1, "accelerator": "cpu"},
    "model": {
        "class_path": "lit_models.LitNodeClassifier",
        "init_args": {
            "encoder": {"class_path": "lit_models.MaskedGCN", "init_args": {"hidden_channels": 4}},
            "objective": {"class_path": "lit_models.objectives.MaskedProximal"},
        },
    },
    "data": {
        "class_path": "datamodules.SyntheticCitationDataModule",
        "init_args": {"num_nodes": 80, "num_classes": 3, "num_features": 30, "num_clients": 2, "blocks_per_class": 1},
    },
}  # fmt: skip


def run(tmp_path, *more, **changes):
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, **changes}))
    args = ["fit", "--config", str(path), "--trainer.default_root_dir", str(tmp_path), *more]
    return FederatedCLI(args)


def test_runs_of_the_command_line_build_their_layers(tmp_path):
    """A personal model with masks (FED-PUB), and Lightning's checkpoint of a global one."""
    personal = run(tmp_path).trainer
    loaded = load_model(personal.run_dir, client=1)
    kept = torch.load(next(personal.run_dir.glob("checkpoints/*/client_00001.pt")), weights_only=True)["tensors"]
    own = {n.removeprefix("module/"): t for n, t in kept.items() if n.startswith("module/")}
    assert_same_bits(own, {name: loaded.state_dict()[name] for name in own})
    model = {"class_path": "lit_models.LitNodeClassifier",
             "init_args": {"encoder": {"class_path": "lit_models.GraphSAGE", "init_args": {"hidden_channels": 4}}}}  # fmt: skip
    cli = run(tmp_path, model=model, federation={"num_rounds": 1, "name": "sage"})
    assert_same_bits(state(cli.model), state(load_model(cli.trainer.run_dir)))
    from_lightning = LitNodeClassifier.load_from_checkpoint(
        cli.trainer.run_dir / "checkpoints" / "best.ckpt", encoder=GraphSAGE(hidden_channels=4)
    )
    assert_same_bits(state(cli.model), state(from_lightning))


def test_a_central_run(tmp_path):
    cli = run(tmp_path, "--federation", "null", model={
        "class_path": "lit_models.LitNodeClassifier",
        "init_args": {"encoder": {"class_path": "lit_models.GCN", "init_args": {"hidden_channels": 4}}},
    })  # fmt: skip
    (folder,) = (tmp_path / "experiment_central").glob("version_*")
    assert_same_bits(state(cli.model), state(load_model(folder)))
    with pytest.raises(ValueError, match="was trained centrally: there is one model, and no `client=0`"):
        load_model(folder, client=0)


def test_layers_that_the_run_cannot_tell_are_asked_for(tmp_path):
    fed = federate(tmp_path, Linear, clients(), num_rounds=1)  # data without a schema
    text = r"Give the module with its layers: `load_model\(run, module=...\)` after `data.setup\(\)` and `module.build\("
    with pytest.raises(ValueError, match=text):
        load_model(fed.run_dir, module=LitNodeClassifier(GraphSAGE(hidden_channels=4)))


def test_memory_at_sites_is_not_here(tmp_path):
    fed = federate(tmp_path, Linear, Central(*clients()), num_rounds=1)
    (fed.run_dir / "checkpoints" / "round_00000" / "flower.json").write_text("{}")
    with pytest.raises(ValueError, match="What client 2 keeps to itself is at its site"):
        load_model(fed.run_dir, client=2)
    assert_same_bits(state(fed.module), state(load_model(fed.run_dir)))
