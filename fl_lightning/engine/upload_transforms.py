r"""What happens to a client's update before it leaves: a list of transforms (``federation.upload_transforms``), in order.

Each takes and gives the update :math:`\Delta = \theta - \theta^{\mathrm{received}}` of the weights, entry by entry, and knows
which client and round it is; the client then uploads :math:`\theta^{\mathrm{received}} + \Delta'`. What a strategy sends beside
weights (FED-PUB's embedding) goes as it is. Without transforms the trained weights are sent, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.engine.seeds import stream


@dataclass(frozen=True)
class Upload:
    """Whose update it is.

    What a transform draws from torch's global generator (``torch.randn_like``) comes from a stream of its place in the list,
    the client and the round. The server knows the run's seed: such noise hides nothing from it.

    Args:
        client: Its id.
        round: The round, counted from 0.
        seed: Of the run.
    """

    client: int
    round: int
    seed: int


class UploadTransform:
    """Base class. Arguments are plain values: the same in all engines, compared on resuming, and told to sites."""

    def __call__(self, update: Mapping[str, Tensor], upload: Upload) -> dict[str, Tensor]:
        """Another update with the same entries.

        Args:
            update: Differences to the received weights, floating, on the CPU; not to be modified.
            upload: Whose they are.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `__call__(update, upload)`.")


class ClipNorm(UploadTransform):
    r"""Scales an update to an L2 norm of at most ``max_norm``:
    :math:`\Delta \leftarrow \Delta \cdot \min(1, C / \lVert \Delta \rVert_2)`, over all entries together (Geyer et al. 2017).

    Args:
        max_norm: C, above 0.
    """

    def __init__(self, max_norm: float) -> None:
        if not (max_norm > 0 and math.isfinite(max_norm)):
            raise ValueError(f"`federation.upload_transforms: ClipNorm`: `max_norm` must be above 0, got {max_norm}.")
        self.max_norm = max_norm

    def __call__(self, update: Mapping[str, Tensor], upload: Upload) -> dict[str, Tensor]:
        norm = math.sqrt(sum(float(delta.abs().double().square().sum()) for delta in update.values()))
        factor = min(1.0, self.max_norm / norm) if norm > 0 else 1.0
        return {name: delta * factor for name, delta in update.items()}


def transformed(
    transforms: Sequence[UploadTransform], sent: Mapping[str, Tensor], received: Mapping[str, Tensor], upload: Upload
) -> dict[str, Tensor]:
    """What leaves the client.

    Args:
        transforms: In order.
        sent: What it would send: trained weights, and what else a strategy asks for.
        received: The weights that it began with.
        upload: Whose they are.

    Raises:
        ValueError: If a transform gives other entries, shapes or types than it took.
    """
    names = [name for name in sent if name in received]
    if not transforms or not names:
        return dict(sent)
    update = {name: sent[name] - received[name] for name in names}
    for place, transform in enumerate(transforms):
        with stream(upload.seed, f"upload transform {place}", upload.round, upload.client), torch.no_grad():
            changed = transform(update, upload)
        kept = {name: (tensor.dtype, tensor.shape) for name, tensor in changed.items()}
        if kept != {name: (tensor.dtype, tensor.shape) for name, tensor in update.items()}:
            raise ValueError(f"`{type(transform).__name__}` must give the entries, shapes and types that it takes.")
        update = changed
    return {**sent, **{name: received[name] + update[name] for name in names}}
