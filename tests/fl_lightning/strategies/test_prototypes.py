"""The step of the protocol for prototypes: settings, what a reply must hold, what the server makes of the sums."""

import re

import pytest
import torch

from fl_lightning.engine.messages import Payload
from fl_lightning.strategies.prototypes import Prototypes, mending_request, sums_reply


def reply(features=((4.0, 0.0), (0.0, 6.0)), nodes=(2, 3), links=((2, 2), (2, 0)), num_nodes=10, elsewhere=15):
    tensors = {
        "features": torch.tensor(features, dtype=torch.float64),
        "nodes": torch.tensor(nodes),
        "links": torch.tensor(links),
    }
    return Payload(tensors, {"num_nodes": num_nodes, "links_elsewhere": elsewhere})


def test_prototypes_of_all_clients_and_the_mean_number_of_missing_neighbours():
    request = mending_request({0: reply(), 1: reply(), 2: reply(num_nodes=20, elsewhere=None)}, min_nodes=1)
    assert request.tensors["mu"].tolist() == [[2, 0], [0, 2]]
    assert request.tensors["transitions"].tolist() == [[0.5, 0.5], [1, 0]]
    assert request.values == {"mean_count": 2}  # 30 links of the 20 nodes of those who know: 1.5, rounded


@pytest.mark.parametrize(("elsewhere", "count"), [(None, 1), (0, 1), (4, 1), (31, 3)])
def test_the_mean_number_is_at_least_one(elsewhere, count):
    assert mending_request({0: reply(elsewhere=elsewhere)}, 1).values == {"mean_count": count}


def test_without_any_class_the_setting_to_change_is_named():
    nothing = reply(((0.0, 0.0), (0.0, 0.0)), (0, 0), ((0, 0), (0, 0)))
    with pytest.raises(
        ValueError, match=r"No client has 7 training nodes of any class.*`federation.strategy.init_args.min_nodes`"
    ):
        mending_request({0: nothing}, min_nodes=7)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"nodes": (-1, 2)}, r"`nodes` of its reply must be whole numbers from 0 of shape \[2\]"),
        ({"nodes": (1.0, 2.0)}, r"`nodes` of its reply must be whole numbers from 0 of shape \[2\]"),
        ({"nodes": (1, 2, 3)}, r"`nodes` of its reply must be whole numbers from 0 of shape \[2\]"),
        ({"links": ((0, 0), (-2, 0))}, r"`links` of its reply must be whole numbers from 0 of shape \[2, 2\]"),
        ({"links": ((0, 0),)}, r"`links` of its reply must be whole numbers from 0 of shape \[2, 2\]"),
        ({"features": (1.0, 2.0)}, "`features` of its reply must be a float64 matrix"),
        ({"num_nodes": 0}, "`num_nodes` of its reply must be a whole number from 1"),
        ({"elsewhere": -3}, "`links_elsewhere` of its reply must be a whole number from 0"),
    ],
)
def test_malformed_sums_are_told(changed, text):
    assert sums_reply().fault(reply()) is None and sums_reply().fault(reply(elsewhere=None)) is None
    assert re.search(text, sums_reply().fault(reply(**changed)) or "")


def test_missing_and_further_entries_and_other_sizes_are_told():
    tensors = dict(reply().tensors)
    assert sums_reply().fault(Payload({**tensors, "x": tensors["nodes"]}, reply().values)) == (
        "its reply has unexpected entries: x"
    )
    for name in tensors:
        rest = {other: tensor for other, tensor in tensors.items() if other != name}
        assert f"`{name}` of its reply must be" in (sums_reply().fault(Payload(rest, reply().values)) or "")
    wide = reply(features=((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)))
    alike = sums_reply().alike
    assert alike is not None and alike(wide) != alike(reply())


def test_when_to_look_at_the_classes():
    settings = Prototypes(warm_up=0.2, every=10)
    last, looks = None, []
    for round in range(50):
        if settings.is_due(round, 50, last):
            last = round
            looks.append(round)
    assert looks == [10, 20, 30, 40]
    assert settings.is_due(25, 50, 17) and not settings.is_due(25, 50, 20)  # whoever was not asked in round 20 makes up for it
    assert Prototypes(warm_up=0.0).is_due(0, 1, None)
    assert not Prototypes(warm_up=0.9).is_due(0, 2, None) and Prototypes(warm_up=0.9).is_due(1, 2, None)


@pytest.mark.parametrize("wrong", [{"min_nodes": 0}, {"every": 0}, {"warm_up": 1.0}, {"warm_up": -0.1}, {"nodes": "test"}])
def test_settings_are_checked(wrong):
    with pytest.raises(ValueError, match=r"federation.strategy.init_args` of mending with prototypes: .*got"):
        Prototypes(**wrong)
