"""``inspect``: what the data and the partition are, and what will hurt, before any training."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_lightning.reporting.clients import client_columns, name_client
from fl_lightning.reporting.forecast import forecast, readable
from fl_lightning.reporting.output_paths import check_file
from fl_lightning.reporting.plain import plain
from fl_lightning.reporting.tables import text_table
from fl_lightning.settings import FederationSettings

SHOWN_ROWS = 10
# Kinds of findings that good data have, too, and that ask for nothing if they are meant; `multi_fragment` with positions alone.
REMARKS = (
    "duplicates_across_clients", "missing_classes", "missing_labels", "missing_task", "multi_fragment", "no_bonds", "no_client",
    "partition_note", "repeated_ids", "repeated_links", "self_loops", "unknown_atoms", "unlabeled_nodes", "unlabelled_rows",
)  # fmt: skip


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
        The findings, ``{kind, level, client, count, message, remedy, rows}`` each: ``level`` is ``remark`` where nothing need
        be done, and ``rows`` are those that it speaks of (``row``, and where they are known ``file``, ``file_row``, ``id``).

    Raises:
        ValueError: If the data module cannot report.
    """
    if not hasattr(datamodule, "report"):
        raise ValueError(f"`data: {type(datamodule).__name__}` has no `report()`; `inspect` needs one of `datamodules`.")
    if html is not None:
        check_file(Path(html), "--html")
    report = _report(datamodule)
    if module is not None and settings is not None:
        try:
            report["forecast"] = forecast(module, datamodule, settings, report.get("bytes", 0))
        except ValueError as error:  # what `fit` would refuse
            remedy = "Correct the config: `fit` would end with this message."
            refused: dict[str, Any] = {
                "kind": "configuration", "level": "finding", "client": None, "count": 1, "message": str(error),
                "remedy": remedy, "rows": [],
            }  # fmt: skip
            report["findings"] = [refused, *report["findings"]]
    columns = client_columns(report)
    if html is not None:
        from fl_lightning.reporting.inspect_page import inspection_page  # draws: slow to import

        Path(html).write_text(inspection_page(title, report, columns), encoding="utf-8")
    if as_json:
        say(json.dumps(plain(report), allow_nan=False))
        return report["findings"]
    _say_what_it_is(report, columns, say)
    _say_what_is_wrong(report, say)
    remarks = len(report["findings"]) - len(must_be_met(report["findings"]))
    said = f"{len(report['findings'])} finding(s)" + (f", {remarks} of them with nothing to do if meant" if remarks else "")
    say(said + ("" if html is None else f"; page: {html}"))
    return report["findings"]


def must_be_met(findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The findings that ask for something to be done, on which ``--strict`` fails; a data module of one's own may have no
    levels."""
    return [found for found in findings if found.get("level") != "remark"]


def _report(datamodule: Any) -> dict[str, Any]:
    """The data module's own report, without the notices on the screen that are in it."""
    notices = logging.getLogger("datamodules")
    level = notices.level
    notices.setLevel(logging.ERROR)
    try:
        datamodule.prepare_data()
        datamodule.setup("fit")
        return dict(datamodule.report())
    finally:
        notices.setLevel(level)


def _say_what_it_is(report: Mapping[str, Any], columns: Mapping[str, list[Any]], say: Callable[[str], None]) -> None:
    """The clients, the figures, and what a training will take."""
    for line in text_table(list(columns), list(zip(*columns.values(), strict=True))):
        say(line)
    for key, value in report.items():
        if isinstance(value, int | float | str):
            say(f"{key}: {value}")
    if "links" in report:
        say("links: " + ", ".join(f"{key} {value}" for key, value in report["links"].items()))
    if "forecast" in report:
        numbers = {key: value for key, value in report["forecast"].items() if key != "note"}
        shown = (f"{k.replace('_', ' ')} {value if k == 'parameters' else readable(value)}" for k, value in numbers.items())
        say("forecast: " + ", ".join(shown))
        say(f"forecast: {report['forecast']['note']}")


def _say_what_is_wrong(report: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Notices, rows that cannot be used, and findings with their remedies."""
    for note in report.get("notices", []):
        say(f"notice: {note}")
    for drop in report["dropped_rows"][:SHOWN_ROWS]:
        what = next((f" ({key} {drop[key]})" for key in ("id", "link") if key in drop), "")
        say(f"left out: row {drop['row']}{what}: {drop['reason']}")
    if len(report["dropped_rows"]) > SHOWN_ROWS:
        say(f"left out: {len(report['dropped_rows']) - SHOWN_ROWS} more rows; --json and --html list them.")
    for f in report["findings"]:
        where = "" if f["client"] is None else f"{name_client(report, f['client'])}: "
        say(f"- {where}{f['message']} -> {f['remedy']}")
