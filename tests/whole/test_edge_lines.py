"""Inputs that users of comparable software met (`EDGE_CASES.md`), where no other test has them: one test a line."""

import pytest
import torch
from federations import Linear, Table, federate
from rdkit import rdBase
from torch import nn

from datamodules import ChEMBLDataModule, MoleculeCSVDataModule
from fl_lightning import FedAvg
from fl_lightning.reporting.tables import score_lines
from lit_models import GCNMolecule, LitMoleculePredictor
from lit_models.molecule_predictor import RegressionScores


class Normalised(Linear):
    """A user's module with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return super().forward(self.norm(x))


@pytest.mark.parametrize("clients", [[Table(9, 0, 4), Table(8, 1, 4)], [Table(1, 0), Table(8, 1, 4)]])
def test_batch_norm_meets_a_batch_of_one(tmp_path, clients):
    """scvi-tools#2314: PyTorch cannot normalise one sample. The client and the layer are named, before round 1."""
    with pytest.raises(ValueError, match=r"`norm` \(BatchNorm1d\) of `model: Normalised` .* 1 client has .* \(client 0: "):
        federate(tmp_path, Normalised, clients, num_rounds=2)


def test_molecule_loaders_have_no_workers_that_could_leak(tmp_path):
    """pyg#3396, pytorch#973: shared memory and file descriptors over many rounds."""
    (tmp_path / "m.csv").write_text("smiles,y\n" + "".join(f"{'C' * i},{i}\n" for i in range(1, 21)))
    data = MoleculeCSVDataModule(files=str(tmp_path / "m.csv"), num_clients=2, partition="iid", cache_dir=None)
    data.setup()
    for part in (data, *data.client_datamodules()):
        loaders = [getattr(part, f"{stage}_dataloader")() for stage in ("train", "val", "test", "predict")]
        assert all(loader.num_workers == 0 and not loader.persistent_workers for loader in loaders if loader != [])


def test_the_report_says_count_unit_and_rdkit_version():
    """pyg#494: counts and units differ by version of a data set; rows that parse differ by version of RDKit."""
    data = ChEMBLDataModule()
    data.setup()
    report = data.report()
    assert (report["num_molecules"], report["units"], report["rdkit"]) == (1017, ["log10(1/M)"], rdBase.rdkitVersion)
    assert data.partition_record()["versions"] == {"rdkit": rdBase.rdkitVersion}


def test_one_sample_and_a_constant_target_are_scored_or_undefined_never_an_error():
    """torchmetrics' R2Score raises on one sample, Pearson is NaN on a constant target."""
    scores = RegressionScores(2)
    one = torch.tensor([[1.0, 0.0]])
    scores.update(one, torch.tensor([[3.0, 0.0]]), torch.tensor([[True, False]]), torch.tensor([[4.0, 0.0]]))
    found = scores.compute()
    assert found["rmse"] == 2.0 and found["undefined_tasks"] == 1 and "rmse_1" not in found
    for _ in range(3):
        scores.update(one, torch.tensor([[3.0, 0.0]]), torch.tensor([[True, False]]), torch.tensor([[4.0, 0.0]]))
    assert scores.compute()["rmse"] == 2.0


def test_rows_of_every_kind_share_a_batch(tmp_path):
    """deepchem#3057 `[I-].[K+]` (no bond), a dative bond, an atom of no known element, a salt, a lone atom: finite together
    and alone."""
    from lit_models import MPNN, GCNMolecule, GINMolecule

    odd = ["[I-].[K+]", "[NH3]->[Fe]", "*CC", "CC(=O)[O-].[Na+]", "C", "F[P-](F)(F)(F)(F)F", "C/C=C/C", "c1ccccc1"]
    (tmp_path / "m.csv").write_text("smiles,y\n" + "".join(f"{text},1\n" for text in odd))
    data = MoleculeCSVDataModule(files=str(tmp_path / "m.csv"), num_clients=1, cache_dir=None, fractions=(1.0, 0.0, 0.0),
                                 task="regression")  # fmt: skip
    data.setup()
    assert data.dropped_rows == []
    (whole,) = data.predict_dataloader()
    for encoder in (MPNN(hidden_channels=8), GCNMolecule(hidden_channels=8), GINMolecule(hidden_channels=8)):
        module = LitMoleculePredictor(encoder)
        module.build(data.schema)
        module.eval()
        together = module(whole)
        alone = torch.cat([module(data.molecules.packed.collate([i])) for i in range(len(odd))])
        assert together.isfinite().all()
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


