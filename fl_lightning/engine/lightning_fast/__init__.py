"""All that touches Lightning's private parts: one Trainer for many short runs, and a short way through its loops.

Nothing elsewhere uses a name of Lightning's with a leading underscore (``ruff --select SLF``). With a Lightning that this was
not proven with (`versions`), or on request (``federation.fast_loops: false``), clients have stock Trainers instead
(`fl_lightning.engine.trainers`): the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch.callbacks import Callback

from fl_lightning.engine.clock import Clock
from fl_lightning.engine.lightning_fast.versions import is_proven
from fl_lightning.engine.trainers import Trainers


def trainers(
    args: Mapping[str, Any], callbacks: Sequence[Callback], shared: Sequence[Callback], clock: Clock, fast_loops: bool = True
) -> Trainers:
    """Where a client's runs get their Trainer; arguments as for :class:`~fl_lightning.engine.trainers.Trainers`."""
    if not (fast_loops and is_proven()):
        return Trainers(args, callbacks, shared, clock)
    from fl_lightning.engine.lightning_fast.reused_trainer import OneTrainer  # an unknown Lightning may lack what it imports

    return OneTrainer(args, callbacks, shared, clock)
