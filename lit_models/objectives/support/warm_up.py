"""Warm-up, which FedChem's objectives share: the plain loss in the first rounds.

Round 0 uses the plain loss, whatever the method (docs/papers/fedchem.md#warm-up). A stock Trainer has no rounds, so no
warm-up either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lit_models.objectives.base import Objective

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
                f"`model.init_args.objective.init_args.{name}` of `{type(self).__name__}` must be {wanted}, but is {value!r}."
            )

    def on_round_start(self, module: LitGraphModule, round: int, num_rounds: int) -> None:
        self.warming_up = round < self.warmup_rounds

    def on_train_end(self, module: LitGraphModule) -> None:
        self.warming_up = False
