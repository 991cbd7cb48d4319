"""Hyper-parameters chosen on validation data with Optuna; the test score of the chosen configuration is the only one read.

A search belongs to one method, setting and seed, so that no sample of another seed's test data has helped to choose. Trials
are proposed in batches: what Optuna proposes, and which trials it stops, depends on earlier batches only. So the outcome is
the same with any number of workers, and a killed search goes on by proposing the same trials again and finding their runs.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fl_lightning.comparison.cell import file_of, finished, run_folders
from fl_lightning.comparison.plan import Cell, Search, trial_cell
from fl_lightning.comparison.runner import Runner


class Study:
    """One search.

    Args:
        search: What to search.
        out: The comparison's folder.

    Attributes:
        rows: One mapping for each trial: values, validation score, state, cell.

    Raises:
        ValueError: If Optuna is not installed.
    """

    def __init__(self, search: Search, out: Path) -> None:
        try:
            import optuna
        except ImportError as error:
            raise ValueError(
                "`search:` needs Optuna, which is not installed: `pip install 'fl-lightning[search]'`, or leave `search:` out."
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self.search, self.out = search, out
        digest = hashlib.sha256(f"{search.cell.setting} {search.cell.method} {search.cell.seed}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big")
        sampler = optuna.samplers.TPESampler(seed=seed) if search.sampler == "tpe" else optuna.samplers.RandomSampler(seed=seed)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=search.batch, n_warmup_steps=search.warm_up)
        self._study = optuna.create_study(sampler=sampler, pruner=pruner if search.prune else optuna.pruners.NopPruner())
        if search.sampler == "grid":  # Optuna's GridSampler cannot be asked and told; queued trials are its own way round it
            for values in itertools.product(*search.space.values()):
                self._study.enqueue_trial(dict(zip(search.space, values, strict=True)))
        self._batch: list[tuple[Any, Cell]] = []
        self._reported: dict[str, int] = {}
        self._stopped: dict[str, int] = {}
        self.rows: list[dict[str, Any]] = []

    def next_batch(self) -> list[Cell]:
        """The next trials; empty when the search is over."""
        number = min(self.search.batch, self.search.trials - len(self.rows))
        self._batch = []
        for _ in range(number):
            trial = self._study.ask()
            values = {key: self._suggest(trial, key, space) for key, space in self.search.space.items()}
            self._batch.append((trial, trial_cell(self.search.cell, values)))
        return [cell for _, cell in self._batch]

    def prune(self) -> dict[str, Callable[[Cell], bool]]:
        """For each trial of the batch, by its cell's key: whether to stop it now."""
        if not self.search.prune:
            return {}
        return {cell.key: partial(self._is_behind, trial) for trial, cell in self._batch}

    def tell(self, runner: Runner) -> bool:
        """Take the batch's results.

        Returns:
            False if some trials did not end (budget): the search cannot go on now.
        """
        left = {cell.key for cell in runner.left}
        if any(cell.key in left for _, cell in self._batch):
            return False
        states = self._optuna.trial.TrialState
        for trial, cell in self._batch:
            behind = self.search.prune and self._is_behind(trial, cell)  # by its scores, whatever the process did meanwhile
            value = None
            if behind:
                self._study.tell(trial, state=states.PRUNED)
            elif cell.key in runner.done and (value := self._validation(runner.done[cell.key])) is not None:
                self._study.tell(trial, self._sign(cell) * value)
            else:
                self._study.tell(trial, state=states.FAIL)
            state = "stopped" if behind else "finished" if value is not None else "failed"
            self.rows.append({"values": cell.trial, "validation": value, "state": state, "cell": cell})
        return True

    def chosen(self) -> Cell | None:
        """The finished trial with the best validation score, the first of equal ones."""
        known = [row for row in self.rows if row["state"] == "finished"]
        return min(known, key=lambda r: self._sign(r["cell"]) * r["validation"])["cell"] if known else None

    # ---- scores ---------------------------------------------------------------------------------------------------

    def _validation(self, folder: Path) -> float | None:
        """The validation score of a finished run. Its test scores are not touched."""
        val = json.loads((folder / "results.json").read_text(encoding="utf-8"))["val"]
        return val["mean"] if val["global"] is None else val["global"]

    def _sign(self, cell: Cell) -> int:
        """Optuna minimises."""
        return -1 if monitor(self.out, cell)[1] == "max" else 1

    def _is_behind(self, trial: Any, cell: Cell) -> bool:
        """Report the rounds that were validated since the last look; stop at the first at which the pruner says so."""
        if cell.key in self._stopped:
            return True
        curve = validation_curve(self.out, cell)
        for step in range(self._reported.get(cell.key, 0), len(curve)):
            trial.report(self._sign(cell) * curve[step], step)
            self._reported[cell.key] = step + 1
            if trial.should_prune():
                self._stopped[cell.key] = step
                return True
        return False

    @staticmethod
    def _suggest(trial: Any, key: str, space: Any) -> Any:
        if isinstance(space, list):
            return trial.suggest_categorical(key, space)
        whole = type(space["low"]) is int and type(space["high"]) is int
        return (trial.suggest_int if whole else trial.suggest_float)(
            key, space["low"], space["high"], log=bool(space.get("log"))
        )


