"""What sites tell at the first contact, by hand: which experiment is the server's, and what all begin with alike."""

import pytest
import torch
from federations import Linear
from torch import nn

from fl_lightning.engine import ClipNorm
from fl_lightning.engine.buffers import hashes
from fl_lightning.flower.contact import agreed, begun_alike, closest, tensors_sha256, version_error, versions
from fl_lightning.settings import FederationSettings


class Frozen(Linear):
    def __init__(self):
        super().__init__()
        self.backbone, self.table = nn.Linear(2, 2), nn.Embedding(2, 2)


@pytest.fixture
def module():
    torch.manual_seed(0)
    return Frozen()


NAMES = ["backbone.weight", "table.weight"]


def site(module, initial=None, **start):
    return {"initial": initial or tensors_sha256(module.state_dict()), "start": {**hashes(module, NAMES), **start}}


def test_all_entries_are_alike_where_all_weights_are(module):
    assert begun_alike(module, NAMES, [site(module), site(module, **{"table.weight": "another"})]) == NAMES


def test_else_those_that_all_sites_have_as_the_server(module):
    assert begun_alike(module, NAMES, [site(module), site(module, "drawn elsewhere")]) == NAMES
    odd = site(module, "drawn elsewhere", **{"table.weight": "another"})
    assert begun_alike(module, NAMES, [site(module), odd]) == ["backbone.weight"]
    del odd["start"]["backbone.weight"]
    assert begun_alike(module, NAMES, [odd, site(module)]) == []


def test_the_hash_of_weights_tells_names_types_and_bits_apart():
    base = {"a": torch.zeros(2)}
    others = [{"b": torch.zeros(2)}, {"a": -torch.zeros(2)}, {"a": torch.zeros(1, 2)}, {"a": torch.zeros(2).double()}, {}]
    assert len({tensors_sha256(tensors) for tensors in (base, *others)}) == 6
    two = {"x": torch.zeros(0), "a": torch.ones(1)}
    assert tensors_sha256(two) == tensors_sha256(dict(sorted(two.items())))


def test_the_nearest_experiment_is_named_with_what_differs():
    server = {"model": {"lr": 0.1, "dim": 3}, "trainer": {"max_epochs": 1}}
    near = {"model": {"lr": 0.2, "dim": 3}, "trainer": {"max_epochs": 1}}
    far = {"model": {"lr": 0.2, "dim": 4}, "trainer": {"max_epochs": 2}}
    assert closest(server, {"far": far, "same": server}) == ("same", [])
    name, lines = closest(server, {"far": far, "near": near})
    assert name is None and len(lines) == 1 and lines[0].startswith("near: ") and "lr" in lines[0]


def test_a_sites_own_devices_are_not_compared_and_data_only_where_public():
    config = {"model": "m", "data": "d", "trainer": {"max_epochs": 1, "accelerator": "gpu", "devices": 2}, "other": 1}
    shared = {"config": config, "federation": {"private": ["head.*"], "num_rounds": 3}}
    expected = {
        "seed_everything": None, "model": "m", "strategy": None, "trainer": {"max_epochs": 1},
        "federation": {"private": ["head.*"], **dict.fromkeys(
            ("average", "batch_norm", "upload_transforms", "carry_optimizer_state", "local_clock"))},
    }  # fmt: skip
    assert agreed(shared, with_data=False) == expected
    assert agreed(shared, with_data=True) == {**expected, "data": "d"}


@pytest.mark.parametrize(
    ("option", "value"),
    [("batch_norm", "local"), ("local_clock", "round"), ("average", ["scale"]), ("upload_transforms", [ClipNorm(1.0)])],
)
def test_a_site_that_would_train_or_share_in_another_way_is_told_which(option, value):
    config = {"config": {"trainer": {}}}
    server = agreed({**config, "federation": FederationSettings().describe()}, with_data=False)
    site = agreed({**config, "federation": FederationSettings(**{option: value}).describe()}, with_data=False)
    name, lines = closest(server, {"mine": site})
    assert name is None and f"federation.{option}" in " ".join(lines)


def test_other_versions_are_told():
    assert version_error(versions()) is None
    text = version_error({**versions(), "torch": "1.0"})
    assert text.startswith("other versions: torch ") and "1.0 on the server" in text and "fl-lightning" not in text
