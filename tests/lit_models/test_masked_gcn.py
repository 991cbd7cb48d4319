"""MaskedGCN, Masked and the functional embedding: O6, O8, bit equality with the unmasked network, names."""

import copy
import fnmatch
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from datamodules.planted import PlantedDataModule
from lit_models import APPNP, GAT, GCN, GIN, GPRGNN, GraphSAGE, LitNodeClassifier
from lit_models.functional_embedding import functional_embedding
from lit_models.masked_gcn import GCNWithHead, Masked, MaskedGCN
from lit_models.masks import apply_masks, masked_layers, named_masks, raw_weight
from lit_models.objectives.fedpub import MaskedProximal


def _graph(num_nodes=30, num_features=12, sparse=False, seed=0):
    random = torch.Generator().manual_seed(seed)
    upper = (torch.rand(num_nodes, num_nodes, generator=random) < 0.15).triu(1)
    edge_index = (upper | upper.T).nonzero().T.contiguous()
    x = (torch.rand(num_nodes, num_features, generator=random) < 0.3).float()
    return Data(x=x.to_sparse_csr() if sparse else x, edge_index=edge_index, num_nodes=num_nodes)


def _masked(**arguments):
    torch.manual_seed(1)
    encoder = MaskedGCN(hidden_channels=8, **arguments)
    encoder.build(12, 4)
    return encoder


def _spread_masks(module, seed=2):
    random = torch.Generator().manual_seed(seed)
    for mask in named_masks(module).values():
        mask.data.copy_(torch.randn(mask.shape, generator=random))
    return module


def test_masked_convolution_by_hand_o6():
    # One edge 0-1, so A_hat is .5 everywhere; x = [1, 3], W mu = 2 * .5 = 1: each node gets .5 * 1 + .5 * 3 = 2.
    conv = apply_masks(GCNConv(1, 1))
    raw_weight(conv.lin).data.fill_(2.0)
    conv.lin.mask.data.fill_(0.5)
    out = conv(torch.tensor([[1.0], [3.0]]), torch.tensor([[0, 1], [1, 0]]))
    torch.testing.assert_close(out.detach(), torch.tensor([[2.0], [2.0]]))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_masks_of_one_equal_the_unmasked_network_bit_for_bit(sparse, training):
    graph, masked = _graph(sparse=sparse), _masked().train(training)
    plain = GCNWithHead(hidden_channels=8)
    plain.build(12, 4)
    shared = {name: value for name, value in masked.state_dict().items() if not name.endswith(".mask")}
    plain.load_state_dict(shared, strict=True)
    plain.train(training)
    torch.manual_seed(5)
    expected = plain(graph.x, graph.edge_index)
    torch.manual_seed(5)
    assert torch.equal(masked(graph.x, graph.edge_index), expected)


