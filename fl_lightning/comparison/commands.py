"""``fl-lightning compare`` and ``fl-lightning report``."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_lightning.comparison import checks
from fl_lightning.comparison import plan as plans
from fl_lightning.comparison.changes import from_command_line
from fl_lightning.comparison.plan import Cell, Plan
from fl_lightning.reporting.finished import Run, load
from fl_lightning.reporting.formats import paper_rows
from fl_lightning.reporting.output_paths import make_folder
from fl_lightning.reporting.report import check_out, remove_report, write_report
from fl_lightning.reporting.run_discovery import MANIFEST, find_runs, read_report_options
from fl_lightning.reporting.tables import text_table

if TYPE_CHECKING:
    from fl_lightning.comparison.runner import Runner
    from fl_lightning.comparison.search import Study

STOPPED = 3  # exit code: the budget ended before all cells did


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code: 0, 1 (something failed) or 3 (the budget ended first).

    Raises:
        ValueError: If the YAML or an option is wrong.
    """
    asked, rest = parser().parse_known_args(list(arguments))
    if asked.command == "report":
        if rest:
            raise ValueError(f"Unknown option `{rest[0]}`; see `fl-lightning report --help`.")
        return report(asked)
    return compare(asked, from_command_line(rest))


def parser() -> argparse.ArgumentParser:
    """The two commands' options."""
    whole = argparse.ArgumentParser("fl-lightning", allow_abbrev=False)
    commands = whole.add_subparsers(dest="command", required=True)
    comparing = commands.add_parser(
        "compare", allow_abbrev=False, help="Methods x settings x seeds from one YAML; goes on where it was stopped.",
        description="Run all cells of a comparison that are not finished yet, then write tables and plots. Keys of a config "
        "(--data.init_args.root DATA, --federation.num_rounds 5, ...) change all cells.",
    )  # fmt: skip
    comparing.add_argument("--config", type=Path, required=True, help="The comparison, e.g. configs/compare/demo.yaml.")
    comparing.add_argument("--profile", help="One of the YAML's profiles; default: quick, if there is one.")
    comparing.add_argument("--out", type=Path, help="Folder; default runs/compare/<name>_<profile>.")
    comparing.add_argument("--seeds", type=int, nargs="+", metavar="SEED", help="Instead of the YAML's, e.g. --seeds 0 1.")
    comparing.add_argument("--workers", type=int, help="Processes at a time; default: the cores that this process may use.")
    comparing.add_argument("--budget_minutes", type=float, help="Stop after so long; the same command goes on later.")
    comparing.add_argument("--list", action="store_true", help="Print the cells and run nothing.")
    reporting = commands.add_parser(
        "report", allow_abbrev=False, help="The same tables and plots from finished runs.",
        description="Tables and plots from finished runs: run folders, comparisons, or any folders above them.",
    )  # fmt: skip
    reporting.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="Folders.")
    reporting.add_argument(
        "--glob", action="append", default=[], metavar="PATTERN", help="Folders by pattern, e.g. 'runs/*/version_0'."
    )
    reporting.add_argument("--out", type=Path, default=Path("report"), help="Folder of the report; default: report.")
    reporting.add_argument("--title", default="Report")
    reporting.add_argument(
        "--score", choices=("auto", "global", "clients"),
        help="Test data of the server (global) or of the clients; default: as in the comparison, else global if all have it.",
    )  # fmt: skip
    reporting.add_argument("--reference", help="Method to compare the others with; default: the comparison's, else the first.")
    return whole


