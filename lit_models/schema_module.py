"""SchemaModule: a LightningModule that is built from its data's schema and logs means over an epoch.

What our modules have in common whatever they learn: layers that are made once the data have said how many features there are,
an optimiser that YAML can name, a checkpoint that needs no data to be loaded. It runs as it is under a stock ``Trainer``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.core.mixins import hparams_mixin
from torch import Tensor

from lit_models.epoch_means import EpochMeans

Schema = Mapping[str, Any]
NAMES = ("feature_names", "class_names", "task_names", "units")  # of a schema: what the places of inputs and outputs mean


def without_parser(make: Any) -> Any:
    """The same callable, without the command line's parser that LightningCLI ties to it.

    jsonargparse gives ``partial(helper, instantiator, torch.optim.Adam, lr=...)`` for an optimiser, and the like for a
    scheduler; its instantiator would go along with every copy of a module, and to worker processes.
    """
    if isinstance(make, partial) and make.args and isinstance(make.args[-1], type):
        return partial(make.args[-1], **make.keywords)
    return make


class SchemaModule(LightningModule):
    """Base of modules that are built from a schema. Subclasses implement `build_layers`.

    Args:
        optimizer: Callable ``parameters -> Optimizer``; in YAML
            ``{class_path: torch.optim.Adam, init_args: {lr: 0.01}}``.

    Attributes:
        schema: What the layers were built from; ``None`` before `build`.
    """

    def __init__(self, optimizer: OptimizerCallable) -> None:
        super().__init__()
        # Set while LightningCLI makes a module, whose arguments are then known as plain values, safe in a checkpoint.
        given_by_cli = getattr(hparams_mixin, "_given_hyperparameters", None)
        if given_by_cli is not None and given_by_cli.get() is not None:
            self.save_hyperparameters(logger=False)
        self.optimizer = without_parser(optimizer)
        self.schema: dict[str, Any] | None = None
        self._means = EpochMeans()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_current_fx_name":  # set twice a hook by Lightning; nn.Module would search its parameters for it
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    # ---- building -------------------------------------------------------------------------------------------------

    def build(self, schema: Schema) -> None:
        """Create the layers for data of this schema, with initial weights from torch's global RNG.

        Idempotent: a second call with the same schema does nothing.

        Raises:
            ValueError: The module was already built for another schema.
        """
        schema = dict(schema)
        if self.schema is not None:
            if any(self.schema[key] != schema[key] for key in self.schema.keys() & schema.keys()):
                raise ValueError(
                    f"{type(self).__name__} was built for data with {self.schema} and cannot be used with data with "
                    f"{schema}. Build a new module for the new data."
                )
            return
        self.build_layers(schema)
        self.schema = schema

    def build_layers(self, schema: dict[str, Any]) -> None:
        """Create parameters from the schema; called once, by `build`."""
        raise NotImplementedError(f"{type(self).__name__} must implement `build_layers(schema)`.")

    def setup(self, stage: str) -> None:
        datamodule = getattr(self.trainer, "datamodule", None)
        schema = getattr(datamodule, "schema", None)
        if self.schema is not None:
            self._check_names(self.schema, schema or {})
            return
        if schema is None:
            raise ValueError(
                f"{type(self).__name__} builds its layers from the data's schema, but "
                f"`data: {type(datamodule).__name__ if datamodule is not None else None}` has no attribute `schema`. "
                'Give the data module one (e.g. {"num_features": 1433, "num_classes": 7}) '
                "or call `module.build(schema)` first."
            )
        self.build(schema)

    def _check_names(self, learnt: Schema, found: Schema) -> None:
        """Data of the right shape may mean something else: the module of a checkpoint meets whatever it is given."""
        for key in NAMES:
            own, other = learnt.get(key), found.get(key)
            if own is None or other is None or list(own) == list(other):
                continue
            pairs = enumerate(itertools.zip_longest(own, other))
            place, (mine, theirs) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
            raise ValueError(
                f"{type(self).__name__} learnt with other {key} than these data have: number {place + 1} is {mine!r} there and "
                f"{theirs!r} here (of {len(own)} and {len(other)}). Give the data the same names in the same order, or train a "
                "new model."
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["schema"] = self.schema

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if checkpoint.get("schema") is not None:
            self.build(checkpoint["schema"])

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters())

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        # PyG moves a graph in place: moved during validation it would hold inference tensors that training cannot use.
        with torch.inference_mode(False):
            return super().transfer_batch_to_device(batch, device, dataloader_idx)

    # ---- logging --------------------------------------------------------------------------------------------------

    def observe(self, values: Mapping[str, Tensor], mask: Tensor | None = None) -> None:
        """Log the mean of ``values`` over all batches of the epoch, as ``train/<name>``; call it in every batch.

        Args:
            values: Scalars (each batch weighs the same) or a value for each sample (each weighs the same), by name.
            mask: Bool, of the values' shape: the entries that count, e.g. those with a label. If none does in the whole
                epoch, nothing is logged.
        """
        if self._trainer is not None:  # else nobody asks for the means, and they would pile up
            self._means.add(values, mask)

    def on_train_start(self) -> None:
        self._means = EpochMeans()

    def on_train_epoch_end(self) -> None:
        # Once an epoch, not once a step: a call of `self.log` costs as much as a small optimiser step.
        means = self._means.pop()
        if means:
            self.log_values({f"train/{name}": mean for name, mean in means.items()})

    def log_values(self, values: dict[str, Tensor]) -> None:
        """Log values of an epoch, by full name. Everything that we log comes through here.

        Lightning's bookkeeping costs about 0.3 ms a name and epoch, so a caller that runs many small fits may put a
        cheaper sink in its place for their duration (``module.log_values = sink``, then ``del``).
        """
        self.log_dict(values, on_step=False, on_epoch=True, batch_size=1, sync_dist=self.trainer.world_size > 1)
