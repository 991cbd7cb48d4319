"""Statistics that clients must share: one listed exchange before round 1, the same for all engines.

A data module may have ``statistics()``, which gives named sums and lists of names:

    {"sums": {"labels": {"count": [...], "sum": [...], "square": [...]}}, "names": {"class_names": ["a", "b"]}}

The server adds the sums up in float64, in client order, and merges the lists by value in sorted order, so that equal sizes with
different names are no trap. What comes of it goes to every data module's ``use_statistics(agreed)``, and to that of the module
and of each of its layers, where they have that method. Sums only: nothing of a single sample, and a secure sum can carry them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

SUMS = ("count", "sum", "square")


@dataclass(frozen=True)
class Exchange:
    """What was told and agreed.

    Args:
        told: Of each client that has something to tell.
        agreed: What comes of it; empty if nobody has.
    """

    told: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    agreed: Mapping[str, Any] = field(default_factory=dict)


def exchange(clients: Sequence[Any]) -> Exchange:
    """Ask the clients' data modules, and combine.

    Raises:
        ValueError: If somebody's statistics are malformed, or sums of one name have several lengths.
    """
    told = {}
    for client, data in enumerate(clients):
        values = data.statistics() if hasattr(data, "statistics") else {}
        wrong = fault(values)
        if wrong is not None:
            raise ValueError(f"Client {client}: the `statistics()` of `{type(data).__name__}` must be {wrong}.")
        if any(values.values()):
            told[client] = values
    return Exchange(told, combine(told)) if told else Exchange()


def combine(told: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Sums over clients in their order, float64; names merged by value."""
    sums: dict[str, dict[str, list[float]]] = {}
    names: dict[str, list[str]] = {}
    for client, values in sorted(told.items()):
        for name, parts in values.get("sums", {}).items():
            total = sums.setdefault(name, {part: [0.0] * len(parts["count"]) for part in SUMS})
            if len(total["count"]) != len(parts["count"]):
                raise ValueError(
                    f"Client {client} tells {len(parts['count'])} sums of `{name}` where others tell {len(total['count'])}: "
                    "all must have the same tasks or columns."
                )
            for part in SUMS:
                total[part] = [a + b for a, b in zip(total[part], parts[part], strict=True)]
        for name, own in values.get("names", {}).items():
            names[name] = list(own) if names.get(name, list(own)) == list(own) else sorted({*names[name], *own})
    return {"sums": sums, "names": names}


def fault(values: Any) -> str | None:
    """What a client's statistics should be and are not, or ``None``."""
    known = isinstance(values, Mapping) and values.keys() <= {"sums", "names"}
    if not known or not all(isinstance(part, Mapping) for part in values.values()):
        return "a mapping with `sums` and `names`"
    for parts in values.get("sums", {}).values():
        if not isinstance(parts, Mapping) or set(parts) != set(SUMS) or not all(map(_are_numbers, parts.values())):
            return f"sums as lists of finite numbers: {', '.join(SUMS)}"
        if len({len(part) for part in parts.values()}) != 1 or min(parts["count"], default=0) < 0:
            return "as many counts (from 0) as sums and squares"
    if any(not isinstance(own, list) or not all(isinstance(x, str) for x in own) for own in values.get("names", {}).values()):
        return "names as lists of texts"
    return None


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values
    )


def use(agreed: Mapping[str, Any], *users: Any) -> None:
    """Hand what was agreed to those data modules, modules and layers that take it.

    A layer of the user's own (a scaled output, say) can so take it in a module that is somebody else's.
    """
    if agreed:
        for user in users:
            parts: list[Any] = list(user.modules()) if isinstance(user, nn.Module) else [user]
            for part in parts:
                if hasattr(part, "use_statistics"):
                    part.use_statistics(agreed)
