r"""Personal mixtures: what strategies share of which every client receives its own mean of the participants' weights.

S(i, j)       cos(h_i, h_j) of a vector that each client sends                cosine_similarity
alpha_ij      exp(tau S_ij) / sum_k exp(tau S_ik), k includes i             similarity_weights
theta_bar_i   sum_j alpha_ij theta_j, j over the participants               personal_average, Mixtures.mix

A strategy says what alpha is and calls ``mix``, or ``mix_by_similarity`` with its vectors h (`fedpub.py`: functional
embeddings). The rest is here: a client that sits a round out keeps its last mixture; one that has none yet receives the initial
weights. In rows of an entry that a client has not trained (a task of which it has no label) it is in no mixture; j then
runs over the clients that have trained them, and a row that none has trained stays as each client has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fl_lightning.engine.diagnostics import Diagnostics
from fl_lightning.engine.entries import rows_by_learners
from fl_lightning.engine.messages import Payload
from fl_lightning.strategies.base import Strategy

INITIAL = "initial"
"""Before the names of the initial weights in a checkpoint, where a mixture's have their client's number."""


def cosine_similarity(embeddings: Tensor) -> Tensor:
    r"""Similarity :math:`S_{ij} = \cos(h_i, h_j)` of K clients.

    Args:
        embeddings: One vector per client, shape ``(K, H)``. A zero row counts as orthogonal to all.

    Returns:
        Shape ``(K, K)``, symmetric, computed in float64 and cast back.
    """
    if embeddings.dim() != 2:
        raise ValueError(f"`embeddings` needs shape (clients, hidden), but has {tuple(embeddings.shape)}.")
    unit = F.normalize(embeddings.double(), dim=-1, eps=1e-300)  # only an exact zero is no direction
    return (unit @ unit.T).to(embeddings.dtype)


def similarity_weights(embeddings: Tensor, tau: float, senders: Sequence[int] | None = None) -> Tensor:
    r"""Mixing matrix :math:`\alpha_{ij} = \mathrm{softmax}_j(\tau \cos(h_i, h_j))` of K clients.

    Args:
        embeddings: One vector per client, shape ``(K, H)``; a zero row is orthogonal to all others.
        tau: Scale of the similarities; ``0`` gives the plain mean.
        senders: Positions of the k clients that j runs over. Default: all.

    Returns:
        Shape ``(K, K)``, or ``(K, k)`` of these senders; rows sum to one, and i itself is among the j unless left out.
    """
    similarity = cosine_similarity(embeddings)
    return torch.softmax(tau * (similarity if senders is None else similarity[:, senders]), dim=-1)


def personal_average(alpha: Tensor, stacked: Tensor) -> Tensor:
    r"""Personal weights :math:`\bar\theta_i = \sum_j \alpha_{ij} \theta_j` as one matrix product.

    Args:
        alpha: Mixing matrix, shape ``(R, K)``: R receivers, K senders.
        stacked: Flattened shared weights of the senders, shape ``(K, P)``, floating point.

    Returns:
        Shape ``(R, P)``, summed in float64 and cast back to the type of ``stacked``.

    Raises:
        ValueError: If the shapes do not fit, or ``stacked`` holds integers (counters are never averaged).
    """
    if alpha.dim() != 2 or stacked.dim() != 2 or alpha.shape[1] != stacked.shape[0]:
        raise ValueError(
            "`alpha` (receivers, senders) and `stacked` (senders, weights) do not fit: "
            f"{tuple(alpha.shape)} and {tuple(stacked.shape)}."
        )
    if not stacked.is_floating_point():
        raise ValueError(f"Only floating-point weights can be averaged, but `stacked` is {stacked.dtype}.")
    return (alpha.double() @ stacked.double()).to(stacked.dtype)


class Mixtures(Strategy):
    """Base: every client receives its own mixture of the participants' weights.

    A subclass implements ``aggregate`` and calls :meth:`mix` or :meth:`mix_by_similarity` in it. If clients send more than the
    weights, its ``fit_reply`` says so.

    Attributes:
        pictures: What is before the names of the matrices that :meth:`diagnose` shows.
    """

    personal = True
    pictures: str = "mixtures"

    def start(self, initial: dict[str, Tensor], private: Sequence[str]) -> None:
        self.weights = initial
        self._names = [n for n, t in initial.items() if t.is_floating_point()]
        self._mixtures: dict[int, dict[str, Tensor]] = {}
        self._last: dict[str, Any] = {}

    def download(self, client: int) -> Payload:
        return Payload(self._mixtures.get(client, self.weights))

    def mix_by_similarity(self, replies: Mapping[int, Payload], embeddings: Tensor, tau: float) -> None:
        """:meth:`mix` with :func:`similarity_weights`, of which :meth:`diagnose` shows both matrices.

        Args:
            replies: As for :meth:`mix`.
            embeddings: A vector of each participant, shape ``(K, H)``.
            tau: Scale of the similarities.
        """
        self.mix(replies, lambda senders: similarity_weights(embeddings, tau, senders))
        matrices = {"similarity": cosine_similarity(embeddings), "alpha": similarity_weights(embeddings, tau)}
        self._last = {"clients": list(replies), **matrices}

    def mix(self, replies: Mapping[int, Payload], alpha: Callable[[Sequence[int]], Tensor]) -> None:
        """Give each participant its mixture of all.

        Args:
            replies: Of the K participants that have trained, with the weights among their tensors.
            alpha: Called with positions of k senders among the participants; gives the mixing matrix ``(K, k)`` of all
                participants from these senders alone, its rows summing to one.
        """
        models = [reply.tensors for reply in replies.values()]
        stacked = torch.stack([torch.cat([model[n].reshape(-1).float() for n in self._names]) for model in models])
        mixed = personal_average(alpha(range(len(models))), stacked)
        sizes = [self.weights[n].numel() for n in self._names]
        for row, client in zip(mixed, replies, strict=True):
            parts = zip(self._names, row.split(sizes), strict=True)
            self._mixtures[client] = {
                **self.weights,
                **{n: part.reshape(self.weights[n].shape).to(self.weights[n].dtype) for n, part in parts},
            }
        self._mix_learnt_rows(replies, alpha)

    def _mix_learnt_rows(self, replies: Mapping[int, Payload], alpha: Callable[[Sequence[int]], Tensor]) -> None:
        """The rows that not all have trained, anew: mixtures of those clients alone that have."""
        untrained = [reply.values.get("untrained_rows", {}) for reply in replies.values()]
        for name in sorted({name for told in untrained for name in told}):
            own = torch.stack([reply.tensors[name] for reply in replies.values()])
            for rows, learners in rows_by_learners(own.shape[1], [told.get(name, ()) for told in untrained]):
                mixed = own[:, rows]  # where nobody has trained them: as each client has them
                if learners:
                    flat = own[learners][:, rows].reshape(len(learners), -1)
                    mixed = personal_average(alpha(learners), flat.float()).reshape(mixed.shape).to(own.dtype)
                for client, part in zip(replies, mixed, strict=True):
                    self._mixtures[client][name][rows] = part

    def state(self) -> dict[str, Tensor]:
        flat = {f"{INITIAL}/{n}": t for n, t in self.weights.items()}
        return flat | {f"{c}/{n}": t for c, tensors in self._mixtures.items() for n, t in tensors.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self._mixtures = {}
        for key, tensor in state.items():
            owner, name = key.split("/", 1)
            if owner == INITIAL:
                self.weights[name] = tensor
            else:
                self._mixtures.setdefault(int(owner), {})[name] = tensor

    def diagnose(self) -> Diagnostics:
        """Of the last round's participants: the matrices that the strategy has put into ``_last`` beside their ``clients``."""
        matrices = {f"{self.pictures}/{name}": matrix for name, matrix in self._last.items() if name != "clients"}
        return replace(super().diagnose(), matrices=matrices, clients=self._last.get("clients", ()))
