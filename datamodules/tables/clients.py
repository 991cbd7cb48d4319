"""Clients of a graph in tables: a folder for each, or a column that names them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from datamodules.tables.graph_spec import GraphSpec
from datamodules.tables.names import quote_all, sort_names
from datamodules.tables.nodes import NodeTable
from datamodules.tables.strays import is_stray


def find_client_folders(root: Path, nodes: str, predict_root: Path | None = None) -> tuple[Path, ...]:
    """Folders below ``root`` that have a table of nodes, if ``root`` itself has none; not ``predict_root``, and none that
    programs leave there."""
    if (root / nodes).is_file() or not root.is_dir():
        return ()
    folders = (f for f in root.iterdir() if (f / nodes).is_file() and not is_stray(f.name))
    return tuple(sorted(f for f in folders if not _is_same(f, predict_root)))


def inspect_root(spec: GraphSpec) -> list[str]:
    """Notices about what is in ``root`` besides, and what is missing there: a file or folder of another name may be a
    client's.

    Raises:
        ValueError: There is no table of nodes.
    """
    root, nodes = spec.root, spec.nodes
    inside = sorted(root.iterdir()) if root.is_dir() else []
    folders = [path for path in inside if path.is_dir() and not path.name.startswith((".", "_"))
               and not _is_same(path, spec.predict_root)]  # fmt: skip
    if spec.folders:
        left = [path.name for path in inside if is_stray(path.name) and (path / nodes).is_file()]
        strange = [path.name for path in folders if path not in spec.folders and path.name not in left]
        notices = [f"no clients, since they have no `{nodes}`: the folders {quote_all(strange)}."] * bool(strange)
        notices += [f"no clients, by their names: the folders {quote_all(left)}."] * bool(left)
        return notices + _tell_of_clients_without_links(spec)
    if not (root / nodes).is_file():
        content = f"It holds {quote_all([path.name for path in inside])}" if inside else "It holds nothing"
        raise ValueError(
            f"`{root / nodes}` is no file (`data.init_args.root`, `data.init_args.nodes`), and no folder in "
            f"`{root}` has a `{nodes}`. " + (f"{content}." if root.is_dir() else "There is no such folder.")
        )
    unread = [path.name for path in folders if (path / nodes).is_file()]
    return [f"`{root / nodes}` is read, and the folders {quote_all(unread)} are not."] * bool(unread)


def _tell_of_clients_without_links(spec: GraphSpec) -> list[str]:
    bare = find_clients_without_links(spec)
    if not bare:
        return []
    beside = list(dict.fromkeys(name for names in bare.values() for name in names))
    there = f" There is {quote_all(beside)}: is it that (`data.init_args.edges`)?" if beside else ""
    return [f"no links are read for clients without `{spec.edges}`: {quote_all(list(bare))}.{there}"]


def find_clients_without_links(spec: GraphSpec) -> dict[str, list[str]]:
    """Clients whose folder has no table of links, each with the files that lie there and are not read."""
    return {path.name: list_other_files(path, spec) for path in spec.folders if not (path / spec.edges).is_file()}


def list_other_files(folder: Path, spec: GraphSpec) -> list[str]:
    """Files in a folder that are neither its nodes nor its features, nor left by programs: a table of links, perhaps."""
    known = {spec.nodes, spec.features}
    return sorted(path.name for path in folder.iterdir()
                  if path.is_file() and path.name not in known and not is_stray(path.name))  # fmt: skip


def assign_clients(spec: GraphSpec, tables: Mapping[str, NodeTable]) -> tuple[list[str], Tensor]:
    """Names of the clients, and the number of each node's client, int64 ``(N,)``, -1 = nobody; none of both where a
    partitioner makes them.

    Raises:
        ValueError: The column of clients is blank.
    """
    if spec.clients is None:
        return [], torch.zeros(0, dtype=torch.long)
    if spec.clients == "folder":
        owner = [number for number, table in enumerate(tables.values()) for _ in table.kept]
        return list(tables), torch.tensor(owner, dtype=torch.long)
    (table,) = tables.values()
    found = set(table.client) - {""}
    if not found:
        raise ValueError(f"`data.init_args.client_column` {spec.columns.client!r} of `{table.path}` is blank.")
    names = sort_names(found)
    number = {name: place for place, name in enumerate(names)} | {"": -1}
    return names, torch.tensor([number[text] for text in table.client], dtype=torch.long)


def name_row_clients(spec: GraphSpec, tables: Mapping[str, NodeTable]) -> list[str]:
    """The client of each of the R rows of the tables, also of those that are no node, ``""`` = nobody; none where a
    partitioner makes the clients."""
    if spec.clients is None:
        return []
    if spec.clients == "folder":
        return [name for name, table in tables.items() for _ in table.ids]
    (table,) = tables.values()
    return table.row_client


def _is_same(path: Path, other: Path | None) -> bool:
    return other is not None and path.resolve() == other.resolve()
