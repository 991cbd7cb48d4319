"""FederatedTrainer: federated ``fit``, ``validate``, ``test`` and ``predict`` over rounds, around ``lightning.Trainer``."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from fl_lightning.assembly import Data, check_module, client_data, described, fingerprint, sizes_of
from fl_lightning.engine import checkpoint
from fl_lightning.engine.client import LocalSettings, named_outputs
from fl_lightning.engine.entries import Entries
from fl_lightning.engine.errors import ResumeError
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.local import LocalTrainer, quiet
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.rehearsal import Rehearsal
from fl_lightning.engine.remote import AtSites, SiteData
from fl_lightning.engine.replies import Expected, evaluate_reply, predict_reply
from fl_lightning.engine.sampling import number_of_participants, participants
from fl_lightning.engine.seeds import stream
from fl_lightning.engine.trainer_args import check_trainer_args
from fl_lightning.engine.transport import ClientSpec
from fl_lightning.reporting.given import given, run_config, write_config
from fl_lightning.reporting.left_out import LeftOut
from fl_lightning.reporting.monitor import Monitor, is_better, selection_value
from fl_lightning.reporting.progress import Progress
from fl_lightning.reporting.results import Results
from fl_lightning.reporting.run_folder import RunFolder
from fl_lightning.reporting.scores import defined, summarise
from fl_lightning.schema import agreed_schema
from fl_lightning.settings import FederationSettings

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
        self.settings = FederationSettings(**federation)
        trainer_args = dict(trainer or {})
        check_trainer_args(trainer_args)
        self._logger = trainer_args.pop("logger", None)
        self._root = trainer_args.pop("default_root_dir", None)
        in_trainer = trainer_args.pop("enable_progress_bar", None)
        self._progress = in_trainer if progress is None else progress
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
            run.left_out.warn()
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
        data if it has both, else under each client's id those of its model on its own data."""
        with self._session(module, datamodule, ckpt_path, write=False) as run:
            return run.predictions()

    def _score(self, module: L.LightningModule, datamodule: Data, ckpt_path: str, stage: str) -> dict[str, Any]:
        with self._session(module, datamodule, ckpt_path, write=False) as run:
            return run.evaluate((stage,))[stage]

    # ---- set-up ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _session(
        self, module: L.LightningModule, datamodule: Data, ckpt_path: str | None, write: bool = True
    ) -> Iterator[_Run]:
        threads = torch.get_num_threads()
        torch.set_num_threads(self.settings.engine.threads)
        run = None
        try:
            run = _Run(self, module, datamodule, ckpt_path, write)
            with quiet():
                yield run
        finally:
            if run is not None:
                run.close()
            else:  # it failed half-way through its set-up
                self.settings.engine.close()
            torch.set_num_threads(threads)

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.settings.name or type(self.settings.strategy).__name__

    @property
    def runs_dir(self) -> Path:
        """Folder of this name's ``version_N`` folders."""
        given = self._logger[0] if isinstance(self._logger, list | tuple) and self._logger else self._logger
        if getattr(given, "log_dir", None):
            return Path(given.log_dir).parent
        return Path(self._root or "runs") / self.name

    def find_checkpoint(self, ckpt_path: str) -> Path:
        """The checkpoint that ``ckpt_path`` means; ``last`` and ``best`` are those of this trainer's own run, if any."""
        return checkpoint.find(ckpt_path, self.runs_dir, self.run_dir)