def sites(path, **rows_of_site):
    """A CSV of chains: per site how many rows have no label, one or two; the first label is the length."""
    lines, length = ["smiles,site,a,b"], 1
    for site, (none, one, two) in rows_of_site.items():
        for labels in [","] * none + ["{0},"] * one + ["{0},{1}"] * two:
            lines.append(f"{'C' * length}O,{site}," + labels.format(length / 10, length % 2))
            length += 1
    path.write_text("\n".join(lines) + "\n")
    data = MoleculeCSVDataModule(files=str(path), client_column="site", targets=["a", "b"], task="regression", cache_dir=None,
                                 fractions=(1.0, 0.0, 0.0), client_holdout=0.4, batch_size=8)  # fmt: skip
    data.setup()
    return data


def predictor():
    module = LitMoleculePredictor(GCNMolecule(hidden_channels=4, num_layers=1), optimizer=adam)
    module.build({"task": "regression", "num_tasks": 2, "atom_features": 74, "bond_features": 13, "positions": False,
                  "metric": "rmse", "task_names": ["a", "b"]})  # fmt: skip
    return module


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-2, weight_decay=0.1)


def test_a_site_without_a_label_changes_nothing(tmp_path):
    """Adam would take steps of weight decay alone there, and the site's rows would count in the average."""
    without, with_it = (federate(tmp_path / name, predictor, sites(tmp_path / f"{name}.csv", **rows), num_rounds=3,
                                 strategy=FedAvg("num_samples"))
                        for name, rows in {"ab": {"a": (0, 5, 10), "b": (0, 0, 10)},
                                           "abc": {"a": (0, 5, 10), "b": (0, 0, 10), "c": (30, 0, 0)}}.items())  # fmt: skip
    assert with_it.results["empty_clients"] == [2] and without.results["empty_clients"] == []
    for name, value in without.module.state_dict().items():
        assert with_it.module.state_dict()[name].equal(value), name


def test_a_task_that_a_site_lacks_is_sent_back_as_received(tmp_path):
    """Three rounds of weight decay, and the second output is the first one's, bit for bit."""
    module = predictor()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    federate(tmp_path, module, sites(tmp_path / "m.csv", a=(0, 20, 0)), num_rounds=3)
    for name in ("encoder.head.2.weight", "encoder.head.2.bias"):
        assert [row.equal(was) for row, was in zip(module.state_dict()[name], before[name], strict=True)] == [False, True]


def test_each_task_of_the_test_set_is_in_the_results(tmp_path):
    """MoleculeNet's sets have up to 27 tasks, QM9's targets have different units: one mean says little."""
    rows = "\n".join(f"{'C' * i}O,{i / 10}," for i in range(1, 41))
    (tmp_path / "m.csv").write_text(f"smiles,a,b\n{rows}\nCCN,1,1\n")
    data = MoleculeCSVDataModule(files=str(tmp_path / "m.csv"), targets=["a", "b"], task="regression", num_clients=2,
                                 partition="iid", cache_dir=None)  # fmt: skip
    data.setup()
    fed = federate(tmp_path, predictor, data, num_rounds=1)
    test = fed.results["test"]
    assert fed.results["task_names"] == ["a", "b"] and test["global_metrics"]["undefined_tasks"] == 1
    assert test["global_metrics"]["rmse_0"] == test["global"] and "rmse_1" not in test["global_metrics"]
    assert "1 task(s) without a defined test score are left out of the mean" in score_lines(fed.results)


def test_the_last_round_is_not_called_the_best_where_nothing_chose_it(tmp_path):
    fed = federate(tmp_path, data=[Table(8, 0, held_out=0), Table(8, 1, held_out=0)], num_rounds=2)
    assert score_lines(fed.results)[0] == "FedAvg: round 2 of 2, the last (no validation score to choose by)"
    chosen = federate(tmp_path / "b", data=[Table(8, 0), Table(8, 1)], num_rounds=2)
    assert score_lines(chosen.results)[0].endswith("of 2 (by validation)")
