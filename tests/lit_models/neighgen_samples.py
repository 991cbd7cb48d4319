"""A small random graph and a small NeighGen, and what its fGen generates by plain matrix products."""

import torch
from torch_geometric.data import Data

from datamodules.impairing import impair
from lit_models.neighgen import LitNeighGen
from lit_models.neighgen.exchange import train_fgen_alone

SCHEMA = {"num_features": 6, "num_classes": 3}
SGD = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731


def random_graph(num_nodes=40, seed=0, probability=0.15, sparse=False):
    generator = torch.Generator().manual_seed(seed)
    adjacency = torch.triu(torch.rand(num_nodes, num_nodes, generator=generator) < probability, diagonal=1)
    pairs = adjacency.nonzero().T
    x = torch.rand(num_nodes, 6, generator=generator) * (torch.rand(num_nodes, 6, generator=generator) < 0.6)
    part = torch.arange(num_nodes) % 4
    return Data(
        x=x.to_sparse_csr() if sparse else x,
        edge_index=torch.cat([pairs, pairs.flip(0)], dim=1),
        y=torch.randint(0, 3, (num_nodes,), generator=generator),
        train_mask=part < 2,
        val_mask=part == 2,
        test_mask=part == 3,
        node_id=torch.arange(num_nodes),
        num_nodes=num_nodes,
    )


def neighgen(seed=0, **options):
    torch.manual_seed(seed)
    small = {"embedding_channels": 8, "num_slots": 3, "hidden_channels": [10, 10], "feature_range": "tanh"}
    module = LitNeighGen(**(small | options))
    module.build(SCHEMA)
    return module


def started(**options):
    """Some nodes have a predicted count of 0 although they miss neighbours: they are in the local term alone."""
    module, batch = neighgen(**options), impair(random_graph(), 0.3, 0)
    module.start(batch)
    torch.nn.init.normal_(module.dgen.linear.weight, std=0.1)
    module.dgen.linear.bias.data -= 1.0
    train_fgen_alone(module)
    return module, batch


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def reference_candidates(weights, u, num_slots):
    """All P candidates of a tanh fGen with two hidden layers, shape (B, P, F), by plain matrix products."""
    h = (u @ weights["hidden.0.weight"].T + weights["hidden.0.bias"]).clamp(min=0)
    h = (h @ weights["hidden.1.weight"].T + weights["hidden.1.bias"]).clamp(min=0)
    return torch.tanh(h @ weights["out.weight"].T + weights["out.bias"]).reshape(len(u), num_slots, -1)
