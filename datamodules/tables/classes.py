"""Classes of the nodes of a graph in tables: their names, and the number of each node's class."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from datamodules.tables.graph_spec import GraphSpec
from datamodules.tables.names import sort_names
from datamodules.tables.nodes import NodeTable, name_table


def number_classes(spec: GraphSpec, tables: Mapping[str, NodeTable]) -> tuple[list[str], Tensor]:
    """Names of the classes, and the number of each node's class, int64 ``(N,)``, -1 = not labelled.

    Raises:
        ValueError: No label at all, or labels that are not among ``classes``.
    """
    texts = [text for table in tables.values() for text in table.label]
    found = set(texts) - {""}
    if not found and not spec.classes:
        raise ValueError(
            f"`data.init_args.label_column` {spec.columns.label!r} is blank for all {len(texts)} nodes of `{spec.root}`. "
            "Needed is the class of at least some of them."
        )
    if spec.classes is not None:
        names = list(spec.classes)
        _refuse_other_labels(tables, set(names))
    else:
        names = sort_names(found)
    number = {name: place for place, name in enumerate(names)} | {"": -1}
    return names, torch.tensor([number[text] for text in texts], dtype=torch.long)


def _refuse_other_labels(tables: Mapping[str, NodeTable], known: set[str]) -> None:
    wrong = [f"{name_table(table, client)!r}: {', '.join(map(repr, sorted(set(table.label) - known - {''})[:5]))}"
             for client, table in tables.items() if not set(table.label) <= known | {""}]  # fmt: skip
    if wrong:
        raise ValueError(
            f"`data.init_args.classes` lists {len(known)} classes, but there are other labels in {'; '.join(wrong)}. "
            "Correct them, or list them."
        )
