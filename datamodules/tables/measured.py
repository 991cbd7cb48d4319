"""Columns of measurements, labels and features alike: their values, and how far they spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

NORMAL = 1.349  # distance of the quartiles of a normal distribution, in standard deviations
MOST_COLUMNS = 1000  # of more features, such as a bag of words, none has a unit


@dataclass(frozen=True)
class Measured:
    """One column.

    Attributes:
        what: What its values are, in words, to be put behind a number or ``The``: ``labels of `logS```.
        values: ``(M,)``, ``nan`` where missing.
    """

    what: str
    values: np.ndarray


def robust_deviation(values: np.ndarray) -> float:
    """The standard deviation by the quartiles, which a few odd values do not move; where half of all values are equal, the
    usual one. 0 of no value.

    Args:
        values: Finite numbers, in float64.
    """
    low, high = np.quantile(values, (0.25, 0.75)) if len(values) else (0.0, 0.0)
    return float((high - low) / NORMAL or (values.std() if len(values) else 0.0))


def list_features(x: Tensor, names: Sequence[str], file: str | None = None) -> Iterator[Measured]:
    """The columns of features, none of very many.

    Args:
        x: ``(N, F)``, dense or CSR.
        names: F names; none for a matrix, whose columns are counted from 0.
        file: Of the matrix.
    """
    if x.size(1) > MOST_COLUMNS:
        return
    sparse = None
    if x.layout == torch.sparse_csr:  # one column at a time is dense
        parts = (x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy())
        sparse = sp.csr_matrix(parts, shape=tuple(x.shape)).tocsc()
    for place in range(x.size(1)):
        values = x[:, place].numpy() if sparse is None else sparse[:, [place]].toarray().ravel()
        yield Measured(f"values of `{names[place]}`" if names else f"values in column {place} of `{file}`", values)
