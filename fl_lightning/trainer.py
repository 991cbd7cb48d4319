"""FederatedTrainer: federated ``fit``, ``validate``, ``test`` and ``predict`` over rounds, around ``lightning.Trainer``."""

from __future__ import annotations

import copy
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from fl_lightning.assembly import Data, assemble
from fl_lightning.engine import checkpoint
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.lightning_fast.versions import tell_if_unproven
from fl_lightning.engine.local import LocalTrainer, quiet
from fl_lightning.engine.predict_methods import check_predicts
from fl_lightning.engine.rehearsal import Rehearsal
from fl_lightning.engine.sampling import number_of_participants, participants
from fl_lightning.engine.still import Start
from fl_lightning.engine.trainer_args import check_trainer_args
from fl_lightning.engine.transport import ClientSpec
from fl_lightning.evaluation import Evaluation
from fl_lightning.loading import LIGHTNING, write_lightning_checkpoint
from fl_lightning.reporting.clients import name_client, names_of
from fl_lightning.reporting.failures import Failures, warn_of_all
from fl_lightning.reporting.monitor import Monitor, is_better, said, selection_value
from fl_lightning.reporting.pictures import show
from fl_lightning.reporting.progress import Progress
from fl_lightning.reporting.results import Results
from fl_lightning.reporting.run_lock import RunLock
from fl_lightning.run_files import RunFiles
from fl_lightning.run_state import Best
from fl_lightning.settings import FederationSettings
from fl_lightning.watching import Watching

LOG = logging.getLogger("fl_lightning")


