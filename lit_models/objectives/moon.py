r"""MOON: model-contrastive federated learning (Li, He, Song; CVPR 2021; a rival in FedChem).

.. math:: L - \mu\, \mathrm{mean}_x \log \frac{\exp(\cos(z, z_g) / \tau)}
          {\exp(\cos(z, z_g) / \tau) + \exp(\cos(z, z_p) / \tau)}
          = L + \mu\, \mathrm{mean}_x\, \mathrm{softplus}\big((\cos(z, z_p) - \cos(z, z_g)) / \tau\big)

``z`` is the embedding of the model in training, ``z_g`` that of the model as received, ``z_p`` that of this client's
own model at the end of its last local fit. The last two are computed once per local fit, in evaluation mode, for every
training sample, and are constants. Until a client has a previous model there is no term. The previous model is private:
it stays in the client's memory and is never sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lit_models.objectives.base import Objective, masked_mean
from lit_models.objectives.support.added_term import AddedTerm
from lit_models.objectives.support.extra_passes import Replay, extra_pass, first_outputs
from lit_models.objectives.support.received import SampleTable, measure_training_data

if TYPE_CHECKING:
    from lit_models.base import LitGraphModule

_PREVIOUS = "previous/"


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Row-wise cosine, ``(S, H)``, ``(S, H)`` -> ``(S,)``; 0, with a finite gradient, where a row is zero."""
    return (_unit(a) * _unit(b)).sum(-1)


def _unit(rows: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / torch.where(norm > 0, norm, 1.0)


def contrastive(current: Tensor, received: Tensor, previous: Tensor, tau: float = 0.5) -> Tensor:
    """The term of each sample, shape ``(S,)``, from embeddings ``(S, H)``; no gradient to the last two."""
    return F.softplus((cosine(current, previous.detach()) - cosine(current, received.detach())) / tau)


class MOON(AddedTerm):
    """A base loss plus the contrastive term. A step costs a second forward pass, for the embeddings.

    Args:
        mu: Factor of the term; 0 switches it off (FedAvg). FedChem's grid: .1, 1, 5, 10.
        tau: Temperature.
        base: The loss that the term is added to; `ERM` by default.
        warmup_rounds: First rounds with the base loss alone; the previous model is remembered in them, too.

    Logs ``train/contrastive``, the mean without its factor.
    """

    def __init__(self, mu: float = 1.0, tau: float = 0.5, base: Objective | None = None, warmup_rounds: int = 1) -> None:
        super().__init__(base, warmup_rounds)
        self.check("mu", mu, mu >= 0, "at least 0")
        self.check("tau", tau, tau > 0, "above 0")
        self.mu, self.tau = mu, tau
        self._previous: dict[str, Tensor] = {}
        self._received: SampleTable | None = None
        self._width: int | None = None  # of the outputs; nothing but a memo

    def on_train_start(self, module: LitGraphModule) -> None:
        super().on_train_start(module)
        self._received = None
        if self.mu and self._previous and not self.warming_up:
            self._received = measure_training_data(module, lambda batch: self.measure(module, batch))

    def measure(self, module: LitGraphModule, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Ids of the training samples of a batch, and their embeddings by the received and the previous model."""
        received = module.embed(batch)
        with hold_weights(module, self._previous):
            previous = module.embed(batch)
        if self._width is None:
            self._width = module(batch).size(1)
        ids = module.losses(received.new_zeros(len(received), self._width), batch).ids
        return ids, {"received": rows_of(received, ids, batch), "previous": rows_of(previous, ids, batch)}

    def __call__(self, module: LitGraphModule, batch: Any) -> Tensor:
        if self._received is None:
            return self.base(module, batch)
        replay = Replay(module.device)
        with first_outputs(module) as outputs:
            loss = self.base(module, batch)
        with torch.no_grad():
            losses = module.losses(outputs[0], batch)
        with extra_pass(module, replay):
            current = rows_of(module.embed(batch), losses.ids, batch)
        term = contrastive(current, **self._received.at(losses.ids), tau=self.tau)
        labelled = losses.mask.any(-1)
        module.observe({"contrastive": term}, labelled)
        return loss + self.mu * masked_mean(term, labelled)

    def on_train_end(self, module: LitGraphModule) -> None:
        super().on_train_end(module)
        self._received = None
        if self.mu:
            self._previous = {name: value.to("cpu", copy=True) for name, value in module.state_dict().items()}

    def state(self) -> dict[str, Tensor]:
        own = {f"{_PREVIOUS}{name}": value.clone() for name, value in self._previous.items()}
        return {**super().state(), **own}

    def load_state(self, state: dict[str, Tensor]) -> None:
        own = {name: value for name, value in state.items() if name.startswith(_PREVIOUS)}
        super().load_state({name: value for name, value in state.items() if name not in own})
        self._previous = {name[len(_PREVIOUS) :]: value.clone() for name, value in own.items()}


def rows_of(embedding: Tensor, ids: Tensor, batch: Any) -> Tensor:
    """The rows of the training samples ``ids``: all of them, or those of the nodes with these ``node_id``."""
    if len(embedding) == len(ids):
        return embedding
    node_id = getattr(batch, "node_id", None)
    node_id = torch.arange(len(embedding), device=ids.device) if node_id is None else node_id
    sorted_id, order = node_id.sort()
    return embedding[order[torch.searchsorted(sorted_id, ids)]]


@contextmanager
def hold_weights(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """The module with other weights and buffers for a block. Its own tensors are put aside, not copied or changed.

    Raises:
        ValueError: ``tensors`` are not those of such a module.
    """
    entries = module.state_dict(keep_vars=True)
    if {n: t.shape for n, t in entries.items()} != {n: t.shape for n, t in tensors.items()}:
        raise ValueError(
            f"The previous model that `MOON` remembers is not a `{type(module).__name__}` with these layers: the model "
            "of a run must not change between rounds."
        )
    own = {name: entry.data for name, entry in entries.items()}
    try:
        for name, entry in entries.items():
            entry.data = tensors[name].to(entry.device, entry.dtype)
        yield
    finally:
        for name, entry in entries.items():
            entry.data = own[name]
