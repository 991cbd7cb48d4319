r"""SCAFFOLD: stochastic controlled averaging (Karimireddy, Kale, Mohri, Reddi, Stich, Suresh; ICML 2020), option II.

Clients with data of different kinds drift apart within their local steps. A client's control variate c_i is its gradient as
it last was, the server's c their mean; the difference is taken out of each step. At the client, from y_i = x:

    y_i <- y_i - eta_l (g_i(y_i) - c_i + c)                           in each of K steps        _Corrected
    c_i+ = c_i - c + (x - y_i) / (K eta_l)                            option II                 _ScaffoldClient.fit
at the server, over the participants S of N clients:

    x <- x + eta_g mean_S (y_i - x)                                                             Scaffold.server_step
    c <- c + |S| / N mean_S (c_i+ - c_i)                                                        Scaffold.aggregate

All c begin at 0. So c is the mean of all clients' c_i, and the means are uniform, as in the paper.

What leaves a client: its weights y_i, and ``control/...``, the change c_i+ - c_i of each shared parameter, of the same size.
What it receives: x and c. c_i itself stays with the client, and is computed of the update as it leaves, so that
``federation.upload_transforms`` holds for both.

K eta_l is the sum of the steps' rates, so that learning-rate schedules are covered; g_i is the gradient as SGD gets it,
accumulated over batches or clipped, if that is asked for. Other optimisers are refused before round 1. Buffers are averaged
as they are; private parameters are not corrected. A client weighs nothing in rows that it has not trained; its c_i is 0
there, up to rounding. A client whose worker process has died goes on from the c_i of the last checkpoint, and c is their mean
no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.engine.client import Client, ClientHalf
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.optimizer_steps import after_each_step, check_plain_sgd
from fl_lightning.strategies.averaging import average, in_double
from fl_lightning.strategies.base import PhaseCosts
from fl_lightning.strategies.fedavg import FedAvg

CONTROL = "control/"
"""Before the names of parameters: their control variate, in messages, in the server's state and in a client's memory."""


class Scaffold(FedAvg):
    """Local steps are corrected by how much the client's gradient differs from all clients'.

    Args:
        eta: eta_g, the server's learning rate, above 0.
    """

    takes_aggregation = False  # the control variates are means, too

    def __init__(self, eta: float = 1.0) -> None:
        super().__init__("uniform")
        if not 0 < eta < math.inf:
            raise ValueError(f"`federation.strategy.init_args.eta` must be above 0, got {eta}.")
        self.eta = eta

    _learnt: frozenset[str] = frozenset()

    def client_half(self) -> ClientHalf:
        return _ScaffoldClient()

    def check(
        self,
        module: L.LightningModule,
        datamodules: Sequence[L.LightningDataModule],
        server_data: L.LightningDataModule | None,
    ) -> None:
        super().check(module, datamodules, server_data)
        self._learnt = frozenset(name for name, parameter in module.named_parameters() if parameter.requires_grad)

    def start(self, initial: dict[str, Tensor], private: Sequence[str]) -> None:
        super().start(initial, private)
        for name, tensor in initial.items():
            if name in self._learnt:  # small rates would round away in half precision
                kind = torch.promote_types(tensor.dtype, torch.float32)
                self.server_state[CONTROL + name] = torch.zeros_like(tensor, dtype=kind)

    def phase_costs(self, datamodules: Sequence[L.LightningDataModule]) -> PhaseCosts:
        """No phase; every client keeps its control variate."""
        return PhaseCosts(clients=len(datamodules) * sum(c.numel() * c.element_size() for c in self.server_state.values()))

    def uploads(self) -> Mapping[str, Tensor]:
        return {**super().uploads(), **self.server_state}

    def download(self, client: int) -> Payload:
        return Payload({**self.weights, **self.server_state})

    def aggregate(self, federation: Federation, round: int, replies: Mapping[int, Payload]) -> None:
        parts = {client: _apart(reply.tensors) for client, reply in replies.items()}
        super().aggregate(federation, round, {c: Payload(weights, replies[c].values) for c, (weights, _) in parts.items()})
        change = average([control for _, control in parts.values()], [1.0] * len(parts))
        share = len(parts) / len(federation.clients)
        for name, delta in change.items():
            c = self.server_state[CONTROL + name]
            self.server_state[CONTROL + name] = (in_double(c) + share * in_double(delta)).to(c.dtype)

    def server_step(self, average: dict[str, Tensor]) -> dict[str, Tensor]:
        x = {name: in_double(self.weights[name]) for name in average}
        return {name: (x[name] + self.eta * (in_double(mean) - x[name])).to(mean.dtype) for name, mean in average.items()}


class _ScaffoldClient(ClientHalf):
    """Corrects the steps of a fit, and remembers c_i (``control/...`` of its store)."""

    def check_optimizers(self, module: L.LightningModule, optimizers: Sequence[Any]) -> None:
        check_plain_sgd("Scaffold", module, optimizers)

    def fit(self, client: Client, request: Payload) -> Payload:
        x, c = _apart(request.tensors)
        own = client.store.section(CONTROL.rstrip("/"))
        steps = _Corrected(client.module, {n: t - own[n] if n in own else t for n, t in c.items()}, x)
        with after_each_step(client.module, steps.correct):
            reply = super().fit(client, Payload(x, request.values))
        if reply.values["num_samples"] == 0:
            return reply
        change = {name: torch.zeros_like(t) for name, t in c.items()}
        for name, rate in steps.rates.items():  # of what had a gradient; what had none has learnt nothing of its own
            update = in_double(x[name]) - in_double(reply.tensors[name])
            change[name] = (update / rate - in_double(c[name])).to(c[name].dtype)
        client.store.put_section(CONTROL.rstrip("/"), {n: own[n] + t if n in own else t for n, t in change.items()})
        return Payload({**reply.tensors, **{CONTROL + name: t for name, t in change.items()}}, reply.values)


class _Corrected:
    """What plain SGD does not know of: after its step y <- y - eta_l g, the rest of the equation.

    Args:
        module: The live module.
        corrections: c - c_i by parameter.
        received: The entries that the server sent.

    Attributes:
        rates: The sum of the steps' rates by parameter, above 0.
    """

    def __init__(self, module: L.LightningModule, corrections: Mapping[str, Tensor], received: Mapping[str, Tensor]) -> None:
        self._module, self._corrections, self._received = module, corrections, received
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        self.rates: dict[str, float] = {}

    @torch.no_grad()
    def correct(self, optimizer: Optimizer) -> None:
        """The rest of a step: y <- y - eta_l (c - c_i), for each parameter that had a gradient."""
        check_plain_sgd("Scaffold", self._module, [optimizer])  # a schedule may bring momentum in
        for group in optimizer.param_groups:
            rate = float(group["lr"])
            for y in group["params"]:
                name = self._names.get(id(y), "")
                if y.grad is None or rate == 0:
                    continue
                if name in self._corrections:
                    y.add_(self._corrections[name].to(y), alpha=-rate)
                    self.rates[name] = self.rates.get(name, 0.0) + rate
                elif name in self._received:
                    raise ValueError(
                        f"`{name}` was frozen before round 1 and is trained now, and `Scaffold` has no control variate of it. "
                        "Thaw it in `__init__`, or take `federation.strategy: FedAvg`"
                    )


def _apart(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights, and control variates by the names of the parameters."""
    control = {name.removeprefix(CONTROL): t for name, t in tensors.items() if name.startswith(CONTROL)}
    return {name: t for name, t in tensors.items() if not name.startswith(CONTROL)}, control
