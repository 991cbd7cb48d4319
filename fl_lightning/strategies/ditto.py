r"""Ditto (Li, Hu, Beirami, Smith; ICML 2021): a personal model beside FedAvg's, pulled towards it.

.. math:: \min_{v_i} F_i(v_i) + \frac{\lambda}{2} \lVert v_i - w \rVert_2^2

w is FedAvg's model. In a round a client first trains w as received and uploads what comes of it, as in FedAvg; then it trains
its own :math:`v_i`, with the pull towards w as received, for as many epochs or steps. :math:`v_i` begins as the initial model,
never leaves the client, and is what is scored and predicted with. Each of the two trainings has its own memory: its optimiser's
state (if that is carried), its objective's, its private entries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import lightning as L
from torch import Tensor, nn

from fl_lightning.engine.client import Client, ClientHalf
from fl_lightning.engine.messages import Payload
from fl_lightning.strategies.fedavg import FedAvg
from lit_models.objectives.fedprox import squared_distance

SHARED = "shared"
"""What a client remembers of its trainings of w, within its memory, which is that of its own model."""


class Ditto(FedAvg):
    r"""FedAvg, and a personal model at each client that is pulled towards FedAvg's.

    An objective that looks at the weights as received (FedProx, MOON, FLIT) has the client's own in the second training. A
    client without training data has no loss: its personal model is w.

    Args:
        lam: The pull :math:`\lambda`: 0 lets each client train alone, a large one keeps it at w. The paper's range: 0.05 to 2.
        weighting: ``num_samples`` or ``uniform``, as for ``FedAvg``.
    """

    personal = True

    def __init__(self, lam: float = 0.1, weighting: Literal["uniform", "num_samples"] = "num_samples") -> None:
        super().__init__(weighting)
        if not 0 <= lam < math.inf:
            raise ValueError(f"`federation.strategy.init_args.lam` must be a number from 0, got {lam}.")
        self.lam = lam

    def client_half(self) -> ClientHalf:
        return DittoClient(self.lam)

    def check(
        self,
        module: L.LightningModule,
        datamodules: Sequence[L.LightningDataModule],
        server_data: L.LightningDataModule | None,
    ) -> None:
        super().check(module, datamodules, server_data)
        if not module.automatic_optimization:
            raise ValueError(
                f"`Ditto` adds its pull to the loss that `training_step` returns, but `{type(module).__name__}` steps its "
                "optimisers itself (`automatic_optimization = False`). Use `federation.strategy: FedPer`, or `FedAvg`."
            )


class DittoClient(ClientHalf):
    """The client's memory is that of its own model; that of the shared one's trainings is a part of it."""

    def __init__(self, lam: float) -> None:
        super().__init__(personal=True)
        self.lam = lam

    def fit(self, client: Client, request: Payload) -> Payload:
        memory = client.store
        client.store = memory.part(SHARED)
        reply = ClientHalf().fit(client, request)  # a client's part in FedAvg
        shared, client.store = client.store, memory
        if reply.values["num_samples"] == 0:
            client.load(request.tensors)
            client.remember()
            return reply
        memory.put_part(SHARED, shared)
        client.load({})
        with pulled_towards(client.module, request.tensors, self.lam):
            metrics = client.train(request.values.get("validation"))
        client.remember()
        own = {f"personal/{name}": value if math.isfinite(value) else None for name, value in metrics.items()}
        return Payload(reply.tensors, {**reply.values, "metrics": {**reply.values["metrics"], **own}})


@contextmanager
def pulled_towards(module: L.LightningModule, received: Mapping[str, Tensor], lam: float) -> Iterator[None]:
    r"""Within, ``training_step`` returns its loss plus :math:`\frac{\lambda}{2} \lVert v - w \rVert_2^2`.

    Args:
        module: Holds v; it is left as it was.
        received: w, by name. The norm is over those of its entries that are trainable parameters of the module.
        lam: :math:`\lambda`.
    """
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad and name in received]
    step = module.training_step
    held: dict[str, Tensor] = {}

    def pull(parameters: Mapping[str, nn.Parameter]) -> Tensor:
        if not held:  # the module is on its device now
            held.update({name: received[name].to(parameters[name].device) for name in names})
        return 0.5 * lam * squared_distance(parameters, held)

    @functools.wraps(step)
    def training_step(*args: Any, **kwargs: Any) -> Any:
        output = step(*args, **kwargs)
        if output is None or not (lam and names):  # a batch that the module leaves out
            return output
        term = pull(dict(module.named_parameters()))
        if isinstance(output, Mapping):
            return {**output, "loss": output["loss"] + term}
        return output + term

    module.training_step = training_step  # type: ignore[method-assign]  # on this object alone, and for this fit
    try:
        yield
    finally:
        del module.training_step
