"""MPNN set2set: parameter counts, its parts against PyG and torch, invariances, and molecules at the edge."""

import copy

import pytest
import torch
import torch.nn.functional as F
from molecule_samples import SMILES, batch_of, molecule, permuted
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import NNConv
from torch_geometric.nn import Set2Set as PyGSet2Set

from lit_models.gcn_molecule import GCNMolecule
from lit_models.gin_molecule import GINMolecule
from lit_models.mpnn import MPNN, Set2Set, gru_step

SCHEMA = {"task": "regression", "num_tasks": 1, "atom_features": 74, "bond_features": 13}


def built(encoder=None, num_tasks: int = 1, seed: int = 0):
    torch.manual_seed(seed)
    encoder = MPNN() if encoder is None else encoder
    encoder.build({**SCHEMA, "num_tasks": num_tasks})
    return encoder


@pytest.mark.parametrize("num_tasks, parameters", [(1, 229_957), (2, 230_022), (12, 230_672), (27, 231_647)])
def test_parameter_count(num_tasks, parameters):
    assert sum(p.numel() for p in built(num_tasks=num_tasks).parameters()) == parameters


def reference_forward(model: MPNN, batch) -> torch.Tensor:
    """docs/papers/fedchem.md#mpnn from PyG's and torch's own layers, with the weights of ``model``."""
    conv = NNConv(64, 64, copy.deepcopy(model.conv.nn), aggr="add", root_weight=False)  # it draws new weights
    conv.nn.load_state_dict(model.conv.nn.state_dict())
    conv.bias.data = model.conv.bias.data
    readout = PyGSet2Set(64, processing_steps=3, num_layers=3)
    readout.lstm.load_state_dict(model.set2set.lstm.state_dict())
    edge = model.project_edge(batch.edge_attr)
    vertex = F.relu(model.lin0(model.project_vertex(batch.x)))
    hidden = vertex.unsqueeze(0)
    for _ in range(3):
        message = F.relu(conv(vertex, batch.edge_index, edge))
        vertex, hidden = model.gru(message.unsqueeze(0), hidden)
        vertex = vertex.squeeze(0)
    return readout(vertex, batch.batch, dim_size=batch.num_graphs)


@pytest.mark.parametrize("edge_type", [False, True])
def test_equals_the_model_written_with_library_layers(edge_type):
    model = built()
    batch = batch_of(SMILES, edge_type=edge_type)
    with torch.no_grad():
        got = model.embed(batch)
        assert got.shape == (len(SMILES), 128)
        torch.testing.assert_close(model(batch), model.head(got))
        torch.testing.assert_close(got, reference_forward(model, batch), atol=1e-5, rtol=1e-5)


def test_gru_and_set2set_have_the_gradients_of_the_library_layers():
    torch.manual_seed(0)
    gru = nn.GRU(8, 8)
    message, hidden = (torch.randn(5, 8, requires_grad=True) for _ in range(2))
    wanted = [message, hidden, *gru.parameters()]
    expected = torch.autograd.grad(gru(message[None], hidden[None])[0].square().sum(), wanted)
    gradients = torch.autograd.grad(gru_step(gru, message, hidden).square().sum(), wanted)
    for got, want in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got, want)

    reference, ours = PyGSet2Set(8, processing_steps=3, num_layers=3), Set2Set(8, 3, 3)
    ours.load_state_dict(reference.state_dict())
    x, index = torch.randn(7, 8, requires_grad=True), torch.tensor([0, 0, 0, 1, 3, 3, 3])  # molecule 2 has no atom
    results = [reference(x, index, dim_size=5), ours(x, index, 5)]
    torch.testing.assert_close(results[1], results[0])
    gradients = [
        torch.autograd.grad(out.square().sum(), [x, *module.parameters()])
        for out, module in zip(results, (reference, ours), strict=True)
    ]
    for got, want in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("make", [MPNN, GINMolecule, GCNMolecule])
