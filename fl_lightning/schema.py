"""The schema of the federation: what every client's data must have alike, agreed before round 1.

A data module may have ``schema``, a dictionary from which the model builds its layers (classes, tasks, feature width). One
model serves all clients, so all must say the same; one that does not is named.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def agreed_schema(server: Any, clients: Sequence[Any]) -> Mapping[str, Any] | None:
    """The schema that server and clients share.

    Args:
        server: The server's data module, or ``None``: then the schema is that of most clients.
        clients: Data module of each client.

    Returns:
        It, or ``None`` where no data module has one.

    Raises:
        ValueError: A client has another one.
    """
    schemas = {client: data.schema for client, data in enumerate(clients) if getattr(data, "schema", None) is not None}
    agreed = getattr(server, "schema", None)
    if not schemas:
        return agreed
    texts = {client: json.dumps(schema, sort_keys=True, default=str) for client, schema in schemas.items()}
    if agreed is None:
        most = Counter(texts.values()).most_common(1)[0][0]
        agreed = next(schema for client, schema in schemas.items() if texts[client] == most)
    wanted = json.dumps(agreed, sort_keys=True, default=str)
    lines = []
    for client, schema in schemas.items():
        if texts[client] != wanted:
            keys = [key for key in {**agreed, **schema} if agreed.get(key) != schema.get(key)]
            lines.append(f"client {client} has " + ", ".join(f"{key} {_short(schema.get(key))}" for key in keys)
                         + " where the others have " + ", ".join(_short(agreed.get(key)) for key in keys))  # fmt: skip
    if lines:
        raise ValueError(
            "One model serves all clients, but their data differ: " + "; ".join(lines[:5]) + ". Give all clients the same "
            "classes, tasks and features; what a client lacks can be left blank."
        )
    return agreed


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
