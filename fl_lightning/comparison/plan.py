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

from fl_lightning.comparison import checks
from fl_lightning.comparison.changes import merged, nested
from fl_lightning.config_files import load_yaml

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
    trials: int = 1
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


def read_plan(  # noqa: C901  one key after the other
    path: Path, profile: str | None = None, overrides: Mapping[str, Any] | None = None, seeds: Sequence[int] | None = None
) -> Plan:
    """Read a comparison.

    Args:
        path: The YAML file; see ``docs/compare.md`` for its keys.
        profile: One of its ``profiles``; default ``quick`` if there is one.
        overrides: Changes to all cells, from the command line.
        seeds: Instead of the YAML's.

    Raises:
        ValueError: If something in it is wrong, in the YAML's own names.
    """
    content = load_yaml(path)
    checks.keys(content, f"`{path}`")
    profiles = content.pop("profiles", None) or {}
    if profile is None:
        profile = "quick" if "quick" in profiles else next(iter(profiles), "default")
    if profile not in profiles and (profiles or profile != "default"):
        raise ValueError(f"`--profile {profile}`: `{path}` has {', '.join(map(str, profiles)) or 'no profiles'}.")
    own = profiles.get(profile) or {}
    checks.mapping(own, f"`profiles.{profile}`", "{seeds: [0], changes: {federation.num_rounds: 10}}")
    checks.keys(own, f"`profiles.{profile}`")
    content = checks.with_profile(content, own, f"profiles.{profile}")
    base = load_yaml(checks.base_path(content.get("base"), path))
    base = merged(base, nested({**ONE_PROCESS, "trainer.logger": False}, "defaults"))
    base = merged(base, nested(content.get("changes") or {}, "`changes`"))
    methods = {str(label): dict(value or {}) for label, value in (content.get("methods") or {}).items()}
    baselines = checks.baselines(content.get("baselines", list(BASELINES)), BASELINES)
    both = methods.keys() & baselines.keys()
    if both:
        raise ValueError(f"`methods` and `baselines` both have `{both.pop()}`; labels must differ.")
    if not methods and not baselines:
        raise ValueError(f"`{path}` has no `methods`.")
    seeds = checks.seeds(content.get("seeds", [0]) if seeds is None else list(seeds))
    reference = content.get("reference")
    if reference is not None and reference not in (*methods, *baselines):
        raise ValueError(f"`reference: {reference}` is no method; there are {', '.join((*methods, *baselines))}.")
    score = content.get("score", "auto")
    if score not in ("auto", "global", "clients"):
        raise ValueError(f"`score` must be `auto`, `global` or `clients`, but is {score!r}.")
    budget = checks.minutes(content.get("budget_minutes"))
    axes = {str(name): checks.axis(str(name), values) for name, values in (content.get("axes") or {}).items()}
    plan = Plan(
        str(content.get("name", path.stem)), profile, [], [], score, reference or next(iter(methods), None), budget, str(path)
    )
    seed_keys = content.get("seed_keys", ["seed_everything", "data.init_args.seed"])
    if not isinstance(seed_keys, list):
        raise ValueError(f"`seed_keys` must be a list of config keys, e.g. [seed_everything], but is `{seed_keys}`.")
    checks.overrides(overrides or {}, axes, {**methods, **baselines}, seed_keys)
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
    _all_differ([cell for cell in plan.cells if cell.method in methods])
    return plan


def _all_differ(cells: Sequence[Cell]) -> None:
    """The same run twice would be counted twice."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.hash, cell)
        if other is not cell:
            raise ValueError(
                f"`{other}` and `{cell}` are the same run: nothing differs in their configs. Look at `axes`, `methods` and "
                "`seed_keys`, or leave one out."
            )


def setting_label(setting: Mapping[str, str]) -> str:
    """A setting in words: ``Cora, clients 3`` (the axis ``data`` needs no name)."""
    return ", ".join(v if k == "data" else f"{k} {v}" for k, v in setting.items())


def _search(label: str, cell: Cell, given: Any) -> Search:
    options = checks.search(given, f"`methods.{label}.search`")
    return Search(cell, dict(options.pop("space")), **options)


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
