r"""The server's optimisers: FedAvgM (Hsu, Qi, Brown 2019), FedAdagrad, FedAdam, FedYogi (Reddi et al., ICLR 2021, Algorithm 2).

The clients' mean step is a pseudo-gradient, which the server's optimiser takes:

Delta_t = sum_i p_i (x_i - x_t)                                   the mean of the clients' models minus the server's
FedAvgM     m_t = beta m_(t-1) + Delta_t,  x_(t+1) = x_t + eta m_t
the others  m_t = beta_1 m_(t-1) + (1 - beta_1) Delta_t
            v_t = v_(t-1) + Delta_t^2                                                                   FedAdagrad
            v_t = v_(t-1) - (1 - beta_2) Delta_t^2 sign(v_(t-1) - Delta_t^2)                            FedYogi
            v_t = beta_2 v_(t-1) + (1 - beta_2) Delta_t^2                                               FedAdam
            x_(t+1) = x_t + eta m_t / (sqrt(v_t) + tau)

m_(-1) = 0 and v_(-1) = tau^2, and nothing corrects their bias, as in the paper. All is for each number apart. p_i are the
weights of ``FedAvg``. Buffers (running statistics of normalisation layers) are no gradients: they are averaged as they are.
A row that no participant has trained (``untrained_rows``) stays, and so do its m and v.

What leaves a client is what leaves it with ``FedAvg``: its weights. m and v are the server's, and in its checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.strategies.fedavg import FedAvg

Weighting = Literal["uniform", "num_samples"]


class ServerOptimizer(FedAvg):
    """FedAvg whose server takes a step of its own along the clients' mean one; base of the four.

    Args:
        eta: The server's learning rate, above 0.
        weighting: As in ``FedAvg``.
    """

    def __init__(self, eta: float, weighting: Weighting = "num_samples") -> None:
        super().__init__(weighting)
        _check("eta", eta, 0 < eta < math.inf, "above 0")
        self.eta = eta

    def first_memory(self) -> dict[str, float]:
        """Names of what the optimiser remembers of each number, with the values before round 1."""
        raise NotImplementedError(f"{type(self).__name__} must implement `first_memory()`.")

    def direction(self, delta: Tensor, memory: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Where to go, and what to remember.

        Args:
            delta: The pseudo-gradient of one entry, float64.
            memory: Of the last round, by the names of :meth:`first_memory`, of the same shape and type.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `direction(delta, memory)`.")

    def server_step(self, average: dict[str, Tensor]) -> dict[str, Tensor]:
        new = {}
        for name, mean in average.items():
            x, still = _wide(self.weights[name]), self._still.get(name)
            memory = {key: self._remembered(f"{key}.{name}", x, first) for key, first in self.first_memory().items()}
            step, after = self.direction(_wide(mean) - x, memory)
            new[name] = _narrow(x + self.eta * step, mean)
            for key, tensor in after.items():
                if still:
                    tensor[still] = memory[key][still]
                self.server_state[f"{key}.{name}"] = tensor.to(_type_of_memory(mean))
        return new

    def _remembered(self, name: str, like: Tensor, first: float) -> Tensor:
        kept = self.server_state.get(name)
        return torch.full_like(like, first) if kept is None else kept.double()


class FedAvgM(ServerOptimizer):
    """Momentum at the server; with ``beta = 0`` and ``eta = 1`` it is ``FedAvg``.

    Args:
        eta: The server's learning rate; the paper has 1.
        beta: How much of the last step goes on, from 0 to below 1.
        weighting: As in ``FedAvg``.
    """

    def __init__(self, eta: float = 1.0, beta: float = 0.9, weighting: Weighting = "num_samples") -> None:
        super().__init__(eta, weighting)
        _check("beta", beta, 0 <= beta < 1, "from 0 to below 1")
        self.beta = beta

    def first_memory(self) -> dict[str, float]:
        return {"m": 0.0}

    def direction(self, delta: Tensor, memory: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        m = self.beta * memory["m"] + delta
        return m, {"m": m}


class AdaptiveServerOptimizer(ServerOptimizer):
    """Algorithm 2 of Reddi et al., but for how v grows; base of the three.

    Args:
        eta: The server's learning rate, above 0.
        beta1: Decay of the mean step, from 0 to below 1.
        tau: How adaptive it is, above 0: the smaller, the more.
        weighting: As in ``FedAvg``.
    """

    def __init__(self, eta: float, beta1: float, tau: float, weighting: Weighting = "num_samples") -> None:
        super().__init__(eta, weighting)
        _check("beta1", beta1, 0 <= beta1 < 1, "from 0 to below 1")
        _check("tau", tau, 0 < tau < math.inf, "above 0")
        self.beta1, self.tau = beta1, tau

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """v_t of v_(t-1) and the squared pseudo-gradient."""
        raise NotImplementedError(f"{type(self).__name__} must implement `second_moment(v, square)`.")

    def first_memory(self) -> dict[str, float]:
        return {"m": 0.0, "v": self.tau**2}

    def direction(self, delta: Tensor, memory: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        m = self.beta1 * memory["m"] + (1 - self.beta1) * delta
        v = self.second_moment(memory["v"], delta.square())
        return m / (v.sqrt() + self.tau), {"m": m, "v": v}


class FedAdagrad(AdaptiveServerOptimizer):
    """v_t = v_(t-1) + Delta_t^2.

    Args:
        eta: The server's learning rate, above 0. The paper tunes it, from 0.001 to 10; our default is none of its.
        beta1: Decay of the mean step, from 0 to below 1; the paper has 0 here.
        tau: How adaptive it is, above 0.
        weighting: As in ``FedAvg``.
    """

    def __init__(self, eta: float = 0.1, beta1: float = 0.0, tau: float = 1e-3, weighting: Weighting = "num_samples") -> None:
        super().__init__(eta, beta1, tau, weighting)

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


class FedAdam(AdaptiveServerOptimizer):
    """v_t = beta_2 v_(t-1) + (1 - beta_2) Delta_t^2.

    Args:
        eta: The server's learning rate, above 0. The paper tunes it, from 0.001 to 10; our default is none of its.
        beta1: Decay of the mean step, from 0 to below 1.
        beta2: Decay of the mean square, from 0 to below 1.
        tau: How adaptive it is, above 0.
        weighting: As in ``FedAvg``.
    """

    def __init__(
        self,
        eta: float = 0.1,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        weighting: Weighting = "num_samples",
    ) -> None:
        super().__init__(eta, beta1, tau, weighting)
        _check("beta2", beta2, 0 <= beta2 < 1, "from 0 to below 1")
        self.beta2 = beta2

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


class FedYogi(FedAdam):
    """v_t = v_(t-1) - (1 - beta_2) Delta_t^2 sign(v_(t-1) - Delta_t^2); arguments as of ``FedAdam``."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


def _check(name: str, value: float, good: bool, wanted: str) -> None:
    if not good:
        raise ValueError(f"`federation.strategy.init_args.{name}` must be {wanted}, got {value}.")


def _wide(tensor: Tensor) -> Tensor:
    """In float64; real and imaginary parts are numbers of their own."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()


def _narrow(tensor: Tensor, like: Tensor) -> Tensor:
    """Inverse of :func:`_wide`."""
    if like.is_complex():
        return torch.view_as_complex(tensor.to(torch.view_as_real(like).dtype))
    return tensor.to(like.dtype)


def _type_of_memory(like: Tensor) -> torch.dtype:
    """The weights' own, but float32 for half precision, in which small squares are zero."""
    return torch.promote_types(torch.view_as_real(like).dtype if like.is_complex() else like.dtype, torch.float32)
