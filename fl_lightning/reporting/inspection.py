"""``inspect``: what the data and the partition are, and what will hurt, before any training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fl_lightning.reporting.forecast import forecast, readable
from fl_lightning.reporting.tables import text_table
from fl_lightning.settings import FederationSettings

MATRICES = ("edges_between", "shared_molecules")
SHOWN_ROWS = 10


def inspect_data(
    datamodule: Any,
    as_json: bool,
    html: str | None,
    say: Callable[[str], None],
    module: Any = None,
    settings: FederationSettings | None = None,
    title: str = "inspect",
) -> list[dict[str, Any]]:
    """Report on a data module.

    Args:
        datamodule: With ``report()``.
        as_json: One JSON object instead of tables.
        html: File for a self-contained page, or ``None``.
        say: Receives each line.
        module: The model, for the forecast of bytes and memory.
        settings: The federation, for the same.
        title: Of the page.

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
    report = dict(datamodule.report())
    if module is not None and settings is not None:
        try:
            report["forecast"] = forecast(module, datamodule, settings, report.get("bytes", 0))
        except ValueError as error:  # what `fit` would refuse
            remedy = "Correct the config: `fit` would end with this message."
            report["findings"] = [
                {"kind": "configuration", "client": None, "count": 1, "message": str(error), "remedy": remedy},
                *report["findings"],
            ]
    columns = client_columns(report)
    if html is not None:
        from fl_lightning.reporting.inspect_page import inspection_page  # draws: slow to import

        Path(html).write_text(inspection_page(title, report, columns), encoding="utf-8")
    if as_json:
        say(json.dumps(report, allow_nan=False))
        return report["findings"]
    for line in text_table(list(columns), list(zip(*columns.values(), strict=True))):
        say(line)
    for key, value in report.items():
        if isinstance(value, int | float | str):
            say(f"{key}: {value}")
    if "links" in report:
        say("links: " + ", ".join(f"{key} {value}" for key, value in report["links"].items()))
    if "forecast" in report:
        say("forecast: " + ", ".join(f"{key.replace('_', ' ')} {value if key == 'parameters' else readable(value)}"
                                     for key, value in report["forecast"].items()))  # fmt: skip
    for note in report.get("notices", []):
        say(f"notice: {note}")
    for drop in report["dropped_rows"][:SHOWN_ROWS]:
        say(f"left out: row {drop['row']}" + (f" (id {drop['id']})" if "id" in drop else "") + f": {drop['reason']}")
    if len(report["dropped_rows"]) > SHOWN_ROWS:
        say(f"left out: {len(report['dropped_rows']) - SHOWN_ROWS} more rows; --json and --html list them.")
    for f in report["findings"]:
        where = "" if f["client"] is None else f"client {f['client']}: "
        say(f"- {where}{f['message']} -> {f['remedy']}")
    say(f"{len(report['findings'])} finding(s)" + ("" if html is None else f"; page: {html}"))
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
        if name == "client_names" and values == columns["client"]:
            continue
        if name in ("findings", "dropped_rows", "notices", "files", "task_names", "class_names", "units", *MATRICES):
            continue
        if isinstance(values, dict):
            for part, inner in values.items():
                add(f"{part}", inner)
        else:
            add({"labels": "class"}.get(name, name), values)
    return columns
