"""Small generated graphs, a data module over them, and a quiet Trainer."""

import warnings

import lightning.pytorch as L
import pytest
import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Data

NUM_FEATURES, NUM_CLASSES = 12, 3


def make_graph(num_nodes: int = 40, num_edges: int = 60, sparse: bool = False, seed: int = 0) -> Data:
    """A random undirected graph whose last node is isolated; 0/1 features, about a quarter ones."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, max(num_nodes - 1, 1), (2, num_edges), generator=generator)
    edges = edges[:, edges[0] != edges[1]]
    edges = torch.unique(torch.cat([edges, edges.flip(0)], dim=1), dim=1)
    x = (torch.rand(num_nodes, NUM_FEATURES, generator=generator) < 0.25).float()
    role = torch.arange(num_nodes) % 4
    return Data(
        x=x.to_sparse_csr() if sparse else x,
        edge_index=edges,
        y=torch.randint(0, NUM_CLASSES, (num_nodes,), generator=generator),
        train_mask=role < 2,
        val_mask=role == 2,
        test_mask=role == 3,
        node_id=torch.arange(num_nodes) + 1000,
        num_nodes=num_nodes,
    )


class GraphData(L.LightningDataModule):
    """Full-batch loaders over the given batches."""

    schema = {"num_features": NUM_FEATURES, "num_classes": NUM_CLASSES}

    def __init__(self, *batches: Data) -> None:
        super().__init__()
        self.loader = DataLoader(list(batches), batch_size=None)

    def train_dataloader(self) -> DataLoader:
        return self.loader

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


def make_trainer(**arguments) -> L.Trainer:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return L.Trainer(**{"accelerator": "cpu", "max_epochs": 1, **quiet, **arguments})


@pytest.fixture(autouse=True)
def _quiet_and_seeded():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        torch.manual_seed(0)
        yield


@pytest.fixture
def graph():
    return make_graph


@pytest.fixture
def data():
    return GraphData


@pytest.fixture
def trainer():
    return make_trainer
