"""The clients in a data module's report: what they are called, and what there is to tell of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# One entry per client, like all that begins with `client_`. By name: there may be as many tasks, or files, as clients.
PER_CLIENT = ("labels", "label_distance", "scaffolds_per_client", "scaffold_tv", "groups")


def names_of(data: Any) -> list[str]:
    """What the clients of a data module, or of one data module for each (at sites, perhaps), are called; none where they have
    numbers only."""
    if isinstance(data, Sequence):
        names = [str(getattr(client, "site", "")) for client in data]
        return names if all(names) else []
    record = data.partition_record() if hasattr(data, "partition_record") else {}
    return list(map(str, record.get("client_names") or []))


def name_client(report: Mapping[str, Any], client: int) -> str:
    """``client 3``, with its name where it has one of its own."""
    names = report.get("client_names") or []
    return f"client {client}" + (f" ({names[client]})" if client < len(names) and names[client] != str(client) else "")


def client_columns(report: dict[str, Any]) -> dict[str, list[Any]]:
    """What a report has one entry per client of, as columns of a table."""
    number = report["num_clients"]
    columns: dict[str, list[Any]] = {"client": [str(c) for c in range(number)]}
    names = report.get("client_names") or columns["client"]
    if names != columns["client"]:
        columns["name"] = names
    columns["size"] = report["client_sizes"]
    classes = report.get("class_names") or range(report.get("num_classes", 0))

    def add(name: str, values: Any) -> None:
        if not isinstance(values, list) or len(values) != number or name == "client_sizes":
            return
        if all(isinstance(v, list) and len(v) == len(values[0]) and len(v) <= 20 for v in values):
            for index in range(len(values[0])):
                heading = f"class {classes[index]}" if name == "labels" else f"{name} {index}"
                columns[heading] = [v[index] for v in values]
        elif not any(isinstance(v, list | dict) for v in values):
            columns[name.removeprefix("client_")] = values

    for name, values in report.items():
        if name in PER_CLIENT or (name.startswith("client_") and name != "client_names"):
            for part, inner in values.items() if isinstance(values, dict) else [(name, values)]:
                add(str(part), inner)
    return columns
