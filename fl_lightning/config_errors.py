"""What is wrong with a config, in one sentence: the key, what was found, what is allowed, and the nearest right name.

jsonargparse tells it as an indented tree of all that it tried, after a page of usage. The deepest branch of that tree is where
it came farthest, and so what the user meant.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_lightning.config_files import SECTIONS, filled_in, load_yaml
from fl_lightning.unknown_keys import nearest, no_such_key

PLAIN = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "list": "a list",
         "dict": "`key: value` lines", "NoneType": "null"}  # fmt: skip

CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
"""What stands below a key whose value is a class."""


def sentence(  # noqa: C901  one kind of message after the other
    error: argparse.ArgumentError, arguments: Sequence[str], parser: argparse.ArgumentParser, others: Sequence[str] = ()
) -> str:
    """What to tell the user.

    Args:
        error: What jsonargparse says.
        arguments: The command line.
        parser: Of the command, whose options may have been meant.
        others: Commands that the parser does not know.
    """
    message = str(error).strip()
    if match := re.match(r"unrecognized arguments: (\S+)", message):
        return _unknown_option(match[1], [o for a in _actions(parser) for o in a.option_strings])
    if match := re.match(r"the following arguments are required: (?:\w+\.)?(\w+)$", message):
        return f"`{match[1]}` is missing: give a config file that has it (`--config FILE`), or `--{match[1]} CLASS`."
    if match := re.match(r"Subcommand '\w+' does not accept option '([\w.]+)'", message):
        return _unknown_in_file(match[1], [a.dest for a in _actions(parser) if a.option_strings])
    if match := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
        commands = [*re.findall(r"\w+", match[2]), *others]
        return f"there is no command `{match[1]}`.{nearest(match[1], commands)} There are: {', '.join(commands)}."
    if message.startswith('expected "subcommand" to be one of'):  # where many are cut short
        commands = [name for action in _actions(parser) if action.dest == "subcommand" for name in action.choices or ()]
        return f"name a command first: fl-lightning {{{','.join([*commands, *others])}}} --config FILE."
    if match := re.match(r"argument (\S+): expected (?:one|at least one) argument", message):
        return f"`{match[1]}` needs a value."
    if match := re.match(r'Parser key "config": (.*)', message):
        return f"`--config`: {match[1]}."
    if message.startswith(("Problems parsing config", "Unexpected config")):
        for path in config_files(arguments):
            try:
                load_yaml(path)
            except ValueError as cause:
                return str(cause)
    return _from_tree(message.splitlines()) or " ".join(message.split())


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions  # noqa: SLF001  argparse lists its options nowhere else


def describe_mistake(error: BaseException) -> str:
    """What a class said of its arguments, without the list of types and values into which jsonargparse puts it."""
    while isinstance(error.__cause__, ValueError) and "Does not validate against any of the Union" in str(error):
        error = error.__cause__
    return str(error)


def config_files(arguments: Sequence[str]) -> list[Path]:
    """The files that a command line names with ``--config`` or ``-c``."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    return [Path(a.partition("=")[2] or after) for a, after in pairs if a.partition("=")[0] in ("--config", "-c")]


@dataclass(frozen=True)
class _Place:
    """A key, or the class whose arguments come below it, and how far its line is indented."""

    indent: int
    key: str = ""
    class_path: str = ""


def _from_tree(lines: Sequence[str]) -> str:
    places: list[_Place] = []
    deepest: list[_Place] = []
    said: list[str] = []
    found: dict[str, str] = {}
    bases: list[str] = []
    for line in lines:
        text = line.lstrip(" -")
        indent = len(line) - len(text)
        while places and places[-1].indent >= indent and text:
            places.pop()
        if match := re.match(r'Parser key "([\w.]+)":(.*)', text):
            places.append(_Place(indent, key=match[1]))
            text = match[2].strip()
        elif match := re.match(r"Problem with given class_path '([\w.]+)':", text):
            places.append(_Place(indent, class_path=match[1]))
            continue
        elif match := re.match(r"Given value: (.*)", text):
            found[_key(places)] = match[1]
        elif match := re.match(r"Subtypes: (.*)", text):
            bases = re.findall(r"<class '([\w.]+)'>", match[1])
        if not text or text.startswith(("Does not validate", "Subtypes:", "Errors:", "Given value", "Expected a path")):
            continue
        if len(places) > len(deepest):
            deepest, said = list(places), []
        if len(places) == len(deepest):
            said.append(text)
    return _about(deepest, said, found, bases) if deepest and said else ""


def _about(places: Sequence[_Place], said: Sequence[str], found: dict[str, str], bases: Sequence[str]) -> str:
    """The sentence about one place, from what was said of it; that it is no null and no list matters least."""
    key = _key(places)
    said = [text for text in said if not text.startswith("Expected a ")] or said
    text, value = said[0], found.get(key, "")
    class_path = places[-1].class_path
    if match := re.search(r"Option '([\w.]+)' is not accepted(?:.*class_path='([\w.]+)')?", text):
        return _not_accepted(key, match[1], match[2] or class_path, value)
    if text.startswith("Not a valid subclass of"):
        named = "must name a class: `class_path`, and below `init_args` its arguments"
        return _no_class_key(key, value) or filled_in(value, key) or f"`{key}` is `{value}`, but {named}."
    if match := re.match(r"module '([\w.]+)' has no attribute '(\w+)'", text):
        return f"`{key}`: `{match[1]}` has no class `{match[2]}`.{nearest(match[2], _public(match[1]))}"
    if match := re.match(r"No module named '([\w.]+)'", text):
        return f"`{key}`: there is no module `{match[1]}`, neither installed nor in the current folder."
    if match := re.match(r"Expected a dot import path string: (.*)", text):
        return f"`{key}`: `{match[1]}` is no class.{_classes(match[1], bases)}"
    if match := re.match(r"Import path (?:(\S+) )?does not correspond to a subclass of (\w+)", text):
        given = match[1] or class_path or value
        return f"`{key}`: `{given}` is no `{match[2]}`.{_classes('', [b for b in bases if b.endswith(match[2])])}"
    wanted = [match for t in said if (match := re.match(r"Expected an? (.*?)(?:\. Got value: (.*))?$", t))]
    if not wanted:
        return f"`{key}`: {'; '.join(dict.fromkeys(said))}"
    value = wanted[0][2] or value
    kinds = list(dict.fromkeys(kind for match in wanted for kind in _kinds(match[1])))
    allowed = " or ".join(filter(None, [", ".join(kinds[:-1]), kinds[-1]]))
    return filled_in(value, key) or f"`{key}` is `{value}`, but must be {allowed}."


