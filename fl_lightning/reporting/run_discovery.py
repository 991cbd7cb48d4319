"""Finds finished runs, below folders or in comparisons, and gives each its place: method, setting, seed.

Nothing is left out silently: runs that have not finished, broken files, failures of a comparison and runs that a newer one
replaces each give a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.reporting.finished import Run, checked_results, load, read_json

MANIFEST = "comparison.json"
NOT_A_SETTING = {"seed", "root"}
BEGUN = ("ledger.jsonl", "metrics.csv")  # files that a run writes from its first round on


def find_runs(places: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Runs in these places: a run's folder, a comparison's folder, or any folder above runs.

    Runs of a comparison have its labels (and unchosen trials of its searches are left out). Of others, the method is the
    strategy with its objective, and the setting whatever differs, between runs on the same data, in ``data`` and in the amount
    of work. A central run has no rounds; it belongs to every setting with the same data.

    Returns:
        The runs, and a line for each folder that was left out.
    """
    labelled: list[Run] = []
    loose: list[tuple[Path, dict[str, Any], dict[str, Any]]] = []
    problems: list[str] = []
    manifests: dict[Path, dict[str, Any]] = {}
    for folder in _folders(places, problems):
        try:
            above = _comparison(folder, manifests)
            if above is None:
                loose.append((folder, checked_results(folder), _read_config(folder)))
                continue
            own = [run for run in manifests[above]["runs"] if (above / run["folder"]).resolve() == folder]
            # What it does not list is an unchosen trial, or a run of an older version of its YAML.
            labelled += [load(folder, r["setting"], r["method"], r["seed"], above / r["data"]) for r in own]
        except ValueError as error:
            problems.append(str(error))
    for manifest in manifests.values():
        problems += [str(line) for key in ("failed", "left") for line in manifest.get(key) or []]
    listed = [(above / run["folder"]).resolve() for above, manifest in manifests.items() for run in manifest["runs"]]
    labelled.sort(key=lambda run: listed.index(run.folder))  # methods and settings in the order of the comparison
    return _newest(labelled, problems) + _newest(_label(loose), problems), problems


def read_report_options(places: Sequence[Path]) -> dict[str, Any]:
    """What one comparison's folder says of its report: ``score``, ``reference``, ``trials``; nothing of other places."""
    manifest = read_json(places[0] / MANIFEST) if len(places) == 1 else None
    keys = ("score", "reference", "trials")
    return {k: manifest[k] for k in keys if k in manifest} if isinstance(manifest, dict) else {}


def _folders(places: Sequence[Path], problems: list[str]) -> list[Path]:
    """Folders with a results.json, each once; a line for each place without, and each run that has none."""
    found: dict[Path, None] = {}
    for place in places:
        if not place.exists():
            problems.append(f"`{place}` does not exist.")
            continue
        if not place.is_dir() and place.name != "results.json":
            problems.append(f"`{place}` is a file; name the run's folder.")
            continue
        finished = sorted(p.parent for p in place.rglob("results.json")) if place.is_dir() else [place.parent]
        begun = {p.parent for name in BEGUN for p in place.rglob(name)} - set(finished) if place.is_dir() else set()
        begun = {run for run in begun if not any((above / MANIFEST).is_file() for above in run.parents)}  # these it lists
        problems += [f"`{run}` has no results.json: the run has not finished." for run in sorted(begun)]
        if not finished and not begun:
            problems.append(f"`{place}` holds no results.json: no finished run is in it.")
        found |= dict.fromkeys(folder.resolve() for folder in finished)
    return list(found)


def _comparison(folder: Path, manifests: dict[Path, dict[str, Any]]) -> Path | None:
    """The comparison's folder that a run is in, its manifest read into ``manifests``; ``None`` outside of one."""
    for above in folder.parents:
        if above in manifests:
            return above
        manifest = read_json(above / MANIFEST)
        if manifest is not None:
            keys = {"folder", "setting", "method", "seed", "data"}
            runs = manifest.get("runs") if isinstance(manifest, dict) else None
            if not isinstance(runs, list) or not all(isinstance(run, dict) and keys <= run.keys() for run in runs):
                raise ValueError(f"`{above / MANIFEST}` is not that of a comparison: its `runs` are missing or wrong.")
            manifests[above] = manifest
            return above
    return None


