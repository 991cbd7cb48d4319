"""A trained model as the user's own LightningModule, in a script without a federation: ``load_model(run)``.

A run's folder says it all: ``config.yaml`` which class was trained and with which arguments, a checkpoint its layers'
schema and weights, ``client_<id>.pt`` in it what a client kept to itself. As with ``fl-lightning --config``, the classes that
config.yaml names are imported and made; the checkpoints hold tensors and JSON only.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from jsonargparse import ArgumentParser, Namespace

from fl_lightning.assembly import build_layers, private_patterns
from fl_lightning.engine import checkpoint as checkpoints
from fl_lightning.engine.entries import Entries
from fl_lightning.engine.store import ClientStore
from fl_lightning.errors import ResumeError
from fl_lightning.strategies.base import Strategy
from fl_lightning.strategies.fedavg import FedAvg

LIGHTNING = "best.ckpt"
"""Lightning's checkpoint of the best round (of the best epoch, centrally), beside the federation's own."""


def load_model(
    run: str | Path, client: int | None = None, checkpoint: str = "best", module: L.LightningModule | None = None
) -> L.LightningModule:
    """The model of a run, in eval mode on the CPU.

    Args:
        run: The run's folder (``runs/<name>/version_0``), federated or central.
        client: Whose model: the one that this client evaluates and predicts with, private entries included. ``None``: the
            global model.
        checkpoint: ``best``, ``last``, or the name of a folder in the run's ``checkpoints``.
        module: A new module of the class that was trained, to take the weights; by default it is made from config.yaml.

    Raises:
        ValueError: Saying what is missing and what to give instead.
    """
    folder = Path(run)
    config = _config(folder)
    if module is None:
        module = _make(folder, config, "model", L.LightningModule)
    central = folder / "checkpoints" / LIGHTNING
    if not checkpoints.existing(folder / "checkpoints"):
        return _of_central_run(folder, central, client, module)
    source = folder / "checkpoints" / checkpoint
    if not (source / "server.pt").is_file():
        source = checkpoints.find(checkpoint if checkpoint in ("best", "last") else str(source), folder.parent, folder)
    tensors, values = checkpoints.read(source)
    if hasattr(module, "build") and getattr(module, "schema", None) is None:
        if values.get("schema") is None:
            raise ValueError(
                f"`{source}` does not say which layers `{type(module).__name__}` had. Give the module with its layers: "
                "`load_model(run, module=...)` after `data.setup()` and `module.build(data.schema)`."
            )
        build_layers(module, values["schema"], seed=0)
    else:
        build_layers(module, None, seed=0)  # those of `configure_model`
    federation = config.get("federation") or {}
    strategy = _strategy(folder, config)
    private = private_patterns(module, strategy, federation.get("private") or (), federation.get("batch_norm") or "average")
    entries = Entries(module, private)
    strategy.start(entries.get(entries.shared), entries.private)
    strategy.load_state(tensors)
    weights = strategy.global_weights() if client is None else _of_client(strategy, module, source, values, client)
    if weights is None or (client is None and entries.private):
        raise ValueError(
            f"`{folder}` has no global model: "
            + ("some entries stay with the clients" if entries.private else f"`{type(strategy).__name__}` trains one a client")
            + f". Name the client, from 0 to {int(values['identity']['clients']) - 1}: `load_model(run, client=0)`."
        )
    entries.set(weights)
    return module.eval()


def _of_client(
    strategy: Strategy, module: L.LightningModule, source: Path, values: Mapping[str, Any], client: int
) -> dict[str, torch.Tensor]:
    """What a client's live module holds when it evaluates: what it remembers, and over it what it receives."""
    number = int(values["identity"]["clients"])
    if not 0 <= client < number:
        raise ValueError(f"The run has clients 0 to {number - 1}; `client={client}` is none of them.")
    if (source / "flower.json").is_file():
        raise ValueError(f"What client {client} keeps to itself is at its site and not in `{source}`: load it there.")
    store = ClientStore.load(source / f"client_{client:05d}.pt")
    if strategy.personal and not store and not strategy.evaluation(client).tensors:
        raise ValueError(f"Client {client} had not trained when `{source}` was written: it has no model of its own yet.")
    restore: Any = getattr(module, "load_private_state", None)
    if restore is not None:
        restore(store.section("objective"))
    return {**store.section("module"), **strategy.evaluation(client).tensors}