class FederatedTrainer:
    """Trains a LightningModule over the data of several clients.

    Args:
        trainer: Arguments of the ``lightning.Trainer`` of one client in one round: ``max_epochs`` or ``max_steps`` (local
            work), ``accelerator``, ``devices``, ``precision``, ``callbacks``, ... Of these, ``logger``,
            ``default_root_dir`` and ``enable_progress_bar`` are the server's.
        seed: Seed of all random streams. Default: that of ``seed_everything``, else 0.
        progress: How far it is, on the standard error stream: by default as a bar in a terminal; ``True``: elsewhere (a
            notebook, a log) as one line for each round, too; ``False``: nowhere.
        run_config: The whole configuration as plain values, to be compared on resuming.
        federation: Arguments of :class:`~fl_lightning.settings.FederationSettings`: ``num_rounds``, ``strategy``,
            ``clients_per_round``, ``engine``, ...

    Attributes:
        results: After ``fit``: the content of ``results.json``.
        run_dir: The run's folder; ``None`` where nothing is written (fast_dev_run, ranks other than 0).
        source_dir: Folder of the run that the last checkpoint came from; ``None`` for a checkpoint that lies in none.
    """

    def __init__(
        self,
        *,
        trainer: Mapping[str, Any] | None = None,
        seed: int | None = None,
        progress: bool | None = None,
        run_config: Mapping[str, Any] | None = None,
        **federation: Any,
    ) -> None:
        self.settings = FederationSettings.of(federation)
        trainer_args = dict(trainer or {})
        check_trainer_args(trainer_args, self.settings.local_clock)
        self.settings.strategy.check_local_work(trainer_args)
        self.logger = trainer_args.pop("logger", None)
        self.root = trainer_args.pop("default_root_dir", None)
        progress_bar = trainer_args.pop("enable_progress_bar", None)
        self.progress = progress_bar if progress is None else progress
        for server_only in ("enable_checkpointing", "enable_model_summary"):
            trainer_args.pop(server_only, None)
        self.trainer_args = trainer_args
        self.fast_dev_run = bool(trainer_args.get("fast_dev_run"))
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        self.run_config = run_config
        self.results: dict[str, Any] | None = None
        self.run_dir: Path | None = None
        self.source_dir: Path | None = None

    # ---- the four verbs -------------------------------------------------------------------------------------------

    def fit(
        self,
        module: L.LightningModule,
        datamodule: Data,
        ckpt_path: str | None = None,
        on_start: Callable[[Path], None] | None = None,
    ) -> dict[str, Any]:
        """Train for ``num_rounds`` rounds, then test the best and the last one.

        Args:
            module: Any LightningModule; afterwards it holds the best global model (if the strategy has one).
            datamodule: A LightningDataModule with ``client_datamodules()``, whose own loaders are the server's data; or a list
                of LightningDataModules, one per client.
            ckpt_path: ``last``, ``best``, a run's folder or a checkpoint's folder to go on from. A checkpoint that lies in no
                run's folder goes on in a new one.
            on_start: Called with the run's folder before round 1.

        Returns:
            The content of ``results.json``.

        Raises:
            ValueError: Before round 1, if something does not fit.
            FederationError: If a round had too few answers.
        """
        with self._session(module, datamodule, ckpt_path) as run:
            if on_start is not None and self.run_dir is not None:
                on_start(self.run_dir)
            run.train()
            self.results = run.finish()
            run.all.left_out.warn()
            warn_of_all(self.results)
            return self.results

    def validate(self, module: L.LightningModule, datamodule: Data, ckpt_path: str = "best") -> dict[str, Any]:
        """Scores of a checkpoint on the validation data."""
        return self._score(module, datamodule, ckpt_path, "val")

    def test(self, module: L.LightningModule, datamodule: Data, ckpt_path: str = "best") -> dict[str, Any]:
        """Scores of a checkpoint on the test data."""
        return self._score(module, datamodule, ckpt_path, "test")

    def predict(
        self, module: L.LightningModule, datamodule: Data, ckpt_path: str = "best"
    ) -> dict[int | None, list[dict[str, Tensor]]]:
        """Predictions of a checkpoint, as batches of named tensors: under ``None`` those of the global model on the server's
        data if it has both, else under each client's id those of its model on its own data.

        Raises:
            ValueError: If the module or all data lack the method that predicting needs.
        """
        with self._session(module, datamodule, ckpt_path, write=False) as run:
            check_predicts(run.all.module, run.all.known_data)
            found = run.evaluation.predictions(run.state.round)
            run.tell_failures()
            return found

    def _score(self, module: L.LightningModule, datamodule: Data, ckpt_path: str, stage: str) -> dict[str, Any]:
        with self._session(module, datamodule, ckpt_path, write=False) as run:
            summary = run.evaluation.summaries((stage,), run.state.last_round)[stage]
            run.tell_failures()
            return summary

    # ---- set-up ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _session(
        self, module: L.LightningModule, datamodule: Data, ckpt_path: str | None, write: bool = True
    ) -> Iterator[_Run]:
        threads = torch.get_num_threads()
        torch.set_num_threads(self.settings.engine.threads)
        run, lock = None, RunLock()
        try:
            run = _Run(self, module, datamodule, ckpt_path, write, lock)
            with quiet():
                yield run
        finally:
            if run is not None:
                run.close()
            else:  # it failed half-way through its set-up
                self.settings.engine.close()
            lock.release()
            torch.set_num_threads(threads)

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.settings.name or type(self.settings.strategy).__name__

    @property
    def runs_dir(self) -> Path:
        """Folder of this name's ``version_N`` folders."""
        given = self.logger[0] if isinstance(self.logger, list | tuple) and self.logger else self.logger
        if getattr(given, "log_dir", None):
            return Path(given.log_dir).parent
        return Path(self.root or "runs") / self.name

    def find_checkpoint(self, ckpt_path: str) -> Path:
        """The checkpoint that ``ckpt_path`` means; ``last`` and ``best`` are those of this trainer's own run, if any."""
        return checkpoint.find(ckpt_path, self.runs_dir, self.run_dir)


