"""Train, validation and test part of a molecular data set, made before anything goes to clients (docs/papers/fedchem.md#data).

``random_split``    the protocol: N -> floor(0.8 N) / half of the rest / the rest, e.g. 642 -> 513 / 64 / 65
``official_split``  the authors' permutations (NumPy seed 42, then PyTorch seed 123)
``scaffold_split``  whole scaffolds, largest first: the test part has scaffolds never trained on
Each returns ``{"train": ..., "val": ..., "test": ...}`` with positions into the valid molecules.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

PARTS = ("train", "val", "test")


def split_sizes(size: int, fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)) -> tuple[int, int, int]:
    """Sizes of the three parts: training rounded down, then the rest in proportion, validation rounded down.

    Raises:
        ValueError: Fractions that are negative, do not sum to one, or leave no training molecule.

    Example:
        >>> split_sizes(642), split_sizes(1513)
        ((513, 64, 65), (1210, 151, 152))
    """
    check_fractions(fractions)
    train = int(size * fractions[0] + 1e-9)
    held = fractions[1] + fractions[2]
    val = int((size - train) * fractions[1] / held + 1e-9) if held > 0 else 0
    if train < 1:
        raise ValueError(f"`data.init_args.fractions` {fractions} leaves no training molecule out of {size}.")
    return train, val, size - train - val


def check_fractions(fractions: Sequence[float]) -> tuple[float, float, float]:
    """The three shares, or a ``ValueError`` if they are not three shares that sum to one."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(f"`data.init_args.fractions` needs three shares that sum to 1, got {list(fractions)}.")
    return float(fractions[0]), float(fractions[1]), float(fractions[2])


def random_split(size: int, seed: int = 0, sizes: tuple[int, int, int] | None = None) -> dict[str, np.ndarray]:
    """A seeded uniform split. ``sizes`` defaults to ``split_sizes(size)``."""
    train, val, _ = sizes or split_sizes(size)
    order = np.random.default_rng(seed).permutation(size)
    return {"train": order[:train], "val": order[train : train + val], "test": order[train + val :]}


def official_split(size: int, sizes: tuple[int, int, int] | None = None) -> dict[str, np.ndarray]:
    """The authors' split; no global random state is touched."""
    train, val, _ = sizes or split_sizes(size)
    order = np.random.RandomState(42).permutation(size)
    again = torch.randperm(size - train, generator=torch.Generator().manual_seed(123)).numpy()
    held = order[train:][again]
    return {"train": order[:train], "val": held[:val], "test": held[val:]}


def scaffold_split(groups: np.ndarray, sizes: tuple[int, int, int] | None = None) -> dict[str, np.ndarray]:
    """Whole groups, largest first (ties: first appearance first), fill training, then validation, then test.

    A group that no longer fits into a part goes to the next one, so no scaffold is in two parts; the sizes are upper
    bounds for the first two.

    Args:
        groups: Group of each of N molecules, shape ``(N,)``.
        sizes: Defaults to ``split_sizes(N)``.
    """
    train, val, _ = sizes or split_sizes(len(groups))
    _, first, inverse, counts = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in PARTS}
    room = {"train": train, "val": val}
    for k in sorted(range(len(counts)), key=lambda k: (-counts[k], first[k])):
        name = next((part for part in room if counts[k] <= room[part]), "test")
        parts[name].append(np.flatnonzero(inverse == k))
        if name in room:
            room[name] -= counts[k]
    if not parts["train"]:
        raise ValueError(
            "`data.init_args.split: scaffold` leaves no training molecule: the smallest scaffold group "
            f"({counts.min()} molecules) is larger than the training part ({train}). Use `split: "
            "random`."
        )
    none = np.zeros(0, dtype=np.int64)
    return {name: np.concatenate(members) if members else none for name, members in parts.items()}
