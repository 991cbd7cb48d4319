"""People's own graphs: a table of nodes and a table of links, as one file each or as a folder per client.

    root/nodes.csv, root/edges.csv            one table; clients from a column, or by a partitioner
    root/<client>/nodes.csv, edges.csv        a folder per client; root/edges.csv: links between clients, if known

Nothing is dropped silently: rows and links that cannot be used are counted, listed and reported.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules.agreement import agreed_columns, agreed_width
from datamodules.graph import STAGES, GraphDataModule
from datamodules.link_tables import UNKNOWN, Links, describe_links, read_links
from datamodules.node_tables import NodeColumns, NodeTable, read_matrix, read_nodes
from datamodules.partition import Partition
from datamodules.predicted import PredictedRows
from datamodules.report import Finding, finding, label_counts, with_remedies
from datamodules.sparse import csr_tensor
from datamodules.suspicions import determining_columns, guessing_findings, is_label_code, is_number, odd_labels
from datamodules.tables import TableFormat, listed

POLICIES = ("drop", "raise")
DEGREE_FEATURES = ("constant", "log(1 + neighbours)")
# Where the owners are given.
REMEDIES = {
    "lost_edges": "The owners are given: FedSage+ generates the missing neighbours.",
    "isolated_nodes": "The owners are given: FedSage+ generates missing neighbours.",
    "no_edges": "The owners are given: FedSage+ generates missing neighbours.",
    "one_node": "The owners are given: leave this one out, or nothing.",
    "one_class": "The owners are given: a personalised strategy such as FED-PUB bears clients that differ.",
    "no_train_nodes": "Label some of its nodes, or nothing: it is served and does not teach.",
    "no_val_nodes": "Label more of its nodes, or nothing.",
    "no_test_nodes": "Label more of its nodes, or nothing.",
}
log = logging.getLogger(__name__)


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
        decimal: ``.`` or ``,``; null = found out.
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
        self.root, self.nodes, self.edges = Path(root), nodes, edges
        self.predict_root = predict_root
        folders = _client_folders(self.root, nodes, predict_root)
        if partition is None:
            partition = "folder" if folders else "louvain" if client_column is None else "column"
        if (partition == "column") != (client_column is not None):
            raise ValueError(
                "`data.init_args.partition: column` and `data.init_args.client_column` belong together: got partition "
                f"{partition!r} and client_column {client_column!r}."
            )
        if partition == "folder" and not folders:
            raise ValueError(
                f"`data.init_args.partition` is 'folder', but no folder below `{root}` has a file `{nodes}`."
            )
        for name, value, choices in (("invalid", invalid, POLICIES), ("unknown_ids", unknown_ids, UNKNOWN)):
            if value not in choices:
                raise ValueError(f"`data.init_args.{name}` must be one of {', '.join(choices)}, got {value!r}.")
        own = partition in ("column", "folder")
        super().__init__(num_clients=num_clients, **options,
                         partition="random" if own else partition)  # type: ignore[arg-type]  # `own` are the others
        self.partition = partition
        self._folders = folders
        self._columns = NodeColumns(id_column, label_column, client_column, split_column,
                                    tuple(features) if isinstance(features, list) else None)  # fmt: skip
        self._features = features if isinstance(features, str) else None
        self._ends = (source_column, target_column)
        self._form = TableFormat(separator, encoding, header)
        self._edge_form = replace(self._form, header=edge_header)
        self.decimal, self.classes, self.invalid, self.unknown_ids = decimal, classes, invalid, unknown_ids
        if split_column is not None:
            self.split = "public"
        self.predicted_rows: PredictedRows | None = None
        self.class_names: list[str] = []
        self.feature_names: list[str] = []
        self.client_names: list[str] = []
        self.original_ids: list[str] = []
        self.notices: list[str] = []
        self._bad_rows: list[dict[str, Any]] = []
        self._set_aside, self._codes, self._determining = dict[str, str](), list[str](), list[str]()
        self._odd_labels: list[Finding] = []
        self._owner = self._rows = torch.zeros(0, dtype=torch.long)
        self._repeated_ids = 0
        self._links, self._link_counts = Links(), dict[str, int]()
        self._dangling = torch.zeros(0, dtype=torch.long)  # by position: links with an id that no node has
        self._must_match: tuple[int, list[str]] | None = None  # width and names of the features that a model was trained on

    # Lightning

    def setup(self, stage: str | None = None) -> None:
        """Load, split and share out; then read ``predict_root``. Does nothing the second time."""
        first = self._graph is None
        super().setup(stage)
        if first and self.predict_root is not None:
            asked = self._another(self.predict_root)
            asked.setup()
            self.predicted_rows = PredictedRows(asked.original_ids, asked.dropped_rows)
            for part in (self, *self.client_datamodules()):
                part.set_predicted(asked.data)

    def _another(self, root: str) -> GraphCSVDataModule:
        """The same reading of another folder, where nobody has classified the nodes."""
        columns, names = self._columns, self.feature_names
        other = GraphCSVDataModule(
            root, self.nodes, self.edges, columns.id, features=names if self._features is None else self._features,
            source_column=self._ends[0], target_column=self._ends[1], header=self._form.header,
            edge_header=self._edge_form.header, separator=self._form.separator, decimal=self.decimal,
            encoding=self._form.encoding, classes=self.class_names, invalid=self.invalid, unknown_ids=self.unknown_ids,
            partition="random", num_clients=1, normalize_features=self.normalize_features,
            sparse_features=self.sparse_features,
        )  # fmt: skip
        other._columns = replace(other._columns, label=None)
        other._must_match = (int(self.data.x.size(1)), names)
        return other

    # Reading

    def load(self) -> Data:
        tables = self._read_tables()
        self._set_aside = {name: reason for table in tables.values() for name, reason in table.set_aside.items()}
        columns = {_named(table, client): [name for name in table.feature_names if name not in self._set_aside]
                   for client, table in tables.items()}  # fmt: skip
        names = agreed_columns(columns, "feature columns", "Correct the files, or list the columns that all have in "
                                                           "`data.init_args.features`.")  # fmt: skip
        if self._features is None and self._columns.features is None:
            names = self._without_label(tables, names)
            self.notices.append(f"`{self.root}`: the {len(names)} other column(s) of numbers are taken for features: "
                                f"{listed(names)}.")  # fmt: skip
        matrices = self._matrices(tables, names)
        offsets = np.cumsum([0, *(len(table.ids) for table in tables.values())])
        self.original_ids = [name for table in tables.values() for name in table.ids]
        self._bad_rows = [
            {**drop, "row": drop["row"] + int(offset), "file": str(table.path)}
            for table, offset in zip(tables.values(), offsets, strict=False)
            for drop in table.dropped
        ]
        self.notices += [note for table in tables.values() for note in table.notices]
        for note in self.notices:
            log.warning(note)
        self._refuse_bad_rows()
        rows = np.concatenate([table.kept + offset for table, offset in zip(tables.values(), offsets, strict=False)])
        if not len(rows):
            raise ValueError(f"`{self.root}` has no usable node: {self._bad_rows[0]['reason']}.")
        y = self._labels(tables, rows)
        self._own_clients(tables)
        self._links = self._read_links(tables)
        for note in self._links.notices:
            log.warning(note)
        self.notices += self._links.notices
        pairs = torch.from_numpy(self._links.pairs)
        self._link_counts = describe_links(self._links.pairs, len(rows))
        x = _degree_features(pairs, len(rows)) if self._features == "degree" else _as_csr(sp.vstack(matrices, format="csr"))
        graph = Data(x=x, y=y, edge_index=pairs, num_nodes=len(rows), num_classes=len(self.class_names))
        graph.node_id = self._rows = torch.from_numpy(rows)
        if self._columns.split is not None:
            split = np.array([text for table in tables.values() for text in table.split])
            for stage in STAGES:
                graph[f"{stage}_mask"] = torch.from_numpy(split == stage)
        return graph

    def _read_tables(self) -> dict[str, NodeTable]:
        """The tables of nodes by client; under ``""`` the only one."""
        paths = {folder.name: folder / self.nodes for folder in self._folders} or {"": self.root / self.nodes}
        self._look_around()
        columns = self._columns
        if self._features is not None:
            columns = replace(columns, features=())
        optional = len(paths) > 1  # a client may have no labels at all
        classes = [str(name) for name in self.classes or ()]
        return {name: read_nodes(path, columns, self._form, self.decimal, optional, classes) for name, path in paths.items()}

    def _look_around(self) -> None:
        """What is in ``root`` besides, and what is missing there: a file or folder of another name may be a client's.

        Raises:
            ValueError: There is no table of nodes.
        """
        inside = sorted(self.root.iterdir()) if self.root.is_dir() else []
        folders = [path for path in inside if path.is_dir() and not path.name.startswith((".", "_"))
                   and not _same(path, self.predict_root)]  # fmt: skip
        if not self._folders and not (self.root / self.nodes).is_file():
            holds = f"It holds {listed([path.name for path in inside])}" if inside else "It holds nothing"
            raise ValueError(
                f"`{self.root / self.nodes}` is no file (`data.init_args.root`, `data.init_args.nodes`), and no folder in "
                f"`{self.root}` has a `{self.nodes}`. " + (f"{holds}." if self.root.is_dir() else "There is no such folder.")
            )
        if self._folders:
            strange = [path.name for path in folders if path not in self._folders]
            if strange:
                self.notices.append(f"no clients, since they have no `{self.nodes}`: the folders {listed(strange)}.")
            bare = [path.name for path in self._folders if not (path / self.edges).is_file()]
            if bare:
                self.notices.append(f"no links are read for clients without `{self.edges}`: {listed(bare)}.")
        else:
            unread = [path.name for path in folders if (path / self.nodes).is_file()]
            if unread:
                self.notices.append(f"`{self.root / self.nodes}` is read, and the folders {listed(unread)} are not.")

    def _without_label(self, tables: dict[str, NodeTable], names: list[str]) -> list[str]:
        """The guessed features without those that are the label in other words."""
        label = self._columns.label
        if label is None:
            return names
        x = sp.vstack([t.x[:, [t.feature_names.index(name) for name in names]] for t in tables.values()], format="csr")
        labels = [text for table in tables.values() for text in table.label]
        found, classes = determining_columns(x, names, labels), len(set(labels) - {""})
        self._codes = [name for name, values in found.items() if is_label_code(name, values, label, classes)]
        self._determining = [name for name in found if name not in self._codes]
        return [name for name in names if name not in self._codes]

    def _matrices(self, tables: dict[str, NodeTable], names: list[str]) -> list[sp.csr_matrix]:
        """Features of the nodes of each table, all in the same columns."""
        if self._features == "degree":
            self.feature_names = list(DEGREE_FEATURES)
            return []
        if self._features is None:
            return self._guessed_columns(tables, names)
        matrices: list[sp.csr_matrix] = []
        widths, columns = dict[str, int](), dict[str, list[str]]()
        for client, table in tables.items():
            path = table.path.parent / self._features
            if not path.is_file():
                raise ValueError(f"`data.init_args.features` is {self._features!r}, but `{path}` is no file. Columns are a "
                                 f"list, as in `features: [{self._features}]`.")  # fmt: skip
            if path.suffix == ".npz":
                x = read_matrix(path)
                if x.shape[0] != len(table.ids):
                    raise ValueError(f"`{path}` has {x.shape[0]} rows of features, but `{table.path}` has {len(table.ids)} "
                                     "rows of nodes: there must be one for each, in the same order.")  # fmt: skip
                matrices.append(x[table.kept])
                widths[_named(table, client)] = x.shape[1]
            else:
                other = read_nodes(path, NodeColumns(self._columns.id, all_meant=True), self._form, self.decimal)
                self.notices += other.notices
                matrices.append(_joined(table, other))
                columns[_named(table, client)] = other.feature_names
        if columns:
            order = agreed_columns(columns, "feature columns", "Correct the files.")
            self.feature_names = order = self._as_trained(order)
            matrices = [x[:, [c.index(name) for name in order]]
                        for x, c in zip(matrices, columns.values(), strict=True)]  # fmt: skip
        else:
            width = agreed_width(widths, "features")
            if len(widths) > 1 or self._must_match is not None:
                among = "the clients'" if self._must_match is None else "those of `root` and `predict_root`"
                self.notices.append(f"`{self._features}`: a matrix has no names of columns, so that only the number of {among} "
                                    f"({width}) is compared: each column must mean the same in all files.")  # fmt: skip
            if self._must_match is not None and width != self._must_match[0]:
                raise ValueError(f"`data.init_args.predict_root`: `{self._features}` has {width} features there, but the model "
                                 f"learns from {self._must_match[0]}.")  # fmt: skip
        return matrices

    def _guessed_columns(self, tables: dict[str, NodeTable], names: list[str]) -> list[sp.csr_matrix]:
        """The columns of numbers of the tables of nodes themselves."""
        if not names:
            without = [*self._set_aside, *self._codes]
            left = f" (not taken: {listed(without)}, which count or name the rows, or are the label)" if without else ""
            raise ValueError(
                f"`{next(iter(tables.values())).path}` has no column of numbers to be used as features{left}. Name them in "
                "`data.init_args.features`, or set it to `degree` to learn from the links alone."
            )
        self.feature_names = names
        return [t.x[:, [t.feature_names.index(name) for name in names]] for t in tables.values()]

    def _as_trained(self, found: list[str]) -> list[str]:
        """The columns in the order in which a model knows them.

        Raises:
            ValueError: They are others.
        """
        trained = found if self._must_match is None else self._must_match[1]
        if set(trained) != set(found):
            raise ValueError(
                f"`data.init_args.predict_root`: `{self._features}` has the feature columns {listed(found)} there, but the "
                f"model learns from {listed(trained)}."
            )
        return list(trained)

    def _labels(self, tables: dict[str, NodeTable], rows: np.ndarray) -> Tensor:
        texts = [text for table in tables.values() for text in table.label]
        self._odd_labels = odd_labels(
            texts, lambda place: f"row {rows[place]} (id {self.original_ids[rows[place]]!r})", self._columns.label or ""
        )
        found = set(texts) - {""}
        if not found and not self.classes:
            raise ValueError(
                f"`data.init_args.label_column` {self._columns.label!r} is blank for all {len(texts)} nodes of `{self.root}`. "
                "Needed is the class of at least some of them."
            )
        if self.classes is not None:
            self.class_names = [str(name) for name in self.classes]
            known = set(self.class_names)
            wrong = [f"{_named(table, name)!r}: {', '.join(map(repr, sorted(set(table.label) - known - {''})[:5]))}"
                     for name, table in tables.items() if not set(table.label) <= known | {""}]  # fmt: skip
            if wrong:
                raise ValueError(
                    f"`data.init_args.classes` lists {len(known)} classes, but there are other labels in {'; '.join(wrong)}. "
                    "Correct them, or list them."
                )
        else:
            self.class_names = sorted(found, key=_by_value) if all(map(is_number, found)) else sorted(found)
        number = {name: place for place, name in enumerate(self.class_names)} | {"": -1}
        return torch.tensor([number[text] for text in texts], dtype=torch.long)

    def _own_clients(self, tables: dict[str, NodeTable]) -> None:
        """Client of each node by position, -1 = nobody."""
        if self.partition == "folder":
            self.client_names = list(tables)
            owner = [number for number, table in enumerate(tables.values()) for _ in table.kept]
        elif self.partition == "column":
            (table,) = tables.values()
            names = set(table.client) - {""}
            if not names:
                raise ValueError(f"`data.init_args.client_column` {self._columns.client!r} of `{table.path}` is blank.")
            self.client_names = sorted(names, key=_by_value) if all(map(is_number, names)) else sorted(names)
            number = {name: place for place, name in enumerate(self.client_names)} | {"": -1}
            owner = [number[text] for text in table.client]
        else:
            return
        self.num_clients = len(self.client_names)
        self._owner = torch.tensor(owner, dtype=torch.long)

    def _read_links(self, tables: dict[str, NodeTable]) -> Links:
        links, start = Links(), 0
        everywhere: dict[str, int] = {}
        repeated: set[str] = set()
        for table in tables.values():
            position = {drop["id"]: -1 for drop in table.dropped}
            position |= {table.ids[row]: start + place for place, row in enumerate(table.kept.tolist())}
            start += len(table.kept)
            path = table.path.parent / self.edges
            if not self._folders and not path.is_file():
                raise ValueError(f"`data.init_args.edges` is {self.edges!r}, but `{path}` is no file. A graph without "
                                 f"links has a table of links with its first line only: {','.join(self._ends)}.")  # fmt: skip
            if path.is_file():
                links.add(read_links(path, *self._ends, self._edge_form, position))
            repeated |= everywhere.keys() & position.keys()
            everywhere |= position
        between = self.root / self.edges
        if self._folders and between.is_file():
            for name in repeated:  # which client's node is meant?
                del everywhere[name]
            links.add(read_links(between, *self._ends, self._edge_form, everywhere))
        self._repeated_ids = len(repeated)
        if links.num_unknown and self.unknown_ids == "raise":
            raise ValueError(
                f"{links.num_unknown} of {links.lines} links name an id that no node has: {'; '.join(links.unknown)}. "
                "Correct them, or leave these links out with `data.init_args.unknown_ids: drop`."
            )
        if links.num_bad and self.invalid == "raise":
            raise ValueError(
                f"{links.num_bad} of {links.lines} lines are no link: {'; '.join(links.bad)}. Correct them, or leave them "
                "out with `data.init_args.invalid: drop`."
            )
        if links.lines and not links.touching:
            raise ValueError(
                f"None of the {links.lines} lines of `data.init_args.edges: {self.edges}` names a node: "
                f"{'; '.join([*links.unknown, *links.bad][:3])}. Ids are compared as they are written. Are "
                "`data.init_args.source_column`, `target_column`, `edge_header` and `separator` right? A graph without links "
                f"has a table of links with its first line only: {','.join(self._ends)}."
            )
        places = {name: place for name, place in everywhere.items() if place >= 0 and name not in repeated}
        self._dangling = _dangling(links, places, start)
        return links

    def _refuse_bad_rows(self) -> None:
        if self._bad_rows and self.invalid == "raise":
            shown = "; ".join(f"{d['file']} row {d['row']} (id {d['id']!r}): {d['reason']}" for d in self._bad_rows[:5])
            raise ValueError(
                f"{len(self._bad_rows)} rows are no node: {shown}. Rows count from 0 without the header. Correct them, or "
                "leave them out with `data.init_args.invalid: drop`."
            )

    # Clients

    def share_out(self, graph: Data) -> Partition:
        if not len(self._owner):
            return super().share_out(graph)
        owner = torch.full((len(self.original_ids),), -1, dtype=torch.long)
        owner[self._rows] = self._owner
        here = owner[graph.node_id]  # the largest component may have left nodes out
        return Partition([(here == client).nonzero().view(-1) for client in range(self.num_clients)], self.partition)

    def _links_elsewhere(self, ids: Tensor) -> Tensor:
        """Also those to an id that no node has, which ``unknown_ids: drop`` leaves out."""
        dangling = torch.zeros(len(self.original_ids), dtype=torch.long)
        dangling[self._rows] = self._dangling
        return super()._links_elsewhere(ids) + dangling[self.data.node_id[ids]]

    def fingerprint(self) -> str:
        """Covers links to ids that no node has, too: they are in no edge, but clients may count them."""
        found = super().fingerprint()
        return sha256(found.encode() + self._dangling.numpy().tobytes()).hexdigest() if self._dangling.any() else found

    @property
    def dropped_rows(self) -> list[dict[str, Any]]:
        """``{"row", "reason", "id"}`` of each row of nodes that is not in the graph; rows of several tables go on. Then
        ``{"row", "reason", "link", "file"}`` of the links that no node has a part in, the first 100,000; rows count by file."""
        cut = [{**drop, "id": self.original_ids[drop["row"]]} for drop in super().dropped_rows]
        return sorted(self._bad_rows + cut, key=lambda drop: drop["row"]) + self._links.unusable

    @property
    def num_rows_read(self) -> int:
        """Rows of nodes and of links in the files."""
        return len(self.original_ids) + self._links.lines

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
        return "column" if self._columns.split is not None else self.split

    def report(self) -> dict[str, Any]:
        report = super().report()
        links = self._links
        counts = {"lines": links.lines, **self._link_counts, "unknown": links.num_unknown, "bad": links.num_bad,
                  "of_dropped_nodes": links.of_dropped}  # fmt: skip
        others = report["findings"]
        if self.client_names:
            others = with_remedies(others, REMEDIES)
        report["findings"] = self._own_findings(report["labels"]) + others
        return {**report, "split": self._split_name, "client_names": self.client_names, "class_names": self.class_names,
                "links": counts, "notices": self.notices}  # fmt: skip

    def _own_findings(self, labels: list[list[int]]) -> list[Finding]:
        found, links, counts = [], self._links, self._link_counts

        def tell(kind: str, count: int, message: str, remedy: str = "Nothing, if this is meant.") -> None:
            if count:
                found.append(finding(kind, None, count, message, remedy))

        bad = self._bad_rows
        shown = ", ".join(f"{d['row']} ({d['reason']})" for d in bad[:5]) + (", ..." if len(bad) > 5 else "")
        tell("invalid_rows", len(bad), f"{len(bad)} rows of nodes cannot be used: rows {shown}.",
             "Correct them in the file; all are in `dropped_rows`. A column with many blanks is better left out of "
             "`data.init_args.features`.")  # fmt: skip
        known = sum(label_counts(self.data.y, len(self.class_names)))
        tell("many_classes", len(self.class_names) if 4 < known < 2 * len(self.class_names) else 0,
             f"{known} labelled nodes have {len(self.class_names)} different labels.",
             "Is `data.init_args.label_column` right? Measurements must be put into classes first.")  # fmt: skip
        found += guessing_findings(self._set_aside, self._codes, self._determining, self._columns.label) + self._odd_labels
        gone = sorted({d["client"] for d in bad if d.get("client")} - set(self.client_names))
        tell("client_without_nodes", len(gone), f"{listed(gone)}: no usable row, and so no client of the federation.",
             "Correct their rows: all are in `dropped_rows`. A node that two clients hold needs an id of its own at each, or a "
             "folder per client.")  # fmt: skip
        tell("unknown_ids", links.num_unknown, f"{links.num_unknown} of {links.lines} links name an id that no node has and "
             f"were left out: {'; '.join(links.unknown)}.", "Add these nodes, or correct the links.")  # fmt: skip
        tell("invalid_links", links.num_bad, f"{links.num_bad} of {links.lines} lines are no link: {'; '.join(links.bad)}.",
             "Correct them in the file.")  # fmt: skip
        tell("links_of_dropped_nodes", links.of_dropped, f"{links.of_dropped} of {links.lines} links end at a node whose row "
             "cannot be used, and were left out.", "Correct the rows of nodes.")  # fmt: skip
        tell("self_loops", counts["self_loops"], f"{counts['self_loops']} of {links.lines} links go from a node to itself and "
             f"were left out; {counts['only_self_loops']} nodes have no other.")  # fmt: skip
        tell("repeated_links", counts["repeated"], f"{counts['repeated']} of {links.lines} links repeat an earlier line; each "
             "counts once.")  # fmt: skip
        if self.partition == "folder":
            tell("shared_ids", self._repeated_ids, f"{self._repeated_ids} ids occur at several clients: each client's node is "
                 "its own, and links between clients cannot name them.",
                 "Make ids unique, for example by the client's name in front.")  # fmt: skip
        nobody = int((self._owner == -1).sum())
        tell("no_client", nobody, f"{nobody} nodes belong to no client: they are in the global graph only.")
        if self.client_names:
            whole = label_counts(self.data.y, len(self.class_names))
            for client, own in enumerate(labels):
                absent = [c for c, n in zip(self.class_names, own, strict=True) if not n]
                absent = [c for c in absent if whole[self.class_names.index(c)]]
                if absent:
                    found.append(finding("missing_classes", client, len(absent), f"Client {self.client_names[client]!r} has no "
                                         f"node of {len(absent)} of {len(self.class_names)} classes "
                                         f"({', '.join(absent[:5])}{', ...' if len(absent) > 5 else ''}).",
                                         "Nothing, if this is meant: the model has all classes everywhere."))  # fmt: skip
        return found


def _dangling(links: Links, position: dict[str, int], num_nodes: int) -> Tensor:
    """Distinct links of each node with an id that its table lacks, int64 ``(N,)``; a link that the table of links between
    clients has, too, is in the graph and counts there."""
    joined = {(low, high) for low, high in np.sort(links.pairs, axis=0).T.tolist()} if links.elsewhere else set()
    counts = torch.zeros(num_nodes, dtype=torch.long)
    for place, name in links.elsewhere:
        other = position.get(name, -1)
        counts[place] += (min(place, other), max(place, other)) not in joined
    return counts


def _client_folders(root: Path, nodes: str, besides: str | None) -> list[Path]:
    """Folders below ``root`` that have a table of nodes, if ``root`` itself has none; not that of ``predict_root``."""
    if (root / nodes).is_file() or not root.is_dir():
        return []
    return sorted(folder for folder in root.iterdir() if (folder / nodes).is_file() and not _same(folder, besides))


def _same(path: Path, other: str | None) -> bool:
    return other is not None and path.resolve() == Path(other).resolve()


def _named(table: NodeTable, client: str) -> str:
    return client or str(table.path)


def _joined(table: NodeTable, other: NodeTable) -> sp.csr_matrix:
    """Rows of ``other`` in the order of the nodes of ``table``, by id."""
    row = {other.ids[row]: place for place, row in enumerate(other.kept.tolist())}
    ids = [table.ids[row] for row in table.kept]
    missing = [name for name in ids if name not in row]
    if missing:
        raise ValueError(
            f"`{other.path}` has no usable row for {len(missing)} nodes of `{table.path}`: ids "
            f"{', '.join(map(repr, missing[:5]))}."
        )
    return other.x[[row[name] for name in ids]]


def _as_csr(x: sp.csr_matrix) -> Tensor:
    x.sum_duplicates()
    indptr, indices, values = (torch.from_numpy(np.ascontiguousarray(part)) for part in (x.indptr, x.indices, x.data))
    return csr_tensor(indptr, indices, values, x.shape)


def _degree_features(pairs: Tensor, num_nodes: int) -> Tensor:
    """A constant and log(1 + number of distinct neighbours), ``(N, 2)``."""
    pairs = pairs[:, pairs[0] != pairs[1]]
    both = torch.cat([pairs, pairs.flip(0)], dim=1)
    key = torch.unique(both[0] * num_nodes + both[1])
    degree = torch.bincount(torch.div(key, max(num_nodes, 1), rounding_mode="floor"), minlength=num_nodes)
    return torch.stack([torch.ones(num_nodes), degree.float().log1p()], dim=1)


def _by_value(text: str) -> tuple[float, str]:
    return float(text), text
