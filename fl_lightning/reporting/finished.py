"""Finished runs as a report sees them: what their folders hold, from this or any other machine.

Only JSON, CSV and YAML (safe loader) are read. What a folder lacks (partition.json, metrics.csv, config.yaml) is left out.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.reporting.scores import selection_value

MANIFEST = "comparison.json"
NOT_A_SETTING = {"seed", "root"}


@dataclass
class Run:
    """A finished run and its place in the tables.

    Attributes:
        folder: The run's folder.
        setting: Label of each axis.
        method: Label of the method.
        seed: Its seed.
        results: Content of results.json.
        data_file: What ``compare`` noted of the clients' data; may be absent.
    """

    folder: Path
    setting: dict[str, str]
    method: str
    seed: int
    results: dict[str, Any]
    data_file: Path | None = None

    @property
    def metric(self) -> str:
        return self.results["metric"]

    @property
    def mode(self) -> str:
        return self.results["mode"]

    @property
    def on_global(self) -> float | None:
        """Test score on the server's data: of the global model; for ``LocalOnly`` the mean over the clients' models."""
        test = self.results["test"]
        if test.get("global") is not None:
            return test["global"]
        each = defined(test.get("each_on_global") or [])
        return sum(each) / len(each) if each else None

    @property
    def on_clients(self) -> float | None:
        """Mean over clients of the test score on their own data."""
        return self.results["test"].get("mean")

    @property
    def worst(self) -> float | None:
        """The worst client's test score on its own data; without such data, of its model on the server's."""
        test = self.results["test"]
        each = defined(test.get("each_on_global") or [])
        if test.get("worst") is not None or not each:
            return test.get("worst")
        return min(each) if self.mode == "max" else max(each)

    def score(self, kind: str) -> float | None:
        """``global`` or ``clients``."""
        return self.on_global if kind == "global" else self.on_clients

    @cached_property
    def partition(self) -> dict[str, Any] | None:
        """partition.json."""
        return read_json(self.folder / "partition.json")

    @property
    def partition_sha(self) -> str | None:
        return (self.partition or {}).get("sha256")

    @cached_property
    def matrices(self) -> dict[str, Any] | None:
        """Client x client matrices of the method (FED-PUB's similarities), from the last round."""
        return read_json(self.folder / "matrices.json")

    @cached_property
    def data(self) -> dict[str, Any]:
        """Labels per client and the clients' names, as far as known."""
        noted = read_json(self.data_file) if self.data_file is not None else None
        return {**{k: v for k, v in (self.partition or {}).items() if k in ("client_sizes", "client_names")}, **(noted or {})}

    @cached_property
    def rounds(self) -> list[dict[str, float | None]]:
        """For each validated round: ``round`` from 1, validation score ``global`` and ``clients`` (mean over clients, each on
        its own data), and ``mb``, the megabytes sent in all rounds so far."""
        path = self.folder / "metrics.csv"
        if not path.is_file():
            return []
        points, sent = [], 0.0
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                sent += sum(_number(row.get(f"bytes/{way}")) or 0 for way in ("up", "down"))
                scores = {"global": _number(row.get(f"val/{self.metric}")), "clients": _number(row.get("val/clients_mean"))}
                if any(v is not None for v in scores.values()):
                    points.append({"round": int(row["round"]) + 1, **scores, "mb": sent / 1e6})
        return points

    def curve(self, kind: str) -> list[tuple[int, float, float]]:
        """Round, validation score on ``global`` or ``clients``, MB sent so far; where the score is defined."""
        return [(p["round"], p[kind], p["mb"]) for p in self.rounds if p[kind] is not None]

    @property
    def validation(self) -> float | None:
        return selection_value(self.results["val"])

    @property
    def mb(self) -> tuple[float, float]:
        """Megabytes up and down."""
        sent = self.results.get("bytes") or {}
        return sent.get("up", 0) / 1e6, sent.get("down", 0) / 1e6


def _number(text: str | None) -> float | None:
    return float(text) if text and math.isfinite(float(text)) else None


def defined(values: Iterable[float | None]) -> list[float]:
    """Without ``None``."""
    return [v for v in values if v is not None]


def read_json(path: Path | None) -> Any:
    """Content of a JSON file; ``None`` if it is absent.

    Raises:
        ValueError: If it is no JSON.
    """
    if path is None or not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"`{path}` is no JSON: {error}.") from error


def load(folder: Path, setting: dict[str, str], method: str, seed: int, data_file: Path | None = None) -> Run:
    """A run whose place is known."""
    return Run(folder, setting, method, seed, checked_results(folder), data_file)


