"""What follows from the settings of a federation, wherever it is asked."""

import pytest

from fl_lightning import FedAvg, LocalOnly
from fl_lightning.engine import ClipNorm
from fl_lightning.settings import FederationSettings


@pytest.mark.parametrize(
    ("given", "each"),
    [
        ({"strategy": FedAvg()}, False),
        ({"strategy": LocalOnly()}, True),
        ({"strategy": LocalOnly(), "score_each_on_global": False}, False),
        ({"strategy": FedAvg(), "score_each_on_global": True}, True),
        ({"strategy": LocalOnly(), "upload_transforms": [ClipNorm(1.0)]}, False),  # whole models would pass by them
    ],
)
def test_whether_each_model_is_scored_on_the_servers_data(given, each):
    assert FederationSettings(**given).scores_each is each


def test_settings_from_python_are_known_ones():
    assert FederationSettings.of({"num_rounds": 3}).num_rounds == 3
    with pytest.raises(TypeError, match="`federation.strateg`: no such key. Did you mean `strategy`"):
        FederationSettings.of({"strateg": FedAvg()})
