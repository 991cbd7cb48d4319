"""What a good reply holds: every reply is checked once, before a strategy sees it, so that a client that sends nonsense is
named and left out like one that fails.

A step of the protocol is declared by :class:`Expected`: its values with a rule each, its tensors with names, dtypes and
shapes. What no side knows alone (the number of bins of a histogram, the width of an embedding) must be the same in all
replies of a step (:func:`odd_ones_out`).
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fl_lightning.engine.entries import check_layout
from fl_lightning.engine.messages import Payload

LARGEST = 2**53
"""Larger whole numbers are not exact as floats; no site has so many samples."""

Rule = Callable[[Any], str | None]
"""What a value should be and is not (``a whole number from 0``), or ``None`` if it is."""


@dataclass(frozen=True)
class Expected:
    """A step's reply.

    Args:
        values: Rules of values that must be there.
        optional: Rules of values that may be there; others may, too, and are nobody's business.
        layout: Names, shapes and dtypes of the tensors, all of them; ``None`` leaves them to ``tensors``.
        varying: Those of the layout that may have any length.
        tensors: A further check of the payload: what is wrong, or ``None``.
        may_be_empty: A reply without tensors and values means "nothing to say" and is good.
        alike: What must agree over the replies of a step: named things of a payload.
    """

    values: Mapping[str, Rule] = field(default_factory=dict)
    optional: Mapping[str, Rule] = field(default_factory=dict)
    layout: Mapping[str, Tensor] | None = None
    varying: Collection[str] = ()
    tensors: Callable[[Payload], str | None] | None = None
    may_be_empty: bool = False
    alike: Callable[[Payload], Mapping[str, Hashable]] | None = None

    def fault(self, payload: Payload) -> str | None:
        """What is wrong with a reply, or ``None``."""
        if not isinstance(payload.values, Mapping):
            return f"its values are {_shorten(payload.values)} instead of names with values"
        if self.may_be_empty and not payload.values and not payload.tensors:
            return None
        missing = [name for name in self.values if name not in payload.values]
        if missing:
            return f"its reply has no `{missing[0]}`"
        for name, rule in {**self.values, **self.optional}.items():
            if name in payload.values:
                wanted = rule(payload.values[name])
                if wanted is not None:
                    return f"`{name}` of its reply must be {wanted}, but is {_shorten(payload.values[name])}"
        if self.layout is not None and payload.values.get("num_samples") != 0:
            wrong = check_layout(payload.tensors, self.layout, self.varying)
            if wrong is not None:
                return f"its update does not fit the model: {wrong}"
        return None if self.tensors is None else self.tensors(payload)


def odd_ones_out(replies: Mapping[int, Mapping[str, Hashable]]) -> dict[int, str]:
    """Clients whose named things differ from what most have; of equally frequent ones the first client's counts."""
    odd: dict[int, str] = {}
    for name in dict.fromkeys(name for things in replies.values() for name in things):
        held = {client: things[name] for client, things in replies.items() if name in things}
        ((usual, _),) = Counter(held.values()).most_common(1)
        for client, thing in held.items():
            if thing != usual:
                odd.setdefault(client, f"{name} is {thing} in its reply and {usual} in the others'")
    return odd


# ---- rules ------------------------------------------------------------------------------------------------------------


def sample_count(value: Any) -> str | None:
    """A number of samples."""
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST
    return None if good else f"a whole number from 0 to {LARGEST}"


def positive_count(value: Any) -> str | None:
    """A number of things of which there is at least one."""
    return None if sample_count(value) is None and value >= 1 else f"a whole number from 1 to {LARGEST}"


def scores(value: Any) -> str | None:
    """Figures by name; ``None`` is an undefined one."""
    good = isinstance(value, Mapping) and all(isinstance(k, str) and (v is None or _is_number(v)) for k, v in value.items())
    return None if good else "finite numbers (or null) by name"


def scores_or_none(value: Any) -> str | None:
    """Figures by name, or nothing where a client has no such data."""
    return None if value is None else scores(value)


def names(value: Any) -> str | None:
    """Names of metrics."""
    good = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return None if good else "a list of names"


def histograms(value: Any) -> str | None:
    """Lists of counts by name."""
    good = isinstance(value, Mapping) and all(isinstance(k, str) and _are_counts(v) for k, v in value.items())
    return None if good else "lists of whole numbers from 0 by name"


def histograms_or_tables(value: Any) -> str | None:
    """Lists of counts, or tables of them with rows of one length, by name."""

    def is_table(rows: Any) -> bool:
        return isinstance(rows, list) and bool(rows) and all(map(_are_counts, rows)) and len({len(r) for r in rows}) == 1

    good = isinstance(value, Mapping) and all(isinstance(k, str) and (_are_counts(v) or is_table(v)) for k, v in value.items())
    return None if good else "lists or tables of whole numbers from 0 by name"


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(sample_count(v) is None for v in value)


def rows_of(layout: Mapping[str, Tensor]) -> Rule:
    """Rows of entries of ``layout``, as increasing numbers by the entry's name."""

    def rule(value: Any) -> str | None:
        good = isinstance(value, Mapping) and all(
            name in layout
            and layout[name].dim() > 0
            and isinstance(rows, list)
            and all(isinstance(r, int) and not isinstance(r, bool) and 0 <= r < len(layout[name]) for r in rows)
            and all(a < b for a, b in itertools.pairwise(rows))
            for name, rows in value.items()
        )
        return None if good else "increasing row numbers by the names of the entries"

    return rule


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # not NaN, not infinite; a larger whole number is no float


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ---- the steps that all strategies have -------------------------------------------------------------------------------


def fit_reply(layout: Mapping[str, Tensor]) -> Expected:
    """What a client sends after training: ``layout`` are the entries of its update."""
    return Expected(
        values={"num_samples": sample_count, "metrics": scores},
        optional={"pictures": histograms, "untrained_rows": rows_of(layout), "watches": names},
        layout=layout,
        alike=lambda payload: {
            f"the number of bins of `{name}`": len(counts) for name, counts in payload.values.get("pictures", {}).items()
        },
    )


def evaluate_reply(stages: tuple[str, ...]) -> Expected:
    """Scores for each stage."""
    return Expected(values=dict.fromkeys(stages, scores_or_none))


def figures_reply() -> Expected:
    """Figures and pictures of a phase, or nothing."""
    return Expected(
        optional={"metrics": scores, "pictures": histograms_or_tables},
        alike=lambda payload: {
            f"the size of `{name}`": (len(table), len(table[0]))
            for name, table in payload.values.get("pictures", {}).items()
            if isinstance(table[0], list)
        },
    )


def predict_reply() -> Expected:
    """Tensors named ``<batch>/<output>``, batches counted from 0 without a gap."""

    def fault(payload: Payload) -> str | None:
        batches = [name.partition("/")[0] for name in payload.tensors]
        wrong = [n for n, b in zip(payload.tensors, batches, strict=True) if "/" not in n or not b.isdecimal()]
        if wrong or sorted({int(b) for b in batches}) != list(range(len(set(batches)))):
            return "its predictions must be tensors named `0/<output>`, `1/<output>`, ... by batch"
        return None

    return Expected(tensors=fault)
