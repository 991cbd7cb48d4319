"""A comparison's configs, read as ``fit`` reads them, before the first cell is trained: a misspelt key costs no hour."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.cli import FederatedCLI
from fl_lightning.comparison.plan import Cell, Plan, trial_cell


class _Parsed(FederatedCLI):
    """Reads a command line and makes nothing of it."""

    def _set_seed(self) -> None:
        pass

    def instantiate_classes(self) -> None:
        pass

    def _run_subcommand(self, subcommand: str) -> None:
        pass


def check_keys(plan: Plan) -> None:
    """Can each config of a comparison be read? Those that differ in seeds and numbers only are read once.

    Raises:
        ValueError: With the first cell that cannot, and what is wrong with it.
    """
    seen: set[str] = set()
    for cell in _cells(plan):
        kind = json.dumps([_form(cell.config), cell.central], sort_keys=True)
        if kind not in seen:
            seen.add(kind)
            _parse(cell)


def _cells(plan: Plan) -> Iterable[Cell]:
    """All cells, and one trial of each search."""
    yield from plan.cells
    for search in plan.searches:
        values = {key: space[0] if isinstance(space, list) else space["low"] for key, space in search.space.items()}
        yield trial_cell(search.cell, values)


def _parse(cell: Cell) -> None:
    with tempfile.TemporaryDirectory(prefix="fl_lightning_") as folder:
        config = Path(folder, "cell.yaml")
        config.write_text(yaml.safe_dump(cell.config, sort_keys=False), encoding="utf-8")
        arguments = ["fit", "--config", str(config), *(["--federation", "null"] if cell.central else [])]
        try:
            _Parsed(arguments)
        except ValueError as error:
            raise ValueError(f"{cell}: {error}") from error


def _form(value: Any, key: str = "") -> Any:
    """A config without its numbers: keys, classes and kinds of values."""
    if isinstance(value, dict):
        return {str(name): _form(inner, str(name)) for name, inner in value.items()}
    return value if key == "class_path" or isinstance(value, str) else type(value).__name__
