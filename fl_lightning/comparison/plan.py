"""A comparison's YAML, read into cells: one cell is one ``fl-lightning fit`` of a method, in a setting, with a seed.

A cell's config is the base config with, in this order: ``changes``, the setting's axes, the method, the seed, the command
line. Seeds come first in the order of cells, so that what a budget cuts off leaves whole seeds for paired differences.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fl_lightning.comparison.changes import load_yaml, merged, nested

LOCAL, CENTRAL = "LocalOnly", "Central"
BASELINES: dict[str, dict[str, Any]] = {
    LOCAL: {
        "federation.strategy": {"class_path": "fl_lightning.strategies.LocalOnly"},
        "federation.clients_per_round": 1.0,  # alone, nobody waits for its turn
    },
    CENTRAL: {},  # `--federation null`, see Cell.central
}
# Every cell is one process with one thread and no live view; the same bits as with worker processes.
ONE_PROCESS = {
    "federation.engine": {"class_path": "fl_lightning.engine.InProcess"},
    "federation.keep_last": 1,
    "trainer.enable_progress_bar": False,
}
SHORT_AXES = {"clients": "data.init_args.num_clients", "alpha": "data.init_args.alpha", "partition": "data.init_args.partition"}
KEYS = {
    "name", "base", "methods", "baselines", "axes", "changes", "seeds", "seed_keys", "score", "reference", "budget_minutes",
    "profiles",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        setting: Label of each axis.
        method: Label of the method.
        seed: The seed.
        config: The whole config.
        central: Train with ``--federation null``: the baseline on the pooled data.
        trial: Values of a search's trial, else ``None``.
    """

    setting: dict[str, str]
    method: str
    seed: int
    config: dict[str, Any]
    central: bool = False
    trial: dict[str, Any] | None = None

    @property
    def hash(self) -> str:
        """SHA-256 over all that the result depends on; where the data files lie is not part of it."""
        content = json.loads(json.dumps([self.config, self.central]))
        (content[0].get("data", {}).get("init_args") or {}).pop("root", None)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def path(self) -> Path:
        """The cell's folder, below the comparison's."""
        setting = "-".join(k if v == k else f"{k}_{v}" for k, v in self.setting.items()) or "all"
        parts = [_slug(setting), _slug(self.method), *(["trials"] if self.trial is not None else [])]
        return Path("runs", *parts, f"seed_{self.seed}_{self.hash[:10]}")

    @property
    def key(self) -> str:
        """Names the cell in its comparison."""
        return str(self.path)

    def __str__(self) -> str:
        trial = "" if self.trial is None else " | " + ", ".join(f"{k.split('.')[-1]} {v}" for k, v in self.trial.items())
        return " | ".join([*([setting_label(self.setting)] if self.setting else []), self.method, f"seed {self.seed}"]) + trial


@dataclass(frozen=True)
class Search:
    """A method whose hyper-parameters are chosen on validation data, for each setting and seed anew.

    Attributes:
        cell: The method with its defaults.
        space: Choices of each key (a list), or ``{low, high, log}`` of a range.
        sampler: ``grid``, ``random`` or ``tpe``.
        trials: Number of trials; for ``grid`` all combinations.
        batch: Trials proposed together; the next ones know the results of all batches before.
        prune: Stop trials that fall behind the median of earlier batches at the same round.
        warm_up: Rounds (validations) before a trial can be stopped.
    """

    cell: Cell
    space: dict[str, Any]
    sampler: str = "tpe"
    trials: int | None = None
    batch: int = 4
    prune: bool = True
    warm_up: int = 3


@dataclass
class Plan:
    """What a comparison's YAML asks for, with one profile applied."""

    name: str
    profile: str
    cells: list[Cell]
    searches: list[Search]
    score: str = "auto"
    reference: str | None = None
    budget_minutes: float | None = None
    source: str = ""
    skipped: list[str] = field(default_factory=list)


