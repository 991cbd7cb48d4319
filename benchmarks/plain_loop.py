"""The baseline: federated averaging of a GraphSAGE as one would write it by hand, in plain PyTorch and PyG.

No Lightning, no messages, no checkpoints: what is left is the mathematics of a round, its evaluations and its curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv


class PlainSAGE(nn.Module):
    """Two mean ``SAGEConv`` layers with ReLU and dropout between them."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, dropout: float) -> None:
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(in_channels, hidden_channels), SAGEConv(hidden_channels, out_channels)])
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.convs[0](x, edge_index).relu()
        h = F.dropout(h, self.dropout, self.training)
        return self.convs[1](h, edge_index)


class PlainLoop:
    """FedAvg, uniform weights, full-batch local epochs with a fresh Adam.

    Args:
        model: Holds the initial weights.
        clients: Graph of each client, with dense ``x``.
        whole: The server's graph, with dense ``x``.
        epochs: Local epochs of a round.
        directory: Where TensorBoard's event file goes.
    """

    def __init__(self, model: PlainSAGE, clients: Sequence[Data], whole: Data, epochs: int, directory: Path) -> None:
        self.model, self.clients, self.whole, self.epochs = model, clients, whole, epochs
        self.weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.writer = SummaryWriter(str(directory))

    def round(self, round: int) -> None:
        """Train every client from the global weights, average, evaluate the average everywhere, log."""
        curves: dict[str, float] = {}
        models = []
        for number, data in enumerate(self.clients):
            self.model.load_state_dict(self.weights)
            curves[f"clients/{number}/train/loss"] = self._train(data)
            models.append({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
        self.weights = {
            name: torch.stack([m[name].double() for m in models]).mean(0).to(first.dtype) for name, first in models[0].items()
        }
        self.model.load_state_dict(self.weights)
        for prefix, data in [("", self.whole), *((f"clients/{n}/", d) for n, d in enumerate(self.clients))]:
            curves |= {f"{prefix}val/{name}": value for name, value in self._evaluate(data).items()}
        scores = [curves[f"clients/{n}/val/accuracy"] for n in range(len(self.clients))]
        curves |= {"val/clients_mean": sum(scores) / len(scores), "val/clients_worst": min(scores)}
        for name, value in curves.items():
            self.writer.add_scalar(name, value, round)

    def _train(self, data: Data) -> float:
        self.model.train()
        optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2, weight_decay=5e-4, fused=True)
        for _ in range(self.epochs):
            optimizer.zero_grad()
            logits = self.model(data.x, data.edge_index)
            loss = F.cross_entropy(logits[data.train_mask], data.y[data.train_mask])
            loss.backward()
            optimizer.step()
        return loss.item()

    @torch.no_grad()
    def _evaluate(self, data: Data) -> dict[str, float]:
        self.model.eval()
        logits = self.model(data.x, data.edge_index)[data.val_mask]
        labels, num_classes = data.y[data.val_mask], logits.size(1)
        place = labels * num_classes + logits.argmax(-1)
        confusion = torch.bincount(place, minlength=num_classes**2).view(num_classes, num_classes)
        involved = confusion.sum(0) + confusion.sum(1)
        f1 = (2 * confusion.diagonal() / involved.clamp(min=1)).sum() / (involved > 0).sum()
        return {
            "accuracy": (confusion.diagonal().sum() / confusion.sum()).item(),
            "f1": f1.item(),
            "loss": F.cross_entropy(logits, labels).item(),
        }