def _not_accepted(key: str, option: str, class_path: str, value: str) -> str:
    """The sentence about an argument that a class does not take."""
    if _plain(class_path):
        return no_such_key(f"{key}.{option}", option, _parameters(class_path))
    return _no_class_key(key, value) or no_such_key(f"{key}.init_args.{option}", option, _parameters(class_path), class_path)


def _no_class_key(key: str, value: str) -> str:
    """The sentence about a key where a class should be named that is none of those that name it, or nothing."""
    given = None
    with suppress(ValueError, SyntaxError):
        given = ast.literal_eval(value)
    wrong = [name for name in given if name not in CLASS_KEYS] if isinstance(given, dict) else []
    if not wrong:
        return ""
    return no_such_key(f"{key}.{wrong[0]}", wrong[0], CLASS_KEYS[:2]) + " Arguments of the class are below `init_args`."


def _key(places: Sequence[_Place]) -> str:
    """The dotted key, as in YAML: the arguments of a class are below its `init_args`."""
    parts: list[str] = []
    for above, place in zip([_Place(0), *places], places, strict=False):
        if place.key:
            parts += ["init_args"] if above.class_path and not _plain(above.class_path) else []
            parts.append(place.key)
    return ".".join(parts)


def _kinds(text: str) -> list[str]:
    """A type in words; a ``typing.Literal['min', 'max']`` is two."""
    if match := re.match(r"typing\.Literal\[(.*)\]", text):
        return [f"`{choice}`" for choice in match[1].replace("'", "").split(", ")]
    name = re.sub(r"<class '([\w.]+)'>", r"\1", text).partition("[")[0]
    return [PLAIN.get(name, f"a `{name}`")]


def _unknown_in_file(key: str, keys: Sequence[str]) -> str:
    """The sentence about a key of a config file: the part that is wrong first, beside what may stand there."""
    known = [k for k in keys if k not in ("help", "config", "print_config")]
    above = ""
    for part in key.split("."):
        names = sorted({k.removeprefix(above).partition(".")[0] for k in known if k.startswith(above)})
        if part not in names:
            return no_such_key(above + part, part, names)
        above += f"{part}."
    return no_such_key(key, key, ())


def _unknown_option(option: str, options: Sequence[str]) -> str:
    name = option.partition("=")[0]
    section, dot, rest = name.partition(".")
    if not name.startswith("-"):
        return f"`{name}` is no option; every value follows the name of its key, such as `--data.init_args.root FOLDER`."
    sections = [o for o in options if "." not in o and o.startswith("--")]
    if section not in sections:
        close = difflib.get_close_matches(section, sections, 1, cutoff=0.75)
        known = ", ".join(f"--{s}" for s in SECTIONS)
        hint = f" Did you mean `{close[0]}{dot}{rest}`?" if close else f" Keys start with {known}."
    else:
        hint = nearest(name, options)
    return f"`{name}`: no such key.{hint} `--help` lists all."


def _loaded(class_path: str) -> Any:
    """The class, or ``None``: no suggestion is better than a second error."""
    module, _, name = class_path.rpartition(".")
    with suppress(ImportError, AttributeError, ValueError):
        return getattr(importlib.import_module(module), name)
    return None


def _plain(class_path: str) -> bool:
    """Whether the class's fields are keys themselves, without `init_args` (``federation:``)."""
    return dataclasses.is_dataclass(_loaded(class_path))


def _parameters(class_path: str) -> list[str]:
    """What the class takes; with `**kwargs` also what those take that it inherits from."""
    names: list[str] = []
    with suppress(TypeError, ValueError):
        for cls in inspect.getmro(_loaded(class_path)):
            given = inspect.signature(cls).parameters.values()
            names += [p.name for p in given if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
            if not any(p.kind == p.VAR_KEYWORD for p in given):
                break
    return list(dict.fromkeys(names))


def _public(module: str) -> list[str]:
    with suppress(ImportError):
        return [name for name in dir(importlib.import_module(module)) if not name.startswith("_")]
    return []


def _classes(name: str, bases: Sequence[str]) -> str:
    """The classes that are allowed: of this project, each under the name that its package exports."""
    known: dict[str, str] = {}
    waiting = [found for b in bases if inspect.isclass(found := _loaded(b)) and found is not type(None)]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        package = cls.__module__.rpartition(".")[0]
        if getattr(sys.modules.get(package), cls.__name__, None) is cls and not inspect.isabstract(cls):
            known[cls.__name__] = f"{package}.{cls.__name__}"
    close = difflib.get_close_matches(name, list(known), 1)
    own = sorted(path for path in known.values() if path.split(".")[0] in ("fl_lightning", "lit_models", "datamodules"))
    return f" Did you mean `{known[close[0]]}`?" if close else f" There are: {', '.join(own)}." if own else ""
