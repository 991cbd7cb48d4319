"""A table of links: pairs of node ids, directed or not, with everything that real files have: repeated lines, links in
both directions, links of a node to itself, and ids that no node has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from datamodules.tables.names import quote, quote_all
from datamodules.tables.table import Chunk, Table, TableFormat

UNKNOWN = ("raise", "drop")
EXAMPLES = 10
MOST_LISTED = 100_000  # lines that are listed one by one; all are counted
ROW_UNUSABLE, UNKNOWN_ID, BLANK = -1, -2, -3  # why an end of a line is no node: its row, its id, nothing there
Ends = tuple[Sequence[str], Sequence[str]]


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
        num_elsewhere: Lines that lead from a node to an id that is no node's here: to a node of somebody else, perhaps.
        left_out: ``{"row", "reason", "link", "file"}`` of the lines that are no link between two nodes, whatever the reason;
            the first ``MOST_LISTED``.
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
    num_elsewhere: int = 0
    left_out: list[dict[str, Any]] = field(default_factory=list)

    @property
    def num_left_out(self) -> int:
        """Lines that are no link between two nodes."""
        return self.lines - self.pairs.shape[1]

    def add(self, other: Links) -> None:
        """Take in the links of another file."""
        self.pairs = np.concatenate([self.pairs, other.pairs], axis=1)
        for name in ("lines", "num_bad", "num_unknown", "touching", "of_dropped", "num_elsewhere"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.notices += other.notices
        self.elsewhere |= other.elsewhere
        self.left_out = (self.left_out + other.left_out)[:MOST_LISTED]
        self.bad, self.unknown = (self.bad + other.bad)[:EXAMPLES], (self.unknown + other.unknown)[:EXAMPLES]


def read_links(
    path: Path, source: str, target: str, form: TableFormat, position: Mapping[str, int], shown: str | None = None
) -> Links:
    """Read a table of links.

    Args:
        path: CSV or parquet.
        source: Name of the column where a link begins; its position (``0``) in a file without header.
        target: Of the column where it ends, likewise.
        form: How CSV is written.
        position: Position of each node by id; -1 for an id whose row could not be used.
        shown: What to call the file in a message; its name by default, which several files may have.

    Raises:
        ValueError: The file is no table or lacks a column.
    """
    table = Table(path, form, {"data.init_args.source_column": source, "data.init_args.target_column": target})
    links, parts = Links(notices=list(table.notices)), []
    others = [name for name in table.columns if name not in (source, target)]
    if others:
        links.notices.append(f"`{path}`: not used: {quote_all(others)}. Links have no weight, kind or feature here.")
    for chunk in table.chunks([source, target]):
        ends = chunk.columns[source], chunk.columns[target]
        places = np.stack([_find_places(texts, position) for texts in ends])
        _count_lines(links, places)
        _give_examples(links, chunk, ends, places, shown or path.name)
        _list_left_out(links, chunk, ends, places, path)
        _note_elsewhere(links, ends, places)
        parts.append(places[:, places.min(axis=0) >= 0])
    if parts:
        links.pairs = np.concatenate(parts, axis=1)
    return links


def _find_places(texts: Sequence[str], position: Mapping[str, int]) -> np.ndarray:
    """Position of the node at one end of each line, ``(lines,)``; negative where there is none."""
    names = [text.strip() for text in texts]
    return np.array([position.get(name, UNKNOWN_ID) if name else BLANK for name in names], dtype=np.int64)


def _count_lines(links: Links, places: np.ndarray) -> None:
    lowest, highest = places.min(axis=0), places.max(axis=0)
    links.lines += places.shape[1]
    links.num_bad += int((lowest == BLANK).sum())
    links.num_unknown += int((lowest == UNKNOWN_ID).sum())
    links.num_elsewhere += int(((lowest == UNKNOWN_ID) & (highest >= 0)).sum())
    links.touching += int((highest >= ROW_UNUSABLE).sum())
    links.of_dropped += int((lowest == ROW_UNUSABLE).sum())


def _give_examples(links: Links, chunk: Chunk, ends: Ends, places: np.ndarray, file: str) -> None:
    for value, examples in ((BLANK, links.bad), (UNKNOWN_ID, links.unknown)):
        for line in np.flatnonzero(places.min(axis=0) == value)[: EXAMPLES - len(examples)].tolist():
            pair = " - ".join(quote(texts[line]) for texts in ends)
            examples.append(f"{file} row {chunk.first + line}: {chunk.bad.get(chunk.first + line) or pair}")


def _list_left_out(links: Links, chunk: Chunk, ends: Ends, places: np.ndarray, path: Path) -> None:
    room = MOST_LISTED - len(links.left_out)
    for line in np.flatnonzero(places.min(axis=0) < 0)[:room].tolist():
        names = [texts[line].strip() for texts in ends]
        reason = _say_why_not(places[:, line].tolist(), chunk.bad.get(chunk.first + line))
        links.left_out.append({"row": chunk.first + line, "reason": reason, "link": " - ".join(names), "file": str(path)})


def _say_why_not(places: Sequence[int], bad: str | None) -> str:
    """Why a line is no link between two nodes; without ids, so that equal reasons can be counted."""
    if bad:
        return f"no link: {bad}"
    if min(places) == BLANK:
        return "no link: an id is blank"
    if min(places) == ROW_UNUSABLE:
        return "no link: the row of a node at its end cannot be used"
    return "no link: neither end is a node" if max(places) < 0 else "no link: one end is no node"


def _note_elsewhere(links: Links, ends: Ends, places: np.ndarray) -> None:
    for line in np.flatnonzero((places.min(axis=0) == UNKNOWN_ID) & (places.max(axis=0) >= 0)).tolist():
        near = int(places[0, line] < 0)
        links.elsewhere.add((int(places[near, line]), ends[1 - near][line].strip()))


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
