"""LitMoleculeForest: random forests on ECFP counts as a LightningModule that trains without a gradient.

In an epoch the training molecules are gathered, and at its end a forest is grown for each task on those that have its label
(:mod:`lit_models.forest.growing`), in the order of their ids: batches and shuffling do not matter. Its state are the trees as
arrays (:mod:`lit_models.forest.arrays`), whose length follows from the data: ``varying_entries`` says so to a federation.

What a forest reveals of the molecules that it was grown on: which fingerprint bins separate them and at which counts; each leaf
has the mean label (or the share of class 1) of the molecules in it, and with ``min_samples_leaf: 1`` that is often the label of
one molecule, beside the path of bins and counts that leads to it; and how many labels of each task there were. Inner nodes
have no value here. Nothing hides this: a larger ``min_samples_leaf`` makes leaves means of several.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import Metric

from lit_models.base import LitGraphModule
from lit_models.forest.arrays import LAYOUT, no_forest, predict
from lit_models.forest.growing import Growth, grow, require_sklearn
from lit_models.molecule_predictor import AurocScores, RegressionScores

EPOCH = "`trainer.max_epochs: 1` without `trainer.max_steps`"


class Trees(nn.Module):
    """Holds the arrays of forests as buffers; ``load_state_dict`` takes those of any length.

    Args:
        num_tasks: T.
        otherwise: What is predicted of a task without a forest.
    """

    def __init__(self, num_tasks: int, otherwise: float) -> None:
        super().__init__()
        self.num_tasks, self.otherwise = num_tasks, otherwise
        for name, tensor in no_forest().items():
            self.register_buffer(name, tensor)

    def arrays(self) -> dict[str, Tensor]:
        """The arrays, by name."""
        return {name: getattr(self, name) for name in LAYOUT}

    def assign(self, arrays: dict[str, Tensor]) -> None:
        """Take these forests in place of the present ones."""
        for name, tensor in arrays.items():
            self._sized(name, tensor).copy_(tensor)

    def forward(self, x: Tensor) -> Tensor:
        """Predictions of inputs ``(B, S)``, float64 ``(B, T)``."""
        return predict(self.arrays(), x, self.num_tasks, self.otherwise)

    def _sized(self, name: str, like: Tensor) -> Tensor:
        """The same buffer, as long as another one; its storage is a new one, since that of a file cannot be resized."""
        mine: Tensor = getattr(self, name)
        return mine.set_(mine.new_empty(like.shape))  # type: ignore[call-overload]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any) -> None:
        for name in LAYOUT:
            if prefix + name in state_dict:
                self._sized(name, state_dict[prefix + name])
        super()._load_from_state_dict(state_dict, prefix, *more)


class LitMoleculeForest(LitGraphModule):
    """Random forests on fingerprints, one for each task, for regression and classification.

    It needs ``data.init_args.fingerprint_size`` (2048, say), scikit-learn to be grown (not to predict), and one epoch.
    Logs what ``LitMoleculePredictor`` logs. A task without any label is predicted as 0 or, of classes, as probability 0.5.

    Args:
        num_trees: Of each forest.
        max_features: Features tried at each split: a share, ``"sqrt"`` or ``"log2"``. Default: scikit-learn's, all for
            regression and ``"sqrt"`` for classification.
        min_samples_leaf: Molecules that a leaf has at least.
        num_jobs: Threads that grow trees; the trees are the same with any number.

    Raises:
        ValueError: scikit-learn is missing, or a value cannot work.
    """

    varying_entries = ("forest.*",)

    def __init__(
        self,
        num_trees: int = 500,
        max_features: float | str | None = None,
        min_samples_leaf: int = 1,
        num_jobs: int = 1,
    ) -> None:
        super().__init__()
        require_sklearn()
        for name, number in (("num_trees", num_trees), ("min_samples_leaf", min_samples_leaf)):
            if number < 1:
                raise ValueError(f"`model.init_args.{name}` must be at least 1, found {number}.")
        share = isinstance(max_features, float | int) and not 0 < max_features <= 1
        if share or (isinstance(max_features, str) and max_features not in ("sqrt", "log2")):
            raise ValueError(
                "`model.init_args.max_features` must be a share above 0 and at most 1, `sqrt`, `log2` or null, found "
                f"{max_features!r}."
            )
        self.automatic_optimization = False
        self.growth = Growth(num_trees, max_features, min_samples_leaf, num_jobs)
        self._rows: list[tuple[Tensor, Tensor, Tensor]] = []  # ids, fingerprints, labels of this epoch's batches
        self._seeds: list[int] = []
        self._grown = 0  # batches that the present forests know

    def build_layers(self, schema: dict[str, Any]) -> None:
        size = schema.get("fingerprint_size")
        if size is None or schema.get("task") not in ("regression", "classification"):
            raise ValueError(
                "`model: LitMoleculeForest` learns from fingerprints of molecules, but the data's schema has no "
                f"`fingerprint_size` (it has {', '.join(sorted(schema))}). Write `data.init_args.fingerprint_size: 2048` of a "
                "molecule data module."
            )
        self.classes, self.num_tasks, self.num_features = (
            schema["task"] == "classification",
            int(schema["num_tasks"]),
            int(size),
        )
        self.monitor, self.monitor_mode = ("auroc", "max") if self.classes else ("rmse", "min")
        if schema.get("metric") == "mae":
            self.monitor = "mae"
        self.forest = Trees(self.num_tasks, 0.5 if self.classes else 0.0)

    def make_scores(self) -> Metric:
        return AurocScores(self.num_tasks) if self.classes else RegressionScores(self.num_tasks)

    def forward(self, batch: Any, **replaced_inputs: Tensor) -> Tensor:
        """Values in the labels' unit, or probabilities of class 1: float64 ``(B, T)``."""
        return self.forest(batch.fingerprint)

    # ---- training -------------------------------------------------------------------------------------------------

    def configure_optimizers(self) -> None:
        """None: nothing is learnt by gradients."""

    def on_train_start(self) -> None:
        if self.trainer.max_steps != -1 or self.trainer.max_epochs == -1:
            raise ValueError(f"`model: LitMoleculeForest` is grown at the end of an epoch and counts no steps: write {EPOCH}.")
        # Before the epoch draws: whatever the batches are, the forests are the same.
        self._seeds = torch.randint(2**31 - 1, (self.num_tasks,)).tolist()
        super().on_train_start()

    def on_train_epoch_start(self) -> None:
        self._rows, self._grown = [], 0

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]  # no loss
        self._rows.append((batch.sample_id.view(-1), batch.fingerprint, batch.y.view(len(batch.fingerprint), -1)))

    def on_validation_start(self) -> None:
        self._grow()  # Lightning validates before it ends the epoch

    def on_train_epoch_end(self) -> None:
        self._grow()
        self._rows, self._grown = [], 0
        super().on_train_epoch_end()

    def _grow(self) -> None:
        """Forests of this epoch's molecules, if there are some that the present ones do not know."""
        if len(self._rows) == self._grown:
            return
        self._grown = len(self._rows)
        with torch.inference_mode(False), torch.no_grad():
            ids, x, y = (torch.cat(part) for part in zip(*self._rows, strict=True))
            order = ids.argsort(stable=True)
            self.forest.assign(grow(x[order], y[order], self.classes, self.growth, self._seeds))

    # ---- evaluation -----------------------------------------------------------------------------------------------

    def update_scores(self, scores: Metric, batch: Any, stage: str) -> None:
        outputs, labels = self(batch), batch.y.view(len(batch.fingerprint), -1)
        mask = labels.isfinite()
        target = torch.where(mask, labels, 0.0).to(outputs)
        if self.classes:  # a leaf of one class is sure, and its logarithm infinite
            loss = F.binary_cross_entropy(outputs.clamp(1e-7, 1 - 1e-7), target, reduction="none")
        else:
            loss = (outputs - target).square()
        scores.update(outputs, target, mask, loss.float())

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """``{"sample_id": (B,), "predictions": (B, T)}``: values in the label's unit, or probabilities."""
        return {"sample_id": batch.sample_id.view(-1), "predictions": self(batch)}
