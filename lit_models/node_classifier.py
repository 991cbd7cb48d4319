r"""LitNodeClassifier: softmax cross entropy on the nodes of a graph (FedSage, FED-PUB), one loss per node.

.. math:: \ell_v = -\log \mathrm{softmax}(F(x, E)_v)_{y_v}, \qquad v \in V_{\text{stage}},\ y_v \ge 0

``V_train``, ``V_val``, ``V_test`` are the batch's masks. A node without label (``y = -1``) is in no loss and no metric.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torchmetrics import Metric

from lit_models.base import LitGraphModule, SampleLosses, inner_entries
from lit_models.objectives.base import Objective
from lit_models.sparse import is_sparse, remember


class LitNodeClassifier(LitGraphModule):
    r"""Node classification with an exchangeable encoder and objective.

    Logs ``accuracy`` (share of nodes classified correctly), ``f1`` (macro, see `ClassificationScores`) and ``loss``
    (mean cross entropy) as ``val/...`` and ``test/...``, and ``train/loss`` (the objective).

    Args:
        encoder: Module with ``build(in_channels, out_channels)``, ``forward(x, edge_index)`` and, for MOON,
            ``embed(x, edge_index)``: `GraphSAGE`, `GCN`, `GAT`, `GIN`, `APPNP`, `GPRGNN`, ...
        objective: What a training step minimises. Default: `ERM`.
        optimizer: Callable ``parameters -> Optimizer``. Default: Adam, lr 1e-2, weight decay 5e-4.
        num_classes: Number of classes C. Default: from the data's schema.
        in_channels: Number of features F. Default: from the data's schema.
        lr_scheduler: Callable ``optimizer -> scheduler``, stepped once an epoch. Default: none.
    """

    monitor = "accuracy"
    monitor_mode = "max"
    output_kind = "classes"

    def __init__(
        self,
        encoder: nn.Module,
        objective: Objective | None = None,
        optimizer: OptimizerCallable | None = None,
        num_classes: int | None = None,
        in_channels: int | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__(objective, optimizer, lr_scheduler)
        self.encoder: Any = encoder
        self.private_entries = inner_entries("encoder", encoder, "private_entries")
        self.head_entries = inner_entries("encoder", encoder, "head_entries")
        self.num_classes, self.in_channels = num_classes, in_channels
        if num_classes is not None and in_channels is not None:
            self.build({"num_features": in_channels, "num_classes": num_classes})

    def build_layers(self, schema: dict[str, int | str]) -> None:
        for argument, key in (("num_classes", "num_classes"), ("in_channels", "num_features")):
            if key not in schema:
                raise ValueError(
                    f"LitNodeClassifier needs `{key}` in the data's schema, found only {sorted(schema)}. Use a data module of "
                    "graphs, or `lit_models.LitMoleculePredictor` for molecules."
                )
            wanted = getattr(self, argument)
            if wanted is not None and wanted != schema[key]:
                raise ValueError(
                    f"`model.init_args.{argument}` is {wanted}, but the data has {key}: {schema[key]}. Leave it out."
                )
            setattr(self, argument, int(schema[key]))
        self.encoder.build(self.in_channels, self.num_classes)

    def make_scores(self) -> Metric:
        return ClassificationScores(self._num_classes)

    def forward(self, batch: Any, **replaced_inputs: Tensor) -> Tensor:
        """Logits of all nodes of a batch, shape ``(N, C)``; ``x=`` replaces the batch's features."""
        return self.encoder(replaced_inputs["x"] if replaced_inputs else batch.x, batch.edge_index)

    def embed(self, batch: Any) -> Tensor:
        """Input of the last layer for all nodes, shape ``(N, H)``."""
        return self.encoder.embed(batch.x, batch.edge_index)

    def losses(self, outputs: Tensor, batch: Any, stage: str = "train") -> SampleLosses:
        """Cross entropy of each labelled node of the stage, shapes ``(S, 1)``; ids are the global node ids."""
        samples = self._samples(batch, stage)
        loss = F.cross_entropy(outputs.index_select(0, samples.rows), samples.labels, reduction="none")
        return SampleLosses(loss.unsqueeze(1), samples.mask, samples.ids)

    def perturbable(self, batch: Any) -> dict[str, Tensor]:
        """The node features, dense: ``{"x": (N, F)}``."""
        return {"x": batch.x.to_dense() if is_sparse(batch.x) else batch.x}

    def divergence(self, outputs: Tensor, reference: Tensor, batch: Any) -> Tensor:
        r"""KL(reference || outputs) of each labelled training node, from logits ``(N, C)``, shape ``(S, 1)``."""
        rows = self._samples(batch, "train").rows
        log_p, log_q = (logits.index_select(0, rows).log_softmax(-1) for logits in (reference, outputs))
        return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1, keepdim=True)

    def update_scores(self, scores: Metric, batch: Any, stage: str) -> None:
        outputs = self(batch)
        samples = self._samples(batch, stage)
        scores.update(outputs.index_select(0, samples.rows), samples.labels)

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """``{"node_id": (S,), "probabilities": (S, C)}`` of all nodes, or of ``batch.predict_mask`` if it is there."""
        probabilities = self(batch).softmax(-1)
        node_id, mask = _node_ids(batch), getattr(batch, "predict_mask", None)
        if mask is not None:
            node_id, probabilities = node_id[mask], probabilities[mask]
        return {"node_id": node_id, "probabilities": probabilities}

    @property
    def _num_classes(self) -> int:
        if self.num_classes is None:
            raise ValueError("LitNodeClassifier has no layers yet: call `build(schema)`, or fit it with a Trainer.")
        return self.num_classes

    def _samples(self, batch: Any, stage: str) -> _Samples:
        mask, labels, ids = batch[f"{stage}_mask"], batch.y, _node_ids(batch)
        num_classes = self._num_classes

        def compute() -> _Samples:
            rows = (mask & (labels >= 0)).nonzero().squeeze(1)
            chosen = labels[rows]
            if chosen.numel() and int(chosen.max()) >= num_classes:
                wrong = int(chosen.argmax())
                raise ValueError(
                    f"Node {int(ids[rows[wrong]])} has label {int(chosen[wrong])}, but the model has "
                    f"{num_classes} classes (0 to {num_classes - 1}). Correct the label, or leave out "
                    "`model.init_args.num_classes` so that it comes from the data."
                )
            return _Samples(rows, chosen, torch.ones_like(chosen, dtype=torch.bool).unsqueeze(1), ids[rows])

        return remember(("samples", num_classes), (mask, labels, ids), compute)


