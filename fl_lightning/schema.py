"""The schema of the federation: what every client's data must have alike, agreed before round 1.

A data module may have ``schema``, a dictionary from which the model builds its layers (classes, tasks, feature width) and
in which it names what the places of its tensors mean. One model serves all clients, so all must say the same: a sum over
clients whose first column is an age here and an income there means nothing, though its shape is right. Whoever differs is
named. The rule is the same for clients in this process and at sites of their own, which tell their schema at the contact.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

# What the places of tensors mean, in order; and what to write where clients differ in it.
REMEDIES = {
    "feature_names": "Name the feature columns, in one order for all, in `data.init_args.features`; a file of features must "
                     "have the same columns in the same order everywhere.",
    "class_names": "Name the classes of all clients in `data.init_args.classes`.",
    "task_names": "Name the tasks of all clients in `data.init_args.targets`.",
    "units": "Give all clients' labels in the same units, and name these in `data.init_args.units`.",
}  # fmt: skip
OTHERWISE = "Give all clients the same classes, tasks and features; what a client lacks can be left blank."
log = logging.getLogger(__name__)


def agreed_schema(server: Any, clients: Sequence[Any]) -> Mapping[str, Any] | None:
    """The schema that server and clients share.

    Features without names (``feature_names`` is ``None``: a matrix has none) agree by their number alone; that is said.

    Args:
        server: The server's data module, or ``None``: then the schema is that of most clients.
        clients: Data module of each client.

    Returns:
        It, or ``None`` where no data module has one.

    Raises:
        ValueError: A client has another one: another value, other names, or the same names in another order.
    """
    schemas = {client: data.schema for client, data in enumerate(clients) if getattr(data, "schema", None) is not None}
    agreed = getattr(server, "schema", None)
    if not schemas:
        return agreed
    texts = {client: _text(schema) for client, schema in schemas.items()}
    if agreed is None:
        most = Counter(texts.values()).most_common(1)[0][0]
        agreed = next(schema for client, schema in schemas.items() if texts[client] == most)
    others = {client: _differences(schema, agreed) for client, schema in schemas.items() if texts[client] != _text(agreed)}
    if others:
        lines = [f"{_named(clients[client], client)} {', '.join(parts.values())}" for client, parts in others.items()]
        keys = dict.fromkeys(key for parts in others.values() for key in parts)
        remedies = [REMEDIES[key] for key in REMEDIES if key in keys] or [OTHERWISE]
        raise ValueError(
            f"One model serves all clients, but their data differ: {'; '.join(lines[:5])}"
            + (f"; and {len(lines) - 5} more clients" if len(lines) > 5 else "") + f". {' '.join(remedies)}"
        )  # fmt: skip
    if server is None and len(schemas) > 1 and agreed.get("feature_names", ...) is None:
        log.warning(
            "The features of the %d clients have no names, so that only their number (%s) could be compared: see to it that "
            "each column means the same everywhere, or give tables with names of columns.",
            len(schemas), agreed.get("num_features"),
        )  # fmt: skip
    return agreed


def _text(schema: Mapping[str, Any]) -> str:
    """For comparison: what is not there and what is ``None`` are the same."""
    return json.dumps({key: value for key, value in schema.items() if value is not None}, sort_keys=True, default=str)


def _differences(schema: Mapping[str, Any], agreed: Mapping[str, Any]) -> dict[str, str]:
    """By key, in words, how one client differs from the others; names first, since numbers often follow from them."""
    keys = sorted({**agreed, **schema}, key=lambda key: key not in REMEDIES)
    pairs = {key: (schema.get(key), agreed.get(key)) for key in keys}
    unequal = {key: pair for key, pair in pairs.items() if _text({"": pair[0]}) != _text({"": pair[1]})}
    return {key: f"has {_difference(key, *pair)}" for key, pair in unequal.items()}


def _difference(key: str, own: Any, agreed: Any) -> str:
    if not (_are_names(own) and _are_names(agreed)):
        return f"{key} {_short(own)} where the others have {_short(agreed)}"
    lacking, extra = ([name for name in these if name not in set(those)] for these, those in ((agreed, own), (own, agreed)))
    if lacking or extra:
        parts = [f"without {_few(lacking)}"] * bool(lacking) + [f"with also {_few(extra)}"] * bool(extra)
        return f"{key} {' and '.join(parts)} (it has {_short(own)}, the others {_short(agreed)})"
    if len(own) != len(agreed):
        return f"{len(own)} {key} where the others have {len(agreed)}: a name repeats"
    place, mine, theirs = next((n, *pair) for n, pair in enumerate(zip(own, agreed, strict=True)) if pair[0] != pair[1])
    return (f"the same {key} in another order: the first that differs, number {place + 1}, is {mine!r} where the others have "
            f"{theirs!r}")  # fmt: skip


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _named(data: Any, client: int) -> str:
    site = getattr(data, "site", None)
    return f"client {client}" + (f" (site `{site}`)" if site else "")


def _few(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
