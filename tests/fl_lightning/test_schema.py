"""The schema of the federation is agreed before round 1; a client that disagrees is named."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from datamodules import GraphCSVDataModule, MoleculeCSVDataModule
from fl_lightning import FedAvg, FederatedTrainer
from fl_lightning.engine.remote import SiteData
from fl_lightning.schema import agreed_schema
from lit_models import GCNMolecule, GraphSAGE, LitMoleculePredictor, LitNodeClassifier


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


AGES = {"num_features": 2, "feature_names": ["age", "income"]}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"num_features": 2, "feature_names": ["income", "age"]},
         "client 1 has the same feature_names in another order: the first that differs, number 1, is 'income' where the others "
         "have 'age'. Name the feature columns, in one order for all, in `data.init_args.features`"),
        ({"num_features": 2, "feature_names": ["age", "weight"]},
         "client 1 has feature_names without 'income' and with also 'weight' (it has "
         '["age", "weight"], the others ["age", "income"]). Name the feature columns'),
        ({"num_features": 2, "feature_names": ["age", "income", "age"]},
         "client 1 has 3 feature_names where the others have 2: a name repeats. Name the"),
        ({"num_features": 2, "feature_names": None}, "has feature_names nothing where the others have [\"age\", \"income\"]"),
        ({"num_features": 2}, "has feature_names nothing where the others have [\"age\", \"income\"]"),
        ({"num_features": 3, "feature_names": ["age", "income"]},
         "has num_features 3 where the others have 2. Give all clients the same classes, tasks and features"),
    ],
)  # fmt: skip
def test_equal_shapes_do_not_make_equal_features(other, message):
    ages = Owner(AGES)
    with pytest.raises(ValueError) as raised:
        agreed_schema(None, [ages, Owner(other), ages])
    assert message in str(raised.value)


def test_classes_of_other_names_and_their_remedy_and_the_name_of_a_site():
    sites = []
    for site, names in (("bank-a", ["new", "old"]), ("bank-b", ["big", "old"])):
        schema = {"num_classes": 2, "class_names": names}
        sites.append(SiteData({"num_train_samples": 1, "fingerprint": "", "schema": schema}, site))
    who = r"client 1 \(site `bank-b`\) has class_names without 'new' and with also 'big'"
    with pytest.raises(ValueError, match=who + ".* Name the classes of all clients in `data.init_args.classes`.$"):
        agreed_schema(None, sites)


def test_features_without_names_agree_by_number_and_that_is_said(caplog):
    bare = {"num_features": 2, "feature_names": None}
    with caplog.at_level(logging.WARNING):
        assert agreed_schema(None, [Owner({"num_features": 2}), Owner({"num_features": 2})]) == {"num_features": 2}
        assert agreed_schema(Owner(bare), [Owner(bare)] * 2) == bare and agreed_schema(None, [Owner(bare)]) == bare
        assert not caplog.messages
        assert agreed_schema(None, [Owner(bare)] * 2) == bare
    assert "features of the 2 clients have no names, so that only their number (2) could be compared" in caplog.text


def test_a_site_with_its_own_copy_of_the_servers_tables_has_the_same_names():
    from fl_lightning.flower import Flower

    told = {"num_train_samples": 1, "fingerprint": None, "initial": "", "schema": {**AGES, "feature_names": ["a", "b"]}}
    spec, engine = SimpleNamespace(module=torch.nn.Linear(1, 1), datamodules=[Owner(AGES)]), SimpleNamespace(_sites=["oslo"])
    with pytest.raises(ValueError, match=r"client 0 \(site `oslo`\) has feature_names without 'age', 'income'"):
        Flower._check_told(engine, spec, [told], remote=False)


def table(folder, columns, features=None):
    """A site with these columns of one graph's numbers."""
    folder.mkdir(exist_ok=True)
    numbers = {"age": [i % 7 for i in range(12)], "income": [i / 8 for i in range(12)], "weight": [i % 5 for i in range(12)]}
    rows = "".join(f"{i},{'ab'[i % 3 == 0]}," + ",".join(str(numbers[name][i]) for name in columns) + "\n" for i in range(12))
    (folder / "nodes.csv").write_text("id,label," + ",".join(columns) + "\n" + rows)
    (folder / "edges.csv").write_text("source,target\n" + "".join(f"{i},{i + 1}\n" for i in range(11)))
    data = GraphCSVDataModule(root=str(folder), num_clients=1, partition="random", features=features)
    data.setup()
    return data


