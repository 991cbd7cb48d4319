r"""FedNova: normalised averaging (Wang, Liu, Liang, Joshi, Poor; NeurIPS 2020), for plain SGD at the clients.

A client with more local steps goes farther, and FedAvg then minimises a sum in which it weighs more. With tau_i steps of
client i:

    d_i = (x - y_i) / (eta tau_i)                 its mean gradient (the paper's a_i = (1, ..., 1) of plain SGD)
    tau_eff = sum_i p_i tau_i
    x <- x - tau_eff eta sum_i p_i d_i            the rate eta cancels out

p_i are the weights of ``FedAvg``. With equal tau_i it is ``FedAvg``. In a row that only some have trained (``untrained_rows``),
both sums are over those. Buffers are averaged as they are.

What leaves a client is what leaves it with ``FedAvg``, and ``num_steps``, its tau_i: from the number of its samples, batch
size and epochs anybody could tell it. tau_i counts steps, not rates: with a schedule that changes the rate from step to step
(by epoch it does no harm), clients with more steps in a round have other rates, for which nothing makes up. Momentum, weight
decay and other optimisers are refused before round 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.engine.client import Client, ClientHalf
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.optimizer_steps import after_each_step, check_plain_sgd
from fl_lightning.engine.replies import Expected, sample_count
from fl_lightning.strategies.averaging import average_learnt, in_double
from fl_lightning.strategies.fedavg import FedAvg, untrained_rows


class FedNova(FedAvg):
    """FedAvg in which a client weighs the same however many local steps it took.

    Args:
        weighting: As in ``FedAvg``.
    """

    takes_aggregation = False  # it is a mean of steps, weighted by their number

    def client_half(self) -> ClientHalf:
        return _CountsSteps()

    def fit_reply(self) -> Expected:
        """What ``FedAvg`` expects, and how many steps the client took: at least one."""
        usual = super().fit_reply()

        def fault(payload: Payload) -> str | None:
            idle = payload.values["num_samples"] > 0 and payload.values["num_steps"] == 0
            return "`num_steps` of its reply is 0: nothing was trained" if idle else None

        return replace(usual, values={**usual.values, "num_steps": sample_count}, tensors=fault)

    def average(self, replies: Mapping[int, Payload]) -> dict[str, Tensor]:
        mean = super().average(replies)
        x = {name: in_double(self.weights[name]) for name in mean if name not in self._buffers}
        taus = [float(reply.values["num_steps"]) for reply in replies.values()]
        moves = [{n: (in_double(r.tensors[n]) - x[n]) / tau for n in x} for r, tau in zip(replies.values(), taus, strict=True)]
        rows = [{n: torch.full(x[n].shape[:1], tau, dtype=torch.float64) for n in x} for tau in taus]
        untrained = [{n: r for n, r in told.items() if n in x} for told in untrained_rows(replies)]
        shares, nothing = self.shares(replies), {n: torch.zeros_like(t) for n, t in x.items()}
        d = average_learnt(moves, shares, untrained, nothing)
        tau_eff = average_learnt(rows, shares, untrained, {n: torch.zeros_like(t) for n, t in rows[0].items()})
        return {**mean, **{n: (x[n] + _by_row(tau_eff[n], d[n])).to(mean[n].dtype) for n in x}}


class _CountsSteps(ClientHalf):
    def check_optimizers(self, module: L.LightningModule, optimizers: Sequence[Any]) -> None:
        check_plain_sgd("FedNova", module, optimizers)

    def fit(self, client: Client, request: Payload) -> Payload:
        steps = 0

        def count(optimizer: Optimizer) -> None:
            nonlocal steps
            check_plain_sgd("FedNova", client.module, [optimizer])  # a schedule may bring momentum in
            steps += 1

        with after_each_step(client.module, count):
            reply = super().fit(client, request)
        return Payload(reply.tensors, {**reply.values, "num_steps": steps})


def _by_row(factors: Tensor, tensor: Tensor) -> Tensor:
    """Each row (of the first dimension) times its factor."""
    return factors.reshape(factors.shape + (1,) * (tensor.dim() - factors.dim())) * tensor
