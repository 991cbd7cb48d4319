"""The schema of the federation is agreed before round 1; a client that disagrees is named."""

import pytest

from datamodules import GraphCSVDataModule
from fl_lightning import FedAvg, FederatedTrainer
from fl_lightning.schema import agreed_schema
from lit_models import GraphSAGE, LitNodeClassifier


class Owner:
    def __init__(self, schema):
        self.schema = schema


def test_the_server_or_most_clients_say_what_all_must_have():
    three, two = Owner({"num_classes": 3}), Owner({"num_classes": 2})
    assert agreed_schema(None, [object(), object()]) is None
    assert agreed_schema(three, [object()]) == {"num_classes": 3}
    assert agreed_schema(None, [three, object(), three]) == {"num_classes": 3}
    with pytest.raises(ValueError, match="client 1 has num_classes 2 where the others have 3"):
        agreed_schema(None, [three, two, three])
    with pytest.raises(ValueError, match="client 0 has num_classes 3 where the others have 2; client 1"):
        agreed_schema(two, [three, three])


def test_separate_data_modules_train_together_if_their_schemas_agree(tmp_path):
    for site, labels in (("a", "xy"), ("b", "yx"), ("c", "zy")):
        (tmp_path / site).mkdir()
        rows = "".join(f"{i},{i},{labels[i % 2]}\n" for i in range(20))
        (tmp_path / site / "nodes.csv").write_text("id,f,label\n" + rows)
        (tmp_path / site / "edges.csv").write_text("source,target\n" + "".join(f"{i},{i + 1}\n" for i in range(19)))
    sites = {site: GraphCSVDataModule(root=str(tmp_path / site), num_clients=1) for site in "abc"}
    options = {"trainer": {"accelerator": "cpu", "logger": False, "default_root_dir": str(tmp_path)}, "num_rounds": 1}
    fed = FederatedTrainer(strategy=FedAvg(), **options)
    results = fed.fit(LitNodeClassifier(GraphSAGE(hidden_channels=4)), [sites["a"], sites["b"]])
    assert results["failures"] == [] and results["test"]["mean"] is not None
    with pytest.raises(ValueError, match=r'client 2 has class_names \["y", "z"\] where the others have \["x", "y"\]'):
        FederatedTrainer(strategy=FedAvg(), **options).fit(
            LitNodeClassifier(GraphSAGE(hidden_channels=4)), [sites["a"], sites["b"], sites["c"]]
        )
