"""What the model that a client holds says of the classes of its graph's nodes, for strategies that ask for it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from torch import Tensor

from fl_lightning.engine.client import Client
from fl_lightning.engine.seeds import stream


def check_predict_step(module: L.LightningModule, who: str) -> None:
    """Is there somebody to ask for the classes of nodes?

    Args:
        module: The module.
        who: Who asks, in the user's YAML names.

    Raises:
        ValueError: If the module has no ``predict_step`` of its own.
    """
    if type(module).predict_step is L.LightningModule.predict_step:
        raise ValueError(
            f"{who} asks the model for the classes of all nodes, but "
            f"`{type(module).__name__}` has no `predict_step`. Write one that gives a dict with `probabilities` of shape "
            "(number of nodes, number of classes), as `lit_models.LitNodeClassifier` does."
        )


@torch.no_grad()
def predicted_classes(client: Client, graph: Any, who: str) -> Tensor:
    """Probabilities of all nodes' classes, ``(N, C)``, on the CPU: what ``predict_step`` of the live module says.

    Args:
        client: The client.
        graph: Its graph, or one made of it.
        who: Who asks.

    Raises:
        ValueError: If it says something else.
    """
    module = client.module.to(client.device).eval()
    with stream(client.settings.seed, "classes", client.round, client.id):
        output = module.predict_step(copy.copy(graph).to(client.device), 0)
    found = output.get("probabilities") if isinstance(output, Mapping) else None
    if not isinstance(found, Tensor) or found.shape != (graph.num_nodes, int(client.datamodule.schema["num_classes"])):
        raise ValueError(
            f"{who} needs the classes of all nodes, but `{type(module).__name__}.predict_step` does not give "
            "a dict with `probabilities` of shape (number of nodes, number of classes), as `lit_models.LitNodeClassifier` does."
        )
    return found.detach().to("cpu", torch.float32, copy=True)
