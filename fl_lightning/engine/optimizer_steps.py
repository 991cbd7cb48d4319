"""A look at each step that an optimiser takes within a client's fit, whichever loops go through it, and the user's module and
callbacks as they are: for algorithms that correct the steps or count them. These know plain SGD only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


@contextmanager
def after_each_step(module: nn.Module, act: Callable[[Optimizer], None]) -> Iterator[None]:
    """Call ``act(optimizer)`` after each step of an optimiser that holds parameters of ``module``; their ``grad`` is that of
    the step. Steps that are not made (batches that are accumulated, an overflow in half precision) are none."""
    own = {id(parameter) for parameter in module.parameters()}

    def look(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
            act(optimizer)

    handle = register_optimizer_step_post_hook(look)
    try:
        yield
    finally:
        handle.remove()


def check_plain_sgd(strategy: str, module: nn.Module, optimizers: Sequence[Any]) -> None:
    """Is it one SGD without momentum and weight decay?

    Args:
        strategy: Name of the strategy that needs it.
        module: Whose optimisers these are.
        optimizers: As Lightning has them.

    Raises:
        ValueError: Naming what was found, and what to write.
    """
    found = f"{len(optimizers)} optimisers" if len(optimizers) != 1 else _what_is_not_plain(optimizers[0])
    if found is not None:
        raise ValueError(
            f"`federation.strategy: {strategy}` needs plain SGD at the clients: one optimiser, without momentum and weight "
            f"decay. `{type(module).__name__}.configure_optimizers` gives {found}. Write `model.init_args.optimizer: "
            "{class_path: torch.optim.SGD, init_args: {lr: 0.1, momentum: 0, weight_decay: 0}}` (in a module of your own "
            "`torch.optim.SGD(self.parameters(), lr=0.1)`), or take a strategy that goes with any optimiser: `FedAvg`, "
            "`FedAdam`."
        )


def _what_is_not_plain(optimizer: Any) -> str | None:
    if type(optimizer) is not SGD:
        return type(optimizer).__name__
    for group in optimizer.param_groups:
        for name in ("momentum", "weight_decay", "maximize"):
            if group[name]:
                return f"SGD with `{name}: {group[name]}`"
    return None
