"""Who is trained on, validated on and tested on: seeded splits of the whole graph, which the clients inherit.

Each function gives three disjoint boolean masks ``(train, val, test)`` of shape ``(N,)``. A node without a label (``y
= -1``) is in none.
"""

import torch
from torch import Tensor

from datamodules.seeds import generator

STAGES = ("train", "val", "test")
SPLITS = ("stratified_60_20_20", "random_20_40_40", "public")
Masks = tuple[Tensor, Tensor, Tensor]


def stratified_60_20_20(y: Tensor, seed: int) -> Masks:
    """Per class, in a seeded order: the first ``round(.6 n)`` nodes train, the next ``round(.2 n)`` validate, the
    rest test.

    FedSage's split (docs/papers/fedsage.md#split): one for the whole graph, so that no client trains on another's test
    nodes.
    """
    train, val, test = (torch.zeros(y.numel(), dtype=torch.bool) for _ in range(3))
    random = generator(seed, "stratified_60_20_20")
    for label in torch.unique(y[y >= 0]).tolist():
        nodes = (y == label).nonzero().view(-1)
        nodes = nodes[torch.randperm(nodes.numel(), generator=random)]
        first, second = round(0.6 * nodes.numel()), round(0.2 * nodes.numel())
        train[nodes[:first]] = True
        val[nodes[first : first + second]] = True
        test[nodes[first + second :]] = True
    return train, val, test


def random_20_40_40(y: Tensor, seed: int) -> Masks:
    """One permutation of all nodes: the first ``round(.2 N)`` train, the next ``round(.4 N)`` test, the rest validate.

    FED-PUB's split (docs/papers/fedpub.md#data): neither stratified nor per client.
    """
    n = y.numel()
    order = torch.randperm(n, generator=generator(seed, "random_20_40_40"))
    first, second = round(0.2 * n), round(0.4 * n)
    train, val, test = (torch.zeros(n, dtype=torch.bool) for _ in range(3))
    train[order[:first]] = True
    test[order[first : first + second]] = True
    val[order[first + second :]] = True
    labeled = y >= 0
    return train & labeled, val & labeled, test & labeled
