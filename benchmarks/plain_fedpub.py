"""The baseline: FED-PUB as one would write it by hand, in plain PyTorch and PyG.

Every client has its own model and Adam in memory; no Lightning, no messages, no checkpoints. One forward pass gives the
validation and the test scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm


class PlainMaskedGCN(nn.Module):
    """Two graph convolutions and a linear classifier over ``W * mu``."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, dropout: float) -> None:
        super().__init__()
        shapes = [(hidden_channels, in_channels), (hidden_channels, hidden_channels), (out_channels, hidden_channels)]
        self.weights = nn.ParameterList([torch.empty(shape) for shape in shapes])
        self.biases = nn.ParameterList([torch.empty(shape[0]) for shape in shapes])
        self.masks = nn.ParameterList([torch.ones(shape) for shape in shapes])
        self.conv = GCNConv(hidden_channels, hidden_channels, normalize=False, bias=False)
        self.conv.lin = nn.Identity()  # only its propagation is used
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> tuple[Tensor, Tensor]:
        """Output of the second convolution and logits."""
        masks = self.masks if self.training else [mu.masked_fill(mu.abs() < 1e-3, 0.0) for mu in self.masks]
        first, second, head = (w * mu for w, mu in zip(self.weights, masks, strict=True))
        h = (self.conv(x @ first.T, edge_index, edge_weight) + self.biases[0]).relu()
        h = F.dropout(h, self.dropout, self.training)
        z = self.conv(h @ second.T, edge_index, edge_weight) + self.biases[1]
        return z, F.linear(F.dropout(z.relu(), self.dropout, self.training), head, self.biases[2])


class PlainFedPub:
    """FED-PUB with one full-batch step a round, the note's proximal term, raw weights mixed.

    Args:
        models: One model per client, all with the initial weights.
        clients: Graph of each client, with dense ``x``.
        proxy: The random graph.
        tau: Scale of the similarities.
        l2: Factor of the proximal term.
        directory: Where TensorBoard's event file goes.
    """

    def __init__(
        self,
        models: Sequence[PlainMaskedGCN],
        clients: Sequence[Data],
        proxy: Data,
        tau: float,
        l2: float,
        directory: Path,
    ) -> None:
        self.models, self.tau, self.l2 = models, tau, l2
        self.clients = [(data, *gcn_norm(data.edge_index, num_nodes=data.num_nodes)) for data in clients]
        self.proxy = (proxy.x, *gcn_norm(proxy.edge_index, num_nodes=proxy.num_nodes))
        self.shared = [[*model.weights, *model.biases] for model in models]
        self.optimizers = [torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-6, fused=True) for model in models]
        self.writer = SummaryWriter(str(directory))

    def round(self, round: int) -> None:
        """Train and score every client, compare them, mix their weights, log."""
        curves: dict[str, float] = {}
        embeddings = []
        for number, model in enumerate(self.models):
            prefix = f"clients/{number}/"
            curves[f"{prefix}train/loss"], curves[f"{prefix}train/proximal"] = self._train(number)
            curves |= {f"{prefix}{name}": value for name, value in self._evaluate(number).items()}
            with torch.no_grad():
                embeddings.append(model(*self.proxy)[0].mean(0))
                for layer, mu in enumerate(model.masks):
                    curves[f"{prefix}mask/{layer}/sparsity"] = (mu.abs() < 1e-3).float().mean().item()
                    curves[f"{prefix}mask/{layer}/mean"] = mu.mean().item()
        unit = F.normalize(torch.stack(embeddings), dim=1)
        similarity = unit @ unit.T
        alpha = torch.softmax(self.tau * similarity, dim=1)
        with torch.no_grad():
            mixed = alpha @ torch.stack([torch.cat([p.reshape(-1) for p in own]) for own in self.shared])
            for own, row in zip(self.shared, mixed, strict=True):
                nn.utils.vector_to_parameters(row, own)
        for stage in ("val", "test"):
            scores = [curves[f"clients/{n}/{stage}/accuracy"] for n in range(len(self.models))]
            curves |= {f"{stage}/clients_mean": sum(scores) / len(scores), f"{stage}/clients_worst": min(scores)}
        for name, value in curves.items():
            self.writer.add_scalar(name, value, round)
        for name, matrix in (("similarity", similarity), ("alpha", alpha)):
            picture = (matrix - matrix.min()) / (matrix.max() - matrix.min()).clamp(min=1e-12)
            picture = picture.repeat_interleave(16, 0).repeat_interleave(16, 1)
            self.writer.add_image(name, picture, round, dataformats="HW")

    def _train(self, number: int) -> tuple[float, float]:
        model, optimizer = self.models[number].train(), self.optimizers[number]
        data, edge_index, edge_weight = self.clients[number]
        received = [w.detach().clone() for w in model.weights]
        _, logits = model(data.x, edge_index, edge_weight)
        loss = F.cross_entropy(logits[data.train_mask], data.y[data.train_mask])
        proximal = self.l2 * sum(F.mse_loss(w * mu, w, reduction="sum") for w, mu in zip(received, model.masks, strict=True))
        optimizer.zero_grad()
        (loss + proximal).backward()
        optimizer.step()
        return (loss + proximal).item(), proximal.item()

    @torch.no_grad()
    def _evaluate(self, number: int) -> dict[str, float]:
        model = self.models[number].eval()
        data, edge_index, edge_weight = self.clients[number]
        _, logits = model(data.x, edge_index, edge_weight)
        scores = {}
        for stage in ("val", "test"):
            chosen, labels = logits[data[f"{stage}_mask"]], data.y[data[f"{stage}_mask"]]
            num_classes = chosen.size(1)
            place = labels * num_classes + chosen.argmax(-1)
            confusion = torch.bincount(place, minlength=num_classes**2).view(num_classes, num_classes)
            involved = confusion.sum(0) + confusion.sum(1)
            f1 = (2 * confusion.diagonal() / involved.clamp(min=1)).sum() / (involved > 0).sum()
            scores[f"{stage}/accuracy"] = (confusion.diagonal().sum() / confusion.sum()).item()
            scores[f"{stage}/f1"] = f1.item()
            scores[f"{stage}/loss"] = F.cross_entropy(chosen, labels).item()
        return scores