@pytest.mark.parametrize("training", [False, True])
def test_masks_of_one_equal_pyg_layers(training):
    """conv1, ReLU, dropout, conv2, ReLU, dropout, linear on PyG's own layers, with the same dropout bits."""
    graph, masked = _graph(), _masked().train(training)
    state = masked.state_dict()
    convs = [GCNConv(12, 8), GCNConv(8, 8)]
    for k, conv in enumerate(convs):
        conv.lin.weight.data.copy_(state[f"convs.{k}.lin.weight"])
        conv.bias.data.copy_(state[f"convs.{k}.bias"])
    torch.manual_seed(5)
    h = F.dropout(convs[0](graph.x, graph.edge_index).relu(), 0.5, training)
    h = F.dropout(convs[1](h, graph.edge_index).relu(), 0.5, training)
    expected = F.linear(h, state["head.weight"], state["head.bias"])
    torch.manual_seed(5)
    torch.testing.assert_close(masked(graph.x, graph.edge_index), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("encoder", [GCN, GraphSAGE, GIN, GAT, APPNP, GPRGNN, GCNWithHead])
@pytest.mark.parametrize("sparse", [False, True])
def test_any_encoder_can_be_masked(encoder, sparse):
    """Masks of one change nothing; other masks act as if the weights were W * mu, on both feature paths."""
    graph = _graph(sparse=sparse)
    torch.manual_seed(1)
    plain = encoder(hidden_channels=8)
    plain.build(12, 4)
    masked = Masked(copy.deepcopy(plain), prune_below=0.1)
    masked.build(12, 4)
    plain.eval(), masked.eval()
    assert torch.equal(masked(graph.x, graph.edge_index), plain(graph.x, graph.edge_index))
    assert torch.equal(masked.embed(graph.x, graph.edge_index), plain.embed(graph.x, graph.edge_index))
    _spread_masks(masked)
    for name, mask in named_masks(masked.encoder).items():
        effective = torch.where(mask.abs() < 0.1, 0.0, mask).detach()
        plain.get_submodule(name).weight.data.mul_(effective)
    torch.testing.assert_close(masked(graph.x, graph.edge_index), plain(graph.x, graph.edge_index))


def test_sparse_and_dense_features_agree_with_their_gradients():
    dense, sparse = _graph(), _graph(sparse=True)
    results = []
    for graph in (dense, sparse):
        encoder = _spread_masks(_masked(dropout=0.0)).train()
        encoder(graph.x, graph.edge_index).square().sum().backward()
        results.append([parameter.grad for parameter in encoder.parameters()])
    torch.testing.assert_close(results[0], results[1])


def test_graphsage_has_a_mask_for_each_of_its_matrices():
    encoder = Masked(GraphSAGE(hidden_channels=8))
    encoder.build(12, 4)
    names = {name for name in encoder.state_dict() if name.endswith("mask")}
    assert names == {f"encoder.convs.{k}.lin_{side}.mask" for k in (0, 1) for side in "lr"}


def test_names_and_initial_values():
    encoder = _masked()
    state = encoder.state_dict()
    masks = {name for name in state if name.endswith(".mask")}
    assert masks == {"convs.0.lin.mask", "convs.1.lin.mask", "head.mask"}
    assert all(torch.equal(state[name], torch.ones_like(state[name])) for name in masks)
    assert not state["convs.0.bias"].any() and not state["convs.1.bias"].any()
    for name in ("convs.0.lin.weight", "convs.1.lin.weight", "head.weight"):  # glorot: |w| <= sqrt(6 / (in + out))
        bound = math.sqrt(6 / sum(state[name].shape))
        assert 0.8 * bound < state[name].abs().max() <= bound, name
    assert state["head.bias"].abs().max() <= math.sqrt(6 / 5)


def test_number_of_parameters_on_cora():
    """200,704 masks and 200,967 weights and biases (docs/papers/fedpub.md#model)."""
    encoder = MaskedGCN()
    encoder.build(1433, 7)
    masks = sum(mask.numel() for mask in named_masks(encoder).values())
    assert (masks, sum(p.numel() for p in encoder.parameters()) - masks) == (200_704, 200_967)


def test_build_is_idempotent_and_refuses_other_widths():
    encoder = _masked()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    encoder.build(12, 4)
    assert all(torch.equal(value, encoder.state_dict()[name]) for name, value in before.items())
    with pytest.raises(ValueError, match="cannot be rebuilt"):
        encoder.build(12, 5)
    with pytest.raises(ValueError, match="`head_init` must be `linear` or `glorot`"):
        MaskedGCN(head_init="zeros")


def test_copies_and_pickles_of_the_whole_module():
    module = LitNodeClassifier(MaskedGCN(hidden_channels=8), MaskedProximal())
    for clone in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):  # as sent to a worker, before `build`
        clone.build({"num_features": 12, "num_classes": 4})
        assert len(named_masks(clone)) == 3
    module.build({"num_features": 12, "num_classes": 4})
    _spread_masks(module).eval()
    graph = _graph()
    for clone in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(clone(graph), module(graph))
    clone.load_state_dict(module.state_dict(), strict=True)


# ---- functional embedding ------------------------------------------------------------------------------------------


def test_functional_embedding_in_closed_form_o8():
    """AVG(A H W2^T + b) = (mean row of A) H W2^T + b, with pruned masks, all by dense matrices."""
    proxy, encoder = _graph(seed=9), _spread_masks(_masked(prune_below=0.3)).train()
    encoder.convs[1].bias.data.normal_()
    adjacency = torch.eye(30)
    adjacency[proxy.edge_index[1], proxy.edge_index[0]] = 1.0
    scale = adjacency.sum(1).rsqrt()
    adjacency = scale[:, None] * adjacency * scale[None, :]
    theta = {}
    for name, layer in masked_layers(encoder):
        mask = layer.mask.detach()
        theta[name] = raw_weight(layer).detach() * torch.where(mask.abs() < 0.3, 0.0, mask)
    hidden = (adjacency @ proxy.x @ theta["convs.0.lin"].T + encoder.convs[0].bias.detach()).relu()
    expected = adjacency.mean(0) @ hidden @ theta["convs.1.lin"].T + encoder.convs[1].bias.detach()
    torch.testing.assert_close(functional_embedding(encoder, proxy.x, proxy.edge_index), expected, atol=1e-5, rtol=1e-5)


