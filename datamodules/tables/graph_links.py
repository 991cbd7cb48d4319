"""Links of a graph in tables: each client's own, and those between clients, as positions of nodes in the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from datamodules.findings import either
from datamodules.tables.clients import list_other_files
from datamodules.tables.graph_spec import GraphSpec
from datamodules.tables.links import Links, read_links
from datamodules.tables.names import quote_all
from datamodules.tables.nodes import NodeTable


@dataclass
class GraphLinks:
    """Links of all files.

    Attributes:
        links: All of them.
        dangling: Distinct links of each node with an id that its table lacks, int64 ``(N,)``.
        repeated_ids: Number of ids that several clients have.
    """

    links: Links = field(default_factory=Links)
    dangling: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    repeated_ids: int = 0


def read_graph_links(spec: GraphSpec, tables: Mapping[str, NodeTable]) -> GraphLinks:
    """Read the links of each table of nodes, and those between clients' folders.

    Raises:
        ValueError: A file is missing, or links cannot be used that must not be dropped, or none names a node.
    """
    links, start = Links(), 0
    everywhere: dict[str, int] = {}
    repeated: set[str] = set()
    for client, table in tables.items():
        position = {drop["id"]: -1 for drop in table.dropped}
        position |= {table.ids[row]: start + place for place, row in enumerate(table.kept.tolist())}
        start += len(table.kept)
        path = table.path.parent / spec.edges
        if not spec.folders and not path.is_file():
            _refuse_without_links(spec, path, table.path.parent)
        if path.is_file():
            shown = f"{client}/{path.name}" if spec.folders else path.name
            links.add(read_links(path, *spec.ends, spec.edge_form, position, shown))
        repeated |= everywhere.keys() & position.keys()
        everywhere |= position
    between = spec.root / spec.edges
    if spec.folders and between.is_file():
        for name in repeated:  # which client's node is meant?
            del everywhere[name]
        links.add(read_links(between, *spec.ends, spec.edge_form, everywhere))
    _refuse_unusable(spec, links)
    places = {name: place for name, place in everywhere.items() if place >= 0 and name not in repeated}
    return GraphLinks(links, _count_dangling(links, places, start), len(repeated))


def _refuse_without_links(spec: GraphSpec, path: Path, folder: Path) -> None:
    beside = list_other_files(folder, spec)
    there = f" Is it {quote_all(beside)}, which lies there?" if beside else ""
    raise ValueError(
        f"`data.init_args.edges` is {spec.edges!r}, but `{path}` is no file.{there} A graph without links has a table of "
        f"links with its first line only: {','.join(spec.ends)}."
    )


def _refuse_unusable(spec: GraphSpec, links: Links) -> None:
    if links.num_unknown and spec.unknown_ids == "raise":
        raise ValueError(
            f"{links.num_unknown} of {links.lines} links {either(links.num_unknown, 'names', 'name')} an id that no node has: "
            f"{'; '.join(links.unknown)}. "
            "Correct them, or leave these links out with `data.init_args.unknown_ids: drop`."
        )
    if links.num_bad and spec.invalid == "raise":
        raise ValueError(
            f"{links.num_bad} of {links.lines} lines {either(links.num_bad, 'is', 'are')} no link: "
            f"{'; '.join(links.bad)}. Correct them, or leave them "
            "out with `data.init_args.invalid: drop`."
        )
    if links.lines and not links.touching:
        raise ValueError(
            f"None of the {links.lines} lines of `data.init_args.edges: {spec.edges}` names a node: "
            f"{'; '.join([*links.unknown, *links.bad][:3])}. Ids are compared as they are written. Are "
            "`data.init_args.source_column`, `target_column`, `edge_header` and `separator` right? A graph without links "
            f"has a table of links with its first line only: {','.join(spec.ends)}."
        )


def _count_dangling(links: Links, position: Mapping[str, int], num_nodes: int) -> Tensor:
    """Distinct links of each node with an id that its table lacks, int64 ``(N,)``; a link that the table of links between
    clients has, too, is in the graph and counts there."""
    joined = {(low, high) for low, high in np.sort(links.pairs, axis=0).T.tolist()} if links.elsewhere else set()
    counts = torch.zeros(num_nodes, dtype=torch.long)
    for place, name in links.elsewhere:
        other = position.get(name, -1)
        counts[place] += (min(place, other), max(place, other)) not in joined
    return counts
