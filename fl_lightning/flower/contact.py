"""What server and site must have alike, and what they tell each other about it with every request."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.engine.buffers import hashes
from fl_lightning.engine.checkpoint import difference

# A site's own: which device it has, and where its files are.
SITES_OWN_TRAINER = ("accelerator", "devices", "num_nodes")
FEDERATION = ("private", "average", "batch_norm", "upload_transforms", "carry_optimizer_state", "local_clock")


def agreed(shared: Mapping[str, Any], with_data: bool) -> dict[str, Any]:
    """The part of a configuration that the weights depend on and a site must have, too.

    Args:
        shared: ``{"config": ..., "federation": ...}`` of a run, as :class:`~fl_lightning.engine.client.LocalSettings` has it.
        with_data: Whether the data are described by the configuration, too (a public data set that all sites have).
    """
    config = shared["config"]
    result = {key: config.get(key) for key in ("seed_everything", "model", "strategy")}
    result |= {key: config[key] for key in ("optimizer", "lr_scheduler") if config.get(key)}
    result["trainer"] = {k: v for k, v in config["trainer"].items() if k not in SITES_OWN_TRAINER}
    result["federation"] = {key: shared["federation"].get(key) for key in FEDERATION}
    if with_data:
        result["data"] = config.get("data")
    return result


def versions() -> dict[str, str]:
    """Versions that must be equal everywhere: this library's, and torch's (it decides the bits)."""
    return {"fl-lightning": version("fl-lightning"), "torch": torch.__version__.split("+")[0]}


def version_error(theirs: Mapping[str, str]) -> str | None:
    """Why a site cannot work for a server with these versions, or ``None``."""
    own = versions()
    lines = [f"{name} {own[name]} here, {theirs.get(name)} on the server" for name in own if own[name] != theirs.get(name)]
    return None if not lines else f"other versions: {'; '.join(lines)}. Install the same."


def closest(config: Mapping[str, Any], experiments: Mapping[str, Mapping[str, Any]]) -> tuple[str | None, list[str]]:
    """The experiment that equals the server's configuration, else the differences to the one that is nearest."""
    lines = {name: difference(own, dict(config)) for name, own in experiments.items()}
    name = min(lines, key=lambda key: len(lines[key]))
    return (name, []) if not lines[name] else (None, [f"{name}: {line}" for line in lines[name]])


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and bits."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


def begun_alike(module: nn.Module, names: Sequence[str], told: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which of these entries all sites begin with as the server does, so that they need not be sent.

    Args:
        module: The server's, with the initial weights.
        names: Buffers and frozen parameters.
        told: What the sites told at first contact.
    """
    initial, own = tensors_sha256(module.state_dict()), hashes(module, names)
    if all(site["initial"] == initial for site in told):
        return list(names)
    return [name for name in names if all(site["start"].get(name) == own[name] for site in told)]
