"""A comparison's YAML in its parts: each is checked for its shape, and mistakes are said in the YAML's own names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_lightning.comparison.changes import leaves, nested
from fl_lightning.config_files import SECTIONS
from fl_lightning.unknown_keys import nearest

MAPPINGS = {  # keys whose value maps labels or config keys to something, with an example
    "methods": "{FedAvg: {}, FedAvg with momentum: {model.init_args.optimizer.init_args.momentum: 0.9}}",
    "axes": "{clients: [3, 5, 10]}",
    "changes": "{federation.num_rounds: 10}",
    "profiles": "{quick: {seeds: [0]}, full: {}}",
}
KEYS = {*MAPPINGS, "name", "base", "baselines", "seeds", "seed_keys", "score", "reference", "budget_minutes"}
SHORT_AXES = {"clients": "data.init_args.num_clients", "alpha": "data.init_args.alpha", "partition": "data.init_args.partition"}
ROOT = "data.init_args.root"
SEARCH = {"space", "sampler", "trials", "batch", "prune", "warm_up"}


def keys(content: Mapping[Any, Any], where: str) -> None:
    """Only known keys, and mappings where mappings belong.

    Raises:
        ValueError: Naming the first mistake.
    """
    unknown = [key for key in content if key not in KEYS]
    if unknown and set(unknown) <= set(SECTIONS):
        raise ValueError(
            f"{where} is a config of `fl-lightning fit`, not a comparison: it has `{unknown[0]}`. Write a comparison that "
            "names it, e.g. `base: fedavg.yaml` and `methods: {FedAvg: {}}`; see docs/compare.md."
        )
    if unknown:
        hint = nearest(str(unknown[0]), KEYS)
        raise ValueError(f"{where}: unknown key `{unknown[0]}`; a comparison has {', '.join(sorted(KEYS))}.{hint}")
    for key, example in MAPPINGS.items():
        mapping(content.get(key), f"{where}: `{key}`", example)
    for label, changes in (content.get("methods") or {}).items():
        mapping(changes, f"{where}: `methods.{label}`", "{federation.num_rounds: 10}, or {} for the base as it is")


def mapping(value: Any, what: str, example: str) -> None:
    """Nothing, or a mapping."""
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{what} must be a mapping, e.g. `{example}`, but is `{value}`.")


def with_profile(content: dict[str, Any], profile: dict[str, Any], where: str) -> dict[str, Any]:
    """``changes`` and ``methods`` are merged; an axis may be narrowed to some labels; all else is replaced."""
    result = dict(content)
    for key, value in profile.items():
        if key == "changes":
            result[key] = {**(content.get(key) or {}), **(value or {})}
        elif key == "methods":
            known = content.get("methods") or {}
            unknown = [label for label in value if label not in known]
            if unknown:
                raise ValueError(f"`{where}.methods`: `{unknown[0]}` is not in `methods`, which has {_list(known)}.")
            result[key] = {label: {**(own or {}), **(value.get(label) or {})} for label, own in known.items()}
        elif key == "axes":
            result[key] = {**(content.get(key) or {}), **{n: _narrow(content, n, v, where) for n, v in value.items()}}
        else:
            result[key] = value
    return result


def _narrow(content: dict[str, Any], name: str, value: Any, where: str) -> Any:
    whole = (content.get("axes") or {}).get(name)
    if not isinstance(whole, dict) or not isinstance(value, list) or "values" in whole:
        return value
    unknown = [label for label in value if label not in whole]
    if unknown:
        raise ValueError(f"`{where}.axes.{name}`: `{unknown[0]}` is not in `axes.{name}`, which has {_list(whole)}.")
    return {label: whole[label] for label in value}


def axis(name: str, values: Any) -> dict[str, dict[str, Any]]:
    """Changes by label. Short forms: lists for `clients`, `alpha`, `partition`; `rounds: {total_steps, values}`."""
    if name == "rounds" and isinstance(values, dict) and values.keys() == {"total_steps", "values"}:
        total, rounds = values["total_steps"], values["values"]
        if type(total) is not int or not isinstance(rounds, list) or not all(type(r) is int and 0 < r <= total for r in rounds):
            raise ValueError(
                "`axes.rounds` needs whole numbers, and at least one step a round, e.g. "
                f"`{{total_steps: 10000, values: [15, 30, 50]}}`, but is `{values}`."
            )
        return {str(r): {"federation.num_rounds": r, "trainer.max_steps": total // r} for r in rounds}
    if name in SHORT_AXES and isinstance(values, list) and values:
        return {str(value): {SHORT_AXES[name]: value} for value in values}
    if isinstance(values, dict) and all(isinstance(v, dict) for v in values.values()) and values:
        return {str(label): changes for label, changes in values.items()}
    hint = nearest(name, [*SHORT_AXES, "rounds"]) if name not in SHORT_AXES else ""
    raise ValueError(
        f"`axes.{name}` must map labels to changes, e.g. `{{Cora: {{data.init_args.name: Cora}}}}`; "
        f"lists are for {', '.join(SHORT_AXES)}, and `rounds` takes `{{total_steps: 10000, values: [15, 30, 50]}}`.{hint}"
    )


def baselines(given: Any, known: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The baselines asked for, by label, each with its own and the user's changes."""
    if isinstance(given, str):
        given = [given]
    given = {} if given in (None, False) else {label: {} for label in given} if isinstance(given, list) else given
    mapping(given, "`baselines`", "{LocalOnly: {}, Central: {}}")
    for label, changes in given.items():
        if label not in known:
            raise ValueError(f"`baselines` may have {', '.join(known)}, not `{label}`; put it under `methods`.")
        mapping(changes, f"`baselines.{label}`", "{federation.num_rounds: 10}")
    return {label: {**known[label], **(changes or {})} for label, changes in given.items()}


