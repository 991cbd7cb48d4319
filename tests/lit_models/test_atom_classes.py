"""Message passing over distinct environments: the numbers and gradients of message passing over atoms."""

import pytest
import torch
from molecule_samples import SMILES, batch_of, generated_smiles

from lit_models.atom_classes import ClassLevel, class_step
from lit_models.mpnn import MPNN

SCHEMA = {"task": "regression", "num_tasks": 2, "atom_features": 74, "bond_features": 13}


def environments(batch, radius: int) -> torch.Tensor:
    """By nested tuples, one atom at a time."""
    columns = [[tuple(row) for row in batch.x.tolist()]]
    edges = list(zip(*batch.edge_index.tolist(), batch.edge_type.tolist(), strict=True))
    into = {a: [(u, code) for u, v, code in edges if v == a] for a in range(batch.num_nodes)}
    for _ in range(radius):
        old = columns[-1]
        columns.append([(old[a], tuple(sorted((code, hash(old[u])) for u, code in into[a]))) for a in into])
    numbers = [{key: place for place, key in enumerate(dict.fromkeys(column))} for column in columns]
    return torch.tensor([[number[key] for key in column] for number, column in zip(numbers, columns, strict=True)]).T


def sample(radius: int = 3):
    """A batch with environments, and the same without."""
    batch = batch_of(SMILES + generated_smiles(6) + SMILES[:3], edge_type=True)
    batch = batch.apply(lambda t: t.double() if t.is_floating_point() else t)
    plain = batch.clone()
    batch.environment = environments(batch, radius)
    return batch, plain


def built(**kwargs) -> MPNN:
    torch.manual_seed(0)
    model = MPNN(**kwargs)
    model.build(SCHEMA)
    return model.double()


def test_same_outputs_and_gradients():
    model, (batch, plain) = built(), sample()
    results = []
    for given in (batch, plain):
        out = model(given)
        weighted = (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum()
        results.append([out, *torch.autograd.grad(weighted, list(model.parameters()))])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_each_environment_is_computed_once():
    model, (batch, plain) = built(), sample()
    rows: list[int] = []
    model.lin0.register_forward_hook(lambda layer, inputs, output: rows.append(output.size(0)))
    model(batch), model(plain)
    assert rows == [len(torch.unique(batch.x, dim=0)), batch.num_nodes] and rows[0] < rows[1] / 3
    batch.environment[:] = 0  # all alike, which is wrong: the column is what is gone by
    assert not torch.allclose(model(batch), model(plain))


def test_replaced_inputs_and_unknown_radii_go_atom_by_atom():
    model, (batch, plain) = built(perturb=["vertex", "edge", "x", "edge_attr"]), sample()
    noise = torch.Generator().manual_seed(0)
    for name, value in model.perturbable(batch).items():  # equal atoms are disturbed in different ways
        moved = value + torch.rand(value.shape, generator=noise, dtype=value.dtype)
        torch.testing.assert_close(model(batch, **{name: moved}), model(plain, **{name: moved}), rtol=0, atol=0)
    deeper = built(num_steps=4)
    torch.testing.assert_close(deeper(batch), deeper(plain), rtol=0, atol=0)
    wider = sample(radius=4)[0]
    torch.testing.assert_close(deeper(wider), deeper(plain), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("radius", [0, 1])
def test_a_step_by_hand(radius):
    """Propane-like chain 0 - 1 - 2 with equal atoms: the ends are one class from radius 1 on."""
    environment = torch.tensor([0, 0, 0]) if radius == 0 else torch.tensor([4, 9, 4])
    edge_index = torch.tensor([[0, 1, 1, 2, 0, 1, 2], [1, 0, 2, 1, 0, 1, 2]])
    edge_type = torch.tensor([1, 1, 1, 1, 8, 8, 8])
    level = ClassLevel.of(environment)
    step = class_step(level, ClassLevel.of(torch.tensor([4, 9, 4])), edge_index, edge_type)
    rows = torch.tensor([[1.0]]) if radius == 0 else torch.tensor([[1.0], [10.0]])
    sums = step.groups.target(step.groups.source(rows))  # over the bonds and the self-loop of the ends, of the middle
    assert sums.flatten().tolist() == ([2.0, 3.0] if radius == 0 else [11.0, 12.0])
    assert edge_type[step.edge].tolist() == [1, 8]
    assert step.before(rows).flatten().tolist() == ([1.0, 1.0] if radius == 0 else [1.0, 10.0])
    assert level.to_atoms()(rows).flatten().tolist() == ([1.0] * 3 if radius == 0 else [1.0, 10.0, 1.0])
