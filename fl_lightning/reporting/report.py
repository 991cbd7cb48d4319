"""Everything that ``compare`` and ``report`` write: tables (CSV, Markdown, LaTeX), figures (SVG) and one HTML page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.reporting import formats
from fl_lightning.reporting.figures import KINDS, figures
from fl_lightning.reporting.finished import Run
from fl_lightning.reporting.page import page
from fl_lightning.reporting.run_discovery import MANIFEST
from fl_lightning.reporting.summary import Row, Summary, summarise_runs

TABLES = ("table", "differences", "joining", "clients", "runs", "trials")
WHAT_IT_IS = (
    "The round is chosen on validation data, the score is on test data: mean ± sample standard deviation over seeds. minus: "
    "the method minus the reference on the same seed and partition, with its 95 % Student interval, not corrected for how many "
    "there are. global: the server's test data (LocalOnly: mean over the clients' models); clients: mean over clients, each on "
    "its own test data. MB: all messages of a run."
)
DIGITS = "All digits are in table.csv."
PAIRED = "The interval is over seeds; clearly better: the method whose favour it lies in, where it does not hold 0."
JOINING = (
    "For each client its own model (LocalOnly) against the federated one. gain: positive if the federated model is better, "
    "whatever the metric's direction. The verdict is what the 95 % interval over seeds says; where every seed "
    "draws other clients, clients are listed by seed, and the interval is that of the mean gain over clients."
)


def write_report(
    out: Path,
    title: str,
    runs: Sequence[Run],
    lead: Sequence[str] = (),
    warnings: Sequence[str] = (),
    trials: Sequence[Row] = (),
    score: str = "auto",
    reference: str | None = None,
) -> tuple[Summary, list[Path]]:
    """Write the report of these runs.

    Args:
        out: Folder; made if absent, an older report in it is replaced.
        title: Heading.
        runs: Finished runs.
        lead: Sentences below the heading: what was compared, and how.
        warnings: Failures and what was left out.
        trials: Rows of the searches' trials.
        score: See :func:`~fl_lightning.reporting.summary.summarise_runs`.
        reference: The method that others are compared with.

    Returns:
        The tables, and the files.
    """
    check_out(out)
    out.mkdir(parents=True, exist_ok=True)
    summary = summarise_runs(runs, score, reference)
    warnings = [*warnings, *summary.notes]
    pictures = figures(summary.groups)
    written = []

    def write(name: str, text: str) -> None:
        path = out / name
        path.parent.mkdir(exist_ok=True)
        draft = path.with_name(f".writing_{path.name}")
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
        written.append(path)

    tables = (summary.table, summary.differences, summary.joining, summary.clients, summary.runs, list(trials))
    for name, rows in zip(TABLES, tables, strict=True):
        if rows:
            write(f"{name}.csv", formats.to_csv(rows))
    write("table.md", _markdown(title, lead, warnings, summary))
    write("table.tex", formats.to_latex(summary.groups, summary.table, title))
    for figure in pictures:
        write(f"figures/{figure.name}.svg", figure.svg)
    header, cells = formats.paper_rows(summary.groups, summary.table, percent=True)
    main: list[Row] = [dict(zip(header, row, strict=True)) for row in cells]
    sections = [
        _section("Results", f"{WHAT_IT_IS} {DIGITS}", main),
        _section("Should I join?", JOINING, summary.joining),
        _section("Should I join? Each client", "", summary.clients),
        _section("Paired differences between all methods", PAIRED, summary.differences),
        _section("Search", "Validation scores of all trials; test scores of trials that were not chosen are not read.", trials),
        _section("Runs", "", summary.runs),
    ]
    write("report.html", page(title, lead, warnings, sections, pictures))
    remove_report(out, keep=written)
    return summary, written


def check_out(out: Path) -> None:
    """May a report be written there? Not over tables that no report has written: their names are common ones.

    Raises:
        ValueError: Naming them.
    """
    taken = [name for name in [*(f"{table}.csv" for table in TABLES), "table.md", "table.tex"] if (out / name).exists()]
    if taken and not any((out / ours).is_file() for ours in ("report.html", MANIFEST)):
        raise ValueError(
            f"`--out {out}` holds {', '.join(f'`{name}`' for name in taken)}, but no report: this would be overwritten. "
            "Name another folder."
        )


def remove_report(out: Path, keep: Sequence[Path] = ()) -> None:
    """Remove a report's files but these, and nothing else: what was not written anew belongs to other runs."""
    names = [*(f"{table}.csv" for table in TABLES), "table.md", "table.tex", "report.html"]
    figures_of_old = [p for p in (out / "figures").glob("*.svg") if p.name.startswith(KINDS)]
    for path in [*(out / name for name in names), *figures_of_old]:
        if path not in keep:
            path.unlink(missing_ok=True)


def _section(heading: str, text: str, rows: Sequence[Row]) -> tuple[str, str, list[Row]]:
    """A table of the page. What is the same in all rows is said once, so that the scores need no scrolling."""
    shown, constants = formats.without_constants(rows)
    return heading, f"{text} {constants}".strip(), shown


def _markdown(title: str, lead: Sequence[str], warnings: Sequence[str], summary: Summary) -> str:
    parts = [f"# {title}", *lead, *(f"- **{line}**" for line in warnings)]
    parts.append(formats.to_markdown(*formats.paper_rows(summary.groups, summary.table)))
    parts.append(WHAT_IT_IS)
    if summary.joining:
        parts += ["## Should I join?", JOINING, formats.markdown_of(summary.joining)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"
