"""What a client's ``lightning.Trainer`` cannot be given (YAML ``trainer:``), and objects of the wrong package."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, EarlyStopping
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from fl_lightning.unknown_keys import first_unknown

OTHER = "pytorch_lightning"
"""The same classes under another name: Lightning asks for its own by ``isinstance``. Never imported here: it may be absent."""


# Callbacks whose state belongs to one training without a break, and what to write instead.
_NEED_ONE_TRAINING = {
    "EarlyStopping": "would stop a client in the middle of the run, which goes on without it. To end the run when its "
    "validation gets no better, write `federation.early_stopping: {patience: 5}`; to stop a client's local epochs, anew in "
    "each round, `federation.local_clock: round`",
    "StochasticWeightAveraging": "averages the epochs of one training without a break, but clients begin each round from the "
    "server's average, which it does not know. Leave it out: the server averages in every round",
    "WeightAveraging": "averages the steps of one training without a break, but clients begin each round from the server's "
    "average, which it does not know. Leave it out: the server averages in every round",
    "LearningRateFinder": "would search in each round of each client anew. Search once, with a `lightning.Trainer` on one "
    "client's data, and write the rate that it finds into the config",
    "BatchSizeFinder": "would search in each round of each client anew. Search once, with a `lightning.Trainer` on one "
    "client's data, and write the batch size that it finds into the config",
}


def check_trainer_args(args: Mapping[str, Any], local_clock: str = "run") -> None:
    """Refuse what a client's trainer cannot do.

    Args:
        args: Arguments of ``lightning.Trainer``.
        local_clock: ``federation.local_clock``.

    Raises:
        ValueError: In the YAML's names.
    """
    unknown = first_unknown("trainer", args, list(inspect.signature(L.Trainer).parameters))
    if unknown:
        raise ValueError(unknown)
    for name, value in args.items():
        for thing in _flat(value):
            if not _is_checkpoint(thing):
                check_package(thing, f"trainer.{name}")
    check_callbacks(callbacks_of(args), "`trainer.callbacks`", local_clock)
    check_trains(args)
    if args.get("max_epochs") == 0 or args.get("max_steps") == 0:
        raise ValueError("`trainer.max_epochs` and `trainer.max_steps` are a client's local work in a round: at least 1.")
    if args.get("max_epochs") == -1 and args.get("max_steps", -1) in (-1, None) and args.get("max_time") is None:
        raise ValueError(
            "`trainer.max_epochs: -1` would never end: it is a client's local work in a round. Give a number of "
            "epochs, or `trainer.max_steps`."
        )


def check_trains(args: Mapping[str, Any]) -> None:
    """Refuse a limit under which no batch is trained on, which Lightning takes without a word.

    Raises:
        ValueError: Naming it.
    """
    limit = args.get("limit_train_batches")
    if limit is not None and limit == 0:
        raise ValueError(
            f"`trainer.limit_train_batches: {limit}` trains on no batch, so that nothing would be learnt. Leave it out, or "
            "give a number of batches (1) or a share of them (0.5)."
        )


def check_callbacks(callbacks: list[Any], where: str, local_clock: str = "run") -> None:
    """Refuse callbacks that write checkpoints of a client's fit, or that know nothing of rounds.

    Raises:
        ValueError: Naming ``where``.
    """
    if any(_is_checkpoint(callback) for callback in callbacks):
        raise ValueError(
            f"{where} holds a ModelCheckpoint, but `trainer` is what a client does in one round. "
            "The federation writes a checkpoint a round itself: use `federation.keep_last`."
        )
    for callback in callbacks if local_clock == "run" else []:
        for kind in type(callback).__mro__:
            if kind.__name__ in _NEED_ONE_TRAINING and kind.__module__.startswith("lightning."):
                raise ValueError(f"{where} holds {type(callback).__name__}, which {_NEED_ONE_TRAINING[kind.__name__]}.")
        state = callback.state_dict() if isinstance(callback, Callback) else {}
        odd = [name for name, value in state.items() if not (isinstance(value, Tensor) or _is_json(value))]
        if odd:
            raise ValueError(
                f"{where} holds {type(callback).__name__}, whose state (`state_dict()`) goes on from a client's round to its "
                f"next as tensors and JSON, but `{odd[0]}` in it is {type(state[odd[0]]).__name__}. Give it as a tensor, "
                "numbers or text, or write `federation.local_clock: round`: then each fit begins without it."
            )


def callbacks_of(args: Mapping[str, Any]) -> list[Callback]:
    """``trainer.callbacks`` as a list; Lightning takes a single one, too."""
    return list(_flat(args.get("callbacks") or []))


def early_stops(callbacks: list[Any]) -> list[EarlyStopping]:
    """Those that end a fit with an error where their metric is not logged."""
    return [callback for callback in callbacks if isinstance(callback, EarlyStopping) and callback.strict]


def check_package(thing: Any, where: str, base: type | None = None) -> None:
    """Is it one of ``lightning``'s, and not of ``pytorch_lightning``, which may be installed beside it?

    Args:
        thing: A module, data module, callback, logger, plugin, ...
        where: Name of the argument, in the user's terms.
        base: What it must be an instance of, if anything.

    Raises:
        ValueError: Saying what to change.
    """
    other = next((c for c in type(thing).__mro__ if c.__module__.split(".")[0] == OTHER), None)
    name = type(thing).__name__
    if other is not None:
        is_it = "comes from" if other is type(thing) else f"derives from `{other.__name__}` of"
        raise ValueError(
            f"`{where}: {name}` {is_it} `{OTHER}`, but this is `lightning`, which takes only its own classes. Change "
            f"`import {OTHER} as pl` to `import lightning.pytorch as pl`; nothing else needs to change."
        )
    if base is not None and not isinstance(thing, base):
        raise ValueError(f"`{where}` must be a `lightning.{base.__name__}`, but is {name}.")


@contextmanager
def missing_metric_in_words() -> Iterator[None]:
    """A metric that a stock Trainer's early stopping, checkpoint or scheduler waits for and nobody logs is a mistake of the
    configuration, told as such: Lightning raises a RuntimeError or an exception of its own.

    Raises:
        ValueError: With Lightning's words, which list what is logged.
    """
    try:
        yield
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error
    except RuntimeError as error:
        if "Early stopping conditioned on metric" not in str(error):
            raise
        raise ValueError(f"`trainer.callbacks`: {error}") from error


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def _is_checkpoint(thing: Any) -> bool:
    return any(c.__name__ == "ModelCheckpoint" for c in type(thing).__mro__)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _flat(part)
    else:
        yield value
