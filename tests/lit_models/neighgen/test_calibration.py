"""Where NeighGen starts, against an SVD and means taken here."""

import warnings

import pytest
import torch
from neighgen_samples import neighgen, random_graph, same

from datamodules.impairing import impair
from lit_models.encoders import GCN, GraphSAGE
from lit_models.neighgen.calibration import mean_features, principal_directions, start_at_topics


def test_calibration():
    batch = impair(random_graph(), 0.3, 0)
    module = neighgen(feature_range="identity")
    module.start(batch)
    torch.testing.assert_close(module.embed_eval(batch).norm(dim=1), torch.full((28,), 8.0))
    torch.testing.assert_close(module.dgen(torch.zeros(1, 8))[0], batch.missing_count.float().mean())
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    module.start(impair(random_graph(seed=5), 0.3, 0))  # only the first batch counts
    assert same(weights, module.state_dict())
    off = neighgen(calibrate=False)
    before = {name: value.clone() for name, value in off.state_dict().items()}
    off.start(batch)
    assert same(before | {"started": torch.tensor(True)}, off.state_dict())
    raw = neighgen(calibrate=False, embedding_norm=None).eval()
    torch.testing.assert_close(raw.embed(batch), raw.encoder(batch.x, batch.edge_index))


def test_principal_directions_are_those_of_the_svd():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 5, generator=generator) * torch.tensor([5.0, 4.0, 0.5, 0.4, 0.3]) + 2.0
    x[x < 1] = 0
    expected = torch.linalg.svd(x - x.mean(0))[2][:2]
    for stored in (x, x.to_sparse_csr()):
        found = principal_directions(stored, 2, iterations=60)
        torch.testing.assert_close(found @ found.T, torch.eye(2), atol=1e-5, rtol=0)
        torch.testing.assert_close(found.T @ found, expected.T @ expected, atol=1e-3, rtol=0)
    assert principal_directions(x[:2], 4).shape == (1, 5) and principal_directions(x[:1], 4).shape == (0, 5)


def test_encoder_starts_at_topics():
    batch = impair(random_graph(), 0.3, 0)
    module = neighgen(encoder=GraphSAGE(hidden_channels=4, dropout=0.0))
    module.start(batch)
    directions = principal_directions(batch.x, 2)
    mean, scores = batch.x.mean(0), (batch.x - batch.x.mean(0)) @ directions.T
    adjacency = torch.zeros(28, 28).index_put((batch.edge_index[1], batch.edge_index[0]), torch.tensor(1.0))
    neighbours = adjacency @ batch.x / adjacency.sum(1, keepdim=True).clamp(min=1)
    signed = (batch.x + neighbours - 2 * mean) @ directions.T / scores.std(0, correction=0).mean()
    found = module.encoder.embed(batch.x, batch.edge_index)
    torch.testing.assert_close(found, torch.cat([signed, -signed], dim=1).relu(), atol=1e-4, rtol=1e-4)


def test_z_is_centred_where_it_started_and_has_length_r():
    batch, module = impair(random_graph(), 0.3, 0), neighgen(embedding_norm=3.0)
    module.start(batch)
    module.eval()
    raw = module.encoder(batch.x, batch.edge_index)
    assert raw.mean(0).abs().max() > 1e-2
    torch.testing.assert_close(module.z_shift, raw.mean(0).detach())
    centred = raw - raw.mean(0)
    torch.testing.assert_close(module.embed(batch), 3.0 * centred / centred.norm(dim=1, keepdim=True))


def test_counts_start_at_the_mean_of_those_to_train_on():
    batch, module = impair(random_graph(), 0.4, 0, holdout=0.4), neighgen()
    module.start(batch)
    known = batch.missing_count[batch.count_mask].float().mean()
    assert abs(float(known - batch.missing_count.float().mean())) > 1e-2
    torch.testing.assert_close(module.dgen(torch.zeros(1, 8))[0], known)


