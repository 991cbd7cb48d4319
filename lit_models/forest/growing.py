"""Grows forests with scikit-learn, one for each task on the molecules that have its label, and writes their trees as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_models.forest.arrays import join

Y = np.ndarray


@dataclass(frozen=True)
class Growth:
    """What is asked of a forest; see :class:`~lit_models.forest.module.LitMoleculeForest`."""

    num_trees: int
    max_features: float | str | None
    min_samples_leaf: int
    num_jobs: int


def require_sklearn() -> None:
    """Raises:
    ValueError: scikit-learn is not there, with what to install.
    """
    if find_spec("sklearn") is None:
        raise ValueError(
            "`model: LitMoleculeForest` grows its trees with scikit-learn, which is not installed: "
            "`pip install 'fl-lightning[forest]'` (or `pip install scikit-learn`)."
        )


def grow(x: Tensor, y: Tensor, classes: bool, growth: Growth, seeds: Sequence[int]) -> dict[str, Tensor]:
    """A forest for each task of which there is a label.

    Args:
        x: Inputs, ``(B, S)``.
        y: Labels, ``(B, T)``, NaN where missing; 0 and 1 for classes.
        classes: Whether labels are classes.
        growth: How to grow.
        seeds: T seeds: a task's forest does not depend on which other labels there are.

    Returns:
        Arrays; a forest's weight is its number of labels.
    """
    forests = []
    inputs = x.cpu().numpy().astype(np.float32)
    for task, seed in enumerate(seeds):
        labels = y[:, task].cpu().double().numpy()
        known = np.isfinite(labels)
        if known.any():
            forests.append(_one(inputs[known], labels[known], task, classes, growth, seed))
    return join(forests)


def _one(x: np.ndarray, y: Y, task: int, classes: bool, growth: Growth, seed: int) -> dict[str, Tensor]:
    forest = fitted(x, y, classes, growth, seed)
    column = list(forest.classes_).index(1) if classes and 1 in forest.classes_ else None if classes else 0
    trees = [tree_arrays(tree.tree_, column) for tree in forest.estimators_]
    sizes = [0, *(len(tree["feature"]) for tree in trees)]
    return {
        **{name: torch.from_numpy(np.concatenate([tree[name] for tree in trees])) for name in trees[0]},
        "tree_start": torch.tensor(sizes).cumsum(0),
        "forest_start": torch.tensor([0, len(trees)]),
        "forest_task": torch.tensor([task]),
        "forest_weight": torch.tensor([float(len(y))], dtype=torch.float64),
    }


def fitted(x: np.ndarray, y: Y, classes: bool, growth: Growth, seed: int) -> Any:
    """scikit-learn's forest of one task."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    options: dict[str, Any] = {
        "n_estimators": growth.num_trees,
        "min_samples_leaf": growth.min_samples_leaf,
        "n_jobs": growth.num_jobs,
        "random_state": seed,
        "max_features": growth.max_features or ("sqrt" if classes else 1.0),
    }
    if classes:
        return RandomForestClassifier(**options).fit(x, y.round().astype(np.int64))
    return RandomForestRegressor(**options).fit(x, y)


def tree_arrays(tree: Any, column: int | None) -> Mapping[str, np.ndarray]:
    """The nodes of one of scikit-learn's trees.

    Args:
        tree: ``tree_`` of an estimator.
        column: Place of the wanted output among its values; ``None``: it has seen no molecule of class 1.
    """
    leaf = tree.children_left < 0
    value = np.zeros(tree.node_count) if column is None else tree.value[:, 0, column]
    return {
        "feature": np.where(leaf, -1, tree.feature).astype(np.int32),
        "threshold": np.where(leaf, 0.0, tree.threshold).astype(np.float32),
        "left": tree.children_left.astype(np.int32),
        "right": tree.children_right.astype(np.int32),
        "value": np.where(leaf, value, 0.0).astype(np.float64),
    }
