"""Small graphs with known answers, and the real data beside the checkout (read-only, skipped if absent)."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules import GraphDataModule
from datamodules.topology import undirected_edges

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def real_data(*below: str) -> str:
    """Folder of real raw files, or skip."""
    if not DATA.joinpath(*below).is_dir():
        pytest.skip(f"real data not found beside the checkout: ../shared/data/{'/'.join(below)}")
    return str(DATA)


def edges(*pairs: tuple[int, int]) -> Tensor:
    """Undirected edges, one direction each, ``(2, E)``."""
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T


def small_graphs(seed: int, sizes: tuple[int, ...] = (1, 2, 3, 7, 12, 20)) -> list[tuple[str, Tensor, int]]:
    """(name, edge_index, num_nodes): empty, star, path, complete, two components with isolated nodes, random."""
    random = torch.Generator().manual_seed(seed)
    graphs = []
    for n in sizes:
        graphs.append(("empty", torch.zeros(2, 0, dtype=torch.long), n))
        graphs.append(("star", edges(*((0, v) for v in range(1, n))), n))
        graphs.append(("path", edges(*((v, v + 1) for v in range(n - 1))), n))
        graphs.append(("complete", edges(*((u, v) for u in range(n) for v in range(u))), n))
        graphs.append(("apart", edges(*((v, v + 2) for v in range(n - 4))), n))
        if n > 1:
            graphs.append(("random", torch.randint(n, (2, 2 * n), generator=random), n))
    return graphs


class OwnGraph(GraphDataModule):
    """A data module over a graph that the test makes."""

    def __init__(self, graph: Data, **options) -> None:
        super().__init__(**options)
        self.graph = graph

    def load(self) -> Data:
        return self.graph


def graph_of(y: list[int], edge_index: Tensor, **extra) -> Data:
    """Graph with unit-matrix features, so that row i is known by its 1 at column i."""
    return Data(x=torch.eye(len(y)), y=torch.tensor(y), edge_index=edge_index, num_nodes=len(y), **extra)


def random_graph(n: int, degree: int, seed: int) -> Data:
    """Cleaned random graph with dense features, 3 classes, all masks and node ids."""
    random = torch.Generator().manual_seed(seed)
    graph = Data(x=torch.randn(n, 5, generator=random), y=torch.randint(3, (n,), generator=random), num_nodes=n)
    graph.edge_index = undirected_edges(torch.randint(n, (2, n * degree // 2), generator=random), n)
    stage = torch.randint(3, (n,), generator=random)
    for number, name in enumerate(("train", "val", "test")):
        graph[f"{name}_mask"] = stage == number
    graph.node_id = torch.arange(n) + 1000
    return graph
