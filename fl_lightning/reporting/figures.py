"""Figures of a report as SVG: one function each, from runs in groups.

Colours are Okabe and Ito's, which colour-blind people can tell apart; markers, line styles and hatches differ as well, so
that a grey print can be read.
"""

from __future__ import annotations

import io
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fl_lightning.reporting.finished import Run
from fl_lightning.reporting.statistics import estimate
from fl_lightning.reporting.summary import ALONE, POOLED, Group, label

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C510A", "#4D4D4D")
BASELINE_COLOURS = {ALONE: "#666666", POOLED: "#000000"}
MARKERS = "osD^vPX*"
LINES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1.5, 1, 1.5)), (0, (7, 3)), (0, (3, 1, 1, 1, 1, 1)), (0, (2, 2)), (0, (8, 1)))
KINDS = ("bars_", "rounds_", "bytes_", "clients_", "partition_", "similarity_")  # how figures' names begin
BARS_IN_A_ROW = 28  # as many as an A4 page shows
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "ooo", "++")
STYLE: Any = {
    "svg.hashsalt": "fl-lightning", "text.parse_math": False, "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.titlesize": 10, "axes.titlelocation": "left", "legend.frameon": False,
    "hatch.linewidth": 0.6, "figure.constrained_layout.use": True, "axes.grid": True, "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6, "axes.axisbelow": True,
}  # fmt: skip


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


def figures(groups: Sequence[Group]) -> list[Figure]:
    """All figures that the runs have data for."""
    look = Look(groups)
    found: list[Figure | None] = [bars(groups, look, metric) for metric in dict.fromkeys(g.metric for g in groups)]
    for group in groups:
        found += [rounds(group, look), traffic(group, look), clients(group, look), partition(group), *similarities(group)]
    return _named_apart([figure for figure in found if figure is not None])


