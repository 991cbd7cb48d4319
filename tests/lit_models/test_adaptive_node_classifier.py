"""The classifier of AdaFGL's two steps: what is trained in which, with which loss, and what it answers."""

import copy

import pytest
import torch
import torch.nn.functional as F

from lit_models import GCN, AdaptivePropagation, GraphSAGE, LitAdaptiveNodeClassifier, LitNodeClassifier

SCHEMA = {"num_features": 12, "num_classes": 3}


def built(personal=True, encoder=None):
    torch.manual_seed(0)
    module = LitAdaptiveNodeClassifier(encoder or GCN(8), AdaptivePropagation(8, hops=2))
    module.build(SCHEMA)
    if personal:
        module.homophily.fill_(0.25)
    return module


def test_before_the_personal_step_it_is_the_classifier_of_its_encoder(graph):
    data, module = graph(), built(personal=False)
    torch.manual_seed(0)
    plain = LitNodeClassifier(GCN(8))
    plain.build(SCHEMA)
    for one in (module, plain):
        torch.manual_seed(1)
        one.training_step(data, 0).backward()
    assert torch.equal(module(data).detach(), module(data).detach()) is False  # dropout: it trains
    wanted, found = dict(plain.named_parameters()), dict(module.named_parameters())
    for name, parameter in wanted.items():
        assert torch.equal(parameter, found[name]) and torch.equal(parameter.grad, found[name].grad)
    assert all(parameter.grad is None for name, parameter in found.items() if name not in wanted)
    assert torch.equal(module.eval()(data), plain.eval()(data)) and not module.is_personal


@pytest.mark.parametrize("sparse", [False, True])
def test_the_loss_and_the_answer_of_the_personal_step(graph, sparse):
    data = graph()
    if sparse:
        data.x = data.x.to_sparse_csr()
    data.y[data.train_mask.nonzero()[0]] = -1  # a training node without a label
    module = built().eval()
    (z, o, s, m), (p, _, _) = module.branches(data)
    known = data.train_mask & (data.y >= 0)
    assert 0 < int(known.sum()) < int(data.train_mask.sum())
    entropy = sum(-logits.log_softmax(-1)[v, data.y[v]] for logits in (z, o, s, m) for v in known.nonzero().flatten())
    expected = entropy / known.sum() + ((z - p) ** 2).sum() / z.numel()
    torch.testing.assert_close(module.training_step(data, 0), expected)
    homophilous, heterophilous = (z.softmax(-1) + p) / 2, (o.softmax(-1) + s.softmax(-1) + m.softmax(-1)) / 3
    answer = 0.25 * homophilous + 0.75 * heterophilous
    torch.testing.assert_close(module(data).exp(), answer)
    torch.testing.assert_close(module.predict_step(data, 0)["probabilities"], answer)


def test_the_encoder_rests_in_the_personal_step(graph):
    """Not even weight decay moves it, and nothing of the heads is left out."""
    data, module = graph(), built()
    before = copy.deepcopy(module.state_dict())
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        module.training_step(data, 0).backward()
        optimizer.step()
    moved = {name for name, tensor in module.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {name for name in before if name.startswith("personal.")}


def test_what_stays_with_the_client():
    class Own(GraphSAGE):
        private_entries = ("convs.1.*",)

    assert built(encoder=Own(8)).private_entries == ("encoder.convs.1.*", "personal.*", "homophily")


def test_an_answer_that_is_sure_has_a_finite_logarithm(graph):
    data, module = graph(), built().eval()
    with torch.no_grad():
        for mlp in (module.personal.homophilous, module.personal.own, module.personal.smoothed, module.personal.propagated):
            mlp.layers[-1].bias.copy_(torch.tensor([1e4, 0.0, 0.0]))
        module.homophily.fill_(0.0)
        assert bool(module(data).isfinite().all()) and module(data).exp()[0, 0] == pytest.approx(1.0)
        assert bool(F.cross_entropy(module(data), data.y.clamp(min=0)).isfinite())
