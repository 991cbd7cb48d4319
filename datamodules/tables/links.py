"""A table of links: pairs of node ids, directed or not, with everything that real files have: repeated lines, links in
both directions, links of a node to itself, and ids that no node has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from datamodules.tables.names import quote, quote_all
from datamodules.tables.table import Table, TableFormat

UNKNOWN = ("raise", "drop")
EXAMPLES = 10
UNKNOWN_ENDS = "no link: neither end is a node"
MOST_LISTED = 100_000  # lines that are listed one by one; all are counted


@dataclass
class Links:
    """Links of one or several files, as positions of nodes.

    Attributes:
        pairs: Source and target of each line whose ends are nodes, int64 ``(2, E)``, as written.
        lines: Number of lines.
        bad: Lines with a blank end or another number of fields, some of them in words.
        unknown: Lines with an id that no row of nodes has, some of them in words.
        touching: Lines with the id of a row of nodes at one end at least, usable or not.
        of_dropped: Lines with an id whose row of nodes could not be used.
        notices: What is in the files and not used.
        elsewhere: Distinct (position of a node, id that is no node's here) of the unknown lines.
        unusable: ``{"row", "reason", "link", "file"}`` of the lines that lead from no node to anywhere: bad ones, and those
            with an unknown id at one end and no node at the other; the first ``MOST_LISTED``.
    """

    pairs: np.ndarray = field(default_factory=lambda: np.zeros((2, 0), dtype=np.int64))
    lines: int = 0
    num_bad: int = 0
    num_unknown: int = 0
    touching: int = 0
    of_dropped: int = 0
    bad: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    elsewhere: set[tuple[int, str]] = field(default_factory=set)
    unusable: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Links) -> None:
        """Take in the links of another file."""
        self.pairs = np.concatenate([self.pairs, other.pairs], axis=1)
        for name in ("lines", "num_bad", "num_unknown", "touching", "of_dropped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.notices += other.notices
        self.elsewhere |= other.elsewhere
        self.unusable = (self.unusable + other.unusable)[:MOST_LISTED]
        self.bad, self.unknown = (self.bad + other.bad)[:EXAMPLES], (self.unknown + other.unknown)[:EXAMPLES]


def read_links(path: Path, source: str, target: str, form: TableFormat, position: Mapping[str, int]) -> Links:
    """Read a table of links.

    Args:
        path: CSV or parquet.
        source: Name of the column where a link begins; its position (``0``) in a file without header.
        target: Of the column where it ends, likewise.
        form: How CSV is written.
        position: Position of each node by id; -1 for an id whose row could not be used.

    Raises:
        ValueError: The file is no table or lacks a column.
    """
    table = Table(path, form, {"data.init_args.source_column": source, "data.init_args.target_column": target})
    links, parts = Links(notices=list(table.notices)), []
    others = [name for name in table.columns if name not in (source, target)]
    if others:
        links.notices.append(f"`{path}`: not used: {quote_all(others)}. Links have no weight, kind or feature here.")
    for chunk in table.chunks([source, target]):
        ends = []
        for name in (source, target):
            texts = [text.strip() for text in chunk.columns[name]]
            found = np.fromiter((position.get(text, -2) for text in texts), dtype=np.int64, count=chunk.size)
            found[[place for place, text in enumerate(texts) if not text]] = -3
            ends.append(found)
        pairs = np.stack(ends)
        lowest = pairs.min(axis=0)
        for value, number, examples in ((-3, "num_bad", links.bad), (-2, "num_unknown", links.unknown)):
            places = np.flatnonzero(lowest == value)
            setattr(links, number, getattr(links, number) + len(places))
            for place in places[: EXAMPLES - len(examples)].tolist():
                pair = " - ".join(quote(chunk.columns[name][place]) for name in (source, target))
                reason = chunk.bad.get(chunk.first + place)
                examples.append(f"{path.name} row {chunk.first + place}: {reason or pair}")
        nowhere = np.flatnonzero((lowest == -3) | ((lowest == -2) & (pairs.max(axis=0) < 0)))
        for place in nowhere[: MOST_LISTED - len(links.unusable)].tolist():
            reason = chunk.bad.get(chunk.first + place)
            reason = f"no link: {reason}" if reason else "no link: an id is blank" if lowest[place] == -3 else UNKNOWN_ENDS
            pair = " - ".join(chunk.columns[name][place].strip() for name in (source, target))
            links.unusable.append({"row": chunk.first + place, "reason": reason, "link": pair, "file": str(path)})
        for place in np.flatnonzero((lowest == -2) & (pairs.max(axis=0) >= 0)).tolist():
            near = int(pairs[0, place] < 0)
            far = chunk.columns[(source, target)[1 - near]][place]
            links.elsewhere.add((int(pairs[near, place]), far.strip()))
        links.touching += int((pairs.max(axis=0) >= -1).sum())
        links.of_dropped += int((lowest == -1).sum())
        links.lines += chunk.size
        parts.append(pairs[:, lowest >= 0])
    if parts:
        links.pairs = np.concatenate(parts, axis=1)
    return links


def describe_links(pairs: np.ndarray, num_nodes: int) -> dict[str, int]:
    """What is among the lines.

    Args:
        pairs: Source and target, ``(2, E)``.
        num_nodes: N.

    Returns:
        ``self_loops`` (lines from a node to itself), ``repeated`` (lines that say again what an earlier one said, in the
        same direction), ``two_way`` (distinct directed links whose opposite is there, too), ``undirected`` (distinct
        links between two nodes, whatever the direction), ``only_self_loops`` (nodes with a self-loop and no other link).
    """
    source, target = pairs
    loop = source == target
    directed = np.unique(source[~loop] * num_nodes + target[~loop])
    opposite = directed % max(num_nodes, 1) * num_nodes + directed // max(num_nodes, 1)
    two_way = int(np.isin(directed, opposite, assume_unique=True).sum())
    looped = np.unique(source[loop])
    linked = np.unique(pairs[:, ~loop])
    return {
        "self_loops": int(loop.sum()),
        "repeated": int((~loop).sum()) - len(directed) + int(loop.sum()) - len(looped),
        "two_way": two_way,
        "undirected": len(directed) - two_way // 2,
        "only_self_loops": int((~np.isin(looped, linked)).sum()),
    }
