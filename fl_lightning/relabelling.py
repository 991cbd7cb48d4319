"""Data in which all labels outside the training part are permuted: the library's own data modules do it themselves
(``permute_labels``), and of any other the batches are changed on their way out of the loaders."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch_geometric.data import Data as Graph

from datamodules.relabelling import permute_known

EVALUATION = ("val_dataloader", "test_dataloader")
LABELS = ("y", "label", "labels", "target", "targets")
"""Names that labels have in a batch that is a dict."""


class Relabelled:
    """Permutes labels of data that nobody else holds (a copy), in place.

    Args:
        data: A data module with ``client_datamodules()``, or a list of the clients'.
        seed: Of the permutations.
    """

    def __init__(self, data: L.LightningDataModule | Sequence[L.LightningDataModule], seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._changed: dict[str, int] = {}
        self._done: list[Any] = []  # kept, so that no other object has the same identity
        if isinstance(data, Sequence):
            for client, own in enumerate(data):
                self._permute(own, f"client {client}")
        else:
            self._permute_after_setup(data)

    @property
    def changed(self) -> Mapping[str, int]:
        """How many labels have become others, by whose they are; of foreign data modules as far as they were asked for."""
        return self._changed

    def _permute_after_setup(self, data: Any) -> None:
        """The server's labels when its data are there, and the clients' when they are made."""
        setup, clients = data.setup, data.client_datamodules

        def set_up(stage: str | None = None) -> None:
            setup(stage)
            self._permute(data, "server")

        def make_clients() -> list[L.LightningDataModule]:
            found = list(clients())
            for client, own in enumerate(found):
                self._permute(own, f"client {client}")
            return found

        data.setup, data.client_datamodules = set_up, make_clients

    def _permute(self, data: Any, whose: str) -> None:
        if any(data is other for other in self._done):
            return
        self._done.append(data)
        if hasattr(data, "permute_labels"):
            self._changed[whose] = data.permute_labels(self._generator)
            return
        self._changed[whose] = 0
        for name in ("train_dataloader", *EVALUATION):
            if is_overridden(name, data):
                setattr(data, name, self._relabelled(getattr(data, name), whose, name in EVALUATION))

    def _relabelled(self, make: Any, whose: str, outside: bool) -> Any:
        def dataloader() -> Any:
            loader = make()
            if isinstance(loader, list | tuple):
                return [RelabelledLoader(one, self, whose, outside) for one in loader]
            return RelabelledLoader(loader, self, whose, outside) if outside or _has_masks(loader) else loader

        return dataloader

    def permute(self, labels: Tensor, outside: Tensor, whose: str) -> Tensor:
        """Permuted labels; how many differ is counted."""
        permuted, number = permute_known(labels, outside, self._generator)
        self._changed[whose] += number
        return permuted


class RelabelledLoader:
    """A loader whose batches have each other's labels; of graphs with a ``train_mask``, those of all other nodes.

    Args:
        loader: Gives the same batches in each pass, in the same order.
        relabelled: Permutes and counts.
        whose: Whose labels these are.
        outside: All labels of the batches are outside the training part.
    """

    def __init__(self, loader: Any, relabelled: Relabelled, whose: str, outside: bool) -> None:
        self._loader, self._relabelled, self._whose, self._outside = loader, relabelled, whose, outside
        self._labels: list[Tensor] | None = None

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if self._labels is None:
            batches = list(self._loader)
            old = [labels_of(batch) for batch in batches]
            outside = torch.cat([self._outside_of(b, y) for b, y in zip(batches, old, strict=True)] or [torch.empty(0)])
            together = self._relabelled.permute(torch.cat(old), outside, self._whose) if old else torch.empty(0)
            self._labels = list(together.split([len(y) for y in old]))
        for batch, labels in zip(self._loader, self._labels, strict=True):
            yield with_labels(batch, labels)

    def _outside_of(self, batch: Any, labels: Tensor) -> Tensor:
        return torch.ones(len(labels), dtype=torch.bool) if self._outside else ~batch.train_mask


def _has_masks(loader: Any) -> bool:
    """Whether training batches hold other nodes' labels, too."""
    first = next(iter(loader), None)
    return isinstance(first, Graph) and "train_mask" in first


def labels_of(batch: Any) -> Tensor:
    """The labels of a batch.

    Raises:
        ValueError: If it is not known where they are.
    """
    found: Any = None
    if isinstance(batch, Graph):
        found = batch.get("y")
    elif isinstance(batch, Mapping):
        found = next((batch[name] for name in LABELS if name in batch), None)
    elif isinstance(batch, Sequence) and len(batch) > 1:
        found = batch[-1]
    if not isinstance(found, Tensor) or found.dim() == 0:
        raise ValueError(
            f"The canary cannot find the labels in a batch of type `{type(batch).__name__}`: it looks for the last tensor of a "
            f"tuple, for `{'`, `'.join(LABELS)}` in a dict and for `y` of a PyG graph. Give the data module a method "
            "`permute_labels(generator) -> int`, which permutes its labels outside the training part and says how many changed."
        )
    return found


def with_labels(batch: Any, labels: Tensor) -> Any:
    """A copy of the batch with other labels."""
    if isinstance(batch, Graph):
        changed = copy.copy(batch)
        changed.y = labels
        return changed
    if isinstance(batch, Mapping):
        name = next(name for name in LABELS if name in batch)
        return {**batch, name: labels}
    parts = [*batch[:-1], labels]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
