"""dGen and fGen: what they start at, what they can generate, and which slots."""

import pytest
import torch
import torch.nn.functional as F
from neighgen_samples import random_graph, reference_candidates

from datamodules.mending import mend
from lit_models.neighgen.generators import CountGenerator, FeatureGenerator, attach, check_features


def test_only_the_drawn_slots_are_generated():
    torch.manual_seed(0)
    fgen, u = FeatureGenerator(4, 5, 3, (7, 6)), torch.randn(6, 4)
    slots = torch.rand(6, 3) < 0.5
    slots[2] = False
    candidates, owner = fgen(u, slots)
    slot, row = slots.T.nonzero(as_tuple=True)
    assert torch.equal(owner, row) and candidates.shape == (int(slots.sum()), 5)
    expected = reference_candidates(dict(fgen.named_parameters()), u, 3)[row, slot]
    torch.testing.assert_close(candidates, expected)


@pytest.mark.parametrize("feature_range", ["tanh", "sigmoid", "relu", "identity"])
def test_fgen_starts_near_the_mean_vector(feature_range):
    torch.manual_seed(0)
    fgen, mean = FeatureGenerator(4, 5, 2, (16,), feature_range), torch.tensor([0.0, 0.05, 0.1, 0.5, 0.9])
    fgen.start_at(mean)
    candidates, _ = fgen(torch.randn(200, 4), torch.ones(200, 2, dtype=torch.bool))
    assert (candidates.mean(0) - mean).abs().max() < 0.06


def test_dead_relu_and_its_cures():
    """Bug 23: a ReLU count below zero for every node gets no gradient; a start at mean(n_v) or a softplus does."""

    def gradient(dgen):
        torch.manual_seed(0)
        F.smooth_l1_loss(dgen(0.1 * torch.randn(50, 4)), torch.ones(50)).backward()
        return dgen.linear.bias.grad.abs().item()

    dead, started, soft = CountGenerator(4, "relu"), CountGenerator(4, "relu"), CountGenerator(4, "softplus")
    for dgen in (dead, started, soft):
        torch.nn.init.constant_(dgen.linear.bias, -2.0)
    started.start_at(0.6)
    assert gradient(dead) == 0 and gradient(started) > 0 and gradient(soft) > 0
    soft.start_at(0.6)
    assert soft(torch.zeros(1, 4)).item() == pytest.approx(0.6, abs=1e-6)
    assert started(torch.zeros(1, 4)).item() == pytest.approx(0.6, abs=1e-6)


def test_attach_is_the_same_graph_as_mend():
    data, counts = random_graph(10), torch.tensor([0, 2, 0, 1, 0, 0, 0, 0, 0, 3])
    features = torch.rand(6, 6)
    mended = mend(data, counts, features)
    for x in (data.x, data.x.to_sparse_csr()):
        attached_x, edges = attach(x, data.edge_index, features, torch.repeat_interleave(counts))
        assert torch.equal(attached_x, mended.x) and torch.equal(edges, mended.edge_index)


@pytest.mark.parametrize(
    ("feature_range", "mean", "end"), [("tanh", [-1.0, 0.0, 1.0], 3.800201), ("sigmoid", [0.0, 0.5, 1.0], 9.210240)]
)
def test_features_that_are_always_at_the_end_of_their_range_give_a_finite_start(feature_range, mean, end):
    """A word that each or no node has: atanh and logit of it are infinite. Those of .999 and of 1e-4 are the end."""
    fgen = FeatureGenerator(4, 3, 2, (5,), feature_range)
    fgen.start_at(torch.tensor(mean))
    candidates, _ = fgen(torch.zeros(1, 4), torch.ones(1, 2, dtype=torch.bool))
    torch.testing.assert_close(fgen.out.bias.detach(), torch.tensor([-end, 0.0, end] * 2), atol=1e-3, rtol=0)
    assert (candidates - torch.tensor(mean)).abs().max() < 0.1


@pytest.mark.parametrize(
    ("feature_range", "good", "bad"),
    [("sigmoid", (0.0, 1.0), (-0.1, 1.1)), ("tanh", (-1.0, 1.0), (-1.1, 1.1)), ("relu", (0.0, 9.0), (-0.1, -1.0)),
     ("identity", (-9.0, 9.0), ())],
)  # fmt: skip
def test_the_ends_of_the_range_can_be_generated_and_nothing_beyond(feature_range, good, bad):
    check_features(torch.tensor([[0.0, 0.5], list(good)]), feature_range)
    check_features(torch.tensor([list(good)]).to_sparse_csr(), feature_range)
    for value in bad:
        with pytest.raises(ValueError, match="Features go from .* but `feature_range"):
            check_features(torch.tensor([[0.5, value]]), feature_range)
    for value in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match="needs finite features"):
            check_features(torch.tensor([[0.5, value]]), feature_range)


def test_defaults_of_the_generators():
    fgen = FeatureGenerator(4, 3)
    assert (fgen.num_slots, fgen.feature_range, [layer.out_features for layer in fgen.hidden]) == (5, "tanh", [256, 256])
    assert CountGenerator(4).activation == "softplus"
    with pytest.raises(ValueError, match="count_activation: x` is unknown; use one of softplus, relu."):
        CountGenerator(4, "x")
    with pytest.raises(ValueError, match="feature_range: x` is unknown"):
        FeatureGenerator(4, 3, feature_range="x")


def test_counts_start_where_their_inverse_is_finite():
    """softplus(b) = mean: log(expm1(mean)), at least a thousandth; the ReLU's bias is the mean itself."""
    for mean, bias in ((0.0, -6.907255), (1e-3, -6.907255), (1.0, 0.541325), (5.0, 4.993239)):
        dgen = CountGenerator(3)
        dgen.start_at(mean)
        assert float(dgen.linear.bias) == pytest.approx(bias, abs=1e-5)
    dgen = CountGenerator(3, "relu")
    dgen.start_at(0.25)
    assert float(dgen.linear.bias) == 0.25


def test_a_start_scales_the_last_layer_down_to_a_tenth():
    torch.manual_seed(0)
    fgen = FeatureGenerator(4, 3, 2, (5,), "identity")
    before = fgen.out.weight.detach().clone()
    fgen.start_at(torch.tensor([0.1, 0.2, 0.3]))
    torch.testing.assert_close(fgen.out.weight.detach(), 0.1 * before)
    torch.testing.assert_close(fgen.out.bias.detach(), torch.tensor([0.1, 0.2, 0.3, 0.1, 0.2, 0.3]))
