"""What an algorithm shows of its last round or step, besides figures: matrices between clients, tables and histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Histogram:
    """Counts of bins.

    Args:
        counts: One for each bin.
        unit: Whether the bins are equal parts of [0, 1]; else bin i is the number i.
    """

    counts: Sequence[int]
    unit: bool = True


@dataclass(frozen=True)
class Diagnostics:
    """By the name under which TensorBoard shows them.

    Args:
        matrices: Client x client, shape ``(K, K)``; also written to ``matrices.json``.
        clients: Whose rows the matrices have.
        tables: Counts by row and column, shape ``(R, C)``, shown on a logarithmic scale.
        histograms: Counts of bins.
    """

    matrices: Mapping[str, Tensor] = field(default_factory=dict)
    clients: Sequence[int] = ()
    tables: Mapping[str, Tensor] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
