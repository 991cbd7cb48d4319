"""Reading YAML files of plain values: nothing in them is executed or filled in. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

SECTIONS = ("seed_everything", "federation", "trainer", "model", "data")
# What other programs would fill in: `${...}` of OmegaConf and shells, and a shell's `~/` and `$NAME/` at the start of a path.
# (`~/` in the section `trainer` is the home folder: Lightning's loggers and callbacks say so.)
FILLED_IN = re.compile(r"\$\{[^}]*\}|^~/|^\$[A-Za-z_]\w*/")


class Loader(yaml.SafeLoader):
    """Safe, and reads ``1e-3`` as a number, as the command line does; PyYAML takes it for text."""


Loader.yaml_implicit_resolvers = {k: list(v) for k, v in yaml.SafeLoader.yaml_implicit_resolvers.items()}
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ValueError: If the file is absent, is not YAML, holds no mapping, or has a value that is to be filled in.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader)  # noqa: S506 (a SafeLoader)
    except OSError as error:
        raise ValueError(f"`{path}` cannot be read: {error.strerror}.") from error
    except yaml.MarkedYAMLError as error:
        at = f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: " if error.problem_mark else ""
        raise ValueError(f"`{path}` is not YAML: {at}{error.problem}.{_unquoted(path, error)}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"`{path}` is not YAML: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"`{path}` must hold `key: value` lines, but holds {type(content).__name__}.")
    check_plain(content, f"`{path}`: ")
    return content


def _unquoted(path: Path, error: yaml.MarkedYAMLError) -> str:
    """What to do about a ``${...}`` in the line of the mistake: between other braces it is the mistake."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if error.problem_mark is None or "${" not in "".join(lines[error.problem_mark.line : error.problem_mark.line + 1]):
        return ""
    return " `${...}` inside braces or brackets must be quoted, and it is not filled in here: write out what it stands for."


def check_plain(value: Any, where: str = "", key: str = "") -> None:
    """Is every value the value itself? What a program was to fill in would become the name of a folder or a column.

    Args:
        value: A text, or mappings and lists that hold texts.
        where: The file, for the error.
        key: The value's dotted key.

    Raises:
        ValueError: Naming the first key whose value has ``${...}``, or starts with ``~/`` or ``$NAME/``.
    """
    if isinstance(value, Mapping):
        for name, inner in value.items():
            check_plain(inner, where, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            check_plain(inner, where, key)
    elif isinstance(value, str) and (reason := filled_in(value, key, where)):
        raise ValueError(reason)


def filled_in(value: str, key: str, where: str = "") -> str:
    """Why this value cannot be what is meant, or nothing."""
    match, section = FILLED_IN.search(value), key.split(".")[0]
    if match is None or (match[0] == "~/" and section == "trainer"):
        return ""
    shell = "" if where else f' (on the command line the shell does: --{key} "$HOME/data")'
    return f"{where}`{key}` is `{value}`, but `{match[0]}` is not filled in here. Write it out{shell}."
