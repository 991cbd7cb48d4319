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


def interval(mean: float | None, low: float | None, high: float | None, share: bool = False) -> str:
    """``+mean [low, high]``."""
    if mean is None:
        return ""
    return signed(mean, share) + ("" if low is None or high is None else f" [{signed(low, share)}, {signed(high, share)}]")


def signed(value: float, share: bool = False) -> str:
    """A number with its sign; of a share in percent."""
    return f"{100 * value:+.1f}" if share else f"{value:+.4f}" if abs(value) < 10 else f"{value:+.3g}"


def scored(value: float | None, share: bool = False) -> str:
    """A score to be read; of a share in percent."""
    return short(value) if value is None or not share else f"{100 * value:.1f}"


SHARES = ("accuracy", "balanced_accuracy", "f1")


def is_share(metric: str) -> bool:
    """Whether people read this metric in percent."""
    return metric in SHARES


def without_constants(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """The rows without columns in which all are equal, and a sentence with what these say."""
    names = columns(rows)
    constant = [n for n in names if len(rows) > 1 and len({str(row.get(n)) for row in rows}) == 1]
    if len(constant) == len(names):
        return list(rows), ""
    told = [f"{n} {short(rows[0][n])}" for n in constant if rows[0].get(n) not in (None, "", "–")]
    sentence = f"In all rows: {', '.join(told)}." if told else ""
    return [{n: row.get(n) for n in names if n not in constant} for row in rows], sentence


def paper_rows(groups: Sequence[Group], table: Sequence[Row], percent: bool = False) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the main table as a paper would print it; with ``percent`` accuracies in percent."""
    axes = columns([g.setting for g in groups])
    references = {row["reference"] for row in table}
    minus = f"minus {references.pop()}" if len(references) == 1 else "minus reference"
    header = [*axes, "method", "metric", "score", f"{minus} (paired)", "client mean", "worst client", "MB", "s", "seeds"]
    cells = []
    for row in table:
        share = percent and is_share(row["metric"])
        spread = "" if row["sd"] is None else f" ± {scored(row['sd'], share)}"
        cells.append(
            [
                *(str(row.get(a, "")) for a in axes), row["method"],
                f"{row['metric']}{', %' if share else ''} ({row['score on']})", scored(row["mean"], share) + spread,
                interval(row["difference"], row["difference low"], row["difference high"], share),
                scored(row["client mean"], share), scored(row["worst client"], share), _megabytes(row),
                "–" if row["seconds"] is None else f"{row['seconds']:.0f}", str(row["seeds"]),
            ]
        )  # fmt: skip
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
