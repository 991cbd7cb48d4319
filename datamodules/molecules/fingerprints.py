"""ECFP counts of molecules: how often each circular neighbourhood of an atom occurs (Rogers, Hahn, J. Chem. Inf. Model. 2010).

ECFP4 has radius 2. Neighbourhoods are hashed by RDKit's Morgan generator and folded to a given number of bins. They are made of
the canonical SMILES of what is used of each row, so that the writing of a molecule does not matter, and are cached beside the
featurised tables, under a key of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rdkit.Chem import rdFingerprintGenerator

from datamodules.molecules.cache import Arrays, cached, content_key, fault_of
from datamodules.molecules.featuriser import parse_smiles
from datamodules.molecules.parallel import map_chunks
from datamodules.molecules.table import MoleculeSet

LARGEST = 255
"""A larger count is this one: a byte is enough for what molecules have."""


def ecfp_counts(
    smiles: Sequence[str], radius: int, size: int, num_workers: int | None = None, cache_dir: str | Path | None = None
) -> np.ndarray:
    """Counts of each molecule's neighbourhoods.

    Args:
        smiles: M molecules.
        radius: Bonds around an atom that a neighbourhood has at most; 2 gives ECFP4.
        size: Bins S that neighbourhoods are folded to.
        num_workers: See ``map_chunks``.
        cache_dir: Folder of cached results; None = no cache.

    Returns:
        uint8 ``(M, S)``.

    Raises:
        ValueError: A SMILES that is no molecule.
    """
    rows = list(smiles)
    arrays = cached(
        cache_dir,
        content_key("ecfp", f"radius {radius}, size {size}", rows),
        lambda: _joined(map_chunks(partial(count_chunk, radius=radius, size=size), rows, num_workers, "fingerprints")),
        lambda stored: fault_of(stored, count_chunk([], radius, size), len(rows), {"bin": "bins", "count": "bins"}),
    )
    counts = np.zeros((len(rows), size), dtype=np.uint8)
    counts[np.repeat(np.arange(len(rows)), arrays["bins"]), arrays["bin"]] = arrays["count"]
    return counts


def count_chunk(smiles: Sequence[str], radius: int, size: int) -> Arrays:
    """Of each molecule how many bins are not empty (``bins``), which (``bin``), and their counts (``count``)."""
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=size)
    found = [generator.GetCountFingerprintAsNumPy(parse_smiles(text)) for text in smiles]
    places = [counts.nonzero()[0] for counts in found]
    return {
        "bins": np.array([len(place) for place in places], dtype=np.int64),
        "bin": np.concatenate([np.zeros(0, dtype=np.int32), *places]).astype(np.int32),
        "count": np.concatenate(
            [np.zeros(0, dtype=np.uint8), *(np.minimum(c[p], LARGEST) for c, p in zip(found, places, strict=True))]
        ).astype(np.uint8),
    }


def with_fingerprints(
    molecules: MoleculeSet, radius: int, size: int, num_workers: int | None = None, cache_dir: str | Path | None = None
) -> MoleculeSet:
    """The same molecules with ``packed.fingerprint``; arguments as for :func:`ecfp_counts`."""
    counts = torch.from_numpy(ecfp_counts(molecules.canonical, radius, size, num_workers, cache_dir))
    return replace(molecules, packed=replace(molecules.packed, fingerprint=counts))


def _joined(chunks: Sequence[Arrays]) -> Arrays:
    chunks = list(chunks) or [count_chunk([], 0, 1)]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
