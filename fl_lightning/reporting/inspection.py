"""``inspect``: what the data and the partition are, and what will hurt, before any training."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fl_lightning.reporting.tables import text_table


def inspect_data(datamodule: Any, as_json: bool, html: str | None, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Report on a data module.

    Args:
        datamodule: With ``report()``.
        as_json: One JSON object instead of tables.
        html: Reserved for the page; not written yet.
        say: Receives each line.

    Returns:
        The findings, ``{kind, client, count, message, remedy}`` each.

    Raises:
        ValueError: If the data module cannot report.
    """
    if not hasattr(datamodule, "report"):
        raise ValueError(
            f"`data: {type(datamodule).__name__}` has no `report()`; `inspect` needs one of `datamodules`."
        )
    datamodule.prepare_data()
    datamodule.setup("fit")
    report = datamodule.report()
    if as_json:
        say(json.dumps(report, allow_nan=False))
        return report["findings"]
    columns = client_columns(report)
    for line in text_table(list(columns), list(zip(*columns.values(), strict=True))):
        say(line)
    for key, value in report.items():
        if isinstance(value, int | float | str):
            say(f"{key}: {value}")
    for f in report["findings"]:
        where = "" if f["client"] is None else f"client {f['client']}: "
        say(f"- {where}{f['message']} -> {f['remedy']}")
    say(f"{len(report['findings'])} finding(s)")
    return report["findings"]


def client_columns(report: dict[str, Any]) -> dict[str, list[Any]]:
    """Everything in a report that has one entry per client, as columns of a table."""
    number = report["num_clients"]
    columns: dict[str, list[Any]] = {"client": [str(c) for c in range(number)], "size": report["client_sizes"]}

    def add(name: str, values: Any) -> None:
        if not isinstance(values, list) or len(values) != number or name == "client_sizes":
            return
        if all(isinstance(v, list) and len(v) == len(values[0]) and len(v) <= 20 for v in values):
            for index in range(len(values[0])):
                columns[f"{name} {index}"] = [v[index] for v in values]
        elif not any(isinstance(v, list | dict) for v in values):
            columns[name.removeprefix("client_")] = values

    for name, values in report.items():
        if name in ("findings", "dropped_rows"):
            continue
        if isinstance(values, dict):
            for part, inner in values.items():
                add(f"{part}", inner)
        else:
            add({"labels": "class"}.get(name, name), values)
    return columns