def _newest(runs: Sequence[Run], problems: list[str]) -> list[Run]:
    """One run for each place in the tables: the newest; the others are named."""
    kept: dict[tuple, Run] = {}
    for run in runs:
        key = (tuple(run.setting.items()), run.method, run.seed, run.metric)
        if key in kept:
            older, run = sorted((kept[key], run), key=lambda r: (r.folder / "results.json").stat().st_mtime)
            problems.append(f"`{older.folder}` left out: `{run.folder}` is a newer run of this method, setting and seed.")
        kept[key] = run
    return list(kept.values())


def _label(loose: Sequence[tuple[Path, dict[str, Any], dict[str, Any]]]) -> list[Run]:
    """Methods and settings of runs that belong to no comparison, from their config.yaml."""
    facts = [_data_facts(config) for *_, config in loose]
    differing = _differing(facts)
    given = [{k: str(fact[k]) for k in differing if k in fact} for fact in facts]
    whole = [dict(items) for items in dict.fromkeys(tuple(g.items()) for g in given if len(g) == len(differing))]
    labelled = []
    for (folder, results, config), fact, own in zip(loose, facts, given, strict=True):
        fixed = {k: str(v) for k, v in fact.items() if k not in differing}
        settings = [s for s in whole if own.items() <= s.items()] or [{k: own.get(k, "-") for k in differing}]
        labelled += [Run(folder, s, _method(config, results), results["seed"], results, fixed=fixed) for s in settings]
    names: dict[tuple, set[str]] = {}
    for run in labelled:
        names.setdefault((*run.setting.values(), run.method, run.seed), set()).add(str(run.results.get("name")))
    # Where runs differ in their name only, all runs of the method bear it.
    several = {method for (*_, method, _), found in names.items() if len(found) > 1}
    for run in labelled:
        if run.method in several:
            run.method = f"{run.method} ({run.results.get('name')})"
    return labelled


def _differing(facts: Sequence[dict[str, Any]]) -> list[str]:
    """What makes a setting: the data, if there are several, and what differs between runs on the same data."""
    found: dict[tuple[str, str], set[str]] = {}
    for fact in facts:
        for key, value in fact.items():
            found.setdefault((str(fact.get("data")) if key != "data" else "", key), set()).add(repr(value))
    keys = {key for (_, key), values in found.items() if len(values) > 1}
    return sorted(keys, key=lambda k: (k != "data", k))


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    if not path.is_file():
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"`{path}` is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"`{path}` is not a run's config: it holds {type(content).__name__}.")
    return content


def _data_facts(config: dict[str, Any]) -> dict[str, Any]:
    """What makes a setting: the data's class and arguments, and how many rounds of how much work."""
    data = config.get("data") or {}
    arguments = {k: v for k, v in (data.get("init_args") or {}).items() if k not in NOT_A_SETTING}
    name = arguments.pop("name", None) or str(data.get("class_path", "")).split(".")[-1].removesuffix("DataModule")
    facts = {"data": name, **arguments}
    federation, trainer = config.get("federation") or {}, config.get("trainer") or {}
    federation = federation.get("init_args", federation)
    if federation:  # central has no rounds: it belongs to every number of them
        facts |= {
            "rounds": federation.get("num_rounds"),
            "epochs": trainer.get("max_epochs"),
            "steps": trainer.get("max_steps"),
        }
    return {k: v for k, v in facts.items() if v is not None and (k, v) != ("steps", -1)}  # -1: no limit


def _method(config: dict[str, Any], results: dict[str, Any]) -> str:
    objective = ((config.get("model") or {}).get("init_args") or {}).get("objective") or {}
    name = str(objective.get("class_path", "") if isinstance(objective, dict) else objective).split(".")[-1]
    plain = name in ("", "ERM") or results["strategy"] in ("FedPub",)
    return results["strategy"] if plain else f"{results['strategy']} {name}"
