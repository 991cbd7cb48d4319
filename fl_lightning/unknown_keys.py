"""A key that does not exist: said with the keys that do, those that look like it first. Needs no torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def nearest(name: str, names: Iterable[str]) -> str:
    """`` Did you mean `...`?``, or nothing if no name is near."""
    close = difflib.get_close_matches(name, list(names), 1)
    return f" Did you mean `{close[0]}`?" if close else ""


def no_such_key(key: str, name: str, names: Sequence[str], owner: str = "") -> str:
    """The sentence about a key that does not exist.

    Args:
        key: The whole dotted key, as in YAML.
        name: Its part that is wrong.
        names: What may stand in that place.
        owner: The class that takes these names, for one that takes none.
    """
    close = difflib.get_close_matches(name, names)
    in_order = [*close, *(other for other in names if other not in close)]
    none = f" `{owner}` takes no arguments." if owner else ""
    return f"`{key}`: no such key.{nearest(name, names)}" + (f" There are: {', '.join(in_order)}." if names else none)


def first_unknown(section: str, given: Iterable[str], names: Sequence[str]) -> str:
    """The sentence about the first of ``given`` that is no key of a section, or nothing if all are."""
    return next((no_such_key(f"{section}.{name}", name, names) for name in given if name not in names), "")