class _Run:
    """One run: module, clients, strategy and folder, put together and checked before anything is trained."""

    def __init__(
        self,
        trainer: FederatedTrainer,
        module: L.LightningModule,
        datamodule: Data,
        ckpt_path: str | None,
        write: bool,
        lock: RunLock,
    ) -> None:
        self.started = time.perf_counter()
        self.trainer, self.settings = trainer, trainer.settings
        settings, seed = self.settings, trainer.seed
        self.strategy, self.engine = settings.strategy, settings.engine
        strategy = self.strategy
        strategy.combine_by(settings.aggregation)
        self.all = assemble(module, datamodule, settings, seed, trainer.run_config, trains=write)
        strategy.check(module, list(self.all.here.values()), self.all.server_data)
        self.monitor = Monitor.of(module, settings.monitor, settings.monitor_mode)
        identity = self.all.identity(settings, seed, trainer.run_config, trainer.trainer_args)
        entries = self.all.entries
        strategy.start(entries.get(entries.shared), entries.private)
        begun = {name: tensor for name, tensor in strategy.state().items() if name not in entries.varying}
        files = self.files = RunFiles(trainer, ckpt_path, write, lock, identity, begun)
        trainer.source_dir = files.home if ckpt_path is not None else trainer.source_dir

        if settings.fast_loops:
            tell_if_unproven()
        local = LocalTrainer(module, trainer.trainer_args, seed, fast_loops=settings.fast_loops)
        local.check()
        self.phases = strategy.phases()
        told = self.all.local_settings(settings, seed, identity, trainer.trainer_args)
        # A copy: the server's module takes the global weights, and a client may be set up anew in any round.
        self.engine.start(ClientSpec(copy.deepcopy(module), strategy.client_half(), self.all.datamodules, told))
        self.federation = Federation(
            self.engine, told.run, self.all.clients, min_clients=settings.min_clients, timeout=settings.client_timeout,
            start=Start(entries.get(self.engine.begun_alike(self.all.module, self.all.still))),
        )  # fmt: skip
        self.evaluation = Evaluation(strategy, self.federation, local, entries, self.all.server_data, self.monitor, seed)
        files.open(trainer, self.all)
        self.folder = files.folder
        self.state = files.go_on(strategy, self.engine, self.federation)
        if self.state.is_new:
            self.all.list_statistics(self.federation.ledger, told.run)
        limit = trainer.trainer_args.get("limit_val_batches")
        self.watching = Watching(module, settings.early_stopping, self.monitor, self.state, self.all.data_here, limit)
        self.failures = Failures(names_of(self.all.data), self.federation.failures)
        self.before = self.state.total_seconds
        self.progress = Progress(trainer.progress)

    # ---- training -------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """All phases and rounds from where the state stands."""
        state = self.state
        if state.is_new:
            self._rehearse()
        while state.phase < len(self.phases):
            phase = self.phases[state.phase]
            with self.progress.steps(phase.name, f"{phase.name}: step", state.step, phase.num_steps) as done:
                while state.step < phase.num_steps:
                    begin = time.perf_counter()
                    metrics = phase.step(self.federation, state.step)
                    state.train_seconds += time.perf_counter() - begin
                    self.folder.log(metrics, state.step, prefix=f"{phase.name}/")
                    show(self.strategy.diagnose_phase(), self.folder, state.step, f"{phase.name}/")
                    state.step += 1
                    self._save()
                    done(None)
            state.phase, state.step = state.phase + 1, 0
        rounds = 1 if self.trainer.fast_dev_run else self.settings.num_rounds
        with self.progress.steps("rounds", "round", state.round, rounds) as done:
            while state.round < rounds and not self.watching.is_over():
                shown = self._round(state.round, last=state.round == rounds - 1)
                state.round += 1
                self._save()
                done(shown)

    def _round(self, round: int, last: bool) -> str | None:
        begin, ledger = time.perf_counter(), self.federation.ledger
        up, down = ledger.up, ledger.down
        number = number_of_participants(self.settings.clients_per_round, len(self.all.clients))
        chosen = participants(self.all.clients, number, self.trainer.seed, round)
        trained = self.strategy.round(self.federation, round, chosen)
        seconds = time.perf_counter() - begin
        self.state.train_seconds += seconds
        scalars: dict[str, Any] = {f"clients/{c}/{k}": v for c, metrics in trained.items() for k, v in metrics.items()}
        shown = None
        if last or (round + 1) % self.settings.check_val_every_n_rounds == 0:
            val = self.evaluation.summaries(("val",), round, scalars)["val"]
            self.watching.remember(val, round)
            value = selection_value(val)
            if is_better(value, self.state.best.value, self.monitor.mode):
                self.state.best = Best(round, value, f"round_{round:05d}", val)
            shown = f"{self.monitor.metric} {said(val)}"
        scalars |= {
            "bytes/up": ledger.up - up,
            "bytes/down": ledger.down - down,
            "seconds/train": seconds,
            "seconds/round": time.perf_counter() - begin,
        }
        self.folder.log(scalars, round)
        show(self.strategy.diagnose(), self.folder, round)
        return shown

    def _rehearse(self) -> None:
        """What would fail in every round is found now, and not after the first, which phases may put off for hours."""
        trainer, settings = self.trainer, self.settings
        if self.all.empty:
            names = {"client_names": names_of(self.all.data)}
            LOG.warning("No training sample: %s. They are served and scored, and teach nothing.",
                        ", ".join(name_client(names, client) for client in self.all.empty))  # fmt: skip
        apart = [*self.all.private, *settings.average]
        rehearsal = Rehearsal(
            self.all.module, trainer.trainer_args, trainer.seed, settings.fast_loops, settings.clock_rounds, apart,
            self.strategy.client_half().check_optimizers,
        )  # fmt: skip
        rehearsal.check(self.all.training_here)
        self.watching.rehearse(rehearsal)

    def tell_failures(self) -> None:
        """Warn of clients that have failed for the first time."""
        self.failures.tell(self.federation.failures)

    def _save(self) -> None:
        self.tell_failures()
        self.state.total_seconds = self.before + time.perf_counter() - self.started
        self.files.save(self.state, self.strategy, self.engine, self.federation, self.all.schema)

    def finish(self) -> dict[str, Any]:
        """Score the last round and the best one, write results.json, leave the best global model in the module."""
        best, strategy = self.state.best, self.strategy
        last = self.evaluation.summaries(("val", "test"), self.state.last_round, tolerant=True)
        self.watching.tell_tested(last["test"])
        chosen = last
        if best.checkpoint not in (None, f"round_{self.state.round - 1:05d}") and best.round is not None:
            source = self.files.checkpoints.directory / str(best.checkpoint)
            strategy.load_state(checkpoint.read(source)[0])
            self.engine.load(source)
            chosen = self.evaluation.summaries(("val", "test"), best.round, tolerant=True)
        each = None
        if self.settings.scores_each and self.all.server_data is not None and not self.all.entries.private:
            each = self.evaluation.each_on_global(self.state.last_round)
        if (weights := strategy.global_weights()) is not None:
            self.all.entries.set(weights)
            if not self.all.entries.private:
                write_lightning_checkpoint(self.all.module, self.files.checkpoints.directory / LIGHTNING)
        return Results(
            name=self.trainer.name,
            strategy=type(strategy).__name__,
            seed=self.trainer.seed,
            monitor=self.monitor,
            num_clients=len(self.all.clients),
            rounds_run=self.state.round,
            stopped_early=self.watching.is_over() and self.state.round < self.settings.num_rounds,
            best_round=self.state.round - 1 if best.round is None else best.round,
            chosen=chosen,
            last=last,
            data=self.all.data,
            total_seconds=self.before + time.perf_counter() - self.started,
            train_seconds=self.state.train_seconds,
            weighting=getattr(strategy, "weighting", None),
            each_on_global=each,
            bytes=self.federation.ledger.totals(),
            failures=self.federation.failures,
            empty_clients=self.all.empty,
            workers_rss_mb=self.engine.peak_rss_mb(),
        ).write(self.folder)

    def close(self) -> None:
        """Free the clients and files."""
        for held in (self.engine, self.federation.ledger, self.folder):
            held.close()
