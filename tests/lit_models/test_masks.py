"""Masks: hand values (O3), names, copies, pickles; bugs: mask on biases, pruning in training, product in the state."""

import copy
import fnmatch
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.nn.dense.linear import Linear as PyGLinear

from lit_models.masks import (
    PRIVATE_MASKS,
    apply_masks,
    mask_statistics,
    masked_layers,
    masked_weights,
    named_masks,
    pruned,
    raw_weight,
)


def _linear(weight, mask, bias=None, **kwargs):
    weight = torch.tensor([weight])
    layer = nn.Linear(weight.shape[1], 1, bias=bias is not None)
    layer.weight.data.copy_(weight)
    if bias is not None:
        layer.bias.data.fill_(bias)
    apply_masks(layer, **kwargs)
    layer.mask.data.copy_(torch.tensor([mask]))
    return layer


def test_effective_weight_by_hand_o3():
    layer = _linear([1.0, -2.0, 3.0, 4.0], [1.0, 0.5, 0.0, -1.0])
    assert layer.weight.tolist() == [[1.0, -1.0, 0.0, -4.0]]
    assert raw_weight(layer).tolist() == [[1.0, -2.0, 3.0, 4.0]]
    # x = 1: 1 - 1 + 0 - 4 = -4; the bias 10 is added as it is, whatever the mask.
    layer = _linear([1.0, -2.0, 3.0, 4.0], [1.0, 0.5, 0.0, -1.0], bias=10.0)
    assert layer(torch.ones(1, 4)).item() == 6.0


def test_masked_weights_by_hand():
    layer = _linear([1.0, -2.0, 3.0, 4.0], [1.0, 0.5, 1e-4, -1.0]).eval()  # not pruned, whatever the mode
    theta = masked_weights(nn.Sequential(nn.ReLU(), layer))
    torch.testing.assert_close(theta, {"1.weight": torch.tensor([[1.0, -1.0, 3e-4, -4.0]])})
    assert not theta["1.weight"].requires_grad and set(masked_weights(layer)) == {"weight"}


def test_pruning_in_evaluation_only_and_strict_o3():
    mask = [1.0, 5e-4, -5e-4, 1e-3]
    layer = _linear([1.0, 1.0, 1.0, 1.0], mask, prune_below=1e-3)
    layer.train()
    torch.testing.assert_close(layer.weight.detach(), torch.tensor([mask]), rtol=0, atol=0)
    layer.eval()
    torch.testing.assert_close(layer.weight.detach(), torch.tensor([[1.0, 0.0, 0.0, 1e-3]]), rtol=0, atol=0)
    torch.testing.assert_close(layer.mask.detach(), torch.tensor([mask]), rtol=0, atol=0)  # the mask itself is kept
    layer.train()
    torch.testing.assert_close(layer.weight.detach(), torch.tensor([mask]), rtol=0, atol=0)
    assert pruned(torch.tensor([0.0, -2.0]), 0.0).tolist() == [0.0, -2.0]


def test_gradients_reach_weight_and_mask():
    layer = _linear([1.0, -2.0], [3.0, 0.5])
    layer(torch.tensor([[5.0, 7.0]])).sum().backward()
    assert raw_weight(layer).grad.tolist() == [[15.0, 3.5]]  # x * mu
    assert layer.mask.grad.tolist() == [[5.0, -14.0]]  # x * W


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gcn = GCNConv(5, 4)
        self.sage = SAGEConv(4, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x, edge_index):
        x = self.gcn(x, edge_index).relu()
        return self.head(self.norm(self.sage(x, edge_index)))


EDGES = torch.tensor([[0, 1, 1, 2, 3, 0], [1, 0, 2, 1, 0, 3]])


def test_one_mask_per_matrix_none_on_biases_or_norms_and_no_name_changes():
    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    apply_masks(net)
    after = net.state_dict()
    added = set(after) - set(before)
    assert added == {"gcn.lin.mask", "sage.lin_l.mask", "sage.lin_r.mask", "head.mask"}
    assert all(any(fnmatch.fnmatch(name, p) for p in PRIVATE_MASKS) for name in added)
    assert not any(any(fnmatch.fnmatch(name, p) for p in PRIVATE_MASKS) for name in before)
    assert {name for name, _ in net.named_parameters()} == set(after)
    for name, value in before.items():
        assert torch.equal(after[name], value), name
    for name in added:
        assert torch.equal(after[name], torch.ones_like(after[name[: -len("mask")] + "weight"]))


