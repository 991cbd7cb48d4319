"""Reads a graph in tables: what comes out depends on the files and on the spec alone.

    root/nodes.csv, root/edges.csv            one table of nodes and one of links
    root/<client>/nodes.csv, edges.csv        a folder per client; root/edges.csv: links between clients, if known

Nothing is dropped silently: rows and links that cannot be used are counted, listed and reported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from datamodules.split import STAGES
from datamodules.tables.classes import number_classes
from datamodules.tables.clients import assign_clients, find_clients_without_links, inspect_root, name_row_clients
from datamodules.tables.features import degree_features, read_features, stack_features
from datamodules.tables.findings import find_odd_labels
from datamodules.tables.graph_links import read_graph_links
from datamodules.tables.graph_spec import GraphSpec
from datamodules.tables.graph_tables import GraphTables
from datamodules.tables.links import describe_links
from datamodules.tables.nodes import NodeTable, read_nodes
from datamodules.tables.origin import Origin

log = logging.getLogger(__name__)


def read_graph(spec: GraphSpec) -> GraphTables:
    """Read the tables of a graph.

    What is found out instead of given is logged as a warning, so that it is said before any error.

    Raises:
        ValueError: A file or a value that cannot work, in the names of the YAML file.
    """
    notices = inspect_root(spec)
    tables = _read_tables(spec)
    features = read_features(spec, tables)
    notices += features.notices + [note for table in tables.values() for note in table.notices]
    _warn(notices)
    offsets = np.cumsum([0, *(len(table.ids) for table in tables.values())])[:-1]
    ids = [name for table in tables.values() for name in table.ids]
    origin = Origin([str(table.path) for table in tables.values()], [len(table.ids) for table in tables.values()], ids)
    bad_rows = _list_bad_rows(spec, tables, offsets)
    rows = np.concatenate([table.kept + offset for table, offset in zip(tables.values(), offsets, strict=True)])
    if not len(rows):
        raise ValueError(f"`{spec.root}` has no usable node: {bad_rows[0]['reason']}.")
    labels = [text for table in tables.values() for text in table.label]
    odd = find_odd_labels(labels, lambda place: f"row {rows[place]} (id {ids[rows[place]]!r})", spec.columns.label or "")
    class_names, y = number_classes(spec, tables)
    client_names, owner = assign_clients(spec, tables)
    found = read_graph_links(spec, tables)
    _warn(found.links.notices)
    pairs = torch.from_numpy(found.links.pairs)
    x = stack_features(features.matrices) if features.matrices else degree_features(pairs, len(rows))
    graph = Data(x=x, y=y, edge_index=pairs, num_nodes=len(rows), num_classes=len(class_names))
    graph.node_id = torch.from_numpy(rows)  # all that is known of a node is found by its row
    if spec.columns.split is not None:
        _set_masks(graph, tables)
    return GraphTables(
        graph=graph,
        rows=graph.node_id,
        ids=ids,
        origin=origin,
        bad_rows=bad_rows,
        class_names=class_names,
        client_names=client_names,
        row_clients=name_row_clients(spec, tables),
        owner=owner,
        features=replace(features, matrices=[]),
        found_links=found,
        without_links=find_clients_without_links(spec),
        link_counts=describe_links(found.links.pairs, len(rows)),
        odd_labels=odd,
        notices=notices + found.links.notices,
    )


def _read_tables(spec: GraphSpec) -> dict[str, NodeTable]:
    """The tables of nodes by client; under ``""`` the only one."""
    paths = {folder.name: folder / spec.nodes for folder in spec.folders} or {"": spec.root / spec.nodes}
    columns = spec.columns if spec.features is None else replace(spec.columns, features=())
    optional = len(paths) > 1  # a client may have no labels at all
    classes = spec.classes or ()
    return {name: read_nodes(path, columns, spec.form, spec.decimal, optional, classes) for name, path in paths.items()}


def _list_bad_rows(spec: GraphSpec, tables: Mapping[str, NodeTable], offsets: np.ndarray) -> list[dict[str, Any]]:
    """Rows that are no node, by their number over all tables.

    Raises:
        ValueError: There are some, and they must not be dropped.
    """
    bad_rows = [
        {**drop, "row": drop["row"] + int(offset), "file": str(table.path)}
        for table, offset in zip(tables.values(), offsets, strict=True)
        for drop in table.dropped
    ]
    if bad_rows and spec.invalid == "raise":
        some = "; ".join(f"{d['file']} row {d['row']} (id {d['id']!r}): {d['reason']}" for d in bad_rows[:5])
        raise ValueError(
            f"{len(bad_rows)} rows are no node: {some}. Rows count from 0 without the header. Correct them, or "
            "leave them out with `data.init_args.invalid: drop`."
        )
    return bad_rows


def _set_masks(graph: Data, tables: Mapping[str, NodeTable]) -> None:
    split = np.array([text for table in tables.values() for text in table.split])
    for stage in STAGES:
        graph[f"{stage}_mask"] = torch.from_numpy(split == stage)


def _warn(notices: Sequence[str]) -> None:
    for note in notices:
        log.warning(note)
