"""What a run was given from Python, as plain values in the form of a config: ``class_path`` and ``init_args``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

LONGEST = 100  # entries of a list; what is longer are data, not settings
HEAD = "# Written by a run that was started from Python: what it was given, as plain values. Objects by their arguments.\n"


def given(value: Any, depth: int = 6) -> Any:
    """A value as plain ones: an object by its class and those arguments of its constructor that it still knows."""
    if value is None or isinstance(value, bool | int | float | str | Enum | Path):
        return _plain(value)
    if depth == 0:
        return type(value).__name__
    if isinstance(value, Mapping):
        return {str(k): given(v, depth - 1) for k, v in value.items() if not str(k).startswith("_")}
    if isinstance(value, list | tuple | set | frozenset) and len(value) <= LONGEST:
        return [given(v, depth - 1) for v in value]
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, functools.partial):
        return {"class_path": _name(value.func), "init_args": given(value.keywords, depth - 1)}
    if isinstance(value, type) or inspect.isroutine(value):
        return _name(value)
    return {"class_path": _name(type(value)), "init_args": arguments(value, depth - 1)}


def _plain(value: Any) -> Any:
    """As YAML takes it: of what only derives from a plain type (NumPy's float64, an Enum of texts), the plain value."""
    if isinstance(value, Enum):
        return given(value.value)
    if isinstance(value, Path):
        return str(value)
    return next((kind(value) for kind in (bool, int, float, str) if isinstance(value, kind)), None)


def arguments(thing: Any, depth: int = 6) -> dict[str, Any]:
    """The constructor's arguments of an object, from its ``hparams`` or its attributes of the same names."""
    known = dict(getattr(thing, "hparams", {}))
    found = {name: given(value, depth) for name, value in known.items() if not str(name).startswith("_")}
    for name, parameter in _parameters(type(thing)).items():
        if name == "self" or name in found or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        value = getattr(thing, name, parameter.empty)
        if value is not parameter.empty and not inspect.ismethod(value):
            found[name] = given(value, depth)
    return found


def _parameters(kind: type[Any]) -> Mapping[str, inspect.Parameter]:
    """Of a constructor; none where it says nothing of them, as many that are written in C++ (RDKit's molecules)."""
    try:
        return inspect.signature(kind.__init__).parameters
    except ValueError:
        return {}


def run_config(seed: int, federation: Any, trainer: Mapping[str, Any], module: Any, data: Any) -> dict[str, Any]:
    """The whole config of a run.

    Args:
        seed: Its seed.
        federation: Its ``FederationSettings``.
        trainer: Arguments of ``lightning.Trainer``.
        module: The module.
        data: The data module, or a list of the clients'.
    """
    clients = data if isinstance(data, Sequence) else None
    return {
        "seed_everything": seed,
        "federation": {f.name: given(getattr(federation, f.name)) for f in fields(federation)},
        "trainer": given(trainer),
        "model": given(module),
        "data": given(data) if clients is None else {
            "class_path": _name(type(clients[0])), "clients": [arguments(client) for client in clients[:LONGEST]],
        },
    }  # fmt: skip


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Write config.yaml."""
    path.write_text(HEAD + yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True), encoding="utf-8")


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__name__)}".lstrip(".")
