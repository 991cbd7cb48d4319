"""A small graph and a small FedSage+, for the tests of its two halves."""

import torch
from torch_geometric.data import Data

from fl_lightning import FedSagePlus
from lit_models import GraphSAGE
from lit_models.neighgen import LitNeighGen

SEED, HIDE, HOLDOUT, NODES = 3, 0.3, 0.2, 30
SCHEMA = {"num_features": 6, "num_classes": 3}


def graph(seed=0, num_nodes=NODES):
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.triu(torch.rand(num_nodes, num_nodes, generator=generator) < 0.2, diagonal=1).nonzero().T
    part = torch.arange(num_nodes) % 3
    return Data(
        x=(torch.rand(num_nodes, 6, generator=generator) < 0.4).float(), y=part.clone(),
        edge_index=torch.cat([pairs, pairs.flip(0)], dim=1), node_id=torch.arange(num_nodes), num_nodes=num_nodes,
        train_mask=part == 0, val_mask=part == 1, test_mask=part == 2,
    )  # fmt: skip


def strategy(**options):
    generator = LitNeighGen(encoder=GraphSAGE(hidden_channels=8), embedding_channels=8, num_slots=3, hidden_channels=[10])
    small = {"hide_portion": HIDE, "holdout": HOLDOUT, "draws": 2, "min_batch": 1, "exchange_rounds": 3}
    return FedSagePlus(generator=generator, **{**small, **options})
