"""FedAux's classifier: hand values, closed forms and a plain loop; groups of rows and sparse features change nothing."""

import math

import pytest
import torch
import torch.nn.functional as F

from lit_models import GAT, GCN, GIN, GPRGNN, AuxiliaryProjection, GCNWithHead, GraphSAGE, Masked
from lit_models.auxiliary_projection import kernel_mean, scores

H = torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]])


def built(encoder=GCN, **arguments):
    module = AuxiliaryProjection(encoder(hidden_channels=16), **arguments)
    module.build(12, 3)
    return module.eval()


def test_scores_by_hand():
    # cosines with (2, 0): 1, 0; a zero row has no direction
    torch.testing.assert_close(scores(H, torch.tensor([2.0, 0.0])), torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(scores(H, torch.tensor([5.0, 5.0])), torch.tensor([math.sqrt(0.5), math.sqrt(0.5), 0.0]))


def test_kernel_mean_by_hand():
    # s = 1, 0; sigma^2 = 1 / log 3: kappa = exp(-log 3) = 1/3. z_1 = (h_1 + h_2 / 3) / (4/3), z_2 = (h_1 / 3 + h_2) / (4/3)
    h, s = torch.tensor([[4.0, 0.0], [0.0, 8.0]]), torch.tensor([1.0, 0.0])
    z = kernel_mean(h, s, sigma=math.log(3.0) ** -0.5)
    torch.testing.assert_close(z, torch.tensor([[3.0, 2.0], [1.0, 6.0]]))


def test_limits_of_the_width():
    h, s = torch.randn(6, 4), torch.linspace(-1, 1, 6)
    torch.testing.assert_close(kernel_mean(h, s, 1e-3), h)
    torch.testing.assert_close(kernel_mean(h, s, 1e6), h.mean(0).expand_as(h))


def test_a_plain_loop_and_groups_of_rows_agree_with_gradients():
    h, a = torch.randn(7, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    s = [float(h[i] @ a / (h[i].norm() * a.norm())) for i in range(7)]
    weight = torch.tensor([[math.exp(-((s[i] - s[j]) ** 2) / 0.25) for j in range(7)] for i in range(7)]).double()
    expected = torch.stack([sum(weight[i, j] * h[j] for j in range(7)) / weight[i].sum() for i in range(7)])
    found = []
    for most in (10**6, 21, 7, 1):  # all rows, three, one, and one where not even that fits
        one, projection = h.clone().requires_grad_(), a.clone().requires_grad_()
        z = kernel_mean(one, scores(one, projection), 0.5, most)
        torch.testing.assert_close(z, expected)
        found.append(torch.autograd.grad(z.square().sum(), (one, projection)))
        assert found[-1][1].norm() > 1e-3
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def test_logits_are_of_the_embedding_beside_its_mean(graph):
    data, module = graph(), built(dropout=0.3)
    h = F.relu(module.encoder(data.x, data.edge_index))
    assert h.shape == (data.num_nodes, 16)
    z = kernel_mean(h, scores(h, module.projection), 1.0)
    expected = h @ module.head.weight[:, :16].t() + z @ module.head.weight[:, 16:].t() + module.head.bias
    torch.testing.assert_close(module(data.x, data.edge_index), expected)
    torch.testing.assert_close(module.head(module.embed(data.x, data.edge_index)), expected)
    with torch.no_grad():
        module.projection.mul_(7.0)  # its direction counts alone
    torch.testing.assert_close(module(data.x, data.edge_index), expected)


def test_dropout_is_in_training_only_and_in_both_halves(graph):
    data, module = graph(), built(dropout=0.9)
    with torch.no_grad():
        module.head.weight[:, :16] = 0.0
    assert torch.equal(module(data.x, data.edge_index), module(data.x, data.edge_index))
    module.train(), module.encoder.eval()
    assert not torch.equal(module(data.x, data.edge_index), module(data.x, data.edge_index))


@pytest.mark.parametrize("encoder", [GCN, GraphSAGE, GIN, GAT, GPRGNN, GCNWithHead])
def test_any_encoder_and_every_parameter_learns(encoder, graph):
    data, module = graph(), built(encoder)
    torch.nn.init.uniform_(module.head.bias)
    F.cross_entropy(module(data.x.to_sparse_csr(), data.edge_index), data.y).backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in module.parameters())
    torch.testing.assert_close(module(data.x.to_sparse_csr(), data.edge_index), module(data.x, data.edge_index))


def test_with_masks_and_named_heads():
    masked = Masked(AuxiliaryProjection(GCN(hidden_channels=4)))
    masked.build(12, 3)
    names = {name for name in masked.state_dict() if name.endswith(".mask")}
    assert names == {"encoder.encoder.convs.0.lin.mask", "encoder.encoder.convs.1.lin.mask", "encoder.head.mask"}
    assert masked.head_entries == ("encoder.head.*",) and "encoder.projection" in masked.state_dict()


def test_the_projection_begins_between_0_and_1():
    begun = torch.cat([built(GCN).projection.detach() for _ in range(20)])
    assert 0 <= begun.min() < 0.1 and 0.9 < begun.max() <= 1


def test_errors_name_what_to_write():
    with pytest.raises(ValueError, match="hidden_channels`.*but `Linear` has none"):
        AuxiliaryProjection(torch.nn.Linear(2, 2))
    for sigma in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="init_args.sigma` must be a number above 0"):
            AuxiliaryProjection(GCN(), sigma=sigma)
    with pytest.raises(ValueError, match=r"init_args.dropout` must be 0 or more and below 1, but is 1"):
        AuxiliaryProjection(GCN(), dropout=1.0)
    module = built()
    module.build(12, 3)
    with pytest.raises(ValueError, match=r"was built for .*\(12, 16\)|was built for \(inputs, outputs\) \(12, 3\)"):
        module.build(12, 4)
