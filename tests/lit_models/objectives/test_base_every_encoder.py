"""All FedChem objectives on all encoders, nodes and molecules, under a stock Trainer: finite and reproducible."""

import math
import warnings

import pytest
import torch
from molecule_samples import SMILES, molecule
from objective_samples import assert_same, make_trainer
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader

from lit_models import (
    GAT,
    GCN,
    GIN,
    GPRGNN,
    MPNN,
    GCNMolecule,
    GINMolecule,
    GraphSAGE,
    LitMoleculePredictor,
    LitNodeClassifier,
    MaskedGCN,
    SchNet,
)
from lit_models.objectives import FLIT, MOON, FedFocal, FedProx, FedVAT, FLITPlus, MaskedProximal
from lit_models.objectives.vat import VAT

OBJECTIVES = {
    "FedProx": lambda: FedProx(mu=0.1), "MOON": MOON, "FedFocal": FedFocal, "FedVAT": FedVAT, "FLIT": FLIT,
    "FLIT+": FLITPlus, "FLIT+ official": lambda: FLITPlus(variant="official"),
    "all": lambda: FedProx(base=MOON(base=FedVAT(base=FLITPlus()))),
}  # fmt: skip
NODES = {"SAGE": GraphSAGE, "GCN": GCN, "GAT": GAT, "GIN": GIN, "MaskedGCN": MaskedGCN, "GPRGNN": GPRGNN}
MOLECULES = {
    "MPNN": lambda: MPNN(16, 8), "MPNN edges": lambda: MPNN(16, 8, perturb=["vertex", "edge"]),
    "SchNet": lambda: SchNet(16, 16, 2, 8), "GIN": lambda: GINMolecule(16), "GCN": lambda: GCNMolecule(16),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def fitted_twice(make, data):
    """Two local fits, so that MOON has a previous model; the weights after them."""
    torch.manual_seed(0)
    module = make()
    for seed in range(2):
        torch.manual_seed(seed)
        make_trainer(max_epochs=2).fit(module, data)
        if seed == 0:  # what a server would send is not what the client had
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(0.9)
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    assert all(value.isfinite().all() for value in weights.values())
    return weights


@pytest.mark.parametrize("encoder", NODES)
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_nodes(objective, encoder, sparse, graph, data):
    def make():
        return LitNodeClassifier(NODES[encoder](hidden_channels=8), OBJECTIVES[objective]())

    source = data(graph(sparse=sparse))
    assert_same(fitted_twice(make, source), fitted_twice(make, source))


class Molecules:
    """Two tasks, some labels missing, one molecule without any; geometry for SchNet."""

    def __init__(self, task):
        self.schema = {"task": task, "num_tasks": 2, "atom_features": 74, "bond_features": 13}
        self.graphs = []
        for i, smiles in enumerate(SMILES):
            y = [float(i % 2), math.nan if i % 3 == 0 else float(i % 3 == 1)]
            graph = molecule(smiles, 50 - i, [math.nan, math.nan] if i == 4 else y)
            graph.z = torch.arange(graph.num_nodes) % 8 + 1
            graph.pos = torch.randn(graph.num_nodes, 3, generator=torch.Generator().manual_seed(i))
            self.graphs.append(graph)

    def loader(self):
        return DataLoader(self.graphs, batch_size=4, shuffle=True)


@pytest.mark.parametrize("encoder", MOLECULES)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_molecules(objective, encoder):
    task = "classification" if encoder in ("MPNN", "GCN") else "regression"
    source = Molecules(task)

    def make():
        module = LitMoleculePredictor(MOLECULES[encoder](), OBJECTIVES[objective]())
        module.build(source.schema)
        return module

    assert_same(fitted_twice(make, source.loader()), fitted_twice(make, source.loader()))


def test_vat_disturbs_what_the_encoder_offers_by_unit_rows():
    """vertex rows, edge rows and positions: each row of a disturbance has length ``radius``."""
    source = Molecules("regression")
    for encoder, names in (("MPNN", {"vertex"}), ("MPNN edges", {"vertex", "edge"}), ("SchNet", {"pos"})):
        module = LitMoleculePredictor(MOLECULES[encoder]())
        module.build(source.schema)
        batch = Batch.from_data_list(source.graphs)
        seen, forward = [], module.forward

        def record(batch, seen=seen, forward=forward, **replaced):
            seen.append(replaced)
            return forward(batch, **replaced)

        module.forward = record
        inputs = module.perturbable(batch)
        VAT(radius=0.5)(module, batch, module(batch), torch.ones(len(SMILES), 2, dtype=torch.bool))
        assert seen[-1].keys() == names
        for name, disturbed in seen[-1].items():
            length = (disturbed - inputs[name]).norm(dim=1)
            moved = length > 0
            torch.testing.assert_close(length[moved], torch.full_like(length[moved], 0.5), atol=1e-4, rtol=1e-4)
            assert moved.float().mean() > 0.5


def test_flit_under_fedpubs_masks_and_fedpub_over_flit(graph, data):
    source = data(graph(sparse=True))
    for objective in (lambda: MaskedProximal(base=FLIT()), lambda: FedProx(mu=0.1)):
        weights = fitted_twice(lambda o=objective: LitNodeClassifier(MaskedGCN(8), o()), source)
        assert any(name.endswith("mask") for name in weights)
    pulled = FedProx()
    module = LitNodeClassifier(MaskedGCN(8), pulled)
    module.build(source.schema)
    assert not any(name.endswith("mask") for name in pulled.pulled(module))