class _Run:
    """One run: module, clients, strategy and folder, put together and checked before anything is trained."""

    def __init__(
        self, trainer: FederatedTrainer, module: L.LightningModule, datamodule: Data, ckpt_path: str | None, write: bool
    ) -> None:
        self.started = time.perf_counter()
        self.trainer, self.module, self.settings = trainer, module, trainer.settings
        settings, strategy = self.settings, self.settings.strategy
        check_module(module)
        shared = {"config": trainer.run_config, "federation": settings.describe()}
        if isinstance(datamodule, AtSites):
            self.server_data, self.datamodules = None, settings.engine.remote_clients(shared)
        else:
            self.server_data, self.datamodules = client_data(datamodule, trainer.seed)
        self.left_out = LeftOut.of(self._data)
        if write:
            self.left_out.check(settings.max_dropped_share)
        schema = agreed_schema(self.server_data, self.datamodules)
        if hasattr(module, "build") and schema is not None:
            with stream(trainer.seed, "initial weights"):
                module.build(schema)
        private = tuple(settings.private) + tuple(getattr(module, "private_entries", ()))
        self.entries = Entries(module, private)
        if not self.entries.shared and not self.entries.private:
            raise ValueError(
                f"`model: {type(module).__name__}` has no parameters yet. Create its layers in `__init__` (not in "
                "`configure_model` or `setup`), or in `build(schema)`."
            )
        self.clients = tuple(range(len(self.datamodules)))
        self.number = number_of_participants(settings.clients_per_round, len(self.clients))
        if settings.min_clients > self.number:
            raise ValueError(
                f"`federation.min_clients` = {settings.min_clients}, but only {self.number} of {len(self.clients)} "
                "clients take part in a round (`federation.clients_per_round`)."
            )
        if settings.score_each_on_global and (self.entries.private or self.server_data is None):
            raise ValueError(
                "`federation.score_each_on_global` uploads whole models to score them on the server's data, but "
                + ("some entries are private." if self.entries.private else "the server has no data.")
                + " Leave it out."
            )
        sizes = sizes_of(self.datamodules)
        self.empty = [c for c in self.clients if sizes[c] == 0]
        if len(self.empty) == len(self.clients):
            raise ValueError("No client has a training sample; check the split of the data (`data.init_args`).")
        strategy.check(module, [d for d in self.datamodules if not isinstance(d, SiteData)], self.server_data)
        self.monitor = Monitor.of(module, settings.monitor, settings.monitor_mode)

        identity = {
            "config": trainer.run_config or described(module, trainer.trainer_args),
            "federation": settings.describe(),
            "seed": trainer.seed,
            "clients": len(self.clients),
            "data": fingerprint(datamodule, self.datamodules, sizes),
        }
        self.identity = json.loads(json.dumps(identity, default=str))  # as a checkpoint gives it back
        scratch = not write or trainer.fast_dev_run or rank_zero_only.rank != 0
        source = None if ckpt_path is None else trainer.find_checkpoint(ckpt_path)
        tensors, values = ({}, None) if source is None else checkpoint.read(source)
        home = None if values is None else checkpoint.run_of(source)
        if values is not None:
            trainer.source_dir = home
            self._check_identity(source, values["identity"])

        strategy.start(self.entries.get(self.entries.shared), self.entries.private)
        self.local = LocalTrainer(module, trainer.trainer_args, trainer.seed)
        self.local.check()
        self.phases = strategy.phases()
        local = LocalSettings(
            run=hashlib.sha256(repr(self.identity).encode()).hexdigest()[:12],
            seed=trainer.seed,
            num_rounds=settings.num_rounds,
            trainer_args=trainer.trainer_args,
            private=private,
            carry_optimizer_state=settings.carry_optimizer_state,
            shared=shared,
        )
        self.engine = settings.engine
        # A copy: the server's module takes the global weights, and a client may be set up anew in any round.
        self.engine.start(ClientSpec(copy.deepcopy(module), strategy.client_half(), self.datamodules, local))
        self.federation = Federation(
            self.engine, local.run, self.clients, min_clients=settings.min_clients, timeout=settings.client_timeout
        )
        self.state: dict[str, Any] = {
            "identity": self.identity,
            "phase": 0,
            "step": 0,
            "round": 0,
            "seconds": {"total": 0.0, "train": 0.0},
            "best": {"round": None, "value": None, "checkpoint": None},
        }
        self.folder = RunFolder(
            trainer._root,
            trainer.name,
            trainer._logger,
            scratch=scratch,
            resume=None if scratch else home,
            purge_step=None if home is None or values["round"] == 0 else values["round"],
            keep_rows=0 if home is None else values["metrics_rows"],
        )
        if write:
            trainer.run_dir = None if scratch else self.folder.path
        self.checkpoints = checkpoint.Checkpoints(self.folder.path / "checkpoints", settings.keep_last)
        ledger = self.folder.path / "ledger.jsonl"
        if not scratch and home is None:
            self._begin_folder(datamodule)
        if values is None:
            self.federation.ledger.open(ledger)
        else:
            self.state = {**values["state"], "identity": self.identity}
            best = self.state["best"]["checkpoint"]
            if write and (home is None or scratch):  # what lies around it is somebody else's, or not to be touched
                if not scratch:
                    LOG.warning("`%s` lies in no run's folder. The run goes on in `%s`; its ledger and metrics begin there.",
                                source, self.folder.path)  # fmt: skip
                source = self.checkpoints.adopt(source, checkpoint.name_of(values), best)
            elif not scratch:
                self.checkpoints.forget_after(source.name)
            if best is not None and not (self.checkpoints.directory / best).is_dir():  # from an older one: it is gone
                self.state["best"] = {"round": None, "value": None, "checkpoint": None}
            strategy.load_state(tensors)
            self.engine.load(source)
            self.federation.ledger.restore(values["ledger"])
            self.federation.failures = values["failures"]
            self.federation.ledger.open(ledger, None if scratch or home is None else values["ledger_end"])
        self.before = self.state["seconds"]["total"]
        self.progress = Progress(trainer._progress)

    def _check_identity(self, source: Path, old: dict[str, Any]) -> None:
        lines = checkpoint.difference(old, self.identity)
        if lines and not self.settings.force:
            raise ResumeError(
                f"`{source}` was made with another configuration, other clients or other data:\n  "
                + "\n  ".join(lines)
                + "\nUse the same, or `--federation.force true` to go on all the same."
            )

    @property
    def _data(self) -> Any:
        """The server's data module, or a list of the clients'."""
        return self.datamodules if self.server_data is None else self.server_data

    def _begin_folder(self, datamodule: Data) -> None:
        """What a new folder says of the run before its first round."""
        trainer, module = self.trainer, self.module
        if hasattr(datamodule, "partition_record"):
            self.folder.write_json("partition.json", datamodule.partition_record())
        if trainer.run_config is None:  # else the command line writes it
            config = run_config(trainer.seed, self.settings, trainer.trainer_args, module, self._data)
            write_config(self.folder.path / "config.yaml", config)
        if getattr(module, "_log_hyperparams", False):  # as Lightning asks: not after `save_hyperparameters(logger=False)`
            for logger in self.folder.loggers:
                logger.log_hyperparams(given(module.hparams_initial))

    # ---- training -------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """All phases and rounds from where the state stands."""
        state, settings = self.state, self.settings
        if state["phase"] == state["step"] == state["round"] == 0:
            self._rehearse()
        while state["phase"] < len(self.phases):
            phase = self.phases[state["phase"]]
            with self.progress.steps(phase.name, f"{phase.name}: step", state["step"], phase.num_steps) as done:
                while state["step"] < phase.num_steps:
                    begin = time.perf_counter()
                    metrics = phase.step(self.federation, state["step"])
                    state["seconds"]["train"] += time.perf_counter() - begin
                    self.folder.log(metrics, state["step"], prefix=f"{phase.name}/")
                    if self.folder.tensorboard is not None:
                        self.settings.strategy.log_phase(self.folder.tensorboard, phase.name, state["step"])
                    state["step"] += 1
                    self._save()
                    done(None)
            state["phase"], state["step"] = state["phase"] + 1, 0
        rounds = 1 if self.trainer.fast_dev_run else settings.num_rounds
        with self.progress.steps("rounds", "round", state["round"], rounds) as done:
            while state["round"] < rounds:
                shown = self._round(state["round"], last=state["round"] == rounds - 1)
                state["round"] += 1
                self._save()
                done(shown)

    def _round(self, round: int, last: bool) -> str | None:
        begin = time.perf_counter()
        chosen = participants(self.clients, self.number, self.trainer.seed, round)
        ledger = self.federation.ledger
        up, down = ledger.up, ledger.down
        trained = self.settings.strategy.round(self.federation, round, chosen)
        seconds = time.perf_counter() - begin
        self.state["seconds"]["train"] += seconds
        scalars: dict[str, Any] = {f"clients/{c}/{k}": v for c, metrics in trained.items() for k, v in metrics.items()}
        shown = None
        if last or (round + 1) % self.settings.check_val_every_n_rounds == 0:
            val = self.evaluate(("val",), round, scalars)["val"]
            value = selection_value(val)
            if is_better(value, self.state["best"]["value"], self.monitor.mode):
                self.state["best"] = {"round": round, "value": value, "checkpoint": f"round_{round:05d}", "val": val}
            shown = f"{self.monitor.metric} {'-' if value is None else format(value, '.4f')}"
        scalars |= {
            "bytes/up": ledger.up - up,
            "bytes/down": ledger.down - down,
            "seconds/train": seconds,
            "seconds/round": time.perf_counter() - begin,
        }
        self.folder.log(scalars, round)
        matrices = self.settings.strategy.matrices()
        if matrices:
            self.folder.write_json("matrices.json", {"round": round, **matrices})
        if self.folder.tensorboard is not None:
            self.settings.strategy.log_round(self.folder.tensorboard, round)
        return shown

    def _save(self) -> None:
        self.state["seconds"]["total"] = self.before + time.perf_counter() - self.started
        path = self.checkpoints.save(
            checkpoint.name_of({"state": self.state}),
            self.settings.strategy.state(),
            {
                "identity": self.identity,
                "round": self.state["round"],
                "best": self.state["best"],
                "state": {k: v for k, v in self.state.items() if k != "identity"},
                "ledger": self.federation.ledger.totals(),
                "ledger_end": self.federation.ledger.flush(),
                "metrics_rows": self.folder.num_rows,
                "failures": self.federation.failures,
            },
            self.engine,
            best=self.state["best"]["checkpoint"],
        )
        self.engine.checkpointed(path)

    # ---- evaluation -----------------------------------------------------------------------------------------------

    def evaluate(
        self,
        stages: Sequence[str],
        round: int | None = None,
        scalars: dict[str, Any] | None = None,
        tolerant: bool = False,
    ) -> dict[str, Any]:
        """Summaries of the strategy's current models for each stage; all metrics are added to ``scalars`` if given.

        If ``tolerant``, an error on the server's data is recorded like a client's: it costs no more than that score.
        """
        strategy = self.settings.strategy
        round = max(self.state["round"] - 1, 0) if round is None else round
        requests = {c: strategy.evaluation(c) for c in self.clients}
        replies = self.federation.call(
            "evaluate",
            {c: Payload(p.tensors, {**p.values, "stages": list(stages)}) for c, p in requests.items()},
            round,
            required=False,
            expected=evaluate_reply(tuple(stages)),
        )
        summaries = {}
        for stage in stages:
            per_client = [replies[c].values[stage] if c in replies else None for c in self.clients]
            overall = self._evaluate_global(stage, round, tolerant)
            if stage == "val":  # it chooses the best round; what a test does not log is undefined there
                self.monitor.check([overall, *per_client])
            summaries[stage] = summarise(self.monitor.metric, self.monitor.mode, overall, per_client)
            if scalars is not None:
                scalars |= {f"{stage}/{k}": v for k, v in (overall or {}).items()}
                scalars |= {
                    f"clients/{c}/{stage}/{k}": v for c, m in enumerate(per_client) for k, v in (m or {}).items()
                }
                scalars |= {f"{stage}/clients_{k}": summaries[stage][k] for k in ("mean", "worst")}
        return summaries

    def _evaluate_global(self, stage: str, round: int, tolerant: bool) -> dict[str, float] | None:
        weights = self.settings.strategy.global_weights()
        if weights is None or self.entries.private or self.server_data is None:
            return None
        self.entries.set(weights)
        with stream(self.trainer.seed, f"global {stage}", round):
            return self._on_server_data(stage, round, tolerant)

    def _on_server_data(self, stage: str, round: int, tolerant: bool) -> dict[str, float] | None:
        try:
            return self.local.evaluate(self.server_data, stage)
        except Exception as error:
            if not tolerant:
                raise
            self.federation.reject(None, "evaluate", round, f"{type(error).__name__}: {error}")
            return None

    def _rehearse(self) -> None:
        """What would fail in every round is found now, and not after the first, which phases may put off for hours."""
        here = {c: d for c, d in enumerate(self.datamodules) if not isinstance(d, SiteData)}
        rehearsal = Rehearsal(self.module, self.trainer.trainer_args, self.trainer.seed)
        training = {c: d for c, d in here.items() if c not in self.empty}
        rehearsal.check_lone_batches(training)
        rehearsal.check_optimizers_and_callbacks(training)
        data = [*here.values()] if self.server_data is None else [self.server_data, *here.values()]
        self.monitor.check(rehearsal.logged_in_validation(data, self.monitor.metric))

    def predictions(self) -> dict[int | None, list[dict[str, Tensor]]]:
        """See :meth:`FederatedTrainer.predict`."""
        strategy = self.settings.strategy
        weights = strategy.global_weights()
        if weights is not None and not self.entries.private and self.server_data is not None:
            self.entries.set(weights)
            batches = self.local.predict(self.server_data)
            if batches is not None:
                return {None: [named_outputs(batch) for batch in batches]}
        requests = {c: strategy.evaluation(c) for c in self.clients}
        replies = self.federation.call("predict", requests, self.state["round"], expected=predict_reply())
        result: dict[int | None, list[dict[str, Tensor]]] = {}
        for client, reply in replies.items():
            batches = {}
            for name, tensor in reply.tensors.items():
                index, key = name.split("/", 1)
                batches.setdefault(int(index), {})[key] = tensor
            result[client] = list(batches.values())
        return result

    # ---- the end --------------------------------------------------------------------------------------------------

    def finish(self) -> dict[str, Any]:
        """Score the last round and the best one, write results.json, leave the best global model in the module."""
        best, strategy = self.state["best"], self.settings.strategy
        last = self.evaluate(("val", "test"), tolerant=True)
        chosen = last
        final = f"round_{self.state['round'] - 1:05d}"
        if best["checkpoint"] not in (None, final):
            source = self.checkpoints.directory / best["checkpoint"]
            strategy.load_state(checkpoint.read(source)[0])
            self.engine.load(source)
            chosen = self.evaluate(("val", "test"), best["round"], tolerant=True)
        each = self._each_on_global()
        weights = strategy.global_weights()
        if weights is not None:
            self.entries.set(weights)
        return Results(
            name=self.trainer.name,
            strategy=type(strategy).__name__,
            seed=self.trainer.seed,
            monitor=self.monitor,
            num_clients=len(self.clients),
            rounds_run=self.state["round"],
            best_round=self.state["round"] - 1 if best["round"] is None else best["round"],
            chosen=chosen,
            last=last,
            data=self._data,
            total_seconds=self.before + time.perf_counter() - self.started,
            train_seconds=self.state["seconds"]["train"],
            weighting=getattr(strategy, "weighting", None),
            each_on_global=each,
            bytes=self.federation.ledger.totals(),
            failures=self.federation.failures,
            empty_clients=self.empty,
            workers_rss_mb=self.engine.peak_rss_mb(),
        ).write(self.folder)

    def _each_on_global(self) -> list[float | None] | None:
        wanted = self.settings.score_each_on_global
        strategy = self.settings.strategy
        if wanted is None:
            wanted = getattr(strategy, "score_on_global", False)
        if not wanted or self.server_data is None or self.entries.private:
            return None
        round = max(self.state["round"] - 1, 0)
        requests = {c: strategy.evaluation(c) for c in self.clients}
        whole = Expected(layout=self.entries.get(self.entries.shared))
        replies = self.federation.call("model", requests, round, required=False, expected=whole)
        scores: list[float | None] = []
        for client in self.clients:
            metrics = None
            if client in replies:
                self.entries.set(replies[client].tensors)
                metrics = self._on_server_data("test", round, tolerant=True)
            scores.append(defined(metrics, self.monitor.metric))
        return scores

    def close(self) -> None:
        """Free the clients and files."""
        self.engine.close()
        self.federation.ledger.close()
        self.folder.close()