def checked_results(folder: Path) -> dict[str, Any]:
    """results.json.

    Raises:
        ValueError: If it is absent, or not what a run of this library writes.
    """
    results = read_json(folder / "results.json")
    if results is None:
        raise ValueError(f"`{folder}` has no results.json: the run has not finished, or it is no run.")
    missing = [k for k in ("strategy", "seed", "metric", "mode", "val", "test") if k not in results]
    if missing or results["mode"] not in ("min", "max"):
        raise ValueError(f"`{folder}/results.json` is not that of a run: {', '.join(missing) or 'mode'} missing or wrong.")
    return results


def find_runs(places: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Runs in these places: a run's folder, a comparison's folder, or any folder above runs.

    Runs of a comparison have its labels (and unchosen trials of its searches are left out). Of others, the method is the
    strategy with its objective, and the setting whatever differs in ``data`` and in the amount of work.

    Returns:
        The runs, and a line for each folder that was left out.
    """
    runs, problems, loose = [], [], []
    seen: set[Path] = set()
    for place in places:
        if not place.exists():
            problems.append(f"`{place}` does not exist.")
            continue
        found = sorted(p.parent for p in place.rglob("results.json")) if place.is_dir() else [place.parent]
        if not found:
            problems.append(f"`{place}` holds no results.json: no finished run is in it.")
        for folder in found:
            folder = folder.resolve()
            if folder in seen:
                continue
            seen.add(folder)
            try:
                known = _in_comparison(folder)
                if known is None:
                    loose.append((folder, checked_results(folder)))
                elif known:
                    runs.append(load(folder, *known))
            except ValueError as error:
                problems.append(str(error))
    runs += _label(loose, problems)
    return runs, problems


def _in_comparison(folder: Path) -> tuple[dict[str, str], str, int, Path] | tuple[()] | None:
    """Labels of a comparison's run; empty for a run that it does not list (an unchosen trial); ``None`` outside of one."""
    for above in folder.parents:
        manifest = read_json(above / MANIFEST)
        if manifest is not None:
            for run in manifest["runs"]:
                if (above / run["folder"]).resolve() == folder:
                    return run["setting"], run["method"], run["seed"], above / run["data"]
            return ()
    return None


def _label(loose: Sequence[tuple[Path, dict[str, Any]]], problems: list[str]) -> list[Run]:
    """Methods and settings of runs that belong to no comparison, from their config.yaml."""
    configs = [_read_config(folder) for folder, _ in loose]
    facts = [_data_facts(config) for config in configs]
    values = {k: {repr(f[k]) for f in facts if k in f} for f in facts for k in f}
    differing = sorted((k for k, found in values.items() if len(found) > 1), key=lambda k: (k != "data", k))
    labelled = [
        Run(folder, {k: str(fact.get(k, "-")) for k in differing}, _method(config, results), results["seed"], results)
        for (folder, results), config, fact in zip(loose, configs, facts, strict=True)
    ]
    names: dict[tuple, set[str]] = {}
    for run in labelled:
        names.setdefault((*run.setting.values(), run.method, run.seed), set()).add(run.results.get("name"))
    # Where runs differ in their name only, all runs of the method bear it.
    several = {method for (*_, method, _), found in names.items() if len(found) > 1}
    runs: dict[tuple, Run] = {}
    for run in labelled:
        if run.method in several:
            run.method = f"{run.method} ({run.results.get('name')})"
        key = (*run.setting.values(), run.method, run.seed)
        if key in runs:
            older, run = sorted((runs[key], run), key=lambda r: (r.folder / "results.json").stat().st_mtime)
            problems.append(f"`{older.folder}` left out: `{run.folder}` is a newer run of this method, setting and seed.")
        runs[key] = run
    return list(runs.values())


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    if not path.is_file():
        return {}
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"`{path}` is not YAML: {error}") from error


def _data_facts(config: dict[str, Any]) -> dict[str, Any]:
    """What makes a setting: the data's class and arguments, and how many rounds of how much work."""
    data = config.get("data") or {}
    arguments = {k: v for k, v in (data.get("init_args") or {}).items() if k not in NOT_A_SETTING}
    name = arguments.pop("name", None) or str(data.get("class_path", "")).split(".")[-1].removesuffix("DataModule")
    facts = {"data": name, **arguments}
    federation, trainer = config.get("federation") or {}, config.get("trainer") or {}
    federation = federation.get("init_args", federation)
    if federation:  # central has no rounds: it belongs to every number of them
        facts |= {
            "rounds": federation.get("num_rounds"),
            "epochs": trainer.get("max_epochs"),
            "steps": trainer.get("max_steps"),
        }
    return {k: v for k, v in facts.items() if v is not None}


def _method(config: dict[str, Any], results: dict[str, Any]) -> str:
    objective = ((config.get("model") or {}).get("init_args") or {}).get("objective") or {}
    name = str(objective.get("class_path", "") if isinstance(objective, dict) else objective).split(".")[-1]
    plain = name in ("", "ERM") or results["strategy"] in ("FedPub",)
    return results["strategy"] if plain else f"{results['strategy']} {name}"
