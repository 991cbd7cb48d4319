"""A graph as it is in tables: what :func:`~datamodules.tables.graph_reader.read_graph` gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules.findings import Finding
from datamodules.tables.features import NodeFeatures
from datamodules.tables.graph_links import GraphLinks
from datamodules.tables.origin import Origin


@dataclass(frozen=True)
class GraphTables:
    """A graph of N nodes as it is in R rows of tables; without arguments that of no file.

    Attributes:
        graph: ``x`` (CSR or dense, ``(N, F)``), ``y`` (int64 ``(N,)``, -1 = not labelled), ``edge_index`` (links as they are
            written, ``(2, E)``), ``num_classes``, ``node_id`` (``rows``) and, with a column of splits, masks.
        rows: Each node's row, int64 ``(N,)``.
        ids: All R ids as written, also of rows that are no node; rows of several tables go on.
        origin: Where each of the R rows comes from.
        bad_rows: ``{"row", "reason", "id", "file"}`` of the rows that are no node.
        class_names: Names of the classes.
        client_names: Names of the clients; none where a partitioner makes them.
        row_clients: The client of each of the R rows, ``""`` = nobody; none where a partitioner makes the clients.
        owner: Number of each node's client, int64 ``(N,)``, -1 = nobody; empty where a partitioner makes the clients.
        features: How the features were found; without the matrices, which ``graph`` has.
        found_links: All links of all files.
        without_links: Clients whose folder has no table of links, each with the files that lie there and are not read.
        link_counts: What is among the links: :func:`~datamodules.tables.links.describe_links`.
        odd_labels: Findings about labels unlike the others.
        notices: What was found out instead of given.
    """

    graph: Data = field(default_factory=Data)
    rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    ids: list[str] = field(default_factory=list)
    origin: Origin = field(default_factory=lambda: Origin((), ()))
    bad_rows: list[dict[str, Any]] = field(default_factory=list)
    class_names: list[str] = field(default_factory=list)
    client_names: list[str] = field(default_factory=list)
    row_clients: list[str] = field(default_factory=list)
    owner: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    features: NodeFeatures = field(default_factory=NodeFeatures)
    found_links: GraphLinks = field(default_factory=GraphLinks)
    without_links: dict[str, list[str]] = field(default_factory=dict)
    link_counts: dict[str, int] = field(default_factory=dict)
    odd_labels: list[Finding] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def lost_clients(self) -> list[str]:
        """Clients without a usable row, which are none."""
        return sorted({row["client"] for row in self.bad_rows if row.get("client")} - set(self.client_names))

    def spread_over_rows(self, values: Tensor, fill: int) -> Tensor:
        """A number per node, ``(N,)``, as one per row of the tables, ``(R,)``; ``fill`` in rows that are no node."""
        spread = torch.full((len(self.ids),), fill, dtype=torch.long)
        spread[self.rows] = values
        return spread

    def list_unusable_rows(self, left_out: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """Rows that are no node, with those of nodes that were left out for another reason."""
        more = [{**drop, "id": self.ids[drop["row"]]} for drop in left_out]
        return sorted(self.bad_rows + more, key=lambda drop: drop["row"])

    def list_unusable(self, left_out: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """The same, and then lines that are no link between two nodes."""
        return self.list_unusable_rows(left_out) + self.found_links.links.left_out
