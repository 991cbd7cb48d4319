"""Settings of a federation: the YAML's ``federation:`` section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from fl_lightning.early_stopping import EarlyStopping
from fl_lightning.engine.in_process import InProcess
from fl_lightning.engine.transport import Engine
from fl_lightning.engine.upload_transforms import UploadTransform
from fl_lightning.strategies.aggregation import Aggregation
from fl_lightning.strategies.base import Strategy
from fl_lightning.strategies.fedavg import FedAvg
from fl_lightning.unknown_keys import first_unknown


@dataclass
class FederationSettings:
    """Federated training over rounds.

    Args:
        num_rounds: Number of rounds.
        strategy: The federated algorithm, e.g. ``fl_lightning.strategies.FedAvg`` (default).
        clients_per_round: Participants of a round, drawn anew each round: a count (whole number) or a fraction of all clients
            (a number with a decimal point, rounded half up, at least 1 client).
        engine: Where clients run: ``fl_lightning.engine.InProcess`` (default) or
            ``fl_lightning.engine.WorkerProcesses``.
        min_clients: A step that fewer clients answer fails the run; the last good model and checkpoint stay.
        carry_optimizer_state: Each client's optimiser goes on where its last round ended, instead of starting afresh. Default:
            as the strategy's paper has it (true for ``FedPub``, else false).
        check_val_every_n_rounds: Validate after every n-th round (and always after the last).
        keep_last: Checkpoints kept, besides that of the best round.
        client_timeout: Seconds a step may take before clients that have not answered are left out; none by default.
            Needs clients in processes of their own: ``InProcess`` cannot interrupt one.
        monitor: Metric that chooses the best round, as the module logs it without the stage (``accuracy`` for
            ``val/accuracy`` or ``val_accuracy``). Default: the module's ``monitor``, else ``loss``.
        monitor_mode: Whether more or less of it is better. Default: the module's ``monitor_mode``, else by its name.
        private: ``fnmatch`` patterns of ``state_dict`` entries that never leave a client, besides the module's own
            ``private_entries``; e.g. ``["head.*"]`` for personal heads.
        average: ``fnmatch`` patterns of buffers and frozen parameters that are averaged although clients begin with different
            ones; without it that is an error, since a mean of scalers or tables means nothing.
        batch_norm: ``average`` the entries of normalisation layers (BatchNorm) like all others, or keep them ``local``: each
            client its own, weights and running statistics (FedBN, Li et al. 2021).
        upload_transforms: What happens to a client's update before it leaves, in order, e.g. ``[{class_path:
            fl_lightning.engine.ClipNorm, init_args: {max_norm: 1.0}}]``.
        aggregation: How the server makes one model of its clients', where some may be wrong or lie: instead of the weighted
            mean ``Median``, ``TrimmedMean``, ``ClippedMean`` or ``MultiKrum`` of ``fl_lightning.strategies``. For FedAvg and
            its kind.
        score_each_on_global: After training, also score every client's own model on the server's data. For that one step the
            models are uploaded. Default: only for ``LocalOnly``.
        max_dropped_share: The largest share of the data's rows, of nodes and of links each, that may be unusable: of all rows,
            and of each client's (those with ten or more, where the data say whose a row is). Beyond it ``fit`` stops before
            round 1. 1.0 trains whatever is left.
        fast_loops: Fit and evaluate with one Trainer for all rounds, and go through Lightning's loops in a short way where
            nobody can tell the difference: the same bits in less than half the time of a small fit. ``false``: a new stock
            ``lightning.Trainer`` with Lightning's own loops each time, to see whether a fault is ours. A Lightning that the
            short way was not proven with gets that in any case, and the run says so.
        local_clock: ``run``: a client's fit in round r of R is that part of one training of R times ``trainer.max_epochs``
            epochs (or ``max_steps`` steps): ``current_epoch``, ``global_step``, ``trainer.max_epochs`` and learning-rate
            schedules go on from round to round, at the federation's position. ``round``: each fit is a training of its own, and
            schedules begin anew in every round.
        early_stopping: End the run when the server's validation has stopped getting better, e.g. ``{patience: 5}``.
        name: Name of the run's folder. Default: the name of the config file, or of the strategy.
        force: Resume although the configuration, the clients or the data differ from the checkpoint's.
    """

    num_rounds: int = 10
    strategy: Strategy = None  # type: ignore[assignment]  # null in YAML: the default, which `__post_init__` fills in
    clients_per_round: int | float = 1.0
    engine: Engine = None  # type: ignore[assignment]  # likewise
    min_clients: int = 1
    carry_optimizer_state: bool | None = None
    check_val_every_n_rounds: int = 1
    keep_last: int = 2
    client_timeout: float | None = None
    monitor: str | None = None
    monitor_mode: Literal["min", "max"] | None = None
    private: list[str] = field(default_factory=list)
    average: list[str] = field(default_factory=list)
    batch_norm: Literal["average", "local"] = "average"
    upload_transforms: list[UploadTransform] = field(default_factory=list)
    aggregation: Aggregation | None = None
    score_each_on_global: bool | None = None
    max_dropped_share: float = 0.5
    fast_loops: bool = True
    local_clock: Literal["run", "round"] = "run"
    early_stopping: EarlyStopping | None = None
    name: str | None = None
    force: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> FederationSettings:
        """Settings from keyword arguments of Python.

        Raises:
            TypeError: If one is no setting, with the nearest that is.
        """
        unknown = first_unknown("federation", given, [f.name for f in fields(cls)])
        if unknown:
            raise TypeError(unknown)
        return cls(**given)

    def __post_init__(self) -> None:
        self.strategy = FedAvg() if self.strategy is None else self.strategy
        self.engine = InProcess() if self.engine is None else self.engine
        if isinstance(self.early_stopping, Mapping):  # from Python
            unknown = first_unknown("federation.early_stopping", self.early_stopping, [f.name for f in fields(EarlyStopping)])
            if unknown:
                raise ValueError(unknown)
            self.early_stopping = EarlyStopping(**self.early_stopping)
        self._check()
        if self.carry_optimizer_state is None:
            self.carry_optimizer_state = self.strategy.carry_optimizer_state

    def _check(self) -> None:
        if self.batch_norm not in ("average", "local"):
            raise ValueError(f"`federation.batch_norm` is `average` or `local`, got {self.batch_norm!r}.")
        if self.local_clock not in ("run", "round"):
            raise ValueError(f"`federation.local_clock` is `run` or `round`, got {self.local_clock!r}.")
        if not isinstance(self.strategy, Strategy):
            raise ValueError(f"`federation.strategy` must be a Strategy such as `FedAvg()`, got {self.strategy!r}.")
        if not isinstance(self.engine, Engine):
            raise ValueError(f"`federation.engine` must be an Engine such as `InProcess()`, got {self.engine!r}.")
        self._check_aggregation()
        for key in ("num_rounds", "min_clients", "check_val_every_n_rounds", "keep_last"):
            if getattr(self, key) < 1:
                raise ValueError(f"`federation.{key}` must be at least 1, got {getattr(self, key)}.")
        self.strategy.check_rounds(self.num_rounds)
        if not 0 <= self.max_dropped_share <= 1:
            raise ValueError(f"`federation.max_dropped_share` is a share from 0.0 to 1.0, got {self.max_dropped_share}.")
        if self.name is not None and (Path(self.name).name != self.name or self.name in ("", "..")):
            raise ValueError(
                f"`federation.name` is the name of one folder, got `{self.name}`. Another place for the runs is "
                "`trainer.default_root_dir`."
            )
        if self.client_timeout is not None and not self.client_timeout > 0:
            raise ValueError(f"`federation.client_timeout` must be positive, got {self.client_timeout}.")

    def _check_aggregation(self) -> None:
        chosen, strategy = self.aggregation, type(self.strategy).__name__
        if chosen is None:
            return
        name = type(chosen).__name__
        if not isinstance(chosen, Aggregation):
            raise ValueError(f"`federation.aggregation` must be an Aggregation such as `Median()`, got {chosen!r}.")
        if not self.strategy.takes_aggregation:
            raise ValueError(
                f"`federation.aggregation: {name}` takes the place of the clients' mean, and `federation.strategy: {strategy}` "
                "is more than that mean, or has none. Use `FedAvg` or one of its kind (`FedAvgM`, `FedAdam`, `FedPer`, ...), "
                "or leave `federation.aggregation` out."
            )
        if self.min_clients < chosen.needs:
            raise ValueError(
                f"`federation.aggregation: {name}` needs at least {chosen.needs} clients in every round, and "
                f"`federation.min_clients` is {self.min_clients}: set it to {chosen.needs}."
            )

    @property
    def scores_each(self) -> bool:
        """Whether every client's own model is scored on the server's data, as far as models may be uploaded as they are."""
        if self.score_each_on_global is None:
            return bool(getattr(self.strategy, "score_on_global", False)) and not self.upload_transforms
        return self.score_each_on_global

    @property
    def clock_rounds(self) -> int | None:
        """Rounds that have one clock; ``None`` if each has its own."""
        return self.num_rounds if self.local_clock == "run" else None

    def describe(self) -> dict[str, Any]:
        """What the weights depend on, as JSON: everything but where clients run and how files are kept."""
        skip = {
            "engine",
            "keep_last",
            "client_timeout",
            "max_dropped_share",
            "fast_loops",
            "early_stopping",
            "name",
            "force",
            "num_rounds",
            "strategy",
            "score_each_on_global",
        }
        content = {f.name: describe(getattr(self, f.name)) for f in fields(self) if f.name not in skip}
        return {**content, "threads": self.engine.threads, "strategy": describe(self.strategy)}


def describe(thing: Any) -> Any:
    """A JSON-able description of an object's class and plain attributes, recursively."""
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, dict):
        return {str(k): describe(v) for k, v in thing.items()}
    if isinstance(thing, list | tuple):
        return [describe(v) for v in thing]
    name = f"{type(thing).__module__}.{type(thing).__qualname__}"
    plain = {
        k: describe(v)
        for k, v in sorted(getattr(thing, "__dict__", {}).items())
        if not k.startswith("_") and (v is None or isinstance(v, bool | int | float | str | list | tuple))
    }
    return {"class": name, **plain}
