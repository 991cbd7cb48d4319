"""People's own graphs: a table of nodes and a table of links, as one file each or as a folder per client.

What is in the files is read by :func:`~datamodules.tables.graph_reader.read_graph`; here it becomes federated data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules.findings import Finding, with_remedies
from datamodules.graph import GraphDataModule
from datamodules.graph_cleaning import clean_graph, set_layout
from datamodules.graph_loaders import renumber_classes
from datamodules.partition import Partition
from datamodules.predicted import PredictedRows
from datamodules.sparse import normalize_rows
from datamodules.split import STAGES
from datamodules.tables.alike import find_clients_alike
from datamodules.tables.classes_apart import find_classes_apart
from datamodules.tables.clients import find_client_folders
from datamodules.tables.findings import explain_no_edges, find_in_features, find_in_tables, find_missing_classes
from datamodules.tables.graph_reader import read_graph
from datamodules.tables.graph_spec import GraphSpec, TrainedFeatures
from datamodules.tables.graph_tables import GraphTables
from datamodules.tables.links import UNKNOWN
from datamodules.tables.measured import list_features
from datamodules.tables.names import sort_names
from datamodules.tables.nodes import NodeColumns
from datamodules.tables.table import TableFormat

POLICIES = ("drop", "raise")
REMEDIES = {  # where the owners are given, no partitioner can be told to make other clients
    "lost_edges": "The owners are given: FedSage+ generates the missing neighbours.",
    "isolated_nodes": "The owners are given: FedSage+ generates missing neighbours.",
    "no_edges": "The owners are given: FedSage+ generates missing neighbours.",
    "one_node": "The owners are given: leave this one out, or nothing.",
    "one_class": "The owners are given: a personalised strategy such as FED-PUB bears clients that differ.",
    "no_train_nodes": "Label some of its nodes, or nothing: it is served and does not teach.",
    "no_val_nodes": "Label more of its nodes, or nothing.",
    "no_test_nodes": "Label more of its nodes, or nothing.",
}


class GraphCSVDataModule(GraphDataModule):
    """Node classification on one's own graph, from CSV (any separator and line end, plain or gzip) or parquet.

    Links may be directed, repeated, in both directions or from a node to itself: the graph that is trained on has every
    link between two nodes once, in both directions, and no self-loops. ``inspect`` says how many there were of each kind.

    Args:
        root: Folder of the tables.
        nodes: Table of nodes, below ``root``; if it is not there, in each client's folder below ``root``.
        edges: Table of links, likewise.
        id_column: Ids of nodes, of any type; unique in their table. Predictions have them.
        label_column: Classes by name or number; blank = not labelled.
        client_column: Who holds the node; blank = nobody (the node is in the global graph only).
        split_column: ``train``, ``val`` or ``test``; blank = in none. Replaces ``split``.
        features: Names of columns; null = all columns of numbers that are nothing else, without those that only count or
            name the rows and those that are the label in other words (findings tell which); a file below ``root`` (or below
            each client's folder): ``.npz`` with one row for each row of nodes, or a table with ``id_column`` and columns
            of numbers; ``degree`` = nothing but a constant and log(1 + number of neighbours).
        source_column, target_column: Ends of a link; without header ``"0"`` and ``"1"``.
        header, edge_header: Whether the first line of nodes, of links, names the columns; otherwise they are ``"0"``, ...
        separator: Of fields; null = found out.
        decimal: ``.`` or ``,``; null = that of most numbers of each column.
        encoding: Of text.
        classes: Names of the classes; null = those that occur. A label that is not among them is an error which names
            the client.
        invalid: Rows that are no node (no id, a repeated id, a blank or wrong feature): ``drop`` and report, or ``raise``.
        unknown_ids: Links with an id that no node has: ``raise``, or ``drop`` and report.
        partition: ``column`` (one client per value of ``client_column``), ``folder``, or one of ``GraphDataModule``'s;
            null = ``folder`` where there are client folders, ``column`` where there is a ``client_column``, else
            ``louvain``.
        num_clients: Number of clients, where a partitioner makes them.
        predict_root: Folder of another graph for ``predict`` in place of ``root``, with files of the same names and the same
            features; labels, clients and splits are not needed. Training and splits are those of ``root`` all the same.
        options: As for :class:`~datamodules.graph.GraphDataModule`.

    Raises:
        ValueError: A value or a file that cannot work, in the names of the YAML file.
    """

    def __init__(
        self,
        root: str = "data",
        nodes: str = "nodes.csv",
        edges: str = "edges.csv",
        id_column: str = "id",
        label_column: str = "label",
        client_column: str | None = None,
        split_column: str | None = None,
        features: str | list[str] | None = None,
        source_column: str = "source",
        target_column: str = "target",
        header: bool = True,
        edge_header: bool = True,
        separator: str | None = None,
        decimal: Literal[".", ","] | None = None,
        encoding: str = "utf-8",
        classes: list[str] | None = None,
        invalid: Literal["drop", "raise"] = "drop",
        unknown_ids: Literal["raise", "drop"] = "raise",
        partition: Literal["louvain", "metis", "overlapping", "random", "column", "folder"] | None = None,
        num_clients: int = 3,
        predict_root: str | None = None,
        **options: Any,
    ) -> None:
        base = Path(root)
        asked = None if predict_root is None else Path(predict_root)
        folders = find_client_folders(base, nodes, asked)
        chosen = _choose_partition(partition, client_column, folders, root, nodes)
        for name, value, choices in (("invalid", invalid, POLICIES), ("unknown_ids", unknown_ids, UNKNOWN)):
            if value not in choices:
                raise ValueError(f"`data.init_args.{name}` must be one of {', '.join(choices)}, got {value!r}.")
        own: Literal["folder", "column"] | None
        own = "folder" if chosen == "folder" else "column" if chosen == "column" else None
        super().__init__(num_clients=num_clients, **options, partition="random" if own else chosen)  # type: ignore[arg-type]  # `own` are the others
        self.partition = chosen
        form = TableFormat(separator, encoding, header)
        named = tuple(features) if isinstance(features, list) else None
        self.spec = GraphSpec(
            root=base, columns=NodeColumns(id_column, label_column, client_column, split_column, named), folders=folders,
            clients=own, nodes=nodes, edges=edges, features=features if isinstance(features, str) else None,
            ends=(source_column, target_column), form=form, edge_form=replace(form, header=edge_header), decimal=decimal,
            classes=None if classes is None else tuple(map(str, classes)), invalid=invalid, unknown_ids=unknown_ids,
            predict_root=asked,
        )  # fmt: skip
        if split_column is not None:
            self.split = "public"
        self.predicted_rows: PredictedRows | None = None
        self._tables = GraphTables()
        self._name_everything()

    def _name_everything(self) -> None:
        """What the tables say of themselves, under the names that predictions and reports ask for."""
        tables = self._tables
        self.class_names, self.feature_names = tables.class_names, tables.features.names
        self.client_names, self.row_clients = tables.client_names, tables.row_clients
        self.original_ids, self.notices = tables.ids, tables.notices

    # Lightning

    def setup(self, stage: str | None = None) -> None:
        """Load, split and share out; then read ``predict_root``. Does nothing the second time."""
        first = self._graph is None
        super().setup(stage)
        if first and self.spec.predict_root is not None:
            asked = self._load_predicted(self.spec.predict_root)
            for part in (self, *self.client_datamodules()):
                part.set_predicted(asked)

    def load(self) -> Data:
        tables = read_graph(self.spec)
        self._tables = replace(tables, graph=Data())  # the graph itself goes on to be cleaned
        self._name_everything()
        if self.client_names:
            self.num_clients = len(self.client_names)
        return tables.graph

    def _load_predicted(self, root: Path) -> Data:
        """Another graph in tables of the same form, where nobody has classified the nodes."""
        spec, names = self.spec, tuple(self.feature_names)
        columns = NodeColumns(spec.columns.id, features=names if spec.features is None else None)
        tables = read_graph(replace(
            spec, root=root, columns=columns, folders=find_client_folders(root, spec.nodes), clients=None,
            classes=tuple(self.class_names), predict_root=None, trained=TrainedFeatures(int(self.data.x.size(1)), names),
        ))  # fmt: skip
        self.predicted_rows = PredictedRows(tables.ids, tables.list_unusable())
        graph, _ = clean_graph(tables.graph, type(self).__name__)
        for stage in STAGES:
            graph[f"{stage}_mask"] = torch.zeros(int(graph.num_nodes), dtype=torch.bool)
        if self.normalize_features:
            graph.x = normalize_rows(graph.x)
        graph.x = set_layout(graph.x, self.sparse_features)
        return graph

    # Clients

    @property
    def _found_classes(self) -> bool:  # type: ignore[override]  # read only here
        return self.spec.classes is None

    def use_statistics(self, agreed: Mapping[str, Any]) -> None:
        """Number the classes by the names that all clients have together, some of whom may be elsewhere."""
        names = sort_names(agreed["names"].get("class_names", ()))
        if self._found_classes and names and names != self.class_names:
            self._graph = renumber_classes(self.data, self.class_names, names)
            self.class_names, self._num_classes, self._loaders = names, len(names), {}

    def share_out(self, graph: Data) -> Partition:
        tables = self._tables
        if not len(tables.owner):
            return super().share_out(graph)
        here = tables.spread_over_rows(tables.owner, -1)[graph.node_id]  # the largest component may have left nodes out
        return Partition([(here == client).nonzero().view(-1) for client in range(self.num_clients)], self.partition)

    def _links_elsewhere(self, ids: Tensor) -> Tensor:
        """Also those to an id that no node has, which ``unknown_ids: drop`` leaves out."""
        dangling = self._tables.spread_over_rows(self._tables.found_links.dangling, 0)
        return super()._links_elsewhere(ids) + dangling[self.data.node_id[ids]]

    def fingerprint(self) -> str:
        """Covers links to ids that no node has, too: they are in no edge, but clients may count them."""
        found, dangling = super().fingerprint(), self._tables.found_links.dangling
        return sha256(found.encode() + dangling.numpy().tobytes()).hexdigest() if dangling.any() else found

    @property
    def dropped_rows(self) -> list[dict[str, Any]]:
        """``{"row", "reason", "id"}`` of each row of nodes that is not in the graph; rows of several tables go on. Then
        ``{"row", "reason", "link", "file"}`` of the lines that are no link between two nodes, the first 100,000; these rows
        count by file."""
        return self._tables.list_unusable(super().dropped_rows)

    @property
    def lost_clients(self) -> list[str]:
        """Clients that the tables name and that are none of the federation, since no row of theirs can be used."""
        return self._tables.lost_clients

    @property
    def num_rows_read(self) -> int:
        """Rows of nodes and of links in the files."""
        return len(self.original_ids) + self._tables.found_links.links.lines

    @property
    def row_counts(self) -> dict[str, dict[str, int]]:
        """How many nodes and how many links were ``read`` and ``left_out``. Of the latter, those ``leading_elsewhere`` go from
        a node to an id that is no node's here, and were left out because ``unknown_ids: drop`` says so."""
        links, nodes = self._tables.found_links.links, len(self._tables.list_unusable_rows(super().dropped_rows))
        return {
            "nodes": {"read": len(self.original_ids), "left_out": nodes},
            "links": {"read": links.lines, "left_out": links.num_left_out, "leading_elsewhere": links.num_elsewhere},
        }

    @property
    def schema(self) -> dict[str, Any]:
        """That of all graphs, ``class_names``, and ``feature_names``, or ``None`` for features without names (a matrix)."""
        return {**super().schema, "class_names": self.class_names, "feature_names": self.feature_names or None}

    # Reporting

    def partition_record(self) -> dict[str, Any]:
        record = super().partition_record()
        return {**record, "client_names": self.client_names, "split": self._split_name}

    @property
    def _split_name(self) -> str:
        return "column" if self.spec.columns.split is not None else self.split

    def report(self) -> dict[str, Any]:
        report, tables, links = super().report(), self._tables, self._tables.found_links.links
        counts = {"lines": links.lines, **tables.link_counts, "unknown": links.num_unknown, "bad": links.num_bad,
                  "of_dropped_nodes": links.of_dropped}  # fmt: skip
        whole, others = report["labels_whole"], report["findings"]
        found = find_in_tables(tables, self.spec, whole) + self._find_in_features()
        if self.client_names:
            found += find_missing_classes(self.client_names, self.class_names, report["labels"], whole)
            found += find_clients_alike([*self.client_names, *tables.lost_clients])
            found += find_classes_apart(self.client_names, self.class_names, report["labels"])
            others = with_remedies(others, REMEDIES)
            others = explain_no_edges(others, self.client_names, tables.without_links)
        return {**report, "findings": found + others, "split": self._split_name, "client_names": self.client_names,
                "class_names": self.class_names, "links": counts, "notices": self.notices}  # fmt: skip

    def _find_in_features(self) -> list[Finding]:
        """Values that are none, and those of clients that write them otherwise; rows divided by their sum have no unit."""
        tables, ids = self._tables, self.data.node_id
        if self.normalize_features or self.spec.features == "degree":
            return []
        columns = list_features(self.data.x, tables.features.names, self.spec.features)
        return find_in_features(tables, columns, ids, self.client_names)


def _choose_partition(partition: str | None, client_column: str | None, folders: Sequence[Path], root: str, nodes: str) -> str:
    """The partition that is meant.

    Raises:
        ValueError: It does not go with the column of clients or with what is in ``root``.
    """
    if partition is None:
        partition = "folder" if folders else "louvain" if client_column is None else "column"
    if (partition == "column") != (client_column is not None):
        raise ValueError(
            "`data.init_args.partition: column` and `data.init_args.client_column` belong together: got partition "
            f"{partition!r} and client_column {client_column!r}."
        )
    if partition == "folder" and not folders:
        raise ValueError(f"`data.init_args.partition` is 'folder', but no folder below `{root}` has a file `{nodes}`.")
    return partition
