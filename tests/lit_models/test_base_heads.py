"""What modules and encoders name as their head is what lies behind `embed`; encoders' private entries are the module's."""

from fnmatch import fnmatchcase

import pytest
import torch

from lit_models import (
    APPNP,
    GAT,
    GCN,
    GIN,
    GPRGNN,
    MPNN,
    AuxiliaryProjection,
    GCNMolecule,
    GCNWithHead,
    GINMolecule,
    GraphSAGE,
    LitMoleculePredictor,
    LitNodeClassifier,
    Masked,
    MaskedGCN,
    SchNet,
)

NODES = [GraphSAGE, GCN, GAT, GIN, APPNP, GPRGNN, GCNWithHead, MaskedGCN]
MOLECULES = [lambda: MPNN(8, 8), lambda: SchNet(8, 8, 1, 4), lambda: GINMolecule(8), lambda: GCNMolecule(8)]
SCHEMA = {"task": "regression", "num_tasks": 2, "atom_features": 74, "bond_features": 13}


def in_head(module, name):
    return any(fnmatchcase(name, pattern) for pattern in module.head_entries)


@pytest.mark.parametrize("encoder", [*NODES, lambda **o: Masked(GraphSAGE(**o)), lambda **o: AuxiliaryProjection(GCN(**o))])
def test_of_nodes_the_head_is_what_the_embedding_does_not_need(encoder, graph):
    module = LitNodeClassifier(encoder(hidden_channels=8), num_classes=3, in_channels=12)
    module.embed(graph()).sum().backward()
    behind = {name for name, parameter in module.named_parameters() if parameter.grad is None} - {"encoder.gamma"}
    assert behind and behind == {name for name, _ in module.named_parameters() if in_head(module, name)}
    module.zero_grad()
    module(graph()).sum().backward()
    assert all(parameter.grad is not None for name, parameter in module.named_parameters() if name in behind)


@pytest.mark.parametrize("encoder", MOLECULES)
def test_of_molecules_it_is_the_readouts_network(encoder):
    module = LitMoleculePredictor(encoder())
    module.build(SCHEMA)
    head = {f"encoder.head.{name}" for name in module.encoder.head.state_dict()}
    assert head and head == {name for name in module.state_dict() if in_head(module, name)}


class Own(GINMolecule):
    private_entries = ("head.*",)


def test_a_molecule_encoders_private_entries_are_the_modules():
    assert LitMoleculePredictor(Own(8)).private_entries == ("encoder.head.*",)
    assert LitNodeClassifier(MaskedGCN(8)).private_entries == ("encoder.*.mask",)
    assert LitNodeClassifier(torch.nn.Module()).head_entries == ()
