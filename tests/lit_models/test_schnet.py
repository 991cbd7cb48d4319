"""SchNet: against PyG's with the same weights and an independent neighbour search; invariances; single atoms."""

import math

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import SchNet as PyGSchNet

from lit_models import MPNN, GCNMolecule, GINMolecule
from lit_models.schnet import SchNet, atom_pairs, radius_pairs


def built(num_tasks: int = 12, **kwargs) -> SchNet:
    torch.manual_seed(0)
    model = SchNet(**kwargs)
    model.build({"num_tasks": num_tasks})
    return model


def molecules(sizes=(1, 5, 18, 2, 40), spread: float = 4.0) -> Data:
    torch.manual_seed(1)
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return Data(
        z=torch.randint(1, 10, batch.shape),
        pos=torch.randn(batch.numel(), 3) * spread,
        batch=batch,
        sample_id=torch.arange(len(sizes)),
    )


def dense_neighbours(pos, batch):
    """All ordered pairs of one molecule within 10 A, from the full distance matrix."""
    distance = (pos[:, None] - pos[None]).square().sum(-1).sqrt()
    near = (batch[:, None] == batch[None]) & (distance <= 10) & ~torch.eye(len(pos), dtype=torch.bool)
    source, target = near.nonzero().T
    return torch.stack([source, target]), (pos[source] - pos[target]).norm(dim=-1)


def test_parameter_count():
    assert sum(p.numel() for p in built().parameters()) == 456_524
    assert len(built().state_dict()) == len(list(built().parameters()))  # nothing tied or listed twice


def test_equals_pyg_with_the_same_weights_and_more_than_32_neighbours():
    model = built()
    reference = PyGSchNet(interaction_graph=dense_neighbours)
    reference.lin2 = nn.Linear(64, 12)
    pairs = [(reference.lin1, model.lin1), (reference.lin2, model.head), (reference.embedding, model.embedding)]
    for theirs, ours in zip(reference.interactions, model.interactions, strict=True):
        pairs += [
            (theirs.mlp[0], ours.filter[0]),
            (theirs.mlp[2], ours.filter[2]),
            (theirs.conv.lin1, ours.lin_in),
            (theirs.conv.lin2, ours.lin_out),
            (theirs.lin, ours.lin),
        ]
    for theirs, ours in pairs:
        theirs.load_state_dict(ours.state_dict())
    data = molecules(spread=2.0)
    source = dense_neighbours(data.pos, data.batch)[0][0]
    assert int(torch.bincount(source).max()) > 32  # PyG's default search would have cut these
    gradients = []
    for forward in (lambda pos: reference(data.z, pos, data.batch), lambda pos: model(data, pos=pos)):
        pos = data.pos.clone().requires_grad_()
        out = forward(pos)
        gradients.append((out.detach(), torch.autograd.grad(out.sum(), pos)[0]))
    torch.testing.assert_close(gradients[1][0], gradients[0][0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients[1][1], gradients[0][1], atol=1e-5, rtol=1e-4)


def test_rotation_translation_and_order_of_atoms_change_nothing():
    model, data = built(), molecules(spread=1.5)
    c, s = math.cos(0.7), math.sin(0.7)
    rotation = torch.tensor([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ torch.tensor([[1, 0, 0], [0, c, -s], [0, s, c]])
    order = torch.randperm(data.z.numel())
    with torch.no_grad():
        expected = model(data)
        for other in (
            Data(z=data.z, pos=data.pos @ rotation.T + torch.tensor([3.0, -2.0, 5.0]), batch=data.batch),
            Data(z=data.z[order], pos=data.pos[order], batch=data.batch[order]),  # even across molecules
        ):
            other.sample_id = data.sample_id
            torch.testing.assert_close(model(other), expected, atol=1e-4, rtol=1e-4)
        moved = data.clone()
        moved.pos = data.pos * 1.1
        assert not torch.allclose(model(moved)[1:], expected[1:], atol=1e-3)


def test_pairs_by_hand():
    # Molecules {0, 2, 3}, {1}, {4, 5}, in mixed order; every unordered pair of one molecule once.
    pairs = atom_pairs(torch.tensor([0, 1, 0, 0, 2, 2]), 4)
    assert {tuple(sorted(p)) for p in pairs.T.tolist()} == {(0, 2), (0, 3), (2, 3), (4, 5)} and pairs.size(1) == 4
    pos = torch.tensor([[0.0, 0, 0], [0, 0, 0], [3, 4, 0], [10, 0, 0], [0, 0, 0], [0, 0, 0]])
    pairs, distance = radius_pairs(pos, torch.tensor([0, 1, 0, 0, 2, 2]), 4, cutoff=9.0)
    found = {tuple(sorted(p)): d for p, d in zip(pairs.T.tolist(), distance.tolist(), strict=True)}
    assert found == {(0, 2): 5.0, (2, 3): pytest.approx(65**0.5), (4, 5): 0.0}  # (0, 3) is 10 apart


def test_single_atoms_and_atoms_at_one_place_have_finite_gradients():
    model = built()
    single = Data(z=torch.tensor([6]), pos=torch.zeros(1, 3))
    pos = torch.zeros(1, 3, requires_grad=True)
    out = model(single, pos=pos)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), pos)[0], torch.zeros(1, 3))
    # Far apart: two atoms contribute what they do alone.
    apart = Data(z=torch.tensor([6, 6]), pos=torch.tensor([[0.0, 0, 0], [11, 0, 0]]), batch=torch.tensor([0, 0]))
    torch.testing.assert_close(model(apart), 2 * out, atol=1e-5, rtol=1e-5)
    same = Data(z=torch.tensor([6, 8]), pos=torch.zeros(2, 3), batch=torch.tensor([0, 0]))
    pos = torch.zeros(2, 3, requires_grad=True)
    assert bool(torch.autograd.grad(model(same, pos=pos).sum(), pos)[0].isfinite().all())


