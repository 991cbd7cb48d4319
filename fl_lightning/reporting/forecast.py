"""What a run will send and keep, computed before it starts: from the model, the strategy's own messages and the settings.

    down of a round   what the strategy gives each participant
    up of a round     the floating-point entries of it: a client sends back what it received
    evaluation        what the strategy gives every client, once per validated round, and twice at the end
    before round 1    what the strategy says of its phases (`Strategy.phase_costs`)
    each on global    every client's model, once, where it is scored on the server's data

Not counted: the plain values in each message, what a strategy sends up besides (FED-PUB's embedding), and the memory of a
step's activations.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import lightning as L
from torch import Tensor

from fl_lightning.assembly import private_patterns
from fl_lightning.engine.entries import Entries
from fl_lightning.engine.memory import peak_rss_bytes
from fl_lightning.engine.sampling import number_of_participants
from fl_lightning.schema import agreed_schema
from fl_lightning.settings import FederationSettings

NOT_COUNTED = "Not counted: the plain values in messages, and the memory that a training step itself takes."


def forecast(
    module: L.LightningModule, datamodule: Any, settings: FederationSettings, data_bytes: int
) -> dict[str, int | float | str]:
    """Bytes sent and kept.

    Args:
        module: The model; it is not changed.
        datamodule: The data, set up.
        settings: The federation.
        data_bytes: What the data take.

    Returns:
        ``parameters``, ``model_bytes``; ``bytes_before_rounds`` (phases), ``bytes_down_per_round``, ``bytes_up_per_round``,
        ``bytes_total`` (phases, and all rounds with evaluations); ``memory_data`` (with mended graphs), ``memory_model``
        (weights, gradients and Adam's two moments), ``memory_messages`` (of one round, or of the largest step before),
        ``memory_clients`` (a whole model for each client where models are personal; a phase's private state), ``memory_now``
        (this process) and ``memory_total``, in bytes; ``note``, what cannot be known.

    Raises:
        ValueError: What the run itself would refuse before round 1.
    """
    clients = list(datamodule.client_datamodules())
    module = copy.deepcopy(module)
    strategy: Any = copy.deepcopy(settings.strategy)
    schema = agreed_schema(datamodule, clients)
    build: Any = getattr(module, "build", None)
    if build is not None and schema is not None:
        build(schema)
    entries = Entries(module, private_patterns(module, strategy, settings.private, settings.batch_norm))
    strategy.check(module, clients, datamodule)
    strategy.start(entries.get(entries.shared), entries.private)

    chosen = number_of_participants(settings.clients_per_round, len(clients))
    downloads = [strategy.download(client).tensors for client in range(len(clients))]
    down = sum(map(nbytes, downloads)) / len(clients) * chosen
    floats = [{n: t for n, t in tensors.items() if t.is_floating_point()} for tensors in downloads]
    up = sum(map(nbytes, floats)) / len(clients) * chosen
    asked = sum(nbytes(strategy.evaluation(client).tensors) for client in range(len(clients)))
    evaluations = math.ceil(settings.num_rounds / settings.check_val_every_n_rounds) + 2
    each = asked + len(clients) * nbytes(entries.get(entries.shared)) if settings.scores_each and not entries.private else 0
    phases = strategy.phase_costs(clients)
    model = nbytes(module.state_dict())
    memory = {
        "memory_data": data_bytes + phases.data,
        "memory_model": 4 * model,
        "memory_messages": max(round(down + up), phases.messages),
        "memory_clients": phases.clients + (len(clients) * model if strategy.personal or entries.private else 0),
        "memory_now": peak_rss_bytes(),
    }
    return {
        "parameters": sum(p.numel() for p in module.parameters()),
        "model_bytes": model,
        "bytes_before_rounds": phases.up + phases.down,
        "bytes_down_per_round": round(down),
        "bytes_up_per_round": round(up),
        "bytes_total": round(phases.up + phases.down + settings.num_rounds * (down + up) + evaluations * asked + each),
        **memory,
        "memory_total": sum(memory.values()) - data_bytes,  # the data are in memory now
        "note": f"{phases.note} {NOT_COUNTED}".strip(),
    }


def nbytes(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of dense tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def readable(size: float) -> str:
    """A number of bytes to be read: ``1.5 MB``."""
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB" if size < 999.5 else f"{size:.0f} GB"