def test_functional_embedding_leaves_no_trace():
    proxy, encoder = _graph(seed=9), _masked().train()
    encoder.convs[1].eval()  # a mixture of modes comes back as it was
    modes = [part.training for part in encoder.modules()]
    random = torch.random.get_rng_state()
    first = functional_embedding(encoder, proxy.x, proxy.edge_index)
    assert torch.equal(first, functional_embedding(encoder, proxy.x, proxy.edge_index))  # no dropout
    assert not first.requires_grad and first.shape == (8,)
    assert [part.training for part in encoder.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), random)


def test_functional_embedding_sees_the_masks_but_not_the_classifier():
    proxy, encoder = _graph(seed=9), _masked()
    before = functional_embedding(encoder, proxy.x, proxy.edge_index)
    encoder.head.mask.data.zero_()
    assert torch.equal(functional_embedding(encoder, proxy.x, proxy.edge_index), before)
    encoder.convs[0].lin.mask.data.mul_(0.5)
    assert not torch.equal(functional_embedding(encoder, proxy.x, proxy.edge_index), before)


def test_functional_embedding_of_an_encoder_without_head_is_its_last_layers_input():
    graph = _graph(sparse=True)
    encoder = GraphSAGE(hidden_channels=8)
    encoder.build(12, 4)
    encoder.eval()
    expected = encoder.embed(graph.x, graph.edge_index).mean(0).detach()
    assert torch.equal(functional_embedding(encoder, graph.x, graph.edge_index), expected)


# ---- under a stock Trainer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", [MaskedGCN(hidden_channels=16), Masked(GraphSAGE(hidden_channels=16))])
def test_trains_under_a_stock_trainer_and_declares_its_masks_private(encoder, tmp_path):
    data = PlantedDataModule(num_clients=2, nodes_per_client=60)
    data.setup()
    module = LitNodeClassifier(encoder, MaskedProximal(l1=1e-6, l2=1e-3))
    trainer = Trainer(
        max_epochs=10, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, datamodule=data.client_datamodules()[0])
    state = module.state_dict()
    private = {name for name in state if any(fnmatch.fnmatch(name, pattern) for pattern in module.private_entries)}
    assert private == {name for name in state if name.endswith(".mask")} and len(private) == len(named_masks(module))
    assert all(not torch.equal(state[name], torch.ones_like(state[name])) for name in private)  # all of them trained
    assert trainer.callback_metrics["train/proximal"] > 0 and trainer.callback_metrics["train/mask_l1"] > 0


def test_checkpoints_restore_masks(tmp_path):
    data = PlantedDataModule(num_clients=2, nodes_per_client=60)
    data.setup()
    client, graph = data.client_datamodules()[0], data.client_datamodules()[0].data
    module = LitNodeClassifier(MaskedGCN(hidden_channels=16), MaskedProximal())
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, datamodule=client)
    trainer.save_checkpoint(tmp_path / "masked.ckpt", weights_only=True)
    again = LitNodeClassifier.load_from_checkpoint(
        tmp_path / "masked.ckpt", encoder=MaskedGCN(hidden_channels=16), weights_only=True
    )
    assert torch.equal(again.eval()(graph), module.eval()(graph))


def test_a_glorot_head_has_glorot_bounds_for_its_bias_too():
    # C = 500 classes, H = 512: the bias is uniform on +-sqrt(6 / 501) = .1094; that of nn.Linear on +-1 / sqrt(512) = .0442.
    torch.manual_seed(0)
    for init, bound in (("glorot", 0.109435), ("linear", 0.044195)):
        encoder = GCNWithHead(hidden_channels=512, head_init=init)
        encoder.build(2, 500)
        bias = encoder.head.bias.detach()
        assert 0.97 * bound < float(bias.max()) <= bound + 1e-6 and -bound - 1e-6 <= float(bias.min()) < -0.97 * bound
    assert MaskedGCN().head_init == "glorot" and GCNWithHead().head_init == "linear"


@pytest.mark.parametrize("make", [MaskedGCN, lambda **width: Masked(GCNWithHead(**width))])
def test_by_default_entries_below_a_thousandth_are_pruned(make):
    graph, encoder = _graph(), make(hidden_channels=8)
    encoder.build(12, 4)
    encoder.eval()
    head = getattr(encoder, "encoder", encoder).head
    for value, pruned in ((0.0011, False), (0.0009, True)):
        head.mask.data.fill_(value)
        logits = encoder(graph.x, graph.edge_index)
        assert torch.equal(logits, head.bias.expand_as(logits)) == pruned
