"""What learning-rate schedulers move: numbers of their own, and hyperparameters of parameter groups."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
from torch import Tensor


def groups_of(trainer: L.Trainer) -> list[list[dict[str, Any]]]:
    """Hyperparameters of each optimiser's parameter groups."""
    return [
        [{name: copy.deepcopy(value) for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        for optimizer in trainer.optimizers
    ]


def set_groups(trainer: L.Trainer, kept: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Inverse of :func:`groups_of`, for optimisers over the same groups."""
    for optimizer, groups in zip(trainer.optimizers, kept, strict=True):
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            for name, value in values.items():
                group[name] = tuple(value) if isinstance(group.get(name), tuple) else copy.deepcopy(value)


def moving_numbers(state: Mapping[str, Any]) -> dict[str, Any]:
    """Those parts of a state that move from step to step, as JSON: numbers, lists of numbers, and schedulers within."""
    found: dict[str, Any] = {}
    for name, value in state.items():
        plain = [float(x) if hasattr(x, "item") else x for x in value] if isinstance(value, list | tuple) else value
        if isinstance(plain, list) and plain and all(isinstance(x, Mapping) for x in plain):
            found[name] = [moving_numbers(x) for x in plain]
        elif isinstance(plain, list) and all(isinstance(x, int | float) for x in plain):
            found[name] = plain
        elif plain is None or isinstance(plain, int | float):
            found[name] = plain
        elif isinstance(plain, Tensor) and plain.numel() == 1:
            found[name] = plain.item()
    return found


def with_numbers(state: Mapping[str, Any], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """A state in which the moving parts are ``numbers``."""
    merged = dict(state)
    for name, value in numbers.items():
        own = merged.get(name)
        if isinstance(own, list) and own and all(isinstance(x, Mapping) for x in own):
            merged[name] = [with_numbers(x, n) for x, n in zip(own, value, strict=True)]
        else:
            merged[name] = tuple(value) if isinstance(own, tuple) else value
    return merged
