"""What a run was given from Python, as plain values in the form of a config."""

import functools
from enum import Enum
from pathlib import Path

import numpy as np
import torch
import yaml
from federations import CPU, Central, Linear, Table
from rdkit.Chem import MolFromSmiles

from fl_lightning import FedAvg
from fl_lightning.reporting.given import given, run_config, write_config
from fl_lightning.reporting.run_discovery import _data_facts
from fl_lightning.settings import FederationSettings
from lit_models import GraphSAGE, LitNodeClassifier


def test_plain_values_and_objects():
    assert given({"a": 1, "b": (1.5, None), "p": Path("x/y"), "_private": 3}) == {"a": 1, "b": [1.5, None], "p": "x/y"}
    assert given(functools.partial(torch.optim.Adam, lr=0.02)) == {
        "class_path": "torch.optim.adam.Adam", "init_args": {"lr": 0.02}}  # fmt: skip
    assert given(Table(5, 1, batch_size=2)) == {
        "class_path": "federations.Table",
        "init_args": {"n": 5, "seed": 1, "batch_size": 2, "held_out": 8, "shuffle": True},
    }
    assert given(torch.zeros(2, 3)) == "Tensor of shape (2, 3)" and given(list(range(1000))) == "list of 1000"
    assert given(torch.relu) == "torch.relu" or "relu" in given(torch.relu)
    assert given(Linear) == "federations.Linear"


def test_an_object_whose_constructor_says_nothing_of_its_arguments():
    """RDKit's, of which chemprop's data points hold one: Python cannot give its signature."""
    assert given([MolFromSmiles("CO")]) == [{"class_path": "rdkit.Chem.rdchem.Mol", "init_args": {}}]


def test_what_only_derives_from_a_plain_value_is_written_as_one(tmp_path):
    class Activation(str, Enum):
        RELU = "relu"

    write_config(tmp_path / "c.yaml", given({"activation": Activation.RELU, "rate": np.float64(0.5), "on": True, "none": None}))
    read = yaml.safe_load((tmp_path / "c.yaml").read_text())
    assert read == {"activation": "relu", "rate": 0.5, "on": True, "none": None}


def test_an_object_that_holds_itself_ends():
    class Ring:
        def __init__(self, inner=None):
            self.inner = self

    assert "Ring" in str(given(Ring()))


def test_a_whole_config_can_be_read_by_the_reports(tmp_path):
    settings = FederationSettings(num_rounds=7, strategy=FedAvg("num_samples"))
    module = LitNodeClassifier(GraphSAGE(hidden_channels=8))
    for data in (Central(Table(5, 1)), [Table(5, 1), Table(6, 2)]):
        write_config(tmp_path / "config.yaml", run_config(3, settings, {**CPU, "max_epochs": 2}, module, data))
        config = yaml.safe_load((tmp_path / "config.yaml").read_text())
        assert config["seed_everything"] == 3 and config["federation"]["num_rounds"] == 7
        facts = _data_facts(config)
        assert (facts["rounds"], facts["epochs"]) == (7, 2) and facts["data"] in ("Central", "Table")
    assert [client["n"] for client in config["data"]["clients"]] == [5, 6]
