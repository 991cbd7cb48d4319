"""Scores of one evaluation: the global model on the server's data, and every client's model on its own data."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
import torch
import torch_geometric


def summarise(
    metric: str,
    mode: str,
    global_metrics: Mapping[str, float] | None,
    per_client: Sequence[Mapping[str, float | None] | None],
) -> dict[str, Any]:
    """The ``val`` / ``test`` entry of results.json.

    ``mean`` is the unweighted mean over clients; ``worst`` its worst. A client for which the metric is undefined is ``None``,
    left out of both and counted in ``undefined``, never scored 0 or 1. ``global_metrics`` is all that the global model
    logged, one score per task included (``auroc_3``), ``null`` where undefined; ``per_client_metrics`` the same of each client,
    ``None`` where there is no such data.

    Args:
        metric: Name of the metric.
        mode: ``"max"`` or ``"min"``.
        global_metrics: Metrics of the global model, or ``None``.
        per_client: Metrics of each client, ``None`` where it has no such data.
    """
    scores = [defined(m, metric) for m in per_client]
    known = [s for s in scores if s is not None]
    return {
        "global": defined(global_metrics, metric),
        "mean": sum(known) / len(known) if known else None,
        "worst": (min(known) if mode == "max" else max(known)) if known else None,
        "per_client": scores,
        "undefined": len(scores) - len(known),
        "global_metrics": _all(global_metrics),
        "per_client_metrics": [_all(metrics) for metrics in per_client],
    }


def of_clients(scores: Sequence[float | None]) -> str:
    """`` (2 of 4 clients)`` where a mean over clients leaves some out, else nothing.

    Args:
        scores: Of each client.
    """
    known = sum(score is not None for score in scores)
    return f" ({known} of {len(scores)} clients)" if 0 < known < len(scores) else ""


def _all(metrics: Mapping[str, float | None] | None) -> dict[str, float | None] | None:
    return None if metrics is None else {name: defined(metrics, name) for name in metrics}


def defined(metrics: Mapping[str, float | None] | None, metric: str) -> float | None:
    """The metric's value if it is there and finite, else ``None``."""
    value = None if metrics is None else metrics.get(metric)
    return value if value is not None and math.isfinite(value) else None


def versions() -> dict[str, str]:
    """Versions of what results depend on."""
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "lightning": L.__version__,
        "torch_geometric": torch_geometric.__version__,
    }