def test_sites_of_their_own_tables_are_refused_by_name_before_round_1(tmp_path):
    first = table(tmp_path / "a", ["age", "income"])
    trainer = {"accelerator": "cpu", "logger": False, "default_root_dir": str(tmp_path), "max_steps": 1}
    module = LitNodeClassifier(GraphSAGE(hidden_channels=4))
    for place, columns, message in (("b", ["income", "age"], "number 1, is 'income' where the others have 'age'"),
                                    ("c", ["age", "weight"], "without 'income' and with also 'weight'")):  # fmt: skip
        sites = [data.client_datamodules()[0] for data in (first, table(tmp_path / place, columns))]
        with pytest.raises(ValueError, match=f"client 1 has .*{message}"):
            FederatedTrainer(num_rounds=1, trainer=trainer).fit(module, sites)
    named = table(tmp_path / "b", ["income", "age"], features=["age", "income"])  # what the remedy says
    assert agreed_schema(None, [first, named])["feature_names"] == ["age", "income"]
    assert named.data.x.to_dense()[:, 0].tolist() == first.data.x.to_dense()[:, 0].tolist()
    divided = GraphCSVDataModule(root=str(tmp_path / "a"), num_clients=1, partition="random", normalize_features=True)
    divided.setup()
    with pytest.raises(ValueError, match="client 1 has normalize_features true where the others have nothing"):
        agreed_schema(None, [first, divided])
    degrees = table(tmp_path / "b", ["income", "age"], features="degree")
    with pytest.raises(ValueError, match="feature_names without 'age', 'income' and with also 'constant', 'log"):
        agreed_schema(None, [first, degrees])
    (tmp_path / "d").mkdir()
    sp.save_npz(tmp_path / "d" / "x.npz", sp.csr_matrix(np.ones((12, 2))))
    with pytest.raises(ValueError, match="client 1 has feature_names nothing where the others have"):
        agreed_schema(None, [first, table(tmp_path / "d", ["age"], features="x.npz")])


def test_separate_data_modules_train_together_if_their_schemas_agree(tmp_path):
    for site, labels in (("a", "xy"), ("b", "yx"), ("c", "zy")):
        (tmp_path / site).mkdir()
        rows = "".join(f"{i},{i / 4},{labels[i % 2]}\n" for i in range(20))
        (tmp_path / site / "nodes.csv").write_text("id,f,label\n" + rows)
        (tmp_path / site / "edges.csv").write_text("source,target\n" + "".join(f"{i},{i + 1}\n" for i in range(19)))
    sites = {site: GraphCSVDataModule(root=str(tmp_path / site), num_clients=1) for site in "abc"}
    options = {"trainer": {"accelerator": "cpu", "logger": False, "default_root_dir": str(tmp_path)}, "num_rounds": 1}
    fed = FederatedTrainer(strategy=FedAvg(), **options)
    results = fed.fit(LitNodeClassifier(GraphSAGE(hidden_channels=4)), [sites["a"], sites["b"]])
    assert results["failures"] == [] and results["test"]["mean"] is not None
    with pytest.raises(ValueError, match="client 2 has class_names without 'x' and with also 'z'"):
        FederatedTrainer(strategy=FedAvg(), **options).fit(
            LitNodeClassifier(GraphSAGE(hidden_channels=4)), [sites["a"], sites["b"], sites["c"]]
        )


def molecules(path, header, **options):
    """A site's own data module, as with Flower."""
    path.write_text(header + "\n" + "".join(f"{'C' * i}O,{i / 4},{-i / 3}\n" for i in range(1, 13)))
    data = MoleculeCSVDataModule(files=str(path), num_clients=1, partition="iid", cache_dir=None, **options)
    data.setup()
    return data


def test_molecule_sites_agree_on_names_order_and_units_of_tasks(tmp_path):
    first = molecules(tmp_path / "a.csv", "smiles,logS,logP")
    assert agreed_schema(None, [first, molecules(tmp_path / "b.csv", "smiles,logS,logP")])["task_names"] == ["logS", "logP"]
    turned = molecules(tmp_path / "b.csv", "smiles,logP,logS")
    with pytest.raises(
        ValueError,
        match="client 2 has the same task_names in another order: the first that differs, "
        "number 1, is 'logP' where the others have 'logS'.*`data.init_args.targets`",
    ):
        agreed_schema(None, [first, first, turned])
    turned = molecules(tmp_path / "b.csv", "smiles,logP,logS", targets=["logS", "logP"])
    assert agreed_schema(None, [first, turned])["task_names"] == ["logS", "logP"]  # put into one order
    assert turned.molecules.packed.y[0].tolist() == pytest.approx([-1 / 3, 1 / 4])
    with pytest.raises(ValueError, match="client 2 has task_names without 'logS' and with also 'solubility'"):
        agreed_schema(None, [first, first, molecules(tmp_path / "b.csv", "smiles,solubility,logP")])
    units = {"logS": "mg/L"}
    with pytest.raises(ValueError, match=r'client 2 has units \["mg/L", ""\] where the others have nothing.*init_args.units`'):
        agreed_schema(None, [first, first, molecules(tmp_path / "b.csv", "smiles,logS,logP", units=units)])


def test_a_trained_model_is_for_the_units_it_has_learnt(tmp_path):
    module = LitMoleculePredictor(GCNMolecule(hidden_channels=4, num_layers=1))
    module.build(molecules(tmp_path / "a.csv", "smiles,y,z", units={"y": "mol/L"}).schema)
    module._trainer = SimpleNamespace(datamodule=molecules(tmp_path / "a.csv", "smiles,y,z", units={"y": "mg/L"}))
    with pytest.raises(ValueError, match="learnt with other units than these data have: number 1 is 'mol/L' there and 'mg/L'"):
        module.setup("test")