def test_state_dict_holds_raw_weights_never_the_product():
    net = apply_masks(Net())
    raw = {name: raw_weight(layer).detach().clone() for name, layer in masked_layers(net)}
    for mask in named_masks(net).values():
        mask.data.fill_(0.25)
    for mode in (True, False):
        state = net.train(mode).state_dict()
        for name, weight in raw.items():
            assert torch.equal(state[f"{name}.weight"], weight)
        live = net.state_dict(keep_vars=True)  # in place writes into these reach the parameters
        assert all(live[f"{name}.weight"] is raw_weight(layer) for name, layer in masked_layers(net))


def test_only_masks_move_then_every_other_entry_is_unchanged():
    net = apply_masks(Net())
    shared = {name: value.clone() for name, value in net.state_dict().items() if not name.endswith(".mask")}
    for mask in named_masks(net).values():
        mask.data.uniform_(-1, 1)
    for name, value in shared.items():
        assert torch.equal(net.state_dict()[name], value)


@pytest.mark.parametrize("training", [True, False])
def test_masks_of_one_change_no_bit(training):
    torch.manual_seed(0)
    plain = Net().train(training)
    masked = apply_masks(copy.deepcopy(plain))
    x = torch.randn(4, 5)
    assert torch.equal(plain(x, EDGES), masked(x, EDGES))


def _trained_like(net):
    torch.manual_seed(3)
    for parameter in net.parameters():
        parameter.data.normal_()
    return net


def test_deepcopy_is_independent_and_equal():
    net = _trained_like(apply_masks(Net(), prune_below=0.2)).eval()
    clone = copy.deepcopy(net)
    x = torch.randn(4, 5)
    assert torch.equal(net(x, EDGES), clone(x, EDGES))
    assert len(named_masks(clone)) == 4
    for original, copied in zip(net.parameters(), clone.parameters(), strict=True):
        assert original is not copied and original.data_ptr() != copied.data_ptr()
    clone.head.mask.data.zero_()
    assert net.head.mask.abs().sum() > 0


def test_pickle_round_trip():
    net = _trained_like(apply_masks(Net(), prune_below=0.2)).eval()
    clone = pickle.loads(pickle.dumps(net))
    x = torch.randn(4, 5)
    assert torch.equal(net(x, EDGES), clone(x, EDGES))
    assert type(clone.gcn.lin) is type(net.gcn.lin)


@pytest.mark.slow
def test_goes_to_a_spawned_process():
    net = _trained_like(apply_masks(nn.Sequential(nn.Linear(2, 3), PyGLinear(3, 2))))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        there = pool.submit(net.state_dict).result()  # the bound method takes the module along
    here = net.state_dict()
    assert list(there) == list(here) and all(torch.equal(there[name], here[name]) for name in here)


def test_strict_load_between_masked_models_and_from_an_unmasked_one():
    source, target = _trained_like(apply_masks(Net())), apply_masks(Net())
    target.load_state_dict(source.state_dict(), strict=True)
    for name, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], value)
    plain = _trained_like(Net())
    missing, unexpected = target.load_state_dict(plain.state_dict(), strict=False)
    assert set(missing) == {f"{name}.mask" for name in named_masks(target)} and not unexpected


def test_applied_twice_keeps_the_masks():
    net = apply_masks(Net())
    net.head.mask.data.fill_(7.0)
    apply_masks(net)
    assert torch.equal(net.head.mask, torch.full((3, 4), 7.0)) and len(net.head._parameters) == 3


def test_reset_initialises_the_raw_weight_and_the_mask():
    net = apply_masks(nn.Sequential(PyGLinear(3, 2, weight_initializer="glorot"), nn.Linear(2, 2)))
    for parameter in net.parameters():
        parameter.data.fill_(9.0)
    for layer in net:
        layer.reset_parameters()
        assert raw_weight(layer).abs().max() < 9 and layer.bias.abs().max() < 9
        assert torch.equal(layer.mask, torch.ones_like(layer.mask))


def test_moves_between_types():
    net = apply_masks(nn.Linear(2, 2)).double()
    assert net.weight.dtype == net.mask.dtype == torch.float64


def test_statistics_by_hand():
    layer = nn.Sequential(_linear([1.0, 1.0, 1.0, 1.0], [1.0, 5e-4, 0.0, 2.9995]))
    assert mask_statistics(layer) == {"0": {"sparsity": 0.5, "mean": pytest.approx(1.0)}}


def test_errors_name_the_remedy():
    with pytest.raises(ValueError, match="no weight matrix to mask"):
        apply_masks(nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match="prune_below.*>= 0"):
        apply_masks(nn.Linear(1, 1), prune_below=-1.0)
    with pytest.raises(ValueError, match="no size yet.*in_channels"):
        apply_masks(PyGLinear(-1, 2))
