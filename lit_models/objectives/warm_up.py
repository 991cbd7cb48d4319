"""What FedChem's objectives share: the plain loss in the first rounds, and a base loss to add to.

Round 0 uses the plain loss, whatever the method (docs/papers/fedchem.md#warm-up). A stock Trainer has no rounds, so no
warm-up either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from lit_models.objectives.base import Objective
from lit_models.objectives.erm import ERM

if TYPE_CHECKING:
    from lit_models.base import LitGraphModule

VARIANTS = ("paper", "official")


class WarmUp(Objective):
    """An objective that is the plain loss in the first ``warmup_rounds`` rounds of a federation.

    Args:
        warmup_rounds: Number of rounds; 0 starts at once.

    Attributes:
        warming_up: Whether this local fit belongs to such a round.
    """

    def __init__(self, warmup_rounds: int = 1) -> None:
        self.check("warmup_rounds", warmup_rounds, warmup_rounds >= 0, "at least 0")
        self.warmup_rounds = warmup_rounds
        self.warming_up = False

    def check(self, name: str, value: Any, holds: bool, wanted: str) -> None:
        """Raise a ``ValueError`` that names the argument unless ``holds``."""
        if not holds:
            raise ValueError(
                f"`model.init_args.objective.init_args.{name}` of `{type(self).__name__}` must be {wanted}, "
                f"but is {value!r}."
            )

    def on_round_start(self, module: LitGraphModule, round: int, num_rounds: int) -> None:
        self.warming_up = round < self.warmup_rounds

    def on_train_end(self, module: LitGraphModule) -> None:
        self.warming_up = False


class AddedTerm(WarmUp):
    """A term added to a base loss; hooks and memory reach the base, too.

    Args:
        base: The loss that the term is added to; `ERM` by default.
        warmup_rounds: As for `WarmUp`.
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
