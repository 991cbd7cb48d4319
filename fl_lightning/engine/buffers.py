"""Entries that training does not learn: float buffers and frozen parameters, which must be the same at all clients.

An average is right for a normalisation layer's running statistics. Of a scaler, class weights or a lookup table that each
client made of its own data it is nonsense, which no error would show. So before round 1 every client says what it would begin
with (SHA-256 of each such entry when its first batch comes), and what differs is refused by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import lightning as L
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

HOOKS = ("configure_model", "setup", "on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start")
"""Of a module: where it can make buffers of a client's data before it learns."""


def unlearnt(module: nn.Module, left_out: Sequence[str] = ()) -> list[str]:
    """Names of the float buffers outside of normalisation layers and of the frozen parameters, as in ``state_dict``.

    Args:
        module: The module, with its layers.
        left_out: ``fnmatch`` patterns of entries that are nobody's business here: private, or to be averaged all the same.
    """
    statistics = normalisation_entries(module)
    names = [name for name, parameter in module.named_parameters(remove_duplicate=False) if not parameter.requires_grad]
    kept = set(module.state_dict())
    names += [name for name, buffer in module.named_buffers(remove_duplicate=False)
              if buffer.is_floating_point() and name in kept and name not in statistics]  # fmt: skip
    return [name for name in names if not any(fnmatchcase(name, pattern) for pattern in left_out)]


def normalisation_entries(module: nn.Module) -> set[str]:
    """Names of all entries of layers that normalise by statistics of batches (BatchNorm, InstanceNorm)."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in module.named_modules()
        if isinstance(layer, _NormBase)
        for name in layer.state_dict()
    }


def can_differ(module: L.LightningModule) -> bool:
    """Whether the module has a hook in which it could make something of a client's data."""
    return any(is_overridden(hook, module, L.LightningModule) for hook in HOOKS)


def hashes(module: nn.Module, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 of each entry's type, shape and bytes."""
    state = module.state_dict()
    return {name: sha256(state[name]) for name in names}


def sha256(tensor: Tensor) -> str:
    """SHA-256 of type, shape and bytes."""
    array = tensor.detach().to("cpu").contiguous()
    sha = hashlib.sha256(f"{array.dtype} {tuple(array.shape)} ".encode())
    sha.update(array.flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def check_alike(found: Mapping[int, Mapping[str, str]], names: Mapping[int, str] | None = None) -> None:
    """Are these entries the same at all clients?

    Args:
        found: By client, the hash of each entry.
        names: What clients are called, for messages.

    Raises:
        ValueError: Naming entries, clients and the three remedies.
    """
    entries = dict.fromkeys(entry for own in found.values() for entry in own)
    differing = {entry: {own.get(entry) for own in found.values()} for entry in entries}
    differing = {entry: values for entry, values in differing.items() if len(values) > 1}
    if not differing:
        return
    entry = next(iter(differing))
    clients = [(names or {}).get(client, f"client {client}") for client in sorted(found)]
    more = f" (and {len(differing) - 1} more: {', '.join(list(differing)[1:4])})" if len(differing) > 1 else ""
    raise ValueError(
        f"`{entry}`{more} is a buffer or a frozen parameter that the clients begin with in {len(differing[entry])} versions "
        f"({', '.join(clients[:5])}{', ...' if len(clients) > 5 else ''}); an average of them would mean nothing. Make it the "
        "same everywhere (statistics that clients share: `statistics()` and `use_statistics()` of the data module, "
        f"docs/architecture.md), keep it at each client: `federation.private: [{entry}]`, or average it all the same: "
        f"`federation.average: [{entry}]`."
    )