class _Samples(NamedTuple):
    rows: Tensor
    labels: Tensor
    mask: Tensor
    ids: Tensor


def _node_ids(batch: Any) -> Tensor:
    ids = getattr(batch, "node_id", None)
    return torch.arange(batch.num_nodes, device=batch.y.device) if ids is None else ids


class ClassificationScores(Metric):
    r"""Accuracy (micro), macro F1 and mean cross entropy, from one confusion matrix.

    .. math:: F1_c = \frac{2 TP_c}{2 TP_c + FP_c + FN_c}, \qquad
              \mathrm{macro} = \mathrm{mean}_{c:\ TP_c + FP_c + FN_c > 0} F1_c

    As ``torchmetrics.functional.f1_score(average="macro")``: a class that is neither present nor predicted is left
    out of the mean. Counts add up over batches and, under DDP, over ranks. Without a sample all are undefined and
    ``compute()`` is empty.
    """

    full_state_update = False
    confusion: Tensor
    loss: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        zeros = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        self.add_state("confusion", zeros, dist_reduce_fx="sum")  # rows: label, columns: prediction
        self.add_state("loss", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add nodes: ``logits`` ``(S, C)``, ``labels`` int64 ``(S,)``, all valid."""
        place = labels * self.num_classes + logits.argmax(-1)
        self.confusion += torch.bincount(place, minlength=self.num_classes**2).view_as(self.confusion)
        self.loss += F.cross_entropy(logits.float(), labels, reduction="sum")

    def compute(self) -> dict[str, Tensor]:
        total = self.confusion.sum()
        if total == 0:
            return {}
        correct = self.confusion.diagonal()
        involved = self.confusion.sum(0) + self.confusion.sum(1)  # 2 TP + FP + FN
        f1 = (2 * correct / involved.clamp(min=1)).sum() / (involved > 0).sum()
        return {"accuracy": correct.sum() / total, "f1": f1, "loss": self.loss / total}