def test_an_encoder_of_constant_features_keeps_its_random_start():
    """There is no direction, and no spread to divide by."""
    encoder = GraphSAGE(hidden_channels=4)
    encoder.build(3, 2)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    for x in (torch.ones(5, 3), torch.ones(5, 3).to_sparse_csr(), torch.ones(1, 3)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the deviation of nothing would warn
            start_at_topics(encoder, x)
        assert same(before, encoder.state_dict())


def test_mean_features_of_both_layouts():
    x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 4.0]])
    for stored in (x, x.to_sparse_csr()):
        torch.testing.assert_close(mean_features(stored), torch.tensor([0.5, 0.0, 3.0]))


def test_units_left_over_keep_their_random_start():
    """Two directions of two features in a layer of seven: rows 0 to 3 are +V and -V, the rest is untouched."""
    torch.manual_seed(0)
    encoder = GraphSAGE(hidden_channels=7)
    encoder.build(2, 2)
    before = encoder.convs[0].lin_r.weight.detach().clone()
    start_at_topics(encoder, torch.randn(20, 2))
    layer = encoder.convs[0]
    for weight in (layer.lin_r.weight, layer.lin_l.weight):
        torch.testing.assert_close(weight[:2], -weight[2:4])
        torch.testing.assert_close((weight[:2] @ weight[:2].T)[0, 1], torch.tensor(0.0), atol=1e-5, rtol=0)
    assert torch.equal(layer.lin_r.weight[4:], before[4:]) and torch.equal(layer.lin_r.weight[:4], layer.lin_l.weight[:4])


def test_an_encoder_of_one_layer_keeps_its_random_start():
    """Its only layer is as wide as z, not a layer of topics."""
    module = neighgen(encoder=GraphSAGE(hidden_channels=8, num_layers=1))
    before = {name: value.clone() for name, value in module.encoder.state_dict().items()}
    module.start(impair(random_graph(), 0.3, 0))
    assert same(before, module.encoder.state_dict()) and bool(module.started)


def test_eight_iterations_find_the_directions_unless_others_are_asked_for():
    x = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    found = principal_directions(x, 2)
    assert torch.equal(found, principal_directions(x, 2, iterations=8))
    assert not torch.equal(found, principal_directions(x, 2, iterations=9))


@pytest.mark.parametrize("stored", ["dense", "sparse"])
def test_of_one_row_or_of_no_feature_there_is_no_direction(stored):
    for x, width in ((torch.rand(1, 3), 3), (torch.rand(4, 3)[:, :0], 0)):
        x = x if stored == "dense" else x.to_sparse_csr()
        assert principal_directions(x, 2).shape == (0, width)


def test_one_direction_is_enough_to_start_at():
    """Two rows, or one feature: units 0 and 1 are +V and -V, of unit deviation."""
    for x in (torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([[1.0], [3.0], [8.0]])):
        torch.manual_seed(0)
        encoder = GraphSAGE(hidden_channels=4)
        encoder.build(x.shape[1], 2)
        start_at_topics(encoder, x)
        weight = encoder.convs[0].lin_r.weight
        assert torch.equal(weight[0], -weight[1])
        torch.testing.assert_close((x @ weight[0]).std(correction=0), torch.tensor(1.0))
        torch.testing.assert_close(encoder.convs[0].lin_l.bias[:2], -2 * weight[:2] @ x.mean(0))


@pytest.mark.parametrize("training", [True, False])
def test_a_start_leaves_the_encoders_mode_and_takes_the_mean_features(training):
    batch, module = impair(random_graph(), 0.3, 0), neighgen(feature_range="identity").train(training)
    module.start(batch)
    assert module.encoder.training == training
    torch.testing.assert_close(module.fgen.out.bias.detach(), batch.x.mean(0).repeat(3))


def test_an_encoder_that_is_no_graph_sage_keeps_its_random_start():
    module = neighgen(encoder=GCN(hidden_channels=8))
    before = {name: value.clone() for name, value in module.encoder.state_dict().items()}
    module.start(impair(random_graph(), 0.3, 0))
    assert same(before, module.encoder.state_dict()) and module.z_shift.abs().max() > 0


def test_without_a_known_count_they_start_near_zero():
    batch, module = impair(random_graph(), 0.3, 0), neighgen()
    batch.count_mask = torch.zeros_like(batch.count_mask)
    module.start(batch)
    assert module.dgen(torch.zeros(1, 8)).item() == pytest.approx(1e-3, rel=1e-3)