def test_embedding_perturbable_and_batches():
    model, data = built(), molecules()
    assert model.embed(data).shape == (5, 64)
    inputs = model.perturbable(data)
    assert list(inputs) == ["pos"] and inputs["pos"].data_ptr() != data.pos.data_ptr()
    sizes = (1, 5, 18, 2, 40)
    with torch.no_grad():
        out = model(data)
        parts = torch.split(torch.arange(sum(sizes)), sizes)
        alone = torch.cat([model(Data(z=data.z[part], pos=data.pos[part])) for part in parts])
    torch.testing.assert_close(out, alone, atol=1e-5, rtol=1e-5)


def test_errors():
    with pytest.raises(ValueError, match="`SchNet` needs atomic numbers `z` and positions `pos`"):
        built()(Data(x=torch.zeros(3, 74), edge_index=torch.zeros(2, 0, dtype=torch.long)))
    with pytest.raises(ValueError, match="cutoff > 0"):
        SchNet(cutoff=0.0)


def test_bonds_and_positions_are_not_mixed_up_before_round_1():
    schema = {"task": "regression", "num_tasks": 1, "atom_features": 74, "bond_features": 13, "positions": False}
    with pytest.raises(ValueError, match="SchNet` learns from positions, .*`data.init_args.geometry: true`"):
        SchNet().build(schema)
    for encoder in (GCNMolecule, GINMolecule, MPNN):
        with pytest.raises(ValueError, match=f"{encoder.__name__}` learns from bonds, .* Use `lit_models.SchNet`"):
            encoder().build({**schema, "atom_features": 0, "bond_features": 0, "positions": True})
    SchNet().build({**schema, "positions": True})  # data may have both


def test_a_pair_exactly_at_the_cutoff_is_within_it():
    pos = torch.tensor([[0.0, 0, 0], [3, 4, 0], [3, 4, 0.01]])
    pairs, distance = radius_pairs(pos, torch.tensor([0, 0, 0]), 1, cutoff=5.0)
    assert sorted(map(sorted, pairs.T.tolist())) == [[0, 1], [1, 2]] and distance.tolist() == [5.0, pytest.approx(0.01)]