def test_permuting_atoms_changes_nothing(make):
    model = built(make())
    data = molecule("CC(C)(C)c1ccc2ncccc2c1")
    other = permuted(data, torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(1)))
    assert not torch.equal(data.x, other.x)
    with torch.no_grad():
        torch.testing.assert_close(model(data), model(other), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("make", [MPNN, GINMolecule, GCNMolecule])
def test_a_molecule_is_predicted_alike_alone_and_in_any_batch(make):
    model = built(make())
    with torch.no_grad():
        together = model(batch_of(SMILES))  # bonded ones, a salt without bonds, single atoms
        alone = torch.cat([model(molecule(smiles)) for smiles in SMILES])
    assert together.shape == (len(SMILES), 1) and bool(together.isfinite().all())
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("make", [MPNN, GINMolecule, GCNMolecule])
def test_replaced_inputs(make):
    model = built(make(perturb=make.choices))
    batch = batch_of(SMILES)
    inputs = model.perturbable(batch)
    assert list(inputs) == list(make.choices) and not any(value.requires_grad for value in inputs.values())
    with torch.no_grad():
        for name, value in inputs.items():
            torch.testing.assert_close(model(batch, **{name: value}), model(batch), atol=1e-6, rtol=1e-5)
            assert not torch.allclose(model(batch, **{name: value + 0.5}), model(batch), atol=1e-4)
    for name, value in inputs.items():
        value.requires_grad_()
        gradient = torch.autograd.grad(model(batch, **{name: value}).sum(), value)[0]
        assert gradient.shape == value.shape and float(gradient.abs().sum()) > 0
    assert list(built(make()).perturbable(batch)) == ["vertex"]


def test_edge_gradients_of_the_whole_model_by_finite_differences():
    model = built().double()
    data = molecule("CC=O").apply(lambda t: t.double() if t.is_floating_point() else t)
    edge = model.project_edge(data.edge_attr).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda e: model(data, edge=e), edge)


def test_build_is_idempotent_and_names_what_is_missing():
    model = built()
    before = model.head
    model.build(SCHEMA)
    assert model.head is before
    with pytest.raises(ValueError, match="`MPNN` needs 'atom_features' in the data's schema, which has .'num_tasks'."):
        MPNN().build({"num_tasks": 1})
    with pytest.raises(ValueError, match="`MPNN.perturb` must name some of .*; found .'pos'."):
        MPNN(perturb=["pos"])
    with pytest.raises(ValueError, match="`readout` must be 'add' or 'mean', found 'max'"):
        GINMolecule(readout="max")


def test_mean_readout_and_molecules_without_atoms():
    model = built(GINMolecule(readout="mean"))
    batch = Batch.from_data_list([molecule("CCO"), molecule("C")])
    empty = Data(
        x=batch.x, edge_index=batch.edge_index, edge_attr=batch.edge_attr, batch=batch.batch * 2, sample_id=torch.arange(4)
    )  # molecules 1 and 3 have no atom
    for encoder in (model, built()):
        with torch.no_grad():
            out = encoder(empty)
        assert out.shape == (4, 1) and bool(out.isfinite().all())
        torch.testing.assert_close(out[[0, 2]], encoder(batch).detach())


def test_the_attention_stays_finite_for_large_energies():
    """exp(x . q) itself overflows above 88; the weights are those of the softmax."""
    torch.manual_seed(0)
    own, library = Set2Set(4, 3, 1), PyGSet2Set(4, processing_steps=3, num_layers=1)
    own.lstm.load_state_dict(library.lstm.state_dict())
    x, batch = 1e4 * torch.randn(5, 4), torch.tensor([0, 0, 0, 1, 1])
    with torch.no_grad():
        found = own(x, batch, 2)
        assert bool(found.isfinite().all()) and found.abs().max() > 1e3
        torch.testing.assert_close(found, library(x, batch, dim_size=2), atol=1e-2, rtol=1e-4)
