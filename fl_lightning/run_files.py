"""The files of a run: its folder, its checkpoints, and what it goes on from."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fl_lightning.assembly import Assembly
from fl_lightning.engine import checkpoint
from fl_lightning.engine.entries import first_difference
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.lightning_fast import hyperparameters
from fl_lightning.engine.transport import Engine
from fl_lightning.errors import ResumeError
from fl_lightning.reporting.given import given, run_config, write_config
from fl_lightning.reporting.rank import first_rank
from fl_lightning.reporting.run_folder import RunFolder
from fl_lightning.reporting.run_lock import RunLock
from fl_lightning.run_state import Best, RunState
from fl_lightning.strategies.base import Strategy

if TYPE_CHECKING:
    from fl_lightning.trainer import FederatedTrainer

LOG = logging.getLogger("fl_lightning")


class RunFiles:
    """Reads the checkpoint to go on from, if any, and then opens the run's folder.

    Args:
        trainer: Whose run it is.
        given: ``ckpt_path`` of the checkpoint; ``None`` begins anew.
        writes: Whether the run's folder may be written into; ``False`` reads only.
        lock: Held over the run's folder from here on, if it is written into.
        identity: What the checkpoint must have been made with.
        initial: The strategy's state before round 1, of entries of one length: what the checkpoint must hold to be loaded.

    Attributes:
        source: The checkpoint's folder.
        home: The run's folder that ``source`` lies in; ``None`` if it lies in none.
        folder, checkpoints: After :meth:`open`.

    Raises:
        ResumeError: If the checkpoint was made with something else.
        ValueError: If another process writes the run.
    """

    folder: RunFolder
    checkpoints: checkpoint.Checkpoints

    def __init__(
        self,
        trainer: FederatedTrainer,
        given: str | None,
        writes: bool,
        lock: RunLock,
        identity: Mapping[str, Any],
        initial: Mapping[str, Tensor],
    ) -> None:
        self.identity, self.settings, self.writes, self._lock = identity, trainer.settings, writes, lock
        self.scratch = not writes or trainer.fast_dev_run or not first_rank()
        source = self.source = None if given is None else self._claimed(trainer, given)
        self.tensors: dict[str, Tensor] = {}
        self.values: dict[str, Any] = {}
        self.home: Path | None = None
        if source is None:
            return
        self.tensors, self.values = checkpoint.read(source)
        self.home = checkpoint.run_of(source)
        then = self.values["identity"]["federation"]  # of a run from before there were these, as it was
        before: dict[str, Any] = {
            "local_clock": "round",
            "upload_transforms": [],
            "average": [],
            "batch_norm": "average",
            "aggregation": None,
        }
        then |= {name: value for name, value in before.items() if name not in then}
        lines = checkpoint.difference(self.values["identity"], dict(identity))
        different = first_difference(self.tensors, initial) if lines else None
        if lines and (different or not self.settings.force):
            raise ResumeError(
                f"`{source}` was made with another configuration, other clients or other data:\n  "
                + "\n  ".join(lines)
                + "\nUse the same, or "
                + (
                    f"begin a new run: not even `--federation.force true` can load the checkpoint, for {different}."
                    if different
                    else "`--federation.force true` to go on all the same."
                )
            )

    def _claimed(self, trainer: FederatedTrainer, given: str) -> Path:
        """The checkpoint that is meant, in a run that no other process goes on with from here on."""
        source = trainer.find_checkpoint(given)
        home = checkpoint.run_of(source)
        if home is None or self.scratch:
            return source
        self._lock.hold(home)
        return checkpoint.find(given, home.parent, home)  # its writer may have gone on until now

    def open(self, trainer: FederatedTrainer, assembly: Assembly) -> None:
        """Open the run's folder: a new one, or the checkpoint's, cut to where it was then; a temporary one if nothing is
        to be written."""
        self.folder = RunFolder(
            trainer.root,
            trainer.name,
            trainer.logger,
            self._lock,
            scratch=self.scratch,
            resume=None if self.scratch else self.home,
            purge_step=None if self.home is None or self.values["round"] == 0 else self.values["round"],
            keep_rows=0 if self.home is None else self.values["metrics_rows"],
        )
        if self.writes:
            trainer.run_dir = None if self.scratch else self.folder.path
        self.checkpoints = checkpoint.Checkpoints(self.folder.path / "checkpoints", self.settings.keep_last)
        if not self.scratch and self.home is None:
            self._begin(trainer, assembly)

    def _begin(self, trainer: FederatedTrainer, assembly: Assembly) -> None:
        """What a new folder says of the run before its first round."""
        module: Any = assembly.module
        record = getattr(assembly.given, "partition_record", None)
        if record is not None:
            self.folder.write_json("partition.json", record())
        if trainer.run_config is None:  # else the command line writes it
            config = run_config(trainer.seed, self.settings, trainer.trainer_args, module, assembly.data)
            write_config(self.folder.path / "config.yaml", config)
        if hyperparameters.are_logged(module):
            for logger in self.folder.loggers:
                logger.log_hyperparams(given(module.hparams_initial))

    def save(
        self, state: RunState, strategy: Strategy, engine: Engine, federation: Federation, schema: Mapping[str, Any] | None
    ) -> None:
        """Write the checkpoint of where the run stands."""
        written = state.as_json()
        path = self.checkpoints.save(
            checkpoint.name_of({"state": written}),
            strategy.state(),
            {
                "identity": self.identity,
                "round": state.round,
                "best": written["best"],
                "state": written,
                "ledger": federation.ledger.totals(),
                "ledger_end": federation.ledger.flush(),
                "metrics_rows": self.folder.num_rows,
                "failures": federation.failures,
                "schema": schema,
            },
            engine,
            best=state.best.checkpoint,
        )
        engine.checkpointed(path)

    def go_on(self, strategy: Strategy, engine: Engine, federation: Federation) -> RunState:
        """Everything as it was when the checkpoint was written, and the ledger open; a new state without a checkpoint."""
        ledger, path = federation.ledger, self.folder.path / "ledger.jsonl"
        if self.source is None:
            ledger.open(path)
            return RunState(validation=federation.validation)
        state, source = RunState.from_json(self.values["state"]), self.source
        best = state.best.checkpoint
        if self.writes and (self.home is None or self.scratch):  # what lies around it is somebody else's, or not to be touched
            if not self.scratch:
                LOG.warning("`%s` lies in no run's folder. The run goes on in `%s`; its ledger and metrics begin there.",
                            source, self.folder.path)  # fmt: skip
            source = self.checkpoints.adopt(source, checkpoint.name_of(self.values), best)
        elif not self.scratch:
            self.checkpoints.forget_after(source.name)
        if best is not None and not (self.checkpoints.directory / best).is_dir():  # from an older one: it is gone
            state.best = Best()
        strategy.load_state(self.tensors)
        engine.load(source)
        federation.failures, federation.validation = self.values["failures"], state.validation
        ledger.restore(self.values["ledger"])
        ledger.open(path, None if self.scratch or self.home is None else self.values["ledger_end"])
        return state