def monitor(out: Path, cell: Cell) -> tuple[str, str]:
    """Metric and mode (``max`` or ``min``) that choose the best round of a cell's run."""
    folder = finished(out, cell)
    if folder is not None:
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        return results["metric"], results["mode"]
    found = json.loads(file_of(out, cell, ".monitor.json").read_text(encoding="utf-8"))
    return found["metric"], found["mode"]


def validation_curve(out: Path, cell: Cell) -> list[float]:
    """The score that chooses the best round, for each validation so far: the global model's, else the mean over clients."""
    folders = run_folders(out, cell)
    if not folders or not (folders[-1] / "metrics.csv").is_file() or not file_of(out, cell, ".monitor.json").is_file():
        return []
    metric = monitor(out, cell)[0]
    with (folders[-1] / "metrics.csv").open(newline="", encoding="utf-8") as file:
        text = file.read()
    rows = list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))  # the last line may be half written
    scores = [row.get(f"val/{metric}") or row.get("val/clients_mean") for row in rows]
    return [float(s) for s in scores if s and math.isfinite(float(s))]


def search_all(searches: Sequence[Search], runner: Runner, fixed: Sequence[Cell]) -> tuple[list[Study], dict[str, Cell]]:
    """Run the fixed cells and all searches, batch by batch.

    Returns:
        The studies, and the chosen cell of each by the key of the search's own cell; none where nothing finished.
    """
    studies = [Study(search, runner.out) for search in searches]
    going = list(studies)
    wave: list[Cell] = list(fixed)
    while True:
        batches = [(study, study.next_batch()) for study in going]
        going = [study for study, batch in batches if batch]
        wave += [cell for _, batch in batches for cell in batch]
        if not wave:
            break
        wave.sort(key=lambda cell: cell.seed)
        prune: dict[str, Any] = {}
        for study in going:
            prune |= study.prune()
        runner.run(wave, prune)
        going = [study for study in going if study.tell(runner)]
        wave = []
    chosen: dict[str, Cell] = {}
    for study in studies:
        best = study.chosen()
        if best is not None and len(study.rows) == study.search.trials:
            chosen[study.search.cell.key] = best
    return studies, chosen


def trial_table(studies: Sequence[Study], chosen: Mapping[str, Cell]) -> list[dict[str, Any]]:
    """One row for each trial; test scores are not among the columns."""
    rows = []
    for study in studies:
        own = study.search.cell
        picked = chosen.get(own.key)
        for row in study.rows:
            values = ", ".join(f"{key.split('.')[-1]} {value}" for key, value in row["values"].items())
            rows.append(
                {**own.setting, "method": own.method, "seed": own.seed, "values": values, "validation": row["validation"],
                 "state": row["state"], "chosen": "yes" if picked is not None and row["cell"].key == picked.key else ""}
            )  # fmt: skip
    return rows
