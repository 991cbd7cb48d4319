"""Tables of a comparison: methods in each setting, paired differences, and for each client whether joining pays.

Differences are between runs of one setting with the same seed and the same partition (SHA-256, where the runs recorded it).
A client's gain is positive where the federated model is better than the client's own, whatever the metric's direction.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fl_lightning.reporting.finished import Run, defined
from fl_lightning.reporting.scores import of_clients
from fl_lightning.reporting.statistics import Estimate, estimate, paired

ALONE, POOLED = "LocalOnly", "Central"
Row = dict[str, Any]


@dataclass
class Group:
    """The runs of one setting: ``methods`` in the order of the report, each with its runs by seed."""

    setting: dict[str, str]
    methods: dict[str, dict[int, Run]]
    score: str
    metric: str
    mode: str

    def scores(self, method: str) -> dict[int, float]:
        """The method's score by seed, where it is defined."""
        found = {seed: run.score(self.score) for seed, run in self.methods[method].items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def strategy(self, method: str) -> str:
        """Name of the method's strategy."""
        return next(iter(self.methods[method].values())).results["strategy"]

    def by_strategy(self, strategy: str) -> str | None:
        """Label of the (first) method with this strategy."""
        return next((method for method in self.methods if self.strategy(method) == strategy), None)

    def federated(self) -> list[str]:
        """Methods that are no baseline."""
        return [method for method in self.methods if self.strategy(method) not in (ALONE, POOLED)]

    @property
    def sign(self) -> int:
        """1 if more is better."""
        return 1 if self.mode == "max" else -1


@dataclass
class Summary:
    """All tables of a report, each a list of rows with the same columns."""

    groups: list[Group]
    table: list[Row] = field(default_factory=list)
    differences: list[Row] = field(default_factory=list)
    joining: list[Row] = field(default_factory=list)
    clients: list[Row] = field(default_factory=list)
    runs: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def summarise_runs(runs: Sequence[Run], score: str = "auto", reference: str | None = None) -> Summary:
    """All tables of these runs.

    Args:
        runs: Finished runs.
        score: ``global`` (the server's test data), ``clients`` (mean over clients, each on its own), or ``auto``: global
            where every method of a setting has it.
        reference: Method that the others are compared with in the main table; default the first that is no baseline.
    """
    groups = group(runs, score)
    summary = Summary(groups)
    for own in groups:
        chosen = reference if reference in own.methods else next(iter(own.federated()), next(iter(own.methods)))
        for method in own.methods:
            summary.table.append(_method_row(own, method, chosen, summary.notes))
        if len({frozenset(by_seed) for by_seed in own.methods.values()}) > 1:
            summary.notes.append(
                f"{label(own)}: not every method has every seed; compare by the paired differences, not the means."
            )
        for a, b in itertools.combinations(own.methods, 2):
            summary.differences.append(_difference_row(own, a, b))
        for method in own.federated():
            for place in ("own data", "server's data"):
                rows, total = _joining(own, method, place)
                summary.clients += rows
                summary.joining += total
        for method, by_seed in own.methods.items():
            summary.runs += [_run_row(own, method, seed, run) for seed, run in sorted(by_seed.items())]
    return summary


def group(runs: Sequence[Run], score: str = "auto") -> list[Group]:
    """Runs by setting; settings and methods in the order in which they come, baselines last."""
    settings: dict[tuple, list[Run]] = {}
    for run in runs:
        settings.setdefault((tuple(run.setting.items()), run.metric), []).append(run)
    groups = []
    for (setting, metric), own in settings.items():
        order = sorted(own, key=lambda r: {ALONE: 1, POOLED: 2}.get(r.results["strategy"], 0))
        methods: dict[str, dict[int, Run]] = {}
        for run in order:
            methods.setdefault(run.method, {})[run.seed] = run
        kind = score
        if score == "auto":
            kind = "global" if all(r.on_global is not None for r in own) else "clients"
        groups.append(Group(dict(setting), methods, kind, metric, own[0].mode))
    return groups


def same_partition(a: Run, b: Run) -> bool:
    """Whether two runs had the same clients, as far as they recorded it."""
    return None in (a.partition_sha, b.partition_sha) or a.partition_sha == b.partition_sha


def difference(own: Group, a: str, b: str) -> Estimate:
    """``a - b`` over the seeds that both have with the same partition."""
    first, second = own.scores(a), own.scores(b)
    pairs = {s for s in first.keys() & second.keys() if same_partition(own.methods[a][s], own.methods[b][s])}
    return paired({s: first[s] for s in pairs}, {s: second[s] for s in pairs})


def verdict(gain: Estimate) -> str:
    """In words: what the interval of a gain says."""
    if gain.mean is None:
        return "unknown"
    if gain.low is None or gain.high is None:
        return "one run: no interval"
    return "join" if gain.low > 0 else "stay alone" if gain.high < 0 else "no clear difference"


def _method_row(own: Group, method: str, reference: str, notes: list[str]) -> Row:
    runs = list(own.methods[method].values())
    scores = own.scores(method)
    found = estimate(list(scores.values()))
    gap = estimate([]) if method == reference else difference(own, method, reference)
    common = set(scores) & set(own.scores(reference))
    if method != reference and gap.number < len(common):
        notes.append(
            f"{label(own, method)}: {len(common) - gap.number} seed(s) have another partition than {reference}; not paired."
        )
    if len(scores) < len(runs):
        notes.append(
            f"{label(own, method)}: the score is undefined in {len(runs) - len(scores)} of {len(runs)} runs; left out."
        )
    partly = sum(bool(of_clients(run.results["test"].get("per_client") or [])) for run in runs)
    if partly:
        notes.append(
            f"{label(own, method)}: the client mean leaves some clients out in {partly} of {len(runs)} runs: their score is "
            "undefined (no test data, or a failure)."
        )
    if any(run.validation is None for run in runs):
        notes.append(
            f"{label(own, method)}: no validation score, so that the last round was tested and not the best; where training "
            "goes on too long, this is worse than what the others are tested at."
        )
    lost = sum(len(r.results.get("failures") or []) for r in runs)
    return {
        **own.setting, "method": method, "metric": own.metric, "better": "higher" if own.mode == "max" else "lower",
        "score on": own.score, "seeds": found.number, "mean": found.mean, "sd": found.sd, "low": found.low, "high": found.high,
        "reference": reference, "difference": gap.mean, "difference low": gap.low, "difference high": gap.high,
        "pairs": gap.number if method != reference else None,
        "client mean": _mean(r.on_clients for r in runs), "worst client": _mean(r.worst for r in runs),
        "MB up": _mean(r.mb[0] for r in runs), "MB down": _mean(r.mb[1] for r in runs),
        "seconds": _mean((r.results.get("seconds") or {}).get("total") for r in runs),
        "best round": _mean(r.best_round for r in runs), "client failures": lost,
    }  # fmt: skip


def _difference_row(own: Group, a: str, b: str) -> Row:
    gap = difference(own, a, b)
    better = ""
    if gap.mean is not None and gap.low is not None and gap.high is not None and (gap.low > 0 or gap.high < 0):
        better = a if gap.mean * own.sign > 0 else b
    return {
        **own.setting, "metric": own.metric, "score on": own.score, "method": a, "minus": b, "difference": gap.mean,
        "sd": gap.sd, "low": gap.low, "high": gap.high, "pairs": gap.number, "clearly better": better,
    }  # fmt: skip


def _joining(own: Group, method: str, place: str) -> tuple[list[Row], list[Row]]:
    """Rows of each client, and one over all, for a federated method; empty without ``LocalOnly``."""
    alone, pooled = own.by_strategy(ALONE), own.by_strategy(POOLED)
    if alone is None:
        return [], []
    seeds = [s for s in sorted(own.methods[method]) if s in own.methods[alone]]
    seeds = [s for s in seeds if same_partition(own.methods[method][s], own.methods[alone][s])]
    cells: dict[tuple[int, int], tuple[float, float, float | None]] = {}
    for seed in seeds:
        local = _client_scores(own.methods[alone][seed], place)
        federated = _client_scores(own.methods[method][seed], place)
        central = _client_scores(own.methods[pooled][seed], place) if pooled and seed in own.methods[pooled] else []
        for client, (a, b) in enumerate(zip(local, federated, strict=False)):
            if a is not None and b is not None:
                cells[seed, client] = (a, b, central[client] if client < len(central) else None)
    if not cells:
        return [], []
    gains = {key: own.sign * (b - a) for key, (a, b, _) in cells.items()}
    head = {**own.setting, "method": method, "tested on": place}
    rows = []
    fixed = len({own.methods[method][s].partition_sha for s in seeds}) == 1  # the same clients under every seed
    places = [("all", c) for c in sorted({c for _, c in cells})] if fixed else [(str(s), c) for s, c in sorted(cells)]
    names = own.methods[method][seeds[0]].data.get("client_names") or []
    for under, client in places:
        keys = [k for k in cells if k[1] == client and (fixed or str(k[0]) == under)]
        gain = estimate([gains[k] for k in keys])
        rows.append(
            {**head, "seed": under, "client": names[client] if client < len(names) else client,
             "local": _mean(cells[k][0] for k in keys), "federated": _mean(cells[k][1] for k in keys),
             "central": _mean(cells[k][2] for k in keys), "gain": gain.mean, "low": gain.low, "high": gain.high,
             "verdict": verdict(gain)}
        )  # fmt: skip
    by_seed = [[gain for key, gain in gains.items() if key[0] == s] for s in seeds]
    over = estimate([sum(own_gains) / len(own_gains) for own_gains in by_seed if own_gains])
    better = sum(g > 0 for g in gains.values())
    total = {
        **head, "clients x seeds": len(gains), "of them better off": better, "mean gain": over.mean, "low": over.low,
        "high": over.high, "worst gain": min(gains.values()), "verdict": verdict(over),
    }  # fmt: skip
    return rows, [total]


def _client_scores(run: Run, place: str) -> list[float | None]:
    """Each client's test score: on its own data, or of the model that it would use on the server's."""
    test, number = run.results["test"], run.results.get("num_clients") or 0
    if place == "own data":
        return test.get("per_client") or []
    if run.results["strategy"] == ALONE:
        return test.get("each_on_global") or []
    return [test.get("global")] * number


def _run_row(own: Group, method: str, seed: int, run: Run) -> Row:
    seconds = run.results.get("seconds") or {}
    return {
        **own.setting, "method": method, "seed": seed, "metric": own.metric, "validation": run.validation,
        "global": run.on_global, "client mean": run.on_clients, "worst client": run.worst,
        "best round": run.best_round, "rounds": run.results.get("rounds_run"), "MB up": run.mb[0],
        "MB down": run.mb[1], "seconds": seconds.get("total"), "MB memory": run.results.get("peak_rss_mb"),
        "client failures": len(run.results.get("failures") or []), "torch": (run.results.get("versions") or {}).get("torch"),
        "partition": (run.partition_sha or "")[:12],
    }  # fmt: skip


def label(own: Group, method: str | None = None) -> str:
    """A setting (and method) in words."""
    words = ", ".join(v if k == "data" else f"{k} {v}" for k, v in own.setting.items())
    return ": ".join(w for w in (words, method) if w) or "all runs"


def _mean(values: Any) -> float | None:
    known = defined(values)
    return sum(known) / len(known) if known else None
