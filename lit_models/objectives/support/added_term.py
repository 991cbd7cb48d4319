"""AddedTerm: an objective that adds a term to a base loss, so that objectives compose (FedProx on FLIT)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from lit_models.objectives.base import Objective
from lit_models.objectives.erm import ERM
from lit_models.objectives.support.warm_up import WarmUp

if TYPE_CHECKING:
    from lit_models.base import LitGraphModule


class AddedTerm(WarmUp):
    """A term added to a base loss; hooks, pictures and memory (under ``base/``) are the base's, too.

    Args:
        base: The loss that the term is added to; `ERM` by default.
        warmup_rounds: First rounds with the base loss alone.
    """

    def __init__(self, base: Objective | None = None, warmup_rounds: int = 1) -> None:
        super().__init__(warmup_rounds)
        self.base = ERM() if base is None else base

    def on_round_start(self, module: LitGraphModule, round: int, num_rounds: int) -> None:
        super().on_round_start(module, round, num_rounds)
        self.base.on_round_start(module, round, num_rounds)

    def on_train_start(self, module: LitGraphModule) -> None:
        self.base.on_train_start(module)

    def on_train_end(self, module: LitGraphModule) -> None:
        super().on_train_end(module)
        self.base.on_train_end(module)

    def pictures(self) -> dict[str, list[int]]:
        return self.base.pictures()

    def state(self) -> dict[str, Tensor]:
        return {f"base/{name}": tensor for name, tensor in self.base.state().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        start = "base/"
        self.base.load_state({name[len(start) :]: t for name, t in state.items() if name.startswith(start)})
        super().load_state({name: t for name, t in state.items() if not name.startswith(start)})
