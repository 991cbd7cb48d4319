"""What a failed run is listed with: the reason, not the last line of jsonargparse's page."""

import pytest
import yaml

from fl_lightning.cli import FederatedCLI
from fl_lightning.comparison.changes import merged, nested
from fl_lightning.comparison.reasons import complaint

BASE = {
    "federation": {"num_rounds": 2, "strategy": {"class_path": "fl_lightning.strategies.FedAvg"}},
    "trainer": {"max_epochs": 1},
    "model": {
        "class_path": "lit_models.LitNodeClassifier",
        "init_args": {"encoder": {"class_path": "lit_models.GraphSAGE", "init_args": {"hidden_channels": 8}}},
    },
    "data": {"class_path": "datamodules.SyntheticCitationDataModule", "init_args": {"num_clients": 3}},
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"federation.strategy": {"class_path": "fl_lightning.strategies.FedAvgg"}},
            "`federation.strategy`: module 'fl_lightning.strategies' has no attribute 'FedAvgg'. Did you mean `FedAvg`?",
        ),
        ({"data.init_args.num_client": 4}, "`data`: Option 'num_client' is not accepted. Did you mean `num_clients`?"),
        ({"federation.rounds": 4}, "`federation`: Option 'rounds' is not accepted. Did you mean `num_rounds`?"),
        ({"trainer.max_epochs": "many"}, "`trainer.max_epochs`: Expected a <class 'int'>, found `many`"),
    ],
)
def test_wrong_keys_are_named_with_the_nearest_right_one(tmp_path, monkeypatch, capsys, change, reason):
    monkeypatch.setattr("sys.argv", ["fl-lightning"])
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(merged(BASE, nested(change, "test"))))
    with pytest.raises(SystemExit):
        FederatedCLI(["fit", "--config", str(tmp_path / "c.yaml")])
    assert complaint(capsys.readouterr().err) == reason


def test_other_output_keeps_its_last_line():
    assert complaint("round 1\n\nKilled\n\n") == "Killed"
    assert complaint("usage: x\nerror: unrecognized arguments: --x\n") == "unrecognized arguments: --x"
    assert complaint("\n") == "it ended without a word"
