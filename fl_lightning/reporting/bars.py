"""Test scores as bars: one panel a setting, one bar a method beside its name, so that names of any length can be read."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure as Canvas

from fl_lightning.reporting.drawing import LETTERS, Figure, Look, drawing, slug, svg, title, unit
from fl_lightning.reporting.formats import is_share, short
from fl_lightning.reporting.statistics import estimate
from fl_lightning.reporting.summary import Group, label

WIDTH = 9.0  # inches: a page
LETTER, TITLE_LETTER = 0.065, 0.085  # of a method's name, of a title
IN_A_ROW = ((1, 1), (8, 2), (10**9, 3))  # up to so many settings: so many panels side by side


def bars(groups: Sequence[Group], look: Look, metric: str) -> Figure | None:
    """Mean test score of each method in each setting, with 95 % intervals over seeds."""
    groups = [g for g in groups if g.metric == metric and any(g.scores(m) for m in g.methods)]
    if not groups:
        return None
    columns, letters = _layout(groups)
    rows = [groups[i : i + columns] for i in range(0, len(groups), columns)]
    heights = [0.6 + max(0.26 * _lines(g) + 0.17 * len(textwrap.wrap(label(g), letters)) for g in row) for row in rows]
    with drawing(WIDTH, sum(heights)) as (canvas, axes):
        axes.remove()
        constrained: Any = canvas.get_layout_engine()
        constrained.set(wspace=0.06)
        panels = _panels(canvas, heights, columns, len(groups))
        notes = [_bars(panel, own, look, columns, letters) for panel, own in zip(panels, groups, strict=True)]
        note = "".join(f"; {text}" for text in dict.fromkeys(text for own in notes for text in own))
        lower = "" if groups[0].mode == "max" else " (lower is better)"
        caption = f"Test {metric}{lower}, mean over seeds with 95 % Student intervals{note}."
        return Figure(f"bars_{slug(metric)}", caption, svg(canvas))


def _layout(groups: Sequence[Group]) -> tuple[int, int]:
    """Panels side by side, as long as the bars keep some width beside their names; and a title's letters in a line."""
    wanted = next(number for most, number in IN_A_ROW if len(groups) <= most)
    longest = max(len(line) for g in groups for m in g.methods for line in _name(m).splitlines())
    room = {n: WIDTH / n - LETTER * longest - 0.5 for n in range(1, wanted + 1)}  # inches; the scores stand in the rest
    columns = max(n for n in room if n == 1 or room[n] >= 2)
    return columns, int(room[columns] / TITLE_LETTER)


def _lines(group: Group) -> int:
    return sum(len(_name(method).splitlines()) for method in group.methods if group.scores(method))


def _name(method: str) -> str:
    return textwrap.fill(method, LETTERS)


def _panels(canvas: Canvas, heights: Sequence[float], columns: int, number: int) -> list[Any]:
    grid = canvas.add_gridspec(len(heights), columns, height_ratios=heights)
    return [canvas.add_subplot(grid[i // columns, i % columns]) for i in range(number)]


def _bars(axes: Any, group: Group, look: Look, columns: int, letters: int) -> list[str]:
    """One setting. Returns what the caption must say of its axis."""
    found = {m: estimate(list(scores.values())) for m in group.methods if (scores := group.scores(m))}
    known = [v for e in found.values() for v in (e.mean, e.low, e.high) if v is not None]
    for place, (method, e) in enumerate(found.items()):
        if e.mean is None:  # no score, no bar
            continue
        axes.barh(place, e.mean, 0.8, color=look.colour(method), hatch=look.hatch(method), edgecolor="white", linewidth=0.5)
        if e.high is not None:
            axes.errorbar(e.mean, place, xerr=e.high - e.mean, fmt="none", ecolor="black", elinewidth=1, capsize=2)
        shown = f"{100 * e.mean:.1f} %" if is_share(group.metric) else short(e.mean)
        axes.text(1.01, place, shown, transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.set_yticks(range(len(found)), [_name(m) for m in found], fontsize=8)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.locator_params(axis="x", nbins=10 // columns)
    axes.set_xlabel(f"test {group.metric}")
    unit(axes.xaxis, group.metric)
    title(axes, group, letters)
    low, high = min(known), max(known)
    if low > 0 and low > 0.4 * high:  # say so: bars that do not start at zero
        axes.set_xlim(max(0.0, low - 0.35 * (high - low + 0.05 * high)), None)
        return ["not every axis starts at 0" if columns > 1 else "the axis does not start at 0"]
    if low < 0 and all(e.mean >= 0 for e in found.values() if e.mean is not None):  # few seeds: wider than the metric's range
        axes.set_xlim(0, None)
        return ["intervals that go below 0 are cut there"]
    return []
