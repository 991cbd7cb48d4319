"""FedChem's protocol (docs/papers/fedchem.md#server) is what each of its configs says; no run may differ from it by a slip."""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHEM = ("bace", "bbbp", "clintox", "esol", "freesolv", "lipo", "qm9", "sider", "tox21")
FILES = [f"fedavg_{name}" for name in CHEM] + ["flit_esol", "flit_plus_esol", "flit_plus_freesolv"]


@pytest.mark.parametrize("name", FILES)
def test_the_protocol(name):
    config = yaml.safe_load((ROOT / "configs" / f"{name}.yaml").read_text())
    federation, trainer, data = config["federation"], config["trainer"], config["data"]["init_args"]
    assert (federation["num_rounds"], federation["clients_per_round"], data["num_clients"]) == (30, 3, 4)
    assert federation["strategy"] == {"class_path": "fl_lightning.strategies.FedAvg", "init_args": {"weighting": "num_samples"}}
    assert "carry_optimizer_state" not in federation  # FedAvg's default: a fresh Adam in each round
    assert trainer["max_steps"] == (3333 if "qm9" in name else 333) and trainer["gradient_clip_val"] == 1.0
    assert set(trainer) == {"max_steps", "gradient_clip_val", "accelerator"}
    model = config["model"]["init_args"]
    adam = {"class_path": "torch.optim.Adam", "init_args": {"lr": 1e-4, "weight_decay": 1e-5, "fused": True}}
    assert model["optimizer"] == adam
    assert model["encoder"]["class_path"] == ("lit_models.SchNet" if "qm9" in name else "lit_models.MPNN")
    assert model.get("variant", "paper") == "paper" and "init_args" not in model["encoder"]
    assert (data["partition"], data["alpha"], data["batch_size"]) == ("scaffold_lda", 0.1, 64)
    wanted = name.rsplit("_", 1)[1]
    assert data.get("name", "QM9").lower() == wanted and set(data) <= {
        "root", "name", "num_clients", "partition", "alpha", "batch_size"}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in CHEM if name != "qm9"])
def test_forests_have_the_same_data_and_one_round(name):
    forest, network = (yaml.safe_load((ROOT / "configs" / f"{kind}_{name}.yaml").read_text()) for kind in ("forest", "fedavg"))
    theirs = {**network["data"]["init_args"], "fingerprint_size": 2048}
    assert forest["data"] == {"class_path": "datamodules.MoleculeNetDataModule", "init_args": theirs}
    assert forest["seed_everything"] == network["seed_everything"] and forest["trainer"]["max_epochs"] == 1
    assert forest["federation"]["num_rounds"] == 1 and "clients_per_round" not in forest["federation"]
