"""A graph classifier with PyG's GIN: does a small graph have a ring? Each site has graphs of another size."""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from sites import LOCAL, Site, show
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GIN, MLP, global_add_pool
from torch_geometric.utils import degree, to_undirected

from fl_lightning import FederatedTrainer

SETTINGS = {"num_rounds": 8, "monitor": "acc", "trainer": LOCAL}


class Model(L.LightningModule):
    def __init__(self, in_channels, out_channels, hidden_channels=16, num_layers=3, dropout=0.0):
        super().__init__()
        self.gnn = GIN(in_channels, hidden_channels, num_layers, dropout=dropout, jk="cat")
        self.classifier = MLP([hidden_channels, hidden_channels, out_channels], norm="batch_norm", dropout=dropout)

    def forward(self, x, edge_index, batch):
        x = self.gnn(x, edge_index)
        x = global_add_pool(x, batch)
        return self.classifier(x)

    def training_step(self, data, batch_idx):
        y_hat = self(data.x, data.edge_index, data.batch)
        loss = F.cross_entropy(y_hat, data.y)
        self.log("train_loss", loss, batch_size=data.num_graphs)
        return loss

    def validation_step(self, data, batch_idx):
        y_hat = self(data.x, data.edge_index, data.batch)
        self.log("val_acc", (y_hat.argmax(-1) == data.y).float().mean(), batch_size=data.num_graphs)

    def test_step(self, data, batch_idx):
        y_hat = self(data.x, data.edge_index, data.batch)
        self.log("test_acc", (y_hat.argmax(-1) == data.y).float().mean(), batch_size=data.num_graphs)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def model():
    return Model(in_channels=6, out_channels=2)


def graph(nodes, ring, generator):
    """A random tree, or a ring with trees on it; a node's feature is its degree, one-hot."""
    first = 4 if ring else 1
    edges = [(node, (node + 1) % first) for node in range(first)] if ring else []
    edges += [(node, int(torch.randint(node, (), generator=generator))) for node in range(first, nodes)]
    edge_index = to_undirected(torch.tensor(edges).T, num_nodes=nodes)
    x = F.one_hot(degree(edge_index[0], nodes).long().clamp(max=5), 6).float()
    return Data(x=x, edge_index=edge_index, y=torch.tensor([int(ring)]))


def site(number, shuffle=True):
    """72 graphs of 6 + 2 `number` nodes."""
    generator = torch.Generator().manual_seed(number)
    graphs = [graph(6 + 2 * number, index % 2 == 0, generator) for index in range(72)]
    return Site(graphs[:48], graphs[48:], shuffle=shuffle, loader=DataLoader)


def main():
    L.seed_everything(0, verbose=False)
    trainer = FederatedTrainer(**SETTINGS, name="gin")
    trainer.fit(model(), [site(number) for number in range(3)])
    return show(trainer)


if __name__ == "__main__":
    main()
