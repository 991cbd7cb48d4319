"""How many samples a client trains on, and whether its last batch has only one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lightning as L
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader


def count_samples(datamodule: L.LightningDataModule) -> int:
    """``num_train_samples`` of a data module, else what :func:`samples_of` says of its training loader.

    Raises:
        ValueError: They cannot be counted.
    """
    number = getattr(datamodule, "num_train_samples", None)
    if number is not None:
        return int(number)
    try:
        return samples_of(datamodule.train_dataloader(), datamodule)
    except ValueError as error:
        if is_of_no_sample(error):
            return 0
        raise


def is_of_no_sample(error: BaseException) -> bool:
    """Whether it is torch's word on a shuffled loader of no sample, which it refuses to make: such a client has 0."""
    return "num_samples=0" in str(error)


@contextmanager
def no_sample_in_words(datamodule: L.LightningDataModule) -> Iterator[None]:
    """Says in our words that there is nothing to train on.

    Raises:
        ValueError: Naming the data.
    """
    try:
        yield
    except ValueError as error:
        if not is_of_no_sample(error):
            raise
        raise ValueError(
            f"`data: {type(datamodule).__name__}` has no training sample; check the split of the data (`data.init_args`)."
        ) from error


def samples_of(loader: Any, datamodule: L.LightningDataModule) -> int:
    """How many samples one epoch draws: the length of the loader's sampler (a part of the data set, perhaps), else of its data
    set, else of the loader itself.

    Args:
        loader: A training loader.
        datamodule: Whose it is, for the error.

    Raises:
        ValueError: None has a length (an ``IterableDataset``), there are several loaders, or all samples are dropped.
    """
    name = type(datamodule).__name__
    if isinstance(loader, Mapping | CombinedLoader) or (
        isinstance(loader, list | tuple) and any(isinstance(part, DataLoader) for part in loader)
    ):
        what = f"`train_dataloader` of `data: {name}` gives several loaders"
    else:
        for holder in (getattr(loader, "sampler", None), getattr(loader, "dataset", None), loader):
            try:
                number = len(holder)  # type: ignore[arg-type]  # None and what has no length raise
            except (TypeError, NotImplementedError):
                continue
            if number and getattr(loader, "drop_last", False) and len(loader) == 0:
                raise ValueError(
                    f"the training loader of `data: {name}` has no batch: `drop_last=True` with {number} samples and batches "
                    f"of {loader.batch_size}. Use `drop_last=False`, or a smaller batch size."
                )
            return number
        what = f"the training set of `data: {name}` ({type(getattr(loader, 'dataset', loader)).__name__}) has no length"
    raise ValueError(
        f"{what}, so its samples cannot be counted. Give `{name}` an attribute `num_train_samples`: how many samples an "
        "epoch goes through."
    )


def lone_batch(loader: Any, trainer_args: Mapping[str, Any]) -> str | None:
    """How a batch of one sample comes about in a fit, e.g. ``17 samples in batches of 8``; ``None`` if there is none, or if
    the loader is not a plain one."""
    if not isinstance(loader, DataLoader) or not loader.batch_size or loader.drop_last:
        return None
    try:
        number = len(loader.sampler)  # type: ignore[arg-type]  # what has no length raises
    except (TypeError, NotImplementedError):
        return None
    size = loader.batch_size
    batches = -(-number // size)
    if size > 1 and (number % size != 1 or _trained_batches(batches, trainer_args) < batches):
        return None
    return f"{number} sample{'s' if number > 1 else ''} in batches of {size}" if number else None


def _trained_batches(batches: int, args: Mapping[str, Any]) -> float:
    """How many of an epoch's batches a fit comes to."""
    limit = args.get("limit_train_batches")
    if limit is not None:
        batches = min(batches, limit if isinstance(limit, int) else int(batches * limit))
    if args.get("fast_dev_run"):
        batches = min(batches, int(args["fast_dev_run"]))
    steps = args.get("max_steps", -1)
    return batches if steps in (None, -1) else min(batches, steps * (args.get("accumulate_grad_batches") or 1))
