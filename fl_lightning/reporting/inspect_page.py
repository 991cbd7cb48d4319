"""The page of ``inspect``: findings with remedies, figures of the partition, tables; one file without script or network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl

from fl_lightning.reporting.clients import name_client
from fl_lightning.reporting.drawing import COLOURS, HATCHES, Figure, drawing, legend, log_megabytes, svg
from fl_lightning.reporting.forecast import readable
from fl_lightning.reporting.formats import short
from fl_lightning.reporting.page import page
from fl_lightning.reporting.summary import Row

FORECAST = ("bytes_before_rounds", "bytes_down_per_round", "bytes_up_per_round", "bytes_total", "memory_data", "memory_model",
            "memory_messages", "memory_clients", "memory_total")  # fmt: skip
MOST_ROWS = 1000
MOST_CLIENTS = 60


def inspection_page(title: str, report: Mapping[str, Any], clients: Mapping[str, Sequence[Any]]) -> str:
    """The page.

    Args:
        title: Its heading.
        report: What the data module told, with ``forecast`` where there is a federation.
        clients: Columns with one entry per client.
    """
    found = report["findings"]
    lead = [f"{key.replace('_', ' ')}: {short(value)}" for key, value in report.items() if isinstance(value, int | float | str)]
    warnings = [f"{_where(f, report)}{f['message']} → {f['remedy']}" for f in found]
    facts = [{"what": key, "how many": value} for key, value in report.get("links", {}).items()]
    sections: list[tuple[str, str, Sequence[Row]]] = [
        ("Clients", "One row each; labels are counts of classes.", _rows(clients)),
        ("Links", "Lines of the table of links, and what is among them.", facts),
        ("Forecast", "What the run will send and keep. " + _note(report), _forecast_rows(report)),
        ("Labels", "Of each task and client.", _task_rows(report)),
        ("Found out, not given", "Say otherwise in the config.", [{"notice": note} for note in report.get("notices", [])]),
        *_rows_of_findings(report),
        ("Rows left out", _of(report["dropped_rows"]), report["dropped_rows"][:MOST_ROWS]),
    ]
    lead = [f"{len(found)} finding(s)." if found else "Nothing found that will hurt.", ", ".join(lead)]
    return page(title, lead, warnings, sections, [figure for figure in inspection_figures(report) if figure is not None])


def inspection_figures(report: Mapping[str, Any]) -> list[Figure | None]:
    """Labels, scaffolds, edges between clients, molecules that clients share, and the forecast."""
    return [_label_shares(report), _label_means(report), _scaffolds(report),
            _matrix(report, "edges_between", "Edges within clients (diagonal) and between them: what is off the diagonal is "
                    "lost to training."),
            _matrix(report, "shared_molecules", "Molecules that two clients both hold."), _forecast(report)]  # fmt: skip


def _where(finding: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    return f"[{finding['kind']}" + ("" if finding["client"] is None else f", {name_client(report, finding['client'])}") + "] "


def _names(report: Mapping[str, Any]) -> list[str]:
    return [str(n) for n in report.get("client_names") or range(report["num_clients"])][:MOST_CLIENTS]


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[Row]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _of(rows: Sequence[Any]) -> str:
    number = f"{len(rows)} row{'s' * (len(rows) != 1)}"
    return f"{number}." if len(rows) <= MOST_ROWS else f"The first {MOST_ROWS} of {number}."


def _rows_of_findings(report: Mapping[str, Any]) -> list[tuple[str, str, Sequence[Row]]]:
    """A table for each kind of finding that speaks of rows."""
    by_kind: dict[str, list[Row]] = {}
    for found in report["findings"]:
        whose = {} if found["client"] is None else {"client": name_client(report, found["client"])}
        by_kind.setdefault(found["kind"], []).extend({**whose, **row} for row in found.get("rows", ()))
    return [(f"Rows of {kind}", _of(rows), rows[:MOST_ROWS]) for kind, rows in by_kind.items()]


def _task_rows(report: Mapping[str, Any]) -> list[Row]:
    """Molecules: one row for each client and task."""
    labels = report.get("labels") or []
    if not labels or not isinstance(labels[0], dict):
        return []
    rows = [{"client": "all", "task": task, **entry} for task, entry in report["labels_whole"].items()]
    for client, tasks in enumerate(labels):
        rows += [{"client": name_client(report, client), "task": task, **entry} for task, entry in tasks.items()]
    return rows


def _forecast_rows(report: Mapping[str, Any]) -> list[Row]:
    values = report.get("forecast") or {}
    return [
        {"what": name.replace("_", " "), "bytes" if name != "parameters" else "number": value,
         "": "" if name == "parameters" else readable(value)}
        for name, value in values.items()
        if name != "note"
    ]  # fmt: skip


def _note(report: Mapping[str, Any]) -> str:
    return (report.get("forecast") or {}).get("note", "")


def _label_shares(report: Mapping[str, Any]) -> Figure | None:
    """Share of each class per client, and of the whole."""
    labels = report.get("labels") or []
    if not labels:
        return None
    if isinstance(labels[0], list):
        classes = [str(c) for c in report.get("class_names") or range(len(labels[0]))]
        counts, bars = [*labels[:MOST_CLIENTS], report["labels_whole"]], [*_names(report), "all"]
        caption = "Share of each class among the labelled nodes of each client, and of all."
    elif report.get("task") == "classification":
        tasks = list(labels[0])
        classes = ["negative", "positive", "missing"]
        counts = [[sum(entry[task][c] for task in tasks) for c in classes] for entry in [*labels[:MOST_CLIENTS],
                                                                                      report["labels_whole"]]]  # fmt: skip
        bars = [*_names(report), "all"]
        caption = f"Share of negative, positive and missing labels of each client, all {len(tasks)} tasks together."
    else:
        return None
    with drawing(5.6, 1.1 + min(0.24 * len(bars), 8)) as (canvas, axes):
        left = [0.0] * len(bars)
        for index, name in enumerate(classes):
            share = [row[index] / max(sum(row), 1) for row in counts]
            colour = mpl.colormaps["cividis"](index / max(len(classes) - 1, 1))
            axes.barh(range(len(bars)), share, left=left, color=colour, edgecolor="white", linewidth=0.4,
                      hatch=HATCHES[index % 3], label=name)  # fmt: skip
            left = [a + b for a, b in zip(left, share, strict=True)]
        _clients_axis(axes, bars)
        axes.set_xlabel("share")
        if len(classes) <= 20:
            legend(canvas, axes)
        return Figure("labels", caption, svg(canvas))


def _label_means(report: Mapping[str, Any]) -> Figure | None:
    """Regression: mean and deviation of the first task per client."""
    labels = report.get("labels") or []
    if report.get("task") != "regression" or not labels:
        return None
    task = next(iter(labels[0]))
    entries = [(name, entry[task]) for name, entry in zip([*_names(report), "all"], [*labels[:MOST_CLIENTS],
                                                          report["labels_whole"]], strict=True)]  # fmt: skip
    units = report.get("units") or []
    with drawing(5.6, 1.1 + min(0.24 * len(entries), 8)) as (canvas, axes):
        for place, (_, entry) in enumerate(entries):
            if entry["mean"] is not None:
                axes.errorbar(entry["mean"], place, xerr=entry["sd"], fmt="o", color=COLOURS[0], capsize=2)
        _clients_axis(axes, [name for name, _ in entries])
        axes.set_xlabel(f"{task}" + (f" ({units[0]})" if units and units[0] else ""))
        return Figure("labels", f"Mean and standard deviation of `{task}` at each client, and of all training molecules.",
                      svg(canvas))  # fmt: skip


def _scaffolds(report: Mapping[str, Any]) -> Figure | None:
    values = report.get("scaffold_tv")
    if not values:
        return None
    names = _names(report)
    with drawing(5.6, 1.1 + min(0.24 * len(names), 8)) as (canvas, axes):
        axes.barh(range(len(names)), [v or 0 for v in values[:MOST_CLIENTS]], color=COLOURS[0])
        axes.axvline(report["scaffold_tv_iid"], color="black", linestyle="--", linewidth=1, label="random split")
        _clients_axis(axes, names)
        axes.set_xlim(0, 1)
        axes.set_xlabel("total variation from all training molecules")
        legend(canvas, axes)
        return Figure("scaffolds", "How far each client's scaffolds are from those of all: 0 equal, 1 disjoint.", svg(canvas))


def _matrix(report: Mapping[str, Any], key: str, caption: str) -> Figure | None:
    values = report.get(key)
    if not values or not any(any(row) for row in values):
        return None
    values = [row[:MOST_CLIENTS] for row in values[:MOST_CLIENTS]]
    with drawing(4.8, 3.8) as (canvas, axes):
        shown = axes.imshow(values, cmap="cividis", interpolation="nearest")
        axes.grid(visible=False)
        step = max(1, len(values) // 10)
        names = _names(report)[::step]
        axes.set_xticks(range(0, len(values), step), names, fontsize=7, rotation=90)
        axes.set_yticks(range(0, len(values), step), names, fontsize=7)
        axes.set_xlabel("client")
        axes.set_ylabel("client")
        if len(values) <= 10:
            cells = [value for row in values for value in row]
            middle = (min(cells) + max(cells)) / 2
            for i, row in enumerate(values):
                for j, value in enumerate(row):
                    axes.text(j, i, str(value), ha="center", va="center", fontsize=7,
                              color="black" if value > middle else "white")  # fmt: skip
        canvas.colorbar(shown, ax=axes, shrink=0.85)
        return Figure(key, caption, svg(canvas))


def _forecast(report: Mapping[str, Any]) -> Figure | None:
    values = report.get("forecast")
    if not values:
        return None
    shown = [(name, values[name] / 1e6) for name in FORECAST if values[name]]
    with drawing(5.6, 2.8) as (canvas, axes):
        colours = [COLOURS[0] if name.startswith("bytes") else COLOURS[1] for name, _ in shown]
        axes.barh(range(len(shown)), [value for _, value in shown], color=colours)
        for place, (_, value) in enumerate(shown):
            axes.text(value, place, f" {readable(value * 1e6)}", va="center", fontsize=8)
        axes.set_xscale("log")
        axes.set_yticks(range(len(shown)), [name.replace("_", " ") for name, _ in shown], fontsize=8)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.25)
        log_megabytes(axes.xaxis)
        axes.set_xlabel("MB")
        caption = f"Forecast of bytes sent (all clients together) and of memory. {_note(report)}"
        return Figure("forecast", caption, svg(canvas))


def _clients_axis(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=8 if len(names) <= 20 else 5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_ylabel("client")
