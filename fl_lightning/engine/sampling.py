"""Which clients take part in a round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from fl_lightning.engine.seeds import derive


def number_of_participants(clients_per_round: int | float, num_clients: int) -> int:
    """Participants of a round: a count (int), or a fraction (float) of the clients, rounded half up, at least 1.

    The fraction is taken as it is written: 0.7 of 45 is 31.5 and so 32, though the float 0.7 * 45 lies below 31.5.

    Raises:
        ValueError: For NaN, 0 or less, a fraction above 1, or a count above the number of clients.
    """
    key = "`federation.clients_per_round`"
    if not isinstance(clients_per_round, int | float) or isinstance(clients_per_round, bool) or not clients_per_round > 0:
        raise ValueError(
            f"{key} must be a count of at least 1 or a fraction in (0, 1], got {clients_per_round}. Leave it out, or write "
            "1.0, for all clients in each round."
        )
    if isinstance(clients_per_round, float):
        if clients_per_round > 1:
            raise ValueError(f"{key} = {clients_per_round} is a fraction above 1. Write a whole number for a count of clients.")
        return max(1, math.floor(Fraction(str(float(clients_per_round))) * num_clients + Fraction(1, 2)))
    if clients_per_round > num_clients:
        raise ValueError(f"{key} = {clients_per_round}, but there are {num_clients} clients.")
    return clients_per_round


def participants(clients: Sequence[int], number: int, seed: int, round: int) -> tuple[int, ...]:
    """``number`` of ``clients``, uniformly without replacement, sorted; a function of (seed, round) alone."""
    if number == len(clients):
        return tuple(clients)
    generator = np.random.default_rng(derive(seed, "participants", round))
    return tuple(sorted(int(c) for c in generator.choice(list(clients), size=number, replace=False)))
