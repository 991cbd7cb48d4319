r"""FedRep (Collins, Hassani, Mokhtari, Shakkottai; ICML 2021): as FedPer, but the head is trained before the body, not with it.

.. math:: h_i \leftarrow h_i - \eta \nabla_h F_i(\theta, h_i) \quad\text{for } \tau_h \text{ epochs, then}\quad
          \theta_i \leftarrow \theta_i - \eta \nabla_\theta F_i(\theta_i, h_i) \quad\text{for the others}

The server averages the bodies uniformly. Head and body are kept still by taking them out of the optimisers' groups: nothing
moves them then, weight decay and momentum neither, and the module, its gradients and its objective are what they always are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from fl_lightning.engine.client import ClientHalf
from fl_lightning.strategies.fedper import FedPer, head_patterns


class FedRep(FedPer):
    """FedPer whose clients train the head in the first local epochs of a round and the body in the others.

    Args:
        head_epochs: Local epochs that train the head; the others of ``trainer.max_epochs`` train the body. The paper has ten
            for the head and one for the body: ``trainer.max_epochs: 11``.
        head: As for ``FedPer``.
        weighting: ``uniform`` (the paper's) or ``num_samples``.
    """

    def __init__(
        self,
        head_epochs: int = 1,
        head: list[str] | None = None,
        weighting: Literal["uniform", "num_samples"] = "uniform",
    ) -> None:
        super().__init__(head, weighting)
        if head_epochs < 0:
            raise ValueError(f"`federation.strategy.init_args.head_epochs` must be at least 0, got {head_epochs}.")
        self.head_epochs = head_epochs

    def check_local_work(self, trainer_args: Mapping[str, Any]) -> None:
        if trainer_args.get("fast_dev_run"):
            return
        epochs, steps = trainer_args.get("max_epochs"), trainer_args.get("max_steps")
        if steps not in (None, -1):
            raise ValueError(
                f"`FedRep` counts a round's local work in epochs, but `trainer.max_steps` is {steps}. Write "
                f"`trainer.max_epochs: {self.head_epochs + 1}` (or more) in its place."
            )
        if self.head_epochs >= (1 if epochs is None else epochs):
            raise ValueError(
                f"`FedRep` trains the head in the first {self.head_epochs} local epochs of a round "
                "(`federation.strategy.init_args.head_epochs`) and the body in the others, but `trainer.max_epochs` is "
                f"{epochs or 1}, so that no epoch is left for the body. Write "
                f"`trainer.max_epochs: {self.head_epochs + 1}` or more."
            )

    def client_half(self) -> ClientHalf:
        return FedRepClient(self.head, self.head_epochs)


class FedRepClient(ClientHalf):
    """Trains as ever, with `HeadThenBody` in its Trainer."""

    def __init__(self, head: Sequence[str] | None, head_epochs: int) -> None:
        super().__init__()
        self.head, self.head_epochs = head, head_epochs

    def callbacks(self, module: L.LightningModule) -> list[Callback]:
        return [HeadThenBody(head_patterns("FedRep", self.head, module), self.head_epochs)]


class HeadThenBody(Callback):
    """In each fit the first epochs train the head alone, the others the body alone.

    Args:
        head: Patterns of the head's entries.
        head_epochs: Number of the first epochs.
    """

    def __init__(self, head: Sequence[str], head_epochs: int) -> None:
        self.head, self.head_epochs = tuple(head), head_epochs
        self._epoch = 0
        self._groups: list[tuple[dict[str, Any], list[Any]]] = []  # each group of an optimiser, and all its parameters

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in trainer.optimizers):
            raise ValueError(
                "`FedRep` trains head and body in turn, but LBFGS remembers all its parameters as one vector. Use another "
                "optimiser (SGD, Adam), or `federation.strategy: FedPer`"
            )
        self._epoch = 0
        self._groups = [(group, list(group["params"])) for optimizer in trainer.optimizers for group in optimizer.param_groups]

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        named = module.named_parameters(remove_duplicate=False)
        head = {id(p) for name, p in named if any(fnmatchcase(name, pattern) for pattern in self.head)}
        trains_head = self._epoch < self.head_epochs
        for group, whole in self._groups:
            for parameter in whole:
                parameter.grad = None  # what it had when it last rested is no gradient of now
            group["params"][:] = [p for p in whole if (id(p) in head) == trains_head]
        self._epoch += 1

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        for group, whole in self._groups:
            group["params"][:] = whole
        self._groups = []

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        self.on_train_end(trainer, module)  # a module may give the same optimiser in its next fit
