"""A report as one HTML file: no script, no link, no network; the figures are inside."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from fl_lightning.reporting.drawing import Figure
from fl_lightning.reporting.formats import columns, exact, short
from fl_lightning.reporting.summary import Row

STYLE = """
:root { color-scheme: light dark; --ink: #111; --paper: #fff; --line: #ddd; --strong: #888; --band: #f7f7f7; --note: #fff3cd; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #121212; --line: #333; --strong: #888; --band: #1b1b1b; --note: #3a2f10; }
  figure img { filter: invert(0.93) hue-rotate(180deg); }
}
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
body { color: var(--ink); background: var(--paper); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; }
td.number { text-align: right; } td.number, td.short { white-space: nowrap; }
td { max-width: 26rem; overflow-wrap: break-word; }
thead th { border-bottom: 2px solid var(--strong); position: sticky; top: 0; background: var(--paper); vertical-align: bottom; }
tbody tr:nth-child(even) { background: var(--band); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: 1.2rem 1.5rem; }
figure { margin: 0; } figure.whole { grid-column: 1 / -1; }
figure img { width: 100%; height: auto; background: #fff; } figcaption { font-size: 13px; }
.warning { background: var(--note); padding: .5rem .8rem; border-left: 4px solid #b58105; }
@media print { body { max-width: none; margin: 0; } .wide { overflow: visible; } table { font-size: 9px; } }
"""
SHORT = 20  # letters of a text that stays in one line


def page(
    title: str,
    lead: Sequence[str],
    warnings: Sequence[str],
    sections: Sequence[tuple[str, str, Sequence[Row]]],
    pictures: Sequence[Figure],
) -> str:
    """The page.

    Args:
        title: Its heading.
        lead: Sentences below it.
        warnings: Failures and what was left out.
        sections: Heading, explanation and rows of each table; the first is the main one. Empty tables are left out.
        pictures: Figures, shown after the main table.
    """
    parts = [
        "<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">', '<link rel="icon" href="data:,">',
        f"<title>{escape(title)}</title>", f"<style>{STYLE}</style></head><body>", f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in lead),
    ]  # fmt: skip
    if warnings:
        parts += ['<div class="warning"><ul>', *(f"<li>{escape(line)}</li>" for line in warnings), "</ul></div>"]
    for number, (heading, text, rows) in enumerate(sections):
        if rows:
            parts += [f"<h2>{escape(heading)}</h2>", f"<p>{escape(text)}</p>", table(rows, f"table{number}")]
        if number == 0 and pictures:
            parts += ["<h2>Figures</h2>", '<div class="figures">', *_pictures(pictures), "</div>"]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def table(rows: Sequence[Row], name: str) -> str:
    """Rows as a table; ``data-value`` holds what the CSV has, the text a shorter number."""
    names = columns(rows)
    head = "".join(f'<th scope="col">{escape(n)}</th>' for n in names)
    body = []
    for row in rows:
        cells = []
        for n in names:
            value = row.get(n)
            kind = ' class="number"' if _is_number(value) else ' class="short"' if len(str(value)) <= SHORT else ""
            cells.append(
                f'<td{kind} data-value="{escape(exact(value))}">{escape(short(value) if value is not None else "")}</td>'
            )
        body.append("<tr>" + "".join(cells) + "</tr>")
    return (
        f'<div class="wide"><table id="{name}"><thead><tr>{head}</tr></thead><tbody>\n'
        + "\n".join(body)
        + "\n</tbody></table></div>"
    )


def _is_number(value: Any) -> bool:
    """A number, or one that was put into words: ``81.2 ± 0.4``."""
    return isinstance(value, int | float) or (isinstance(value, str) and bool(re.match(r"[-+]?\d[\d.]*( |$)|–$", value)))


def _pictures(figures: Sequence[Figure]) -> list[str]:
    """Bars, and a figure that is alone, take the whole width."""
    return [_picture(figure, figure.name.startswith("bars_") or len(figures) == 1) for figure in figures]


def _picture(figure: Figure, whole: bool) -> str:
    data = base64.b64encode(figure.svg.encode()).decode()
    alt, kind = escape(figure.caption), ' class="whole"' if whole else ""
    return f'<figure{kind}><img alt="{alt}" src="data:image/svg+xml;base64,{data}"><figcaption>{alt}</figcaption></figure>'
