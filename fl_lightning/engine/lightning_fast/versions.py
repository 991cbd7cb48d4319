"""Which Lightnings the short way was proven with: same bits and same hooks as their own loops, by this folder's tests."""

from __future__ import annotations

import logging
from functools import cache

import lightning as L

PROVEN = ("2.6",)
LOG = logging.getLogger("fl_lightning")


def is_proven() -> bool:
    """Whether the installed Lightning is one of them."""
    return ".".join(L.__version__.split(".")[:2]) in PROVEN


def tell_if_unproven() -> None:
    """Say once that another Lightning's own loops are used."""
    if not is_proven():
        _tell(L.__version__)


@cache
def _tell(version: str) -> None:
    LOG.warning(
        "lightning %s: the short way through the loops was proven with %s only, so clients train in Lightning's own loops. "
        "The results are the same; a fit of a small model takes about twice as long. `federation.fast_loops: false` asks "
        "for this without a word.",
        version,
        ", ".join(f"{proven}.*" for proven in PROVEN),
    )
