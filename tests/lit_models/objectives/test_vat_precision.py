"""VAT finds in single precision, and under autocast, what it finds in double: no discrepancy is lost to rounding."""

import copy

import pytest
import torch
from molecule_samples import SMILES, molecule
from torch_geometric.data import Batch

from lit_models import MPNN, GINMolecule, LitMoleculePredictor
from lit_models.objectives import FedVAT, FLITPlus, vat
from lit_models.objectives.vat import VAT, random_directions


@pytest.fixture(params=[(MPNN, "regression"), (MPNN, "classification"), (GINMolecule, "regression")],
                ids=lambda p: f"{p[0].__name__}-{p[1]}")  # fmt: skip
def untrained(request):
    """A model of full size with initial weights: its outputs hardly differ, which is where rounding bites."""
    torch.manual_seed(0)
    encoder, task = request.param
    module = LitMoleculePredictor(encoder())
    module.build({"task": task, "num_tasks": 1, "atom_features": 74, "bond_features": 13})
    return module


def deltas(module, settings, dtype, monkeypatch):
    """Delta of each sample molecule, with the same first directions at any precision; bfloat16 means autocast."""
    autocast = dtype is torch.bfloat16
    dtype = torch.float32 if autocast else dtype
    batch, module = Batch.from_data_list([molecule(s) for s in SMILES]), copy.deepcopy(module).to(dtype)
    batch.x, batch.edge_attr = batch.x.to(dtype), batch.edge_attr.to(dtype)

    def directions(inputs, generator=None):
        drawn = random_directions({name: x.float() for name, x in inputs.items()}, generator)
        return {name: d.to(inputs[name].dtype) for name, d in drawn.items()}

    monkeypatch.setattr(vat, "random_directions", directions)
    torch.manual_seed(5)
    settings.begin()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        outputs = module(batch)
        return settings(module, batch, outputs, torch.ones_like(outputs, dtype=torch.bool)).detach().double()


def assert_agrees(found, exact):
    assert (found > 0).all(), "a discrepancy is zero in single precision alone"
    torch.testing.assert_close(found.mean(), exact.mean(), rtol=0.06, atol=0)
    torch.testing.assert_close(found, exact, rtol=0.4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_agrees_with_the_paper_in_double_precision(untrained, dtype, monkeypatch):
    exact = deltas(untrained, VAT(probe=1e-4), torch.float64, monkeypatch)  # the paper's probe
    assert_agrees(deltas(untrained, VAT(), dtype, monkeypatch), exact)


def test_the_papers_probe_in_single_precision_and_a_search_under_autocast_fail(untrained, monkeypatch):
    exact = deltas(untrained, VAT(probe=1e-4), torch.float64, monkeypatch)
    if (type(untrained.encoder), untrained.is_regression) != (MPNN, True):
        with pytest.raises(AssertionError):
            assert_agrees(deltas(untrained, VAT(probe=1e-4), torch.float32, monkeypatch), exact)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)  # as if there were none
    with pytest.raises(AssertionError):
        assert_agrees(deltas(untrained, VAT(), torch.bfloat16, monkeypatch), exact)


def test_default_probe_and_that_of_the_authors_code():
    assert FedVAT().vat.probe == FLITPlus().vat.probe == VAT().probe == 1e-2
    official = FLITPlus(variant="official").vat
    assert official.probe == 1e-3 and official.official_norm
    own = FLITPlus(variant="official", probe=0.5, official_norm=False).vat
    assert own.probe == 0.5 and not own.official_norm and not FLITPlus().vat.official_norm
