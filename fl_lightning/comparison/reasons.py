"""Why a run failed, in one line: what the command line says about a wrong key is a page, and its last line is no reason."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Iterable
from contextlib import suppress

# Lines of jsonargparse's tree of all that it tried, none of which says what is wrong.
SCAFFOLD = ("Parser key ", "Does not validate", "Subtypes: ", "Errors:", "Given value", "Problem with given class_path",
            "Expected a <class 'NoneType'>")  # fmt: skip


def complaint(text: str) -> str:
    """The reason that this output ends with: the key, what is wrong with it, and the nearest name that exists."""
    lines = [line.strip(" -") for line in text.splitlines() if line.strip(" -")]
    starts = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    if not starts:
        return lines[-1] if lines else "it ended without a word"
    lines = [lines[starts[-1]].removeprefix("error: "), *lines[starts[-1] + 1 :]]
    keys = [found[1] for line in lines if (found := re.match(r'Parser key "(.+)":$', line))]
    wrong = list(dict.fromkeys(line for line in lines if not line.startswith(SCAFFOLD)))
    if not keys or not wrong:
        return " ".join(lines)
    given = [line.removeprefix("Given value: ") for line in lines if line.startswith("Given value: ")]
    instead = f", found `{given[0]}`" if given and wrong[0].startswith("Expected") else ""
    classes = re.findall(r"Problem with given class_path '([\w.]+)'", "\n".join(lines))
    return f"`{'.'.join(keys)}`: {'; '.join(wrong)}{instead}{_suggestion(wrong[0], classes)}"


def nearest(name: str, names: Iterable[str]) -> str:
    """`` Did you mean `...`?``, or nothing if no name is near."""
    close = difflib.get_close_matches(name, list(names), 1)
    return f" Did you mean `{close[0]}`?" if close else ""


def _suggestion(wrong: str, classes: list[str]) -> str:
    names: list[str] = []
    name = ""
    with suppress(ImportError, AttributeError, TypeError, ValueError):  # no suggestion is better than no reason
        if found := re.match(r"module '([\w.]+)' has no attribute '(\w+)'", wrong):
            name, names = found[2], [n for n in dir(importlib.import_module(found[1])) if not n.startswith("_")]
        elif (found := re.match(r"Option '(\w+)' is not accepted", wrong)) and classes:
            module, _, last = classes[-1].rpartition(".")
            whole = getattr(importlib.import_module(module), last)
            name, names = found[1], [p for c in inspect.getmro(whole) for p in inspect.signature(c).parameters]
    hint = nearest(name, names)
    return f".{hint}" if hint else ""