def read_plan(path: Path, profile: str | None = None, overrides: Mapping[str, Any] | None = None) -> Plan:
    """Read a comparison.

    Args:
        path: The YAML file; see ``docs/compare.md`` for its keys.
        profile: One of its ``profiles``; default ``quick`` if there is one.
        overrides: Changes to all cells, from the command line.

    Raises:
        ValueError: If something in it is wrong, in the YAML's own names.
    """
    content = load_yaml(path)
    profiles = content.pop("profiles", None) or {}
    if profile is None:
        profile = "quick" if "quick" in profiles else next(iter(profiles), "default")
    if profile not in profiles and profile != "default":
        raise ValueError(f"`--profile {profile}`: `{path}` has {', '.join(profiles) or 'no profiles'}.")
    content = _with_profile(content, profiles.get(profile) or {}, f"profiles.{profile}")
    for key in content:
        if key not in KEYS:
            raise ValueError(f"`{path}`: unknown key `{key}`; a comparison has {', '.join(sorted(KEYS))}.")
    if "base" not in content:
        raise ValueError(f"`{path}` needs `base:`, a config of `fl-lightning fit`.")
    base = load_yaml(path.parent / content["base"])
    base = merged(base, nested({**ONE_PROCESS, "trainer.logger": False}, "defaults"))
    base = merged(base, nested(content.get("changes") or {}, "`changes`"))
    methods = {label: dict(value or {}) for label, value in (content.get("methods") or {}).items()}
    baselines = _baselines(content.get("baselines", list(BASELINES)))
    both = methods.keys() & baselines.keys()
    if both:
        raise ValueError(f"`methods` and `baselines` both have `{both.pop()}`; labels must differ.")
    if not methods and not baselines:
        raise ValueError(f"`{path}` has no `methods`.")
    seeds = content.get("seeds", [0])
    if not isinstance(seeds, list) or not seeds or not all(type(s) is int for s in seeds) or len(set(seeds)) < len(seeds):
        raise ValueError(f"`seeds` must be a list of different whole numbers, e.g. [0, 1, 2], but is {seeds}.")
    reference = content.get("reference")
    if reference is not None and reference not in (*methods, *baselines):
        raise ValueError(f"`reference: {reference}` is no method; there are {', '.join((*methods, *baselines))}.")
    score = content.get("score", "auto")
    if score not in ("auto", "global", "clients"):
        raise ValueError(f"`score` must be `auto`, `global` or `clients`, but is {score!r}.")
    budget = content.get("budget_minutes")
    if budget is not None and not (isinstance(budget, int | float) and budget > 0):
        raise ValueError(f"`budget_minutes` must be a positive number, but is {budget!r}.")
    axes = {name: _axis(name, values) for name, values in (content.get("axes") or {}).items()}
    plan = Plan(
        str(content.get("name", path.stem)), profile, [], [], score, reference or next(iter(methods), None), budget, str(path)
    )
    seed_keys = content.get("seed_keys", ["seed_everything", "data.init_args.seed"])
    last = nested(overrides or {}, "command line")
    for seed, labels in itertools.product(seeds, itertools.product(*axes.values())):
        config = base
        for name, label in zip(axes, labels, strict=True):
            config = merged(config, nested(axes[name][label], f"`axes.{name}.{label}`"))
        for label, changes in {**methods, **baselines}.items():
            search = changes.get("search")
            own = nested({k: v for k, v in changes.items() if k != "search"}, f"`methods.{label}`")
            whole = merged(merged(config, own), nested({key: seed for key in seed_keys}, "`seed_keys`"))
            cell = Cell(
                dict(zip(axes, labels, strict=True)),
                label,
                seed,
                merged(whole, last),
                central=label == CENTRAL and label in baselines,
            )
            if search is None:
                plan.cells.append(cell)
            else:
                plan.searches.append(_search(label, cell, search))
    return plan


def setting_label(setting: Mapping[str, str]) -> str:
    """A setting in words: ``Cora, clients 3`` (the axis ``data`` needs no name)."""
    return ", ".join(v if k == "data" else f"{k} {v}" for k, v in setting.items())


