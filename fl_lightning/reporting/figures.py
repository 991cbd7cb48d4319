"""Figures of a report as SVG: one function each, from runs in groups. Bars of all settings are in `bars`."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import matplotlib as mpl
from matplotlib.ticker import MaxNLocator

from fl_lightning.reporting.bars import bars
from fl_lightning.reporting.drawing import (
    COLOURS,
    HATCHES,
    Figure,
    Look,
    drawing,
    legend,
    log_megabytes,
    slug,
    svg,
    title,
    unit,
)
from fl_lightning.reporting.finished import Run
from fl_lightning.reporting.summary import ALONE, Group, label

KINDS = ("bars_", "rounds_", "bytes_", "clients_", "partition_", "similarity_")  # how figures' names begin


def figures(groups: Sequence[Group]) -> list[Figure]:
    """All figures that the runs have data for."""
    look = Look(groups)
    found: list[Figure | None] = [bars(groups, look, metric) for metric in dict.fromkeys(g.metric for g in groups)]
    for group in groups:
        found += [rounds(group, look), traffic(group, look), clients(group, look), partition(group), *similarities(group)]
    return _named_apart([figure for figure in found if figure is not None])


def rounds(group: Group, look: Look) -> Figure | None:
    """Validation score over rounds, mean and sample standard deviation over seeds; central as a level."""
    if not any(run.curve(group.score) for runs in group.methods.values() for run in runs.values()):
        return None
    with drawing(5.6, 3.2) as (canvas, axes):
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
        unit(axes.yaxis, group.metric)
        title(axes, group)
        legend(canvas, axes)
        caption = f"{label(group)}: {_validation(group)} over rounds; mean and band of one standard deviation over seeds."
        return Figure(f"rounds_{slug(label(group))}", caption, svg(canvas))


def traffic(group: Group, look: Look) -> Figure | None:
    """Validation score over megabytes sent so far (both directions, all clients)."""
    senders = {
        method: [run for run in runs.values() if run.curve(group.score) and run.results["strategy"] != ALONE]
        for method, runs in group.methods.items()
    }
    if not any(senders.values()):
        return None
    with drawing(5.6, 3.2) as (canvas, axes):
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
        log_megabytes(axes.xaxis)
        axes.set_xlabel("MB sent so far, up and down, all clients")
        axes.set_ylabel(_validation(group))
        unit(axes.yaxis, group.metric)
        title(axes, group)
        legend(canvas, axes)
        caption = f"{label(group)}: {_validation(group)} against megabytes sent; one line a seed. Level lines send no model."
        return Figure(f"bytes_{slug(label(group))}", caption, svg(canvas))


def clients(group: Group, look: Look) -> Figure | None:
    """Each client's test score on its own data (without such data: LocalOnly's models on the server's), one dot a seed."""
    dots = {m: [_of_clients(run) for run in runs.values()] for m, runs in group.methods.items()}
    number = max((len(scores) for runs in dots.values() for scores in runs), default=0)
    if number == 0 or not any(v is not None for runs in dots.values() for s in runs for v in s):
        return None
    with drawing(5.6, 1.1 + min(0.32 * number, 7)) as (canvas, axes):
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
        unit(axes.xaxis, group.metric)
        title(axes, group)
        legend(canvas, axes)
        caption = f"{label(group)}: test {group.metric} of each client's model on {where}, one dot for each seed."
        return Figure(f"clients_{slug(label(group))}", caption, svg(canvas))


def partition(group: Group) -> Figure | None:
    """Labels (or sizes) of each client, of the first seed."""
    run = next((r for runs in group.methods.values() for _, r in sorted(runs.items()) if r.data.get("client_sizes")), None)
    if run is None:
        return None
    labels, sizes = run.data.get("labels"), run.data["client_sizes"]
    counted = isinstance(labels, list) and all(isinstance(row, list) and all(isinstance(v, int) for v in row) for row in labels)
    with drawing(5.6, 1.1 + min(0.24 * len(sizes), 6)) as (canvas, axes):
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
        title(axes, group)
        if counted:
            legend(canvas, axes)
        what = "labels" if counted else "sizes"
        return Figure(
            f"partition_{slug(label(group))}", f"{label(group)}: {what} of the clients (seed {run.seed}).", svg(canvas)
        )


def similarities(group: Group) -> Iterator[Figure]:
    """The matrices between clients that a method recorded in its last round (FED-PUB: similarity and mixing weights)."""
    for method, runs in group.methods.items():
        run = next((r for _, r in sorted(runs.items()) if r.matrices), None)
        matrices = run.matrices if run is not None else None
        if run is None or not matrices:
            continue
        names = [k for k, v in matrices.items() if isinstance(v, list) and v and isinstance(v[0], list)]
        with drawing(3.5 * len(names), 3.1, len(names)) as (canvas, every):
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
            yield Figure(f"similarity_{slug(label(group, method))}", caption, svg(canvas))


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