def _of_central_run(folder: Path, path: Path, client: int | None, module: L.LightningModule) -> L.LightningModule:
    if not path.is_file():
        raise ResumeError(f"`{folder}` is no run's folder with a checkpoint.")
    if client is not None:
        raise ValueError(f"`{folder}` was trained centrally: there is one model, and no `client={client}`.")
    content = torch.load(path, map_location="cpu", weights_only=True)
    module.on_load_checkpoint(content)
    build_layers(module, None, seed=0)  # those of `configure_model`; our own modules build theirs while loading
    module.load_state_dict(content["state_dict"])
    return module.eval()


# ---- what config.yaml names -------------------------------------------------------------------------------------------


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _make(folder: Path, config: Mapping[str, Any], key: str, kind: type) -> Any:
    """The object that ``config[key]`` describes by ``class_path`` and ``init_args``."""
    described = _accepted(config.get(key))
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(kind, key, required=True)
    try:
        parsed = parser.parse_object({key: described})
        made: Namespace = parser.instantiate_classes(parsed)
    except Exception as error:
        reason = _reason(error)
        if key != "model":
            raise ValueError(f"`{folder / 'config.yaml'}`: {key}: {reason}") from error
        raise ValueError(
            f"The module cannot be made from `{folder / 'config.yaml'}`, whose `model` is {described}: {reason}. "
            "Give one: `load_model(run, module=MyModule(...))`."
        ) from error
    return made[key]


def _accepted(described: Any) -> Any:
    """The description without what a run from Python knows besides of the object (hyperparameters of a base class, say)."""
    if not isinstance(described, Mapping) or not isinstance(described.get("init_args"), Mapping):
        return described
    try:
        parameters = inspect.signature(_class(described["class_path"])).parameters
    except (ImportError, AttributeError, ValueError, TypeError):
        return described  # the parser will say what is wrong with it
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values()):
        return described
    return {**described, "init_args": {name: v for name, v in described["init_args"].items() if name in parameters}}


def _class(path: str) -> Any:
    home, name = path.rsplit(".", 1)
    return getattr(import_module(home), name)


def _reason(error: Exception) -> str:
    """The telling line of the parser's many."""
    dull = ("Parser key", "Does not validate", "Subtypes", "Errors", "Given value", "- Expected a <class 'NoneType'>")
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.strip().startswith(dull)]
    return lines[-1].removeprefix("- ") if lines else str(error)


def _strategy(folder: Path, config: Mapping[str, Any]) -> Strategy:
    federation = config.get("federation") or {}
    if federation.get("strategy") is None:
        return FedAvg()
    made: Strategy = _make(folder, federation, "strategy", Strategy)
    return made


# ---- a checkpoint of Lightning's own ----------------------------------------------------------------------------------


def write_lightning_checkpoint(module: L.LightningModule, path: Path) -> None:
    """Write the module so that ``MyModule.load_from_checkpoint(path)`` reads it, with those hyperparameters that are plain
    values; others must be given there."""
    content: dict[str, Any] = {
        "epoch": 0,
        "global_step": 0,
        "pytorch-lightning_version": L.__version__,
        "state_dict": {name: tensor.detach().to("cpu", copy=True) for name, tensor in module.state_dict().items()},
        "loops": {},
    }
    plain = {name: value for name, value in dict(module.hparams).items() if _is_plain(value)}
    if plain:
        content[module.CHECKPOINT_HYPER_PARAMS_NAME] = "kwargs"
        content[module.CHECKPOINT_HYPER_PARAMS_KEY] = plain
    module.on_save_checkpoint(content)
    torch.save(content, path)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_plain(part) for name, part in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str)
