"""Loaders over parts of one molecule set, built once and reused in every round; and the data module of one client."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from datamodules.molecules.packed import PackedMolecules, Part, make_loader
from datamodules.molecules.split import PARTS
from datamodules.relabelling import permute_known


class MoleculeLoaders(LightningDataModule):
    """Training batches of ``batch_size`` molecules, never more than there are, the last short one kept; shuffled from
    torch's global random state. A part without molecules has no loader (``[]``).

    A batch is a PyG ``Batch``: ``x`` float ``(n, 74)``, ``edge_index`` ``(2, e)``, ``edge_attr`` float ``(e, 13)``,
    ``edge_type`` int64 ``(e,)``, ``batch`` ``(n,)``, ``y`` float ``(B, T)`` in units with ``nan`` for a missing
    label, ``sample_id`` int64 ``(B,)``, with ``fingerprint_size`` ``fingerprint`` uint8 ``(B, S)``; with geometry ``z``,
    ``pos`` instead of the first four.
    """

    def __init__(self, batch_size: int, eval_batch_size: int) -> None:
        super().__init__()
        for name, size in (("batch_size", batch_size), ("eval_batch_size", eval_batch_size)):
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"`data.init_args.{name}` must be a whole number of at least 1, got {size!r}.")
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self._parts: dict[str, Part] = {}
        self._loaders: dict[str, DataLoader | list] = {}

    def _set_parts(self, packed: PackedMolecules, parts: Mapping[str, np.ndarray]) -> None:
        everything = {"predict": np.arange(len(packed))}
        self._parts = {name: Part(packed, positions) for name, positions in (dict(parts) | everything).items()}
        self._loaders = {}

    def set_predicted(self, packed: PackedMolecules) -> None:
        """Predict these molecules in place of the module's own."""
        self._parts["predict"] = Part(packed, np.arange(len(packed)))
        self._loaders.pop("predict", None)

    def part(self, name: str) -> Part:
        """The molecules of ``train``, ``val``, ``test``, or all of them (``predict``)."""
        if not self._parts:
            raise ValueError(f"`{type(self).__name__}` has no data yet: call `setup()` first.")
        return self._parts[name]

    def permute_labels(self, generator: torch.Generator) -> int:
        """Permute the labels of all molecules for validation and testing; how many have become others (``canary``)."""
        packed = self.part("train").molecules
        outside = torch.zeros(len(packed), dtype=torch.bool)
        positions = {name: self.part(name).positions for name in PARTS}
        for name in ("val", "test"):
            outside[positions[name]] = True
        y, number = permute_known(packed.y, outside, generator)
        self._set_parts(replace(packed, y=y), {name: found.numpy() for name, found in positions.items()})
        return number

    @property
    def num_train_samples(self) -> int:
        """Number of training molecules; 0 means that there is nothing to train on."""
        return len(self.part("train"))

    @property
    def num_val_samples(self) -> int:
        return len(self.part("val"))

    @property
    def num_test_samples(self) -> int:
        return len(self.part("test"))

    def train_dataloader(self) -> DataLoader | list:
        return self._loader("train")

    def val_dataloader(self) -> DataLoader | list:
        return self._loader("val")

    def test_dataloader(self) -> DataLoader | list:
        return self._loader("test")

    def predict_dataloader(self) -> DataLoader | list:
        """All molecules, in the order of the original rows."""
        return self._loader("predict")

    def sequential_train_dataloader(self) -> DataLoader | list:
        """Every training molecule once, in a fixed order: for caches of what a fixed model says about each sample."""
        return self._loader("sequential")

    def _loader(self, name: str) -> DataLoader | list:
        if name not in self._loaders:
            part = self.part("train" if name == "sequential" else name)
            size = self.batch_size if name == "train" else self.eval_batch_size
            self._loaders[name] = make_loader(part, size, shuffle=name == "train")
        return self._loaders[name]


class ClientMoleculeDataModule(MoleculeLoaders):
    """What one client holds: its own molecules and nothing of the others.

    Args:
        packed: The client's molecules in the order of the original rows.
        parts: Positions in ``packed`` of ``train``, and of ``val`` and ``test`` where the client has its own.
        schema: The federation's schema.
        batch_size, eval_batch_size: Molecules per batch.
    """

    def __init__(
        self,
        packed: PackedMolecules,
        parts: Mapping[str, np.ndarray],
        schema: dict[str, Any],
        batch_size: int = 64,
        eval_batch_size: int = 512,
    ) -> None:
        super().__init__(batch_size, eval_batch_size)
        self.packed, self.schema = packed, dict(schema)
        none = np.zeros(0, dtype=np.int64)
        self._set_parts(packed, {name: parts.get(name, none) for name in PARTS})

    def statistics(self) -> dict[str, Any]:
        """With ``normalize_labels``, the sums of the training labels: all clients share one scale."""
        if "label_mean" not in self.schema:
            return {}
        return {"sums": {"labels": sum_labels(self.packed.y[self.part("train").positions])}}

    def use_statistics(self, agreed: Mapping[str, Any]) -> None:
        """Take the scale of all clients' labels."""
        if "label_mean" in self.schema and "labels" in agreed["sums"]:
            self.schema["label_mean"], self.schema["label_std"] = label_scale(agreed["sums"]["labels"])

    def permute_labels(self, generator: torch.Generator) -> int:
        number = super().permute_labels(generator)
        self.packed = self.part("train").molecules
        return number

    def fingerprint(self) -> str:
        """SHA-256 of everything that training on this client depends on."""
        return content_sha256(self.packed, {name: self.part(name).positions.numpy() for name in PARTS})


def content_sha256(packed: PackedMolecules, parts: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the tensors of a set and of the positions of its parts."""
    sha = hashlib.sha256()
    tensors = {
        "y": packed.y,
        "sample_id": packed.sample_id,
        "node_ptr": packed.node_ptr,
        "edge_ptr": packed.edge_ptr,
        "atom_table": packed.atom_table,
        **packed.nodes,
        **packed.edges,
    }
    tensors |= {} if packed.fingerprint is None else {"fingerprint": packed.fingerprint}
    arrays = {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}
    arrays |= {f"part {name}": np.asarray(positions, dtype=np.int64) for name, positions in parts.items()}
    for name, array in sorted(arrays.items()):
        sha.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def sum_labels(y: torch.Tensor) -> dict[str, list[float]]:
    """Number, sum and sum of squares of each task's known labels, float ``(M, T)`` -> three lists of T, in float64."""
    known = torch.isfinite(y)
    values = torch.where(known, y, 0).double()
    return {"count": known.sum(0).double().tolist(), "sum": values.sum(0).tolist(), "square": values.square().sum(0).tolist()}


def label_scale(sums: Mapping[str, list[float]]) -> tuple[list[float], list[float]]:
    r"""Mean :math:`S / n` and standard deviation :math:`\sqrt{Q / n - (S / n)^2}` of each task, from :func:`sum_labels`.

    A task without labels has mean 0; one without spread has deviation 1.
    """
    count, total, square = (torch.tensor(sums[part], dtype=torch.float64) for part in ("count", "sum", "square"))
    mean = total / count.clamp_min(1)
    second = square / count.clamp_min(1)
    variance = second - mean.square()
    spread = variance > 1e-12 * second.clamp_min(1e-12)  # what is less is rounding
    return mean.tolist(), torch.where(spread, variance.clamp_min(0).sqrt(), 1.0).tolist()
