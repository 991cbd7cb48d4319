"""Where a graph in tables is and how it is to be read: all that :func:`~datamodules.tables.graph_reader.read_graph` needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from datamodules.tables.nodes import NodeColumns
from datamodules.tables.table import TableFormat


@dataclass(frozen=True)
class TrainedFeatures:
    """The features that a model was trained on, which another graph must have.

    Attributes:
        width: Their number.
        names: Their names; none for a matrix.
    """

    width: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class GraphSpec:
    """A graph in tables of nodes and links. Names of files count from ``root`` or from each client's folder.

    Attributes:
        root: Folder of the tables.
        columns: Which column of nodes is what.
        folders: The clients' folders, each with tables of its own; none for one table of nodes in ``root``.
        clients: Where the nodes' clients are from: their ``folder``, a ``column``; ``None`` = they have none yet.
        nodes, edges: Names of the tables.
        features: ``degree``, or the name of a file of features; ``None`` = columns of the nodes.
        ends: Names of the columns where a link begins and ends.
        form, edge_form: How CSV is written.
        decimal: ``.``, ``,`` or ``None`` to find out.
        classes: Names of the classes; ``None`` = those that occur.
        invalid: What to do with rows that are no node or no link: ``drop`` or ``raise``.
        unknown_ids: What to do with links to an id that no node has: ``drop`` or ``raise``.
        predict_root: Folder of another graph, which is no client's although it may lie in ``root``.
        trained: The features that the graph must have; ``None`` = any.
    """

    root: Path
    columns: NodeColumns
    folders: tuple[Path, ...] = ()
    clients: Literal["folder", "column"] | None = None
    nodes: str = "nodes.csv"
    edges: str = "edges.csv"
    features: str | None = None
    ends: tuple[str, str] = ("source", "target")
    form: TableFormat = field(default_factory=TableFormat)
    edge_form: TableFormat = field(default_factory=TableFormat)
    decimal: str | None = None
    classes: tuple[str, ...] | None = None
    invalid: Literal["drop", "raise"] = "drop"
    unknown_ids: Literal["raise", "drop"] = "raise"
    predict_root: Path | None = None
    trained: TrainedFeatures | None = None