def bars(groups: Sequence[Group], look: Look, metric: str) -> Figure | None:
    """Mean test score of each method in each setting, with 95 % intervals over seeds; as many rows as print needs."""
    groups = [g for g in groups if g.metric == metric and any(g.scores(m) for m in g.methods)]
    if not groups:
        return None
    methods = list(dict.fromkeys(m for g in groups for m in g.methods))
    in_row = max(1, BARS_IN_A_ROW // len(methods))
    parts = [groups[i : i + in_row] for i in range(0, len(groups), in_row)]
    width = max(4.5, 1.9 + 0.26 * len(methods) * min(in_row, len(groups)))
    with _drawing(width, 0.4 + 3 * len(parts), rows=len(parts)) as (canvas, panels):
        rows = list(panels) if len(parts) > 1 else [panels]
        notes = [_bars(axes, part, methods, look) for axes, part in zip(rows, parts, strict=True)]
        _legend(canvas, *rows)
        note = "".join(f"; {text}" for text in dict.fromkeys(text for own in notes for text in own))
        caption = f"Test {metric}, mean over seeds with 95 % Student intervals{note}."
        return Figure(f"bars_{_slug(metric)}", caption, _svg(canvas))


def _bars(axes: Any, groups: Sequence[Group], methods: Sequence[str], look: Look) -> list[str]:
    """One row of bars. Returns what the caption must say of its axis."""
    wide = 0.8 / len(methods)
    known: list[float] = []
    for place, method in enumerate(methods):
        own = [(i, estimate(list(g.scores(method).values()))) for i, g in enumerate(groups) if method in g.methods]
        means = [(i + (place - (len(methods) - 1) / 2) * wide, e.mean, e.high) for i, e in own if e.mean is not None]
        if not means:
            continue
        known += [v for _, e in own for v in (e.mean, e.low, e.high) if v is not None]
        axes.bar(
            [x for x, *_ in means], [mean for _, mean, _ in means], wide * 0.92, color=look.colour(method),
            hatch=look.hatch(method), edgecolor="white", linewidth=0.5, label=method,
        )  # fmt: skip
        spread = [(x, mean, high - mean) for x, mean, high in means if high is not None]
        axes.errorbar(
            [x for x, *_ in spread], [mean for _, mean, _ in spread], [half for *_, half in spread], fmt="none",
            ecolor="black", elinewidth=1, capsize=2,
        )  # fmt: skip
    metric, mode = groups[0].metric, groups[0].mode
    axes.set_xticks(range(len(groups)), [label(g).replace(", ", "\n") for g in groups], fontsize=8)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel(f"test {metric}{'' if mode == 'max' else chr(10) + '(lower is better)'}")
    low, high = min(known), max(known)
    if low > 0 and low > 0.4 * high:  # say so: bars that do not start at zero
        axes.set_ylim(max(0.0, low - 0.35 * (high - low + 0.05 * high)), None)
        return ["the axis does not start at 0"]
    if low < 0 and all(bar.get_height() >= 0 for bar in axes.patches):  # few seeds: wider than the metric's range
        axes.set_ylim(0, None)
        return ["intervals that go below 0 are cut there"]
    return []


def rounds(group: Group, look: Look) -> Figure | None:
    """Validation score over rounds, mean and sample standard deviation over seeds; central as a level."""
    if not any(run.curve(group.score) for runs in group.methods.values() for run in runs.values()):
        return None
    with _drawing(5.6, 3.2) as (canvas, axes):
        for method, runs in group.methods.items():
            curves = [{r: v for r, v, _ in run.curve(group.score)} for run in runs.values() if run.curve(group.score)]
            if curves:
                shown = sorted(set.intersection(*(set(c) for c in curves)))
                means = [statistics.fmean(c[r] for c in curves) for r in shown]
                axes.plot(
                    shown, means, color=look.colour(method), linestyle=look.line(method), label=method, linewidth=1.5,
                    marker=look.marker(method), markersize=4, markevery=max(1, len(shown) // 8),
                )  # fmt: skip
                if len(curves) > 1:
                    sd = [statistics.stdev(c[r] for c in curves) for r in shown]
                    low, high = ([m + s * d for m, d in zip(means, sd, strict=True)] for s in (-1, 1))
                    axes.fill_between(shown, low, high, color=look.colour(method), alpha=0.15, linewidth=0)
            else:
                _level(axes, group, method, look)
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_ylabel(_validation(group))
        axes.set_title(label(group))
        _legend(canvas, axes)
        caption = f"{label(group)}: {_validation(group)} over rounds; mean and band of one standard deviation over seeds."
        return Figure(f"rounds_{_slug(label(group))}", caption, _svg(canvas))


def traffic(group: Group, look: Look) -> Figure | None:
    """Validation score over megabytes sent so far (both directions, all clients)."""
    senders = {
        method: [run for run in runs.values() if run.curve(group.score) and run.results["strategy"] != ALONE]
        for method, runs in group.methods.items()
    }
    if not any(senders.values()):
        return None
    with _drawing(5.6, 3.2) as (canvas, axes):
        for method, runs in senders.items():
            if not runs:
                _level(axes, group, method, look)
            for index, run in enumerate(runs):
                curve = run.curve(group.score)
                before = _before_rounds(run)
                axes.plot(
                    [before + mb for *_, mb in curve], [v for _, v, _ in curve], color=look.colour(method),
                    linestyle=look.line(method), linewidth=1.1, alpha=0.85, marker=look.marker(method), markersize=4,
                    markevery=max(1, len(curve) // 6), label=method if index == 0 else None,
                )  # fmt: skip
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("MB sent so far, up and down, all clients")
        axes.set_ylabel(_validation(group))
        axes.set_title(label(group))
        _legend(canvas, axes)
        caption = f"{label(group)}: {_validation(group)} against megabytes sent; one line a seed. Level lines send no model."
        return Figure(f"bytes_{_slug(label(group))}", caption, _svg(canvas))


def clients(group: Group, look: Look) -> Figure | None:
    """Each client's test score on its own data (without such data: LocalOnly's models on the server's), one dot a seed."""
    dots = {m: [_of_clients(run) for run in runs.values()] for m, runs in group.methods.items()}
    number = max((len(scores) for runs in dots.values() for scores in runs), default=0)
    if number == 0 or not any(v is not None for runs in dots.values() for s in runs for v in s):
        return None
    with _drawing(5.6, 1.1 + min(0.32 * number, 7)) as (canvas, axes):
        for place, (method, runs) in enumerate(dots.items()):
            offset = (place - (len(dots) - 1) / 2) * 0.7 / max(len(dots), 1)
            points = [(v, c + offset) for scores in runs for c, v in enumerate(scores) if v is not None]
            if points:
                axes.scatter(
                    *zip(*points, strict=True), s=18, marker=look.marker(method), edgecolor=look.colour(method), linewidth=1,
                    facecolor="none" if place % 2 else look.colour(method), alpha=0.85, label=method,
                )  # fmt: skip
        for line in range(1, number):
            axes.axhline(line - 0.5, color="#EEEEEE", linewidth=0.8)
        names = next((r.data.get("client_names") for runs in group.methods.values() for r in runs.values()), None) or range(
            number
        )
        axes.set_yticks(range(number), [str(n) for n in names][:number], fontsize=8 if number <= 20 else 5)
        axes.grid(axis="y", visible=False)
        axes.set_ylim(number - 0.5, -0.5)
        axes.set_ylabel("client")
        every = [run for runs in group.methods.values() for run in runs.values()]
        own = any(v is not None for run in every for v in run.results["test"].get("per_client") or [])
        where = "own test data" if own else "the server's test data"
        axes.set_xlabel(f"test {group.metric}, {'own data' if own else 'server'}")
        axes.set_title(label(group))
        _legend(canvas, axes)
        caption = f"{label(group)}: test {group.metric} of each client's model on {where}, one dot for each seed."
        return Figure(f"clients_{_slug(label(group))}", caption, _svg(canvas))


def partition(group: Group) -> Figure | None:
    """Labels (or sizes) of each client, of the first seed."""
    run = next((r for runs in group.methods.values() for _, r in sorted(runs.items()) if r.data.get("client_sizes")), None)
    if run is None:
        return None
    labels, sizes = run.data.get("labels"), run.data["client_sizes"]
    counted = isinstance(labels, list) and all(isinstance(row, list) and all(isinstance(v, int) for v in row) for row in labels)
    with _drawing(5.6, 1.1 + min(0.24 * len(sizes), 6)) as (canvas, axes):
        if counted and labels:
            left = [0] * len(labels)
            for index in range(len(labels[0])):
                share = index / max(len(labels[0]) - 1, 1)
                own = [row[index] for row in labels]
                axes.barh(
                    range(len(labels)), own, left=left, color=mpl.colormaps["cividis"](share), edgecolor="white", linewidth=0.4,
                    hatch=HATCHES[index % 3] if len(labels[0]) > 1 else "", label=f"class {index}",
                )  # fmt: skip
                left = [a + b for a, b in zip(left, own, strict=True)]
        else:
            axes.barh(range(len(sizes)), sizes, color=COLOURS[0])
        names = run.data.get("client_names") or range(len(sizes))
        axes.set_yticks(range(len(sizes)), [str(n) for n in names], fontsize=8 if len(sizes) <= 20 else 5)
        axes.set_ylim(len(sizes) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("samples")
        axes.set_ylabel("client")
        axes.set_title(label(group))
        if counted:
            _legend(canvas, axes)
        what = "labels" if counted else "sizes"
        return Figure(
            f"partition_{_slug(label(group))}", f"{label(group)}: {what} of the clients (seed {run.seed}).", _svg(canvas)
        )


def similarities(group: Group) -> Iterator[Figure]:
    """The matrices between clients that a method recorded in its last round (FED-PUB: similarity and mixing weights)."""
    for method, runs in group.methods.items():
        run = next((r for _, r in sorted(runs.items()) if r.matrices), None)
        matrices = run.matrices if run is not None else None
        if run is None or not matrices:
            continue
        names = [k for k, v in matrices.items() if isinstance(v, list) and v and isinstance(v[0], list)]
        with _drawing(3.5 * len(names), 3.1, len(names)) as (canvas, every):
            for name, axes in zip(names, every if len(names) > 1 else [every], strict=True):
                shown = axes.imshow(matrices[name], cmap="cividis", interpolation="nearest")
                axes.grid(visible=False)
                axes.set_title(name)
                axes.set_xlabel("client")
                axes.set_ylabel("client")
                ticks = range(0, len(matrices[name]), max(1, len(matrices[name]) // 10))
                ids = matrices.get("clients") or list(range(len(matrices[name])))
                axes.set_xticks(ticks, [ids[t] for t in ticks], fontsize=7)
                axes.set_yticks(ticks, [ids[t] for t in ticks], fontsize=7)
                canvas.colorbar(shown, ax=axes, shrink=0.85)
            when = f"after round {matrices['round'] + 1} (seed {run.seed})"
            caption = f"{label(group, method)}: {' and '.join(names)} between clients {when}."
            yield Figure(f"similarity_{_slug(label(group, method))}", caption, _svg(canvas))


def _named_apart(drawn: Sequence[Figure]) -> list[Figure]:
    """Settings that differ in the metric only, or in signs that file names lack, must not overwrite each other's figures."""
    seen: Counter[str] = Counter()
    named = []
    for figure in drawn:
        seen[figure.name] += 1
        number = seen[figure.name]
        named.append(figure if number == 1 else replace(figure, name=f"{figure.name}_{number}"))
    return named


def _of_clients(run: Run) -> list[float | None]:
    test = run.results["test"]
    scores = test.get("per_client") or []
    if any(s is not None for s in scores):
        return scores
    return test.get("each_on_global") or [test.get("global")] * (run.results.get("num_clients") or 0)


def _before_rounds(run: Run) -> float:
    """Megabytes that were sent before the first round, or in other steps than training (FedSage+'s generators)."""
    by_kind = (run.results.get("bytes") or {}).get("by_kind") or {}
    return sum(b for kind, b in by_kind.items() if kind not in ("fit", "evaluate", "model", "predict")) / 1e6


def _validation(group: Group) -> str:
    return f"validation {group.metric}, {'server' if group.score == 'global' else 'mean over clients'}"


def _level(axes: Any, group: Group, method: str, look: Look) -> None:
    """The chosen round's validation score as a level, for a method that has no curve of this kind."""
    vals = [run.results["val"] for run in group.methods[method].values()]
    values = [v for v in (val.get("global" if group.score == "global" else "mean") for val in vals) if v is not None]
    if values:
        axes.axhline(
            statistics.fmean(values), color=look.colour(method), linestyle=look.line(method), linewidth=1.3, label=method
        )


@contextmanager
def _drawing(width: float, height: float, panels: int = 1, rows: int = 1) -> Iterator[tuple[Canvas, Any]]:
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(width, height))
        yield canvas, canvas.subplots(rows, panels)


def _legend(canvas: Canvas, *panels: Any) -> None:
    handles = {name: handle for axes in panels for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    canvas.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize=8)


def _svg(canvas: Canvas) -> str:
    text = io.StringIO()
    canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() or c in ".-+" else "_" for c in text).replace("__", "_").strip("_")
