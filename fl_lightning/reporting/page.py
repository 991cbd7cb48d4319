"""A report as one HTML file: no script, no link, no network; the figures are inside."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from fl_lightning.reporting.figures import Figure
from fl_lightning.reporting.formats import columns, exact, short
from fl_lightning.reporting.summary import Row

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
body { color: #111; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #ccc; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e3e3e3; text-align: left; white-space: nowrap; }
td.number { text-align: right; } thead th { border-bottom: 2px solid #888; position: sticky; top: 0; background: #fff; }
tbody tr:nth-child(even) { background: #f7f7f7; }
figure { display: inline-block; margin: .8rem 1rem .8rem 0; max-width: 100%; vertical-align: top; }
figure img { max-width: 100%; height: auto; } figcaption { font-size: 13px; color: #333; max-width: 38rem; }
.warning { background: #fff3cd; padding: .5rem .8rem; border-left: 4px solid #b58105; }
@media print { body { max-width: none; margin: 0; } .wide { overflow: visible; } table { font-size: 9px; } }
"""


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
            parts += ["<h2>Figures</h2>", *(_picture(figure) for figure in pictures)]
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
            kind = ' class="number"' if isinstance(value, int | float) else ""
            cells.append(
                f'<td{kind} data-value="{escape(exact(value))}">{escape(short(value) if value is not None else "")}</td>'
            )
        body.append("<tr>" + "".join(cells) + "</tr>")
    return (
        f'<div class="wide"><table id="{name}"><thead><tr>{head}</tr></thead><tbody>\n'
        + "\n".join(body)
        + "\n</tbody></table></div>"
    )


def _picture(figure: Figure) -> str:
    data = base64.b64encode(figure.svg.encode()).decode()
    alt = escape(figure.caption)
    return f'<figure><img alt="{alt}" src="data:image/svg+xml;base64,{data}"><figcaption>{alt}</figcaption></figure>'
