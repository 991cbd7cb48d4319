"""Changes to a config: dotted keys as on the command line, merged into the plain values of a YAML file."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from fl_lightning.config_files import SECTIONS, Loader, check_plain


def nested(changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Dotted keys as nested mappings: ``{"data.init_args.name": "Cora"}`` is ``{"data": {"init_args": {"name": "Cora"}}}``.

    Args:
        changes: Keys of a config, dotted or not.
        where: What the changes belong to, for the error.

    Raises:
        ValueError: If a key belongs to none of a config's sections.
    """
    result: dict[str, Any] = {}
    for key, value in changes.items():
        parts = str(key).split(".")
        if parts[0] not in SECTIONS:
            raise ValueError(f"{where}: `{key}` is no key of a config; it must start with one of {', '.join(SECTIONS)}.")
        for part in reversed(parts[1:]):
            value = {part: value}
        result = merged(result, {parts[0]: value})
    return result


def leaves(changes: Mapping[str, Any], above: str = "") -> list[str]:
    """The dotted keys of all single values: ``{"data": {"class_path": "A"}, "trainer.max_steps": 3}`` has two."""
    found: list[str] = []
    for key, value in changes.items():
        found += leaves(value, f"{above}{key}.") if isinstance(value, Mapping) and value else [f"{above}{key}"]
    return found


def merged(base: Any, change: Any) -> Any:
    """``base`` with ``change``: mappings are merged key by key, all else is replaced.

    Another class takes none of the old one's arguments: a mapping whose ``class_path`` differs replaces the whole.
    """
    if not isinstance(change, Mapping) or not isinstance(base, Mapping):
        return copy.deepcopy(change)
    if "class_path" in change and change["class_path"] != base.get("class_path"):
        return copy.deepcopy(dict(change))
    result = {key: copy.deepcopy(value) for key, value in base.items()}
    for key, value in change.items():
        result[key] = merged(result.get(key), value)
    return result


def from_command_line(options: Sequence[str]) -> dict[str, Any]:
    """``["--data.init_args.root", "DATA", "--trainer.max_epochs=2"]`` as changes with dotted keys.

    Raises:
        ValueError: If an option is no config key, has no value, or one that is to be filled in.
    """
    changes: dict[str, Any] = {}
    rest = list(options)
    while rest:
        option = rest.pop(0)
        name, equals, value = option.partition("=")
        if not name.startswith("--") or name[2:].split(".")[0] not in SECTIONS:
            raise ValueError(
                f"Unknown option `{option}`. Options of `compare` itself are in `fl-lightning compare --help`; a config's keys "
                f"start with {', '.join('--' + s for s in SECTIONS)}."
            )
        if not equals:
            if not rest:
                raise ValueError(f"`{name}` needs a value.")
            value = rest.pop(0)
        changes[name[2:]] = yaml.load(value, Loader)  # noqa: S506 (a SafeLoader)
    check_plain(changes)
    return changes
