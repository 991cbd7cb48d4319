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
    labels = report.get("labels_per_client")
    header = ["client", "size"] + ([f"class {c}" for c in range(len(labels[0]))] if labels else [])
    rows = [[str(c), size, *(labels[c] if labels else [])] for c, size in enumerate(report["client_sizes"])]
    for line in text_table(header, rows):
        say(line)
    for key, value in report.items():
        if isinstance(value, int | float | str):
            say(f"{key}: {value}")
    for f in report["findings"]:
        where = "" if f["client"] is None else f"client {f['client']}: "
        say(f"- {where}{f['message']} -> {f['remedy']}")
    say(f"{len(report['findings'])} finding(s)")
    return report["findings"]
