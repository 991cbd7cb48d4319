"""Plain-text tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fl_lightning.reporting.clients import name_client
from fl_lightning.reporting.failures import failure_lines
from fl_lightning.reporting.left_out import LeftOut
from fl_lightning.reporting.monitor import selection_value
from fl_lightning.reporting.scores import of_clients


def text_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Lines of an aligned table; numbers with four decimals and to the right, ``-`` for ``None``."""
    cells = [list(header)] + [[_cell(v) for v in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    right = [i for i in range(len(header)) if any(isinstance(row[i], int | float) for row in rows)]

    def line(row: Sequence[str]) -> str:
        return "  ".join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))

    return [line(cells[0]).rstrip(), "  ".join("-" * w for w in widths), *(line(row).rstrip() for row in cells[1:])]


def score_lines(results: Mapping[str, Any]) -> list[str]:
    """What ``fit`` says at its end."""
    rows = [
        [f"{stage} {results['metric']}", results[stage].get("global"), _mean(results[stage]), results[stage].get("worst")]
        for stage in ("val", "test")
    ]
    unit = "epoch" if results["strategy"] == "Central" else "round"
    number = f"{unit} {results['best_round'] + 1} of {results['rounds_run']}"  # from 1, as people count
    if selection_value(results["val"]) is None:  # nothing to choose by: it is the last round
        chosen = f"{number}, the last (no validation score to choose by)"
    else:
        chosen = f"best {number} (by validation)"
    lines = [f"{results['strategy']}: {chosen}"]
    lines += text_table(["", "global model", "client mean", "worst client"], rows)
    each = [s for s in results["test"].get("each_on_global") or [] if s is not None]
    if each:
        left_out = of_clients(results["test"]["each_on_global"])
        lines.append(f"each client's own model on the global test data: mean {sum(each) / len(each):.4f}{left_out}")
    undefined = int((results["test"].get("global_metrics") or {}).get("undefined_tasks") or 0)
    if undefined:
        lines.append(f"{undefined} task(s) without a defined test score are left out of the mean")
    lines += failure_lines(results)
    if results["empty_clients"]:
        empty = (name_client(results, client).removeprefix("client ") for client in results["empty_clients"])
        lines.append(f"clients without a training sample: {', '.join(empty)}")
    rows_left_out = LeftOut(results["dropped_rows"], results["row_counts"], lost=results["lost_clients"]).line
    return lines if rows_left_out is None else [*lines, rows_left_out]


def _mean(summary: Mapping[str, Any]) -> Any:
    """The mean over clients, with how many these are where it leaves some out."""
    left_out = of_clients(summary.get("per_client") or [])
    return f"{summary['mean']:.4f}{left_out}" if left_out else summary.get("mean")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
