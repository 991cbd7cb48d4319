"""Inputs that users of comparable software met (`EDGE_CASES.md`), where no other test has them: one test a line."""

import pytest
import torch
from federations import Linear, Table, federate
from rdkit import rdBase
from torch import nn

from datamodules import ChEMBLDataModule, MoleculeCSVDataModule
from lit_models import LitMoleculePredictor
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
    """scvi-tools#2314: PyTorch cannot normalise one sample. The client is named with the reason, the others go on."""
    fed = federate(tmp_path, Normalised, clients, num_rounds=2)
    assert [(f["client"], f["round"]) for f in fed.results["failures"]] == [(0, 0), (0, 1)]
    assert all("more than 1 value per channel" in f["reason"] for f in fed.results["failures"])
    assert fed.results["test"]["mean"] is not None and all(t.isfinite().all() for t in fed.module.state_dict().values())


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
