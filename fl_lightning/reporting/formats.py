"""Rows as CSV (all digits), and the main table as Markdown and LaTeX (mean ± sd, differences with intervals)."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from fl_lightning.reporting.summary import Group, Row


def columns(rows: Sequence[Row]) -> list[str]:
    """All columns, in the order in which they first come."""
    return list(dict.fromkeys(name for row in rows for name in row))


def exact(value: Any) -> str:
    """A cell of the CSV: every digit of a number, nothing for ``None``."""
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def short(value: Any) -> str:
    """A cell to be read: four digits after the point, or three significant ones if it is large."""
    if not isinstance(value, float):
        return "–" if value is None else str(value)
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def to_csv(rows: Sequence[Row]) -> str:
    """CSV with a header; empty for no rows."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = columns(rows)
    writer.writerow(names)
    writer.writerows([exact(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def spread(row: Row) -> str:
    """``mean ± sd``."""
    return "–" if row["mean"] is None else short(row["mean"]) + ("" if row["sd"] is None else f" ± {short(row['sd'])}")


def interval(mean: float | None, low: float | None, high: float | None) -> str:
    """``+mean [low, high]``."""
    if mean is None:
        return ""
    return signed(mean) + ("" if low is None or high is None else f" [{signed(low)}, {signed(high)}]")


def signed(value: float) -> str:
    """A number with its sign."""
    return f"{value:+.4f}" if abs(value) < 10 else f"{value:+.3g}"


def paper_rows(groups: Sequence[Group], table: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the main table as a paper would print it."""
    axes = columns([g.setting for g in groups])
    references = {row["reference"] for row in table}
    minus = f"minus {references.pop()}" if len(references) == 1 else "minus reference"
    header = [*axes, "method", "metric", "score", f"{minus} (paired)", "client mean", "worst client", "MB", "s", "seeds"]
    cells = [
        [
            *(str(row.get(a, "")) for a in axes), row["method"], f"{row['metric']} ({row['score on']})", spread(row),
            interval(row["difference"], row["difference low"], row["difference high"]), short(row["client mean"]),
            short(row["worst client"]), _megabytes(row), "–" if row["seconds"] is None else f"{row['seconds']:.0f}",
            str(row["seeds"]),
        ]
        for row in table
    ]  # fmt: skip
    return header, cells


def to_markdown(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(_bar(c) for c in row) + " |" for row in [header, *cells]]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]]) + "\n"


def markdown_of(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table, short numbers."""
    names = columns(rows)
    return to_markdown(names, [[short(row.get(n)) if row.get(n) is not None else "" for n in names] for row in rows])


def to_latex(groups: Sequence[Group], table: Sequence[Row], caption: str) -> str:
    """A ``table`` with ``booktabs`` rules; the best mean of each setting is bold, baselines do not count."""
    header, cells = paper_rows(groups, table)
    axes = len(columns([g.setting for g in groups]))
    lines = [
        r"\begin{table}", r"\centering", r"% needs \usepackage{booktabs}", rf"\caption{{{latex(caption)}}}",
        rf"\begin{{tabular}}{{{'l' * (axes + 2)}{'r' * (len(header) - axes - 2)}}}", r"\toprule",
        " & ".join(latex(h) for h in header) + r" \\", r"\midrule",
    ]  # fmt: skip
    at = 0
    for group in groups:
        rows = list(zip(table[at : at + len(group.methods)], cells[at : at + len(group.methods)], strict=True))
        at += len(rows)
        known = [row["mean"] for row, _ in rows if row["mean"] is not None and row["method"] in group.federated()]
        best = (max if group.mode == "max" else min)(known) if len(known) > 1 else None
        for row, printed in rows:
            printed = [latex(c) for c in printed]
            if best is not None and row["mean"] == best and row["method"] in group.federated():
                printed[axes + 2] = rf"\textbf{{{printed[axes + 2]}}}"
            lines.append(" & ".join(printed) + r" \\")
        lines.append(r"\midrule")
    lines[-1] = r"\bottomrule"
    return "\n".join([*lines, r"\end{tabular}", r"\end{table}"]) + "\n"


def latex(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    text = re.sub(r"[\\~^]|[&%$#_{}]", lambda m: special.get(m[0], "\\" + m[0]), text)
    return text.replace("±", r"$\pm$").replace("–", "--")


def _megabytes(row: Row) -> str:
    if row["MB up"] is None:
        return "–"
    total = row["MB up"] + row["MB down"]
    return "–" if total == 0 else f"{total:.3g}" if total < 1000 else f"{total:.0f}"


def _bar(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
