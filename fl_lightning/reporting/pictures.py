"""Draws a strategy's diagnostics: pictures in TensorBoard, and ``matrices.json`` for the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fl_lightning.engine.diagnostics import Diagnostics
from fl_lightning.reporting.run_folder import RunFolder


def show(diagnostics: Diagnostics, folder: RunFolder, step: int, prefix: str = "") -> None:
    """Write what a round (or a phase's step, under ``prefix``) left to look at."""
    if diagnostics.matrices:
        matrices = {name.rsplit("/", 1)[-1]: matrix.tolist() for name, matrix in diagnostics.matrices.items()}
        folder.write_json("matrices.json", {"round": step, "clients": list(diagnostics.clients), **matrices})
    if folder.tensorboard is not None:
        draw(diagnostics, folder.tensorboard, step, prefix)


def draw(diagnostics: Diagnostics, logger: Any, step: int, prefix: str = "") -> None:
    """The same with a TensorBoard ``SummaryWriter``."""
    for name, matrix in diagnostics.matrices.items():
        logger.add_image(prefix + name, heat_map(matrix), step, dataformats="HW")
    for name, table in diagnostics.tables.items():
        logger.add_image(prefix + name, heat_map(table.log1p()), step, dataformats="HW")
    for name, histogram in diagnostics.histograms.items():
        places = torch.arange(len(histogram.counts))
        if histogram.unit:
            samples = as_samples((places + 0.5) / len(histogram.counts), histogram.counts)
            logger.add_histogram(prefix + name, samples, step, bins=len(histogram.counts))
        else:
            logger.add_histogram(prefix + name, as_samples(places, histogram.counts), step)


def heat_map(matrix: Tensor, pixels: int = 16) -> Tensor:
    """A ``(K, K)`` matrix as a grey picture, ``(K * pixels, K * pixels)`` in [0, 1]: white is the largest entry."""
    low, high = matrix.min(), matrix.max()
    scaled = (matrix - low) / (high - low) if high > low else torch.ones_like(matrix)
    return scaled.repeat_interleave(pixels, 0).repeat_interleave(pixels, 1)


def as_samples(values: Tensor, counts: Sequence[int], most: int = 1_000_000) -> Tensor:
    """A histogram as samples, each of ``values`` as often as counted; thinned in proportion to at most ``most`` of them."""
    total = sum(counts)
    if total > most:
        counts = [number * most // total for number in counts]
    return torch.repeat_interleave(values, torch.tensor(counts))