def _with_profile(content: dict[str, Any], profile: dict[str, Any], where: str) -> dict[str, Any]:
    """``changes`` and ``methods`` are merged; an axis may be narrowed to some labels; all else is replaced."""
    result = dict(content)
    for key, value in profile.items():
        if key == "changes":
            result[key] = {**(content.get(key) or {}), **value}
        elif key == "methods":
            result[key] = {label: {**(own or {}), **(value.get(label) or {})} for label, own in content["methods"].items()}
            unknown = value.keys() - content["methods"].keys()
            if unknown:
                raise ValueError(f"`{where}.methods`: `{unknown.pop()}` is not in `methods`.")
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
        raise ValueError(
            f"`{where}.axes.{name}`: `{unknown[0]}` is not in `axes.{name}`, which has {', '.join(map(str, whole))}."
        )
    return {label: whole[label] for label in value}


def _axis(name: str, values: Any) -> dict[str, dict[str, Any]]:
    """Changes by label. Short forms: lists for `clients`, `alpha`, `partition`; `rounds: {total_steps, values}`."""
    if name == "rounds" and isinstance(values, dict) and values.keys() == {"total_steps", "values"}:
        total = values["total_steps"]
        return {str(r): {"federation.num_rounds": r, "trainer.max_steps": total // r} for r in values["values"]}
    if name in SHORT_AXES and isinstance(values, list):
        return {str(value): {SHORT_AXES[name]: value} for value in values}
    if isinstance(values, dict) and all(isinstance(v, dict) for v in values.values()) and values:
        return {str(label): changes for label, changes in values.items()}
    raise ValueError(
        f"`axes.{name}` must map labels to changes, e.g. `{{Cora: {{data.init_args.name: Cora}}}}`; "
        f"lists are for {', '.join(SHORT_AXES)}, and `rounds` takes `{{total_steps: 10000, values: [15, 30, 50]}}`."
    )


def _baselines(given: Any) -> dict[str, dict[str, Any]]:
    given = {} if given in (None, False) else {label: {} for label in given} if isinstance(given, list) else given
    for label in given:
        if label not in BASELINES:
            raise ValueError(f"`baselines` may have {', '.join(BASELINES)}, not `{label}`; put it under `methods`.")
    return {label: {**BASELINES[label], **(changes or {})} for label, changes in given.items()}


def _search(label: str, cell: Cell, given: Any) -> Search:
    where = f"`methods.{label}.search`"
    allowed = {"space", "sampler", "trials", "batch", "prune", "warm_up"}
    if not isinstance(given, dict) or not given.get("space"):
        raise ValueError(f"{where} needs `space:`, e.g. `{{model.init_args.objective.init_args.gamma: [0.5, 1, 2]}}`.")
    if given.keys() - allowed:
        raise ValueError(f"{where}: unknown key `{(given.keys() - allowed).pop()}`; it has {', '.join(sorted(allowed))}.")
    sampler = given.get("sampler", "grid")
    if sampler not in ("grid", "random", "tpe"):
        raise ValueError(f"{where}: `sampler` must be `grid`, `random` or `tpe`, but is {sampler!r}.")
    nested(given["space"], where)
    for key, values in given["space"].items():
        if isinstance(values, list) and values:
            continue
        if isinstance(values, dict) and {"low", "high"} <= values.keys() <= {"low", "high", "log"} and sampler != "grid":
            continue
        raise ValueError(f"{where}: `{key}` needs a list of values, or for `random` and `tpe` `{{low, high, log: true}}`.")
    if sampler != "grid" and not given.get("trials"):
        raise ValueError(f"{where}: `sampler: {sampler}` needs `trials`, a number.")
    combinations = None
    if sampler == "grid":
        combinations = 1
        for values in given["space"].values():
            combinations *= len(values)
    options = {k: v for k, v in given.items() if k not in ("space", "sampler", "trials")}
    return Search(cell, dict(given["space"]), sampler, combinations or given["trials"], **options)


def trial_cell(cell: Cell, values: Mapping[str, Any]) -> Cell:
    """The cell of one trial: the search's cell with these values."""
    config = merged(cell.config, nested(values, "search"))
    return Cell(cell.setting, cell.method, cell.seed, config, cell.central, dict(values))


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+=-]+", "_", text).strip("._") or "x"


def describe(plan: Plan) -> Sequence[str]:
    """One line for each cell and search, in order."""
    lines = [str(cell) for cell in plan.cells]
    return lines + [f"{s.cell} | search: {s.sampler}, {s.trials} trials" for s in plan.searches]
