"""What a fixed model (the one received, or a client's previous one) says about every training sample, once per round.

Values are kept by sample id (`SampleLosses.ids`), so neither shuffling nor the last short batch can misplace them. The
pass goes over the training data once, in order, in evaluation mode, and leaves no trace in the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from lit_models.objectives.support.extra_passes import evaluating

if TYPE_CHECKING:
    from lit_models.base import LitGraphModule

Measure = Callable[[Any], tuple[Tensor, dict[str, Tensor]]]
"""From a batch to sample ids ``(S,)`` and named values ``(S, ...)``."""


class SampleTable:
    """Named values by sample id.

    Args:
        ids: int64 ``(n,)`` in any order; of a repeated id the first row counts.
        values: Tensors ``(n, ...)``.
    """

    def __init__(self, ids: Tensor, values: Mapping[str, Tensor]) -> None:
        order = torch.argsort(ids, stable=True)
        self.ids, self.values = ids[order], {name: value[order] for name, value in values.items()}

    @classmethod
    def of(cls, parts: Iterable[tuple[Tensor, dict[str, Tensor]]]) -> SampleTable:
        """From what a `Measure` gave for each batch."""
        parts = list(parts)
        if not parts:
            return cls(torch.zeros(0, dtype=torch.long), {})
        return cls(
            torch.cat([ids for ids, _ in parts]),
            {name: torch.cat([values[name] for _, values in parts]) for name in parts[0][1]},
        )

    def rows(self, ids: Tensor) -> Tensor:
        """Where these samples are, int64 ``(S,)``.

        Raises:
            ValueError: A sample is not in the table.
        """
        found = torch.searchsorted(self.ids, ids).clamp(max=max(len(self.ids) - 1, 0))
        known = self.ids[found] == ids if len(self.ids) else torch.zeros_like(ids, dtype=torch.bool)
        if not bool(known.all()):
            raise ValueError(
                f"Sample {int(ids[~known][0])} is trained on but was not among the training data when training began. "
                "The ids that `losses` gives must be stable, and a training loader must offer every sample "
                "(no `drop_last`), or the data module a `sequential_train_dataloader`."
            )
        return found

    def at(self, ids: Tensor) -> dict[str, Tensor]:
        """The values of these samples, in this order."""
        rows = self.rows(ids)
        return {name: value[rows] for name, value in self.values.items()}


def measure_training_data(module: LitGraphModule, measure: Measure) -> SampleTable:
    """``measure`` of every training batch of the module's Trainer, in evaluation mode, by sample id."""
    with evaluating(module), torch.no_grad():
        return SampleTable.of(measure(batch) for batch in training_batches(module))


def training_batches(module: LitGraphModule) -> Iterator[Any]:
    """Every training sample of the module's Trainer once, on the module's device, with the Trainer's precision."""
    try:
        trainer: Any = module.trainer  # whose type does not have the data module
    except RuntimeError as error:
        raise ValueError(
            f"`{type(module.objective).__name__}` looks at all training data when training begins, but the module has "
            "no Trainer. Train it with `lightning.Trainer.fit` or a `FederatedTrainer`."
        ) from error
    own_hook = is_overridden("on_before_batch_transfer", trainer.datamodule)
    hooks: Any = trainer.datamodule if own_hook else module  # whose hook a Trainer calls; the other two it finds itself
    with _own_generators_untouched(trainer.train_dataloader):
        for batch in in_order(trainer):
            batch = trainer.precision_plugin.convert_input(batch)
            batch = hooks.on_before_batch_transfer(batch, 0)
            batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
            with trainer.precision_plugin.forward_context():
                yield batch


def in_order(trainer: Any) -> Iterable[Any]:
    """A loader of all training data without shuffling and ``drop_last``: the data module's
    ``sequential_train_dataloader``, else one over the training loader's data set, else (a loader that makes its batches
    in a way of its own) the training loader."""
    sequential: Callable[[], Iterable[Any]] | None = getattr(trainer.datamodule, "sequential_train_dataloader", None)
    if sequential is not None:
        return sequential()
    loader: Iterable[Any] = trainer.train_dataloader
    if (
        not isinstance(loader, DataLoader)
        or type(loader).__iter__ is not DataLoader.__iter__
        or type(loader)._get_iterator is not DataLoader._get_iterator  # noqa: SLF001  where PyG's neighbour loaders differ
        or isinstance(loader.dataset, IterableDataset)
    ):
        return loader
    size = None if loader.batch_sampler is None else getattr(loader.batch_sampler, "batch_size", 1)
    return DataLoader(loader.dataset, batch_size=size, collate_fn=loader.collate_fn, num_workers=0)


def batch_size_of(trainer: Any) -> int | None:
    """Samples in a training batch; ``None`` where a batch is all there is, or cannot be told."""
    return getattr(trainer.train_dataloader, "batch_size", None)


@contextmanager
def _own_generators_untouched(loader: Any) -> Iterator[None]:
    holders = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    own = [generator for generator in (getattr(holder, "generator", None) for holder in holders) if generator]
    states = [generator.get_state() for generator in own]
    try:
        yield
    finally:
        for generator, state in zip(own, states, strict=True):
            generator.set_state(state)
