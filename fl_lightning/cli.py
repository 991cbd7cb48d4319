"""``fl-lightning {fit,validate,test,predict,inspect,canary,compare,report}``: LightningCLI with a ``federation:`` section.

``--federation null`` trains the same model centrally, with a stock ``lightning.Trainer``.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning as L
import yaml
from jsonargparse import ArgumentError
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from fl_lightning.central import fit_centrally, predict_centrally
from fl_lightning.central_checkpoints import find_central
from fl_lightning.command_names import AT_SITES, COMPARING
from fl_lightning.config_errors import sentence
from fl_lightning.config_files import check_plain, load_yaml
from fl_lightning.config_optimizers import FromConfig
from fl_lightning.engine.checkpoint import run_of
from fl_lightning.engine.local import quiet
from fl_lightning.reporting.failures import ClientsFailed
from fl_lightning.reporting.inspection import REMARKS, inspect_data, must_be_met
from fl_lightning.reporting.left_out import LeftOut, RowsLeftOut
from fl_lightning.reporting.output_paths import check_file
from fl_lightning.reporting.predictions import write_apart, write_predictions
from fl_lightning.reporting.run_folder import central_run_of
from fl_lightning.reporting.tables import score_lines
from fl_lightning.settings import FederationSettings
from fl_lightning.trainer import FederatedTrainer

# What a run's weights do not depend on: not compared on resuming.
NOT_COMPARED = ("logger", "default_root_dir", "enable_progress_bar", "enable_checkpointing", "enable_model_summary")


# Of the federation's settings, those that central training asks for, too.
CENTRAL_TOO = ("monitor", "monitor_mode", "max_dropped_share")


STRICT_HELP = (
    "Exit with code 1 if there is any finding but those with nothing to do if they are meant "
    f"({', '.join(REMARKS)}; multi_fragment only with positions)."
)


class CommandTrainer(L.Trainer):
    """The stock Trainer, and the signatures of the commands it does not have."""

    def inspect(self, model: L.LightningModule, datamodule: L.LightningDataModule) -> None:
        """Say what the data and the partition are, and what will hurt, before any training."""

    def canary(self, model: L.LightningModule, datamodule: L.LightningDataModule) -> None:
        """Show that no label outside the training part trains: run twice, once with these labels permuted, and compare bits."""


class FederatedCLI(LightningCLI):
    """LightningCLI whose trainer is a :class:`FederatedTrainer` unless ``federation`` is null.

    Raises:
        ValueError: In one sentence, what is wrong with the command line or the config.
    """

    def __init__(self, args: list[str]) -> None:
        self.trainer: Any  # a FederatedTrainer, or a stock Trainer if `federation` is null
        self.given_args = list(args)  # never sys.argv, which belongs to the program that calls us
        try:
            self._run()
        except ArgumentError as error:
            parser = self._subcommand_parsers.get(args[0] if args else "", self.parser)
            raise ValueError(sentence(error, args, parser, (*COMPARING, *AT_SITES))) from error

    def _run(self) -> None:
        super().__init__(
            trainer_class=CommandTrainer,
            seed_everything_default=0,
            trainer_defaults={"inference_mode": False, "num_sanity_val_steps": 0, "enable_model_summary": False},
            save_config_callback=None,  # it would write into the current folder where there is no logger; see `_save_config`
            parser_kwargs={"description": "Federated learning on graphs and molecules: train, evaluate, predict, inspect."},
            args=self.given_args,
        )

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        kwargs.setdefault("epilog", "Besides: `fl-lightning {compare,report,site,server,client} --help`.")
        # A mistyped key must not pass for another, and mistakes are told by `sentence`, not on a page of usage.
        return super().init_parser(**{"allow_abbrev": False, "exit_on_error": False, **kwargs})

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {**LightningCLI.subcommands(), "inspect": {"model", "datamodule"}, "canary": {"model", "datamodule"}}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--federation",
            type=FederationSettings | None,
            default={},
            help="Federated training over rounds; null trains the same model centrally, with a stock Trainer.",
        )

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand == "inspect":
            parser.add_argument("--json", action="store_true", help="Print one JSON object instead of tables.")
            parser.add_argument("--html", type=str | None, default=None, help="Also write a self-contained page there.")
            parser.add_argument("--strict", action="store_true", help=STRICT_HELP)
        if subcommand == "canary":
            parser.add_argument("--rounds", type=int, default=2, help="Rounds of each of the two runs.")
        if subcommand == "predict":
            parser.add_argument(
                "--output", type=str | None, default=None, help="File to write. Default: `predictions.csv` in the run's folder."
            )  # fmt: skip
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        with warnings.catch_warnings():  # `args` given in Python while sys.argv belongs to somebody else is fine
            warnings.filterwarnings("ignore", ".*LightningCLI's args parameter.*")
            super().parse_arguments(parser, args)
        check_plain(self.config[self.config["subcommand"]].as_dict())

    def _set_seed(self) -> None:
        with quiet():  # Lightning would announce the seed
            super()._set_seed()

    def _run_subcommand(self, subcommand: str) -> None:
        getattr(self, subcommand)(**self._prepare_subcommand_kwargs(subcommand))

    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        optimizer, scheduler = (self._get(self.config_init, key) for key in ("optimizer", "lr_scheduler"))
        if optimizer:
            self.model.configure_optimizers = FromConfig(self.model, optimizer.as_dict(), scheduler and scheduler.as_dict())
        elif scheduler:
            raise ValueError("`lr_scheduler:` at the top of a config needs an `optimizer:` beside it.")

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        if self._central:
            bar = {} if sys.stderr.isatty() else {"enable_progress_bar": False}
            with quiet():
                return super().instantiate_trainer(logger=False, **self._central_work, **bar, **kwargs)
        federation = self._get(self.config_init, "federation")
        if federation.name is None:
            federation.name = self.config_name
        return FederatedTrainer(
            **vars(federation),
            trainer=dict(self._get(self.config_init, "trainer")),
            seed=self._get(self.config, "seed_everything"),
            run_config=self._compared_config(),
        )

    # ---- commands -------------------------------------------------------------------------------------------------

    def fit(self, **arguments: Any) -> None:
        """``fl-lightning fit``."""
        ckpt_path = arguments.get("ckpt_path")
        with warnings.catch_warnings():
            for said in (RowsLeftOut, ClientsFailed):  # by `score_lines`
                warnings.simplefilter("ignore", said)
            if isinstance(self.trainer, FederatedTrainer):
                results = self.trainer.fit(self.model, self.datamodule, ckpt_path, on_start=self._save_config)
                folder = self.trainer.run_dir
            else:
                source = None if ckpt_path is None else self._central_checkpoint(ckpt_path)
                if source is not None:
                    _say([f"central: goes on from {source}"])
                results, folder = fit_centrally(
                    self.trainer,
                    self.model,
                    self.datamodule,
                    source,
                    f"{self.config_name}_central",
                    dict(self._get(self.config_init, "trainer")),
                    **{key: value for key, value in self._federation_given.items() if key in CENTRAL_TOO},
                    on_start=self._save_config,
                )
        _say(score_lines(results))
        if folder is not None:
            _say([f"run: {folder}"])

    def validate(self, **arguments: Any) -> None:
        """``fl-lightning validate``."""
        self._score("val", "validate", arguments)

    def test(self, **arguments: Any) -> None:
        """``fl-lightning test``."""
        self._score("test", "test", arguments)

    def _score(self, stage: str, verb: str, arguments: dict[str, Any]) -> None:
        if not isinstance(self.trainer, FederatedTrainer):
            source = self._central_checkpoint(arguments.get("ckpt_path") or "best")
            getattr(self.trainer, verb)(self.model, datamodule=self.datamodule, ckpt_path=str(source))
            return
        summary = getattr(self.trainer, verb)(self.model, self.datamodule, arguments.get("ckpt_path") or "best")
        _say([json.dumps({stage: summary})])

    def predict(self, **arguments: Any) -> None:
        """``fl-lightning predict``."""
        given, output = arguments.get("ckpt_path") or "best", self.config[self.subcommand]["output"]
        federated = isinstance(self.trainer, FederatedTrainer)
        source = self.trainer.find_checkpoint(given) if federated else self._central_checkpoint(given)
        folder = run_of(source) if federated else central_run_of(source)
        if output is not None:
            path = Path(output)
            check_file(path, "--output")
        elif folder is not None:
            path = folder / f"{_predictions_name(self.config[self.subcommand].data)}.csv"
        else:
            raise ValueError(
                f"`{source}` lies in no run's folder, where the predictions would be written. Name a file: `--output FILE.csv`."
            )
        found: Any
        if federated:
            found = self.trainer.predict(self.model, self.datamodule, str(source))
        else:
            found = {None: predict_centrally(self.trainer, self.model, self.datamodule, source)}

        def write(target: Path) -> Path:
            return write_predictions(target, found, self.datamodule)

        others = output is None and path.name != "predictions.csv"  # another file may have the same name
        written = write_apart(path, write) if others else write(path)
        left_out = LeftOut.of_predictions(self.datamodule).amount
        _say([f"predictions: {written}", *([f"{left_out} left out: see `reason` there"] if left_out else [])])

    def inspect(self, **arguments: Any) -> None:
        """``fl-lightning inspect``."""
        asked = self.config[self.subcommand]
        settings = self.trainer.settings if isinstance(self.trainer, FederatedTrainer) else None
        findings = inspect_data(
            self.datamodule, asked["json"], asked["html"], lambda line: _say([line]), self.model,
            settings, f"inspect {self.config_name}",
        )  # fmt: skip
        if asked["strict"] and must_be_met(findings):
            raise SystemExit(1)

    def canary(self, **arguments: Any) -> None:
        """``fl-lightning canary``."""
        from fl_lightning.canary import canary_of_config  # what no other command needs

        verdict = canary_of_config(self.model, self.datamodule, self.config_init[self.subcommand])
        _say(verdict.lines())
        if verdict.difference is not None:
            raise SystemExit(1)

    # ---- configuration --------------------------------------------------------------------------------------------

    @property
    def _central(self) -> bool:
        return self._get(self.config_init, "federation") is None

    @property
    def monitor_given(self) -> tuple[str | None, str | None]:
        """``federation.monitor`` and ``federation.monitor_mode``, for central training, too."""
        if self._central:
            return self._federation_given.get("monitor"), self._federation_given.get("monitor_mode")
        return self.trainer.settings.monitor, self.trainer.settings.monitor_mode

    @property
    def config_name(self) -> str:
        """Name of the (last) config file, without its ending; ``run`` without one."""
        files = self._get(self.config, "config") or []
        return Path(str(files[-1])).stem if files else "run"

    @cached_property
    def _federation_given(self) -> dict[str, Any]:
        """What the config files and the command line say of the federation also with ``--federation null``: how many rounds it
        would have, and what chooses the best one."""
        given: dict[str, Any] = {}
        for path in self._get(self.config, "config") or []:
            section = load_yaml(Path(str(path))).get("federation")
            if isinstance(section, dict):
                given |= section.get("init_args", section)
        for name, value in _options(self.given_args, "--federation."):
            given[name.removeprefix("init_args.")] = yaml.safe_load(value)
        return given

    def _central_checkpoint(self, given: str) -> Path:
        """The checkpoint that ``--ckpt_path`` means for a central run; never a model that was not trained."""
        runs = Path(self._get(self.config_init, "trainer").get("default_root_dir") or "runs").expanduser()
        return find_central(given, runs / f"{self.config_name}_central")

    def _save_config(self, folder: Path) -> None:
        config = self.config[self.subcommand].clone()
        for key, value in self._central_work.items():  # of all rounds together, so that the file repeats the run
            config.trainer[key] = value
        text = self._parser(self.subcommand).dump(config, skip_none=False)
        if self._central:
            kept = [f"--federation.{k} {v}" for k, v in self._federation_given.items() if k in CENTRAL_TOO and v is not None]
            text = f"# fl-lightning fit --config config.yaml {' '.join([*kept, '--federation null'])}\n{text}"
        (folder / "config.yaml").write_text(text, encoding="utf-8")

    def _compared_config(self) -> dict[str, Any]:
        return _compared(yaml.safe_load(self._parser(self.subcommand).dump(self.config[self.subcommand], skip_none=False)))

    @cached_property
    def _central_work(self) -> dict[str, Any]:
        """Central training takes as many epochs or steps as all rounds together, unless the command line says how many."""
        rounds, trainer = self._federation_given.get("num_rounds"), self._get(self.config_init, "trainer")
        given = [*_options(self.given_args, "--trainer.max_epochs"), *_options(self.given_args, "--trainer.max_steps")]
        if not self._central or rounds is None or given:
            return {}
        if trainer["max_steps"] not in (None, -1):
            _say([f"central: {rounds} rounds x {trainer['max_steps']} steps = {rounds * trainer['max_steps']} steps"])
            return {"max_steps": rounds * trainer["max_steps"], "max_epochs": -1}
        epochs = trainer["max_epochs"] or 1
        _say([f"central: {rounds} rounds x {epochs} epochs = {rounds * epochs} epochs"])
        return {"max_epochs": rounds * epochs}


def _compared(config: dict[str, Any]) -> dict[str, Any]:
    """What of a config a run's weights depend on."""
    compared: dict[str, Any] = {key: config.get(key) for key in ("seed_everything", "model", "data")}
    compared |= {key: config[key] for key in ("optimizer", "lr_scheduler") if config.get(key)}
    compared["strategy"] = config["federation"]["strategy"]
    compared["trainer"] = {k: v for k, v in config["trainer"].items() if k not in NOT_COMPARED}
    # Where files are, and what is predicted; the data have a hash.
    for where in ("root", "files", "predict_files", "predict_root"):
        (compared["data"].get("init_args") or {}).pop(where, None)
    return compared


def _predictions_name(data: Any) -> str:
    """``predictions`` of the run's own data; of another file or folder ``predictions_<its name>``."""
    arguments = data.get("init_args") or {}
    asked = arguments.get("predict_files") or arguments.get("predict_root")
    first = asked[0] if isinstance(asked, list) and asked else asked
    return "predictions" if first is None else re.sub(r"[^\w.-]", "_", f"predictions_{Path(str(first)).resolve().stem}")


def _options(args: list[str], start: str) -> list[tuple[str, str]]:
    """Options of the command line that begin with ``start``: the rest of their names, and their values."""
    found = []
    for place, argument in enumerate(args):
        name, equals, value = argument.partition("=")
        if name.startswith(start) and (equals or place + 1 < len(args)):
            found.append((name.removeprefix(start), value if equals else args[place + 1]))
    return found


def main(args: Sequence[str]) -> int:
    """Run ``fit``, ``validate``, ``test``, ``predict``, ``inspect`` or ``canary``; returns the exit code.

    Raises:
        ValueError: For a mistake of the configuration or the data; `fl_lightning.commands` tells it without a traceback.
    """
    FederatedCLI(list(args))
    return 0


def _say(lines: list[str]) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
