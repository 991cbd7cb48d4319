"""Finished runs as a report sees them: what their folders hold, from this or any other machine.

Only JSON, CSV and YAML (safe loader) are read. What a folder lacks (partition.json, metrics.csv, config.yaml) is left out.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fl_lightning.reporting.monitor import selection_value


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
        fixed: What else is known of the data and the work, in which no other run on this data differs.
    """

    folder: Path
    setting: dict[str, str]
    method: str
    seed: int
    results: dict[str, Any]
    data_file: Path | None = None
    fixed: dict[str, str] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        return self.results["metric"]

    @property
    def mode(self) -> str:
        return self.results["mode"]

    @property
    def best_round(self) -> int | None:
        """The best round counted from 1, as people do; results.json counts from 0."""
        number = self.results.get("best_round")
        return None if number is None else number + 1

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
        return [(int(p["round"] or 0), score, p["mb"] or 0.0) for p in self.rounds if (score := p[kind]) is not None]

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
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
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
    if not isinstance(results, dict):
        raise ValueError(f"`{folder}/results.json` is not that of a run: it holds {type(results).__name__}.")
    missing = [k for k in ("strategy", "seed", "metric", "mode", "val", "test") if k not in results]
    wrong = [k for k in ("val", "test") if k in results and not isinstance(results[k], dict)]
    wrong += ["mode"] if results.get("mode", "min") not in ("min", "max") else []
    if missing or wrong:
        raise ValueError(f"`{folder}/results.json` is not that of a run: {', '.join(missing + wrong)} missing or wrong.")
    return results
