"""State of optimisers between fits: handed in when training starts, kept when it ends, as flat tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from fl_lightning.engine.lightning_fast.no_optimizer import stands_for_none


class OptimizerState(Callback):
    """Hands optimiser state in when training starts and keeps the optimisers when it ends."""

    def __init__(self) -> None:
        self.received: dict[str, Tensor] | None = None
        self.finished: list[torch.optim.Optimizer] = []
        self._fresh: tuple[list[Any], list[dict[str, Any]]] = ([], [])

    def begin(self, received: dict[str, Tensor] | None) -> None:
        self.received, self.finished = received, []

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        check_binding(trainer.optimizers, module)
        given: list[Any] = [*trainer.optimizers, *(config.scheduler for config in trainer.lr_scheduler_configs)]
        known, states = self._fresh
        if [id(one) for one in given] == [id(one) for one in known]:
            # The module gives the same objects in every fit: what the last client left in them is not this one's.
            for one, state in zip(known, states, strict=True):
                one.load_state_dict(copy.deepcopy(state))
        else:
            self._fresh = given, [copy.deepcopy(one.state_dict()) for one in given]
        if self.received:
            restore_optimizers(trainer.optimizers, self.received)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.finished = list(trainer.optimizers)


def check_binding(optimizers: Sequence[torch.optim.Optimizer], module: L.LightningModule) -> None:
    """Does each optimiser hold a parameter of the module? Without an optimiser nothing is trained, unless the module steps its
    own (manual optimisation) or has nothing to train.

    Raises:
        ValueError: With what to write instead.
    """
    if any(stands_for_none(optimizer) for optimizer in optimizers):
        if module.automatic_optimization and any(p.requires_grad for p in module.parameters()):
            raise ValueError(
                f"`{type(module).__name__}.configure_optimizers` returned None, so nothing would be trained. Write `return` "
                "before the optimiser; a module that steps its optimisers itself sets `self.automatic_optimization = False`."
            )
        return
    own = {id(p) for p in module.parameters()}
    for optimizer in optimizers:
        if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            raise ValueError(
                f"the optimiser that `{type(module).__name__}.configure_optimizers` returned holds none of the "
                "module's parameters (it was bound to another copy of the module), so nothing would be trained. "
                "Create it in `configure_optimizers` from `self.parameters()`; in a config, take an "
                "`OptimizerCallable` in `model.init_args`"
            )


def flatten_optimizers(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """State of optimisers as ``<optimiser>/<parameter>/<key>``: clones on the CPU. Hyper-parameters are not in it."""
    flat = {}
    for index, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state_dict().get("state", {}).items():  # Lightning's mock has none
            for key, value in state.items():
                if value is not None:
                    if not isinstance(value, Tensor | bool | int | float):
                        raise ValueError(
                            f"`federation.carry_optimizer_state`: `{key}` of {type(optimizer).__name__} is "
                            f"{type(value).__name__}, and only tensors and numbers can be carried on"
                        )
                    tensor = value if isinstance(value, Tensor) else torch.tensor(value)
                    flat[f"{index}/{parameter}/{key}"] = tensor.detach().to("cpu", copy=True)
    return flat


def restore_optimizers(optimizers: Sequence[torch.optim.Optimizer], flat: Mapping[str, Tensor]) -> None:
    """Inverse of :func:`flatten_optimizers`, into optimisers over the same parameters."""
    states: dict[int, dict[int, dict[str, Tensor]]] = {}
    for name, tensor in flat.items():
        at, parameter, key = name.split("/", 2)
        states.setdefault(int(at), {}).setdefault(int(parameter), {})[key] = tensor.clone()
    for index, optimizer in enumerate(optimizers):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": states.get(index, {})})