def seeds(given: Any) -> list[int]:
    """Different whole numbers, not negative (they seed NumPy too)."""
    sound = isinstance(given, list) and given and all(type(s) is int and s >= 0 for s in given)
    if not sound or len(set(given)) < len(given):
        raise ValueError(f"`seeds` must be a list of different whole numbers from 0, e.g. [0, 1, 2], but is {given}.")
    return given


def minutes(given: Any, name: str = "budget_minutes") -> float | None:
    """A positive number, or nothing."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not (0 < given < math.inf):
        raise ValueError(f"`{name}` must be a positive number of minutes, but is {given!r}; leave it out for no limit.")
    return float(given)


def search(given: Any, where: str) -> dict[str, Any]:  # noqa: C901  one check after the other
    """The options of a search, ``trials`` counted for a grid."""
    if not isinstance(given, dict) or not given.get("space") or not isinstance(given["space"], dict):
        raise ValueError(f"{where} needs `space:`, e.g. `{{model.init_args.objective.init_args.gamma: [0.5, 1, 2]}}`.")
    unknown = sorted(given.keys() - SEARCH)
    if unknown:
        hint = nearest(unknown[0], SEARCH)
        raise ValueError(f"{where}: unknown key `{unknown[0]}`; it has {', '.join(sorted(SEARCH))}.{hint}")
    sampler = given.get("sampler", "grid")
    if sampler not in ("grid", "random", "tpe"):
        raise ValueError(f"{where}: `sampler` must be `grid`, `random` or `tpe`, but is {sampler!r}.")
    nested(given["space"], where)
    for key, values in given["space"].items():
        if isinstance(values, list) and values:
            continue
        if sampler == "grid" or not _is_range(values):
            raise ValueError(
                f"{where}: `{key}` needs a list of values, or for `random` and `tpe` a range from below to above, "
                f"`{{low: 0.001, high: 1.0, log: true}}` (log: above 0), but is `{values}`."
            )
    if sampler != "grid" and "trials" not in given:
        raise ValueError(f"{where}: `sampler: {sampler}` needs `trials`, a number.")
    for key, least in (("trials", 1), ("batch", 1), ("warm_up", 0)):
        if key in given and (type(given[key]) is not int or given[key] < least):
            raise ValueError(f"{where}: `{key}` must be a whole number from {least}, but is {given[key]!r}.")
    if not isinstance(given.get("prune", True), bool):
        raise ValueError(f"{where}: `prune` must be true or false, but is {given['prune']!r}.")
    trials = math.prod(len(v) for v in given["space"].values()) if sampler == "grid" else given["trials"]
    return {**given, "sampler": sampler, "trials": trials}


def _is_range(values: Any) -> bool:
    if not isinstance(values, dict) or not {"low", "high"} <= values.keys() <= {"low", "high", "log"}:
        return False
    low, high = values["low"], values["high"]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (low, high))
    return numbers and low < high and (low > 0 or not values.get("log"))


def overrides(
    given: Mapping[str, Any],
    axes: Mapping[str, Mapping[str, dict[str, Any]]],
    methods: Mapping[str, Mapping[str, Any]],
    seed_keys: Sequence[str],
) -> None:
    """Refuse options of the command line that would make the table's labels wrong.

    Args:
        given: Options, as dotted keys.
        axes: Changes by axis and label. Nothing of them may be replaced but where the files lie.
        methods: Changes by method or baseline. What these set may be refined (a wider encoder for all), not replaced.
        seed_keys: Keys that a seed sets.
    """
    sets = [(f"axes.{name}.{label}", key) for name, own in axes.items() for label, c in own.items() for key in leaves(c)]
    sets = [(where, key) for where, key in sets if key != ROOT]
    sets += [(f"methods.{label}", str(key)) for label, changes in methods.items() for key in changes if key != "search"]
    for option in given:
        for key in seed_keys:
            if _covers(option, key):
                raise ValueError(f"`--{option}` would give every seed the same `{key}`; use `--seeds 0 1 2`.")
        for where, key in sets:
            if _covers(option, key):
                raise ValueError(
                    f"`--{option}` would replace what `{where}` sets, and its label would be wrong. Change it in the YAML: "
                    "`changes` are for all runs, axes and methods come after them."
                )


def _covers(option: str, key: str) -> bool:
    return key == option or key.startswith(f"{option}.")


def _list(known: Mapping[Any, Any]) -> str:
    return ", ".join(map(str, known)) or "nothing"


def base_path(given: Any, path: Path) -> Path:
    """Where the base config lies."""
    if not isinstance(given, str):
        what = "" if given is None else f", but `base` is `{given}`"
        raise ValueError(f"`{path}` needs `base:`, the path of a config of `fl-lightning fit`, seen from its own folder{what}.")
    return path.parent / given
