"""Reading `server.yaml` and `site.yaml`: plain values, paths relative to the file, unknown keys are errors."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.config_files import check_plain

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


def read_keys(path: Path, required: Collection[str], optional: Collection[str]) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ValueError: It is not there, is no mapping, lacks a key, has one that nobody knows, or a value that is to be filled in.
    """
    if not path.is_file():
        raise ValueError(f"`{path}` does not exist.")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"`{path}` is no YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"`{path}` must hold `key: value` lines.")
    check_plain(content, f"`{path}`: ")
    unknown = sorted(set(map(str, content)) - set(required) - set(optional))
    lacking = [key for key in required if content.get(key) is None]
    if unknown or lacking:
        parts = [f"lacks {', '.join(lacking)}"] * bool(lacking) + [f"has unknown {', '.join(unknown)}"] * bool(unknown)
        raise ValueError(f"`{path}` {' and '.join(parts)}; it may have: {', '.join([*required, *optional])}.")
    return content


def existing_file(path: Path, key: str, base: Path, value: str) -> Path:
    """``base / value``.

    Raises:
        ValueError: If no file is there.
    """
    found = base / value
    if not found.is_file():
        raise ValueError(f"`{path}`: `{key}: {value}`: no such file.")
    return found.resolve()


def address(path: Path, key: str, value: Any) -> str:
    """``host:port``.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(value, str) or not ADDRESS.fullmatch(value):
        raise ValueError(f"`{path}`: `{key}` must be `host:port`, got {value!r}.")
    return value


def name(path: Path, key: str, value: Any) -> str:
    """A site's name.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError(f"`{path}`: `{key}` must be letters, digits, `.`, `_` and `-`, got {value!r}.")
    return value
