"""What ``predict`` asks of a module and of data, and what is said where it is not there.

Lightning's own ``predict_step`` hands the whole batch to ``forward``, and data without ``predict_dataloader`` give nothing: a
module and data that were only trained may have neither, which is told before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import lightning as L
from lightning.pytorch.utilities.model_helpers import is_overridden

STEP = "Write `predict_step(self, batch, batch_idx)`, which returns a batch's predictions as a tensor or a dict of tensors."
LOADER = "Write `predict_dataloader(self)`, which returns a loader of what is to be predicted, e.g. `self.test_dataloader()`."


def check_predicts(module: L.LightningModule, data: Sequence[L.LightningDataModule] = ()) -> None:
    """Can anything be predicted?

    Args:
        module: The module.
        data: On whose data; none where they are elsewhere, and answer for themselves.

    Raises:
        ValueError: Naming what is missing, and what to write.
    """
    missing = []
    if not (is_overridden("predict_step", module) or is_overridden("forward", module)):
        missing.append(f"`model: {type(module).__name__}` has no `predict_step`. {STEP}")
    if data and not any(has_loader(one) for one in data):
        kinds = dict.fromkeys(f"`data: {type(one).__name__}`" for one in data)
        missing.append(f"{', '.join(kinds)} {'has' if len(kinds) == 1 else 'have'} no `predict_dataloader`. {LOADER}")
    if missing:
        raise ValueError(f"Nothing can be predicted: {' '.join(missing)}")


def has_loader(data: L.LightningDataModule) -> bool:
    """Whether the data say what is to be predicted."""
    return bool(is_overridden("predict_dataloader", data))


@contextmanager
def explain_forward(module: L.LightningModule) -> Iterator[None]:
    """An error of a ``forward`` that meets a whole batch, because there is no ``predict_step``, is told as that.

    Raises:
        ValueError: With the error, and what to write.
    """
    try:
        yield
    except Exception as error:
        if is_overridden("predict_step", module):
            raise
        raise ValueError(
            f"`model: {type(module).__name__}` has no `predict_step`, so `forward` was given the whole batch, and failed: "
            f"{type(error).__name__}: {error}. {STEP}"
        ) from error