def compare(asked: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """``fl-lightning compare``."""
    plan = plans.read_plan(asked.config, asked.profile, overrides, asked.seeds)
    budget = checks.minutes(asked.budget_minutes, "--budget_minutes") or plan.budget_minutes
    if asked.list:
        _say(*plans.describe(plan), f"{len(plan.cells)} cells and {len(plan.searches)} searches (profile {plan.profile})")
        return 0
    from fl_lightning.comparison.parsing import check_keys
    from fl_lightning.comparison.runner import Runner, cores
    from fl_lightning.comparison.search import search_all, trial_table

    if asked.workers is not None and asked.workers < 1:
        raise ValueError(f"`--workers` must be at least 1, got {asked.workers}.")
    out = asked.out or Path("runs", "compare", f"{plan.name}_{plan.profile}")
    check_out(out)
    check_keys(plan)
    make_folder(out, "--out")
    workers = asked.workers or cores()
    with _alone(out):
        trials = sum(search.trials for search in plan.searches)
        _say(f"{plan.name}, profile {plan.profile}: {len(plan.cells)} runs and {trials} trials, {workers} at a time, in {out}")
        runner = Runner(out, workers, budget, say=_say)
        try:
            studies, chosen = search_all(plan.searches, runner, plan.cells)
        except KeyboardInterrupt:
            _say("Interrupted. The same command goes on from here.")
            return 130
        return _finish(plan, out, runner, studies, chosen, trial_table(studies, chosen))


def _finish(
    plan: Plan, out: Path, runner: Runner, studies: Sequence[Study], chosen: dict[str, Cell], trials: list[dict[str, Any]]
) -> int:
    from fl_lightning.comparison.cell import file_of

    cells = [(cell, cell) for cell in plan.cells] + [
        (s.search.cell, chosen[s.search.cell.key]) for s in studies if s.search.cell.key in chosen
    ]
    order = {label: place for place, label in enumerate(dict.fromkeys(c.method for c in _methods(plan)))}
    cells.sort(key=lambda pair: order[pair[0].method])
    settings = list(dict.fromkeys(tuple(c.setting.items()) for c in _methods(plan)))
    cells.sort(key=lambda pair: settings.index(tuple(pair[0].setting.items())))
    runs: list[Run] = []
    listed = []
    for _, cell in cells:
        if cell.key in runner.done:
            folder, data = runner.done[cell.key], file_of(out, cell, ".data.json")
            runs.append(load(folder, cell.setting, cell.method, cell.seed, data))
            listed.append(
                {"folder": os.path.relpath(folder, out), "setting": cell.setting, "method": cell.method, "seed": cell.seed,
                 "data": os.path.relpath(data, out), "hash": cell.hash}
            )  # fmt: skip
    named = {c.key: str(c) for c in [*plan.cells, *(row["cell"] for s in studies for row in s.rows)]}
    failed = [f"FAILED: {named.get(key, key)}: {reason.splitlines()[0]}" for key, reason in runner.failed.items()]
    left = [f"not finished (budget): {cell}" for cell in runner.left]
    manifest = {
        "name": plan.name,
        "profile": plan.profile,
        "source": plan.source,
        "runs": listed,
        "failed": failed,
        "left": left,
        "score": plan.score,
        "reference": plan.reference,
        "trials": trials,
    }
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    if runs:
        lead = [f"{len(runs)} runs of {plan.source}, profile {plan.profile}. {_versions(runs)}"]
        summary, _ = write_report(
            out, f"{plan.name} ({plan.profile})", runs, lead, [*failed, *left], trials, plan.score, plan.reference
        )
        header, rows = paper_rows(summary.groups, summary.table)
        _say("", *text_table(header, rows), "", f"report: {out / 'report.html'}")
    else:
        remove_report(out)  # it would be of runs that this YAML no longer asks for
        _say("No run has finished: there is no table.")
    _say(*failed, *left[:5], *([f"... and {len(left) - 5} more"] if len(left) > 5 else []))
    if left:
        _say("The budget has ended; the same command goes on from here.")
    if failed:
        _say(f"{len(failed)} failed; the same command tries them again.")
    return 1 if failed else STOPPED if left else 0


def report(asked: argparse.Namespace) -> int:
    """``fl-lightning report``."""
    places = list(asked.runs)
    if asked.out.exists():
        make_folder(asked.out, "--out")
    for pattern in asked.glob:
        root = Path(pattern).anchor
        found = sorted(Path(root or ".").glob(str(Path(pattern).relative_to(root)) if root else pattern))
        if not found:
            raise ValueError(f"`--glob {pattern}` matches nothing.")
        places += found
    if not places:
        raise ValueError("Name run folders, or `--glob PATTERN`.")
    runs, problems = find_runs(places)
    if not runs:
        raise ValueError("No finished run found.\n" + "\n".join(problems))
    methods = list(dict.fromkeys(run.method for run in runs))
    if asked.reference is not None and asked.reference not in methods:
        raise ValueError(f"`--reference {asked.reference}` is no method of these runs; there are {', '.join(methods)}.")
    lead = [f"{len(runs)} runs. {_versions(runs)}", *_fixed(runs)]
    known = read_report_options(places)
    score, reference = asked.score or known.get("score", "auto"), asked.reference or known.get("reference")
    summary, _ = write_report(asked.out, asked.title, runs, lead, problems, known.get("trials", ()), score, reference)
    header, rows = paper_rows(summary.groups, summary.table)
    _say(*text_table(header, rows), "", *problems, f"report: {asked.out / 'report.html'}")
    return 0


def _methods(plan: Plan) -> list[Cell]:
    return [*plan.cells, *(search.cell for search in plan.searches)]


def _fixed(runs: Sequence[Run]) -> list[str]:
    """For the caption: what all runs on the same data share, such as the partition."""
    shared: dict[str, dict[str, str]] = {}
    for run in runs:
        name = run.setting.get("data") or run.fixed.get("data") or "data"
        shared.setdefault(name, {}).update({k: v for k, v in run.fixed.items() if k != "data" and len(v) <= 40})
    return [f"{name}: {', '.join(f'{k} {v}' for k, v in facts.items())}." for name, facts in shared.items() if facts]


def _versions(runs: Sequence[Run]) -> str:
    found: dict[str, set[str]] = {}
    for run in runs:
        for name, version in (run.results.get("versions") or {}).items():
            found.setdefault(name, set()).add(str(version))
    return ", ".join(f"{name} {' / '.join(sorted(versions))}" for name, versions in found.items())


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Two comparisons in one folder would run the same cells."""
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"Another `compare` is running in `{out}`. Wait for it, or give another `--out`.") from error
        yield


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
