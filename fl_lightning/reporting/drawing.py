"""What all figures share: the look of each method, the paper's size and style, titles and legends that fit, and SVG.

Colours are Okabe and Ito's, which colour-blind people can tell apart; markers, line styles and hatches differ as well, so
that a grey print can be read.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from fl_lightning.reporting.formats import is_share
from fl_lightning.reporting.summary import ALONE, POOLED, Group, label

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C510A", "#4D4D4D")
BASELINE_COLOURS = {ALONE: "#666666", POOLED: "#000000"}
MARKERS = "osD^vPX*"
LINES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1.5, 1, 1.5)), (0, (7, 3)), (0, (3, 1, 1, 1, 1, 1)), (0, (2, 2)), (0, (8, 1)))
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "ooo", "++")
STYLE: Any = {
    "svg.hashsalt": "fl-lightning", "text.parse_math": False, "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.titlesize": 10, "axes.titlelocation": "left", "legend.frameon": False,
    "hatch.linewidth": 0.6, "figure.constrained_layout.use": True, "axes.grid": True, "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6, "axes.axisbelow": True,
}  # fmt: skip


LETTERS = 40  # of a name, in one line


@dataclass(frozen=True)
class Figure:
    """A figure: file name, what it shows, and the SVG."""

    name: str
    caption: str
    svg: str


class Look:
    """Colour, marker, line and hatch of each method, the same in all figures of a report."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._federated: list[str] = []
        self._baseline: dict[str, str] = {}
        for group in groups:
            for method in group.methods:
                if method in group.federated():
                    if method not in self._federated:
                        self._federated.append(method)
                else:
                    self._baseline[method] = group.strategy(method)

    def _place(self, method: str) -> int:
        return self._federated.index(method) if method in self._federated else 0

    def colour(self, method: str) -> str:
        if method in self._baseline:
            return BASELINE_COLOURS[self._baseline[method]]
        return COLOURS[self._place(method) % len(COLOURS)]

    def marker(self, method: str) -> str:
        if method in self._baseline:
            return "<" if self._baseline[method] == ALONE else ">"
        return MARKERS[self._place(method) % len(MARKERS)]

    def line(self, method: str) -> Any:
        return ":" if method in self._baseline else LINES[self._place(method) % len(LINES)]

    def hatch(self, method: str) -> str:
        if method in self._baseline:
            return "" if self._baseline[method] == POOLED else "||"
        return HATCHES[self._place(method) % len(HATCHES)]


@contextmanager
def drawing(width: float, height: float, panels: int = 1) -> Iterator[tuple[Canvas, Any]]:
    """A canvas of so many inches, and its panels side by side (one: the panel itself)."""
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(width, height))
        yield canvas, canvas.subplots(1, panels)


def title(axes: Any, group: Group, letters: int = 56) -> None:
    """The setting, if there are several, above its axes in as many lines as it needs."""
    if group.setting:
        axes.set_title(textwrap.fill(label(group), letters))


def legend(canvas: Canvas, axes: Any) -> None:
    """Below the axes, in as many columns as the names allow; the canvas grows by it."""
    handles, names = axes.get_legend_handles_labels()
    if not names:
        return
    names = [textwrap.fill(name, LETTERS) for name in names]
    longest = max(len(line) for name in names for line in name.splitlines())
    columns = max(1, min(len(names), int(15 * canvas.get_figwidth()) // (longest + 8)))
    lines = -(-len(names) // columns) * max(name.count("\n") + 1 for name in names)
    canvas.set_figheight(canvas.get_figheight() + 0.1 + 0.17 * lines)
    canvas.legend(handles, names, loc="outside lower left", ncols=columns, fontsize=8)


def unit(axis: Any, metric: str) -> None:
    """Percent on an axis of accuracies."""
    if is_share(metric):
        axis.set_major_formatter(PercentFormatter(1.0))


def log_megabytes(axis: Any) -> None:
    """A logarithmic axis in plain numbers: a power of ten would be a formula, and texts are none."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if _decades(axis) < 2 else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _decades(axis: Any) -> float:
    low, high = axis.get_view_interval()
    return math.log10(high / low)


def svg(canvas: Canvas) -> str:
    """The same canvas gives the same text."""
    text = io.StringIO()
    canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def slug(text: str) -> str:
    """A text as part of a file's name."""
    return "".join(c if c.isalnum() or c in ".-+" else "_" for c in text).replace("__", "_").strip("_")
