r"""LitMoleculePredictor: multi-task prediction of molecular properties (FedChem), one loss per molecule and task.

.. math::
    \ell_{bt} &= (F(g_b)_t - y_{bt})^2 \text{ or } |F(g_b)_t - y_{bt}| & \text{(regression)} \\
    \ell_{bt} &= -y \log \sigma(F) - (1 - y) \log (1 - \sigma(F)) & \text{(classification, true labels)}

A label may be missing (NaN): it is in no loss and no metric. With ``label_mean`` and ``label_std`` in the data's schema
the loss compares standardised values, (y - mean) / std; metrics and predictions are always in the label's own unit.

A task of which a fit saw no label keeps its output weights as it found them: to Adam, weight decay alone is a gradient like
any other, and would take a full step towards zero each time. `untrained_rows` names them, so that a federation averages them
over the clients that have labels of the task.

``variant="official"`` reproduces two faults of the
FedChem code, for comparison: targets pass through a sigmoid themselves, and missing labels count as zeros.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.functional.classification import binary_auroc

from lit_models.base import LitGraphModule, SampleLosses, inner_entries
from lit_models.molecule_encoder import MoleculeEncoder
from lit_models.objectives.base import Objective

LOSSES = {"mse": "regression", "l1": "regression", "bce": "classification"}
MONITORS = {"mse": ("rmse", "min"), "l1": ("mae", "min"), "bce": ("auroc", "max")}

default_optimizer: OptimizerCallable = partial(torch.optim.Adam, lr=1e-4, weight_decay=1e-5, fused=True)
"""FedChem's Adam; ``fused`` computes the same update in a quarter of the time on a CPU."""


class LitMoleculePredictor(LitGraphModule):
    """Molecular property prediction with an exchangeable encoder and objective.

    Logs as ``val/...`` and ``test/...``: for regression ``rmse`` and ``mae``, for classification ``auroc``, each the
    mean over the tasks where it is defined (NaN: nowhere), with ``<metric>_<t>`` per task if there are several; ``loss``; and
    ``undefined_tasks``, how many tasks had no label or, for ROC-AUC, labels of one class only.

    Args:
        encoder: `MPNN`, `SchNet`, `GINMolecule`, `GCNMolecule` or another `MoleculeEncoder`.
        objective: What a training step minimises. Default: `ERM`.
        optimizer: Callable ``parameters -> Optimizer``. Default: Adam, lr 1e-4, weight decay 1e-5.
        loss: ``"mse"``, ``"l1"`` (regression), ``"bce"`` (classification). Default: what the data's ``task`` says, and
            ``l1`` where its ``metric`` is ``mae`` (QM9). It also chooses ``monitor``: ``rmse``, ``mae`` or ``auroc``.
        variant: ``"paper"``, or ``"official"`` as described on top of this file.
        lr_scheduler: Callable ``optimizer -> scheduler``, stepped once an epoch. Default: none.
    """

    default_optimizer = staticmethod(default_optimizer)

    loss: str | None
    label_mean: Tensor
    label_std: Tensor

    def __init__(
        self,
        encoder: MoleculeEncoder,
        objective: Objective | None = None,
        optimizer: OptimizerCallable | None = None,
        loss: str | None = None,
        variant: str = "paper",
        lr_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__(objective, optimizer, lr_scheduler)
        if loss is not None and loss not in LOSSES:
            raise ValueError(f"`model.init_args.loss` must be one of {sorted(LOSSES)} or null, found {loss!r}.")
        if variant not in ("paper", "official"):
            raise ValueError(f"`model.init_args.variant` must be 'paper' or 'official', found {variant!r}.")
        if not isinstance(encoder, MoleculeEncoder):
            raise ValueError(
                "`model.init_args.encoder` of LitMoleculePredictor must be a molecule encoder "
                f"(lit_models.MPNN, SchNet, GINMolecule, GCNMolecule), found {type(encoder).__name__}."
            )
        self.encoder = encoder
        self.private_entries = inner_entries("encoder", encoder, "private_entries")
        self.head_entries = inner_entries("encoder", encoder, "head_entries")
        self.loss, self.variant = loss, variant
        self._seen: Tensor | None = None  # bool (T,): tasks with a label so far in this fit
        self._found: tuple[Tensor, ...] = ()  # the output layer's parameters when it began
        self._unseen: Tensor | None = None  # bool (T,): tasks without a label in the last fit
        if loss is not None:
            self.monitor, self.monitor_mode = MONITORS[loss]

    def build_layers(self, schema: dict[str, Any]) -> None:
        task = schema.get("task")
        if task not in ("regression", "classification"):
            raise ValueError(
                "LitMoleculePredictor needs `task: regression` or `task: classification` in the data's "
                f"schema, found {task!r} among {sorted(schema)}. Use a molecule data module."
            )
        if self.loss is None:
            self.loss = "bce" if task == "classification" else "l1" if schema.get("metric") == "mae" else "mse"
        if LOSSES[self.loss] != task:
            fitting = sorted(name for name, kind in LOSSES.items() if kind == task)
            raise ValueError(
                f"`model.init_args.loss: {self.loss}` is for {LOSSES[self.loss]}, but the data's task is "
                f"{task}. Leave it out or use one of {fitting}."
            )
        self.monitor, self.monitor_mode = MONITORS[self.loss]
        self.num_tasks = int(schema["num_tasks"])
        mean, std = schema.get("label_mean"), schema.get("label_std")
        self.register_buffer("label_mean", _per_task(mean, 0.0, self.num_tasks, "label_mean"), persistent=False)
        self.register_buffer("label_std", _per_task(std, 1.0, self.num_tasks, "label_std"), persistent=False)
        self.encoder.build(schema)

    @property
    def is_regression(self) -> bool:
        return LOSSES.get(self.loss or "mse") == "regression"

    @property
    def output_kind(self) -> str:
        """What distillation compares: values, or a logit of each label."""
        return "values" if self.is_regression else "labels"

    def make_scores(self) -> Metric:
        return RegressionScores(self.num_tasks) if self.is_regression else AurocScores(self.num_tasks)

    def forward(self, batch: Any, **replaced_inputs: Tensor) -> Tensor:
        """Predictions ``(B, T)``: logits, or values (standardised, if the schema has ``label_std``)."""
        return self.encoder(batch, **replaced_inputs)

    def embed(self, batch: Any) -> Tensor:
        """What the head gets, ``(B, H)``; MPNN: the set2set output."""
        return self.encoder.embed(batch)

    def losses(self, outputs: Tensor, batch: Any, stage: str = "train") -> SampleLosses:
        """Unreduced losses of all molecules of the batch, shapes ``(B, T)``; ids are ``batch.sample_id``."""
        target, mask = self._targets(batch, outputs)
        if self._seen is not None and stage == "train":
            self._seen = self._seen | mask.any(0)
        return SampleLosses(self._elementwise(outputs, target), mask, _sample_ids(batch, outputs))

    def on_train_start(self) -> None:
        self._seen = torch.zeros(self.num_tasks, dtype=torch.bool, device=self.device)
        self._found = tuple(parameter.detach().clone() for parameter in self._outputs())
        super().on_train_start()

    def on_train_end(self) -> None:
        """Outputs of tasks without any label in this fit are what they were; see the top of this file."""
        if self._seen is not None:
            seen = self.trainer.strategy.reduce(self._seen.float(), reduce_op="sum") > 0
            with torch.no_grad():
                for parameter, found in zip(self._outputs(), self._found, strict=True):
                    parameter[~seen] = found[~seen]
            self._unseen = ~seen
        self._seen, self._found = None, ()
        super().on_train_end()

    def untrained_rows(self) -> dict[str, Tensor]:
        """Rows of the output layer, bool ``(T,)`` by entry, of the tasks without any label in the last fit."""
        if self._unseen is None or not bool(self._unseen.any()):
            return {}
        outputs = {id(parameter) for parameter in self._outputs()}
        return {name: self._unseen for name, parameter in self.named_parameters() if id(parameter) in outputs}

    def _outputs(self) -> tuple[nn.Parameter, ...]:
        """Parameters of the last linear layer, one row per task; none of a head that ends in something else."""
        head = self.encoder.head
        layers = [] if head is None else [layer for layer in head.modules() if isinstance(layer, nn.Linear)]
        return tuple(layers[-1].parameters()) if layers and layers[-1].out_features == self.num_tasks else ()

    def perturbable(self, batch: Any) -> dict[str, Tensor]:
        """What the encoder offers: projected atom features, positions, ... (its argument ``perturb`` chooses)."""
        return self.encoder.perturbable(batch)

    def divergence(self, outputs: Tensor, reference: Tensor, batch: Any) -> Tensor:
        r"""Distance of two predictions per molecule and task, ``(B, T)``, missing labels included.

        Regression: squared difference. Classification: :math:`KL(\sigma(reference) \Vert \sigma(outputs))`, zero for
        equal logits. Variant ``official``: the loss with ``reference`` as label, so cross entropy instead of KL.
        """
        if not self.is_regression:
            return bernoulli_kl(reference, outputs) if self.variant == "paper" else soft_bce(outputs, reference)
        return (outputs - reference).square() if self.variant == "paper" else self._elementwise(outputs, reference)

    def update_scores(self, scores: Metric, batch: Any, stage: str) -> None:
        outputs = self(batch)
        target, mask = self._targets(batch, outputs)
        loss = self._elementwise(outputs, target)
        if self.is_regression:
            outputs, target = self._to_units(outputs), torch.where(mask, _labels(batch, outputs), 0.0)
        scores.update(outputs, target, mask, loss)

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """``{"sample_id": (B,), "predictions": (B, T)}``: values in the label's unit, or probabilities."""
        outputs = self(batch)
        predictions = self._to_units(outputs) if self.is_regression else outputs.sigmoid()
        return {"sample_id": _sample_ids(batch, outputs), "predictions": predictions}

    def _to_units(self, values: Tensor) -> Tensor:
        return values * self.label_std + self.label_mean

    def _elementwise(self, outputs: Tensor, target: Tensor) -> Tensor:
        if self.loss == "mse":
            return (outputs - target).square()
        if self.loss == "l1":
            return (outputs - target).abs()
        if self.variant == "official":
            return soft_bce(outputs, target)
        return F.binary_cross_entropy_with_logits(outputs, target, reduction="none")

    def _targets(self, batch: Any, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """What ``outputs`` should be, (B, T), and where there is a label; zero elsewhere."""
        labels = _labels(batch, outputs)
        mask = labels.isfinite()
        target = torch.where(mask, (labels - self.label_mean) / self.label_std, 0.0)
        if not self.is_regression and bool(((target < 0) | (target > 1)).any()):
            row, task = ((target < 0) | (target > 1)).nonzero()[0].tolist()
            who, label = int(_sample_ids(batch, outputs)[row]), float(target[row, task])
            raise ValueError(
                f"Molecule {who} has label {label} for task {task}; classification needs 0, 1 or missing "
                "(NaN). Correct it, or use a data set with `task: regression`."
            )
        return target, torch.ones_like(mask) if self.variant == "official" else mask


def bernoulli_kl(reference: Tensor, outputs: Tensor) -> Tensor:
    r"""KL(p || q) of Bernoulli variables given as logits, element by element.

    .. math:: p \log (p / q) + (1 - p) \log ((1 - p) / (1 - q)), \qquad p = \sigma(reference), q = \sigma(outputs)
    """
    positive = F.logsigmoid(reference) - F.logsigmoid(outputs)
    negative = F.logsigmoid(-reference) - F.logsigmoid(-outputs)
    probability = reference.sigmoid()
    return probability * positive + (1 - probability) * negative


def soft_bce(outputs: Tensor, target: Tensor) -> Tensor:
    """The official code's ``mybceloss``: cross entropy against ``sigmoid(target)``, so labels 0, 1 become .5, .731."""
    return F.binary_cross_entropy_with_logits(outputs, target.sigmoid(), reduction="none")


def _labels(batch: Any, outputs: Tensor) -> Tensor:
    """The batch's labels in their unit, (B, T), NaN where missing."""
    labels = batch.y.unsqueeze(1) if batch.y.dim() == 1 else batch.y
    if labels.shape != outputs.shape:
        raise ValueError(
            f"Labels `y` need shape {tuple(outputs.shape)} (molecules, tasks), NaN where missing; found {tuple(batch.y.shape)}."
        )
    return labels.to(outputs.dtype)


def _sample_ids(batch: Any, outputs: Tensor) -> Tensor:
    ids = getattr(batch, "sample_id", None)
    if ids is None or ids.numel() != outputs.size(0):
        found = "none" if ids is None else ids.numel()
        raise ValueError(
            f"A batch of {outputs.size(0)} molecules needs `sample_id`, one int64 id for each (its row in "
            f"the data set); found {found}."
        )
    return ids.view(-1)


def _per_task(values: Any, default: float, num_tasks: int, name: str) -> Tensor:
    values = torch.full((num_tasks,), default) if values is None else torch.tensor(values, dtype=torch.float).view(-1)
    if values.numel() != num_tasks:
        raise ValueError(f"The data's schema has {values.numel()} entries of `{name}` for {num_tasks} tasks.")
    return values


def task_mean(name: str, values: Tensor, defined: Tensor) -> dict[str, Tensor]:
    """Mean over the tasks where ``defined``, and their own values if there are several tasks.

    If none is, the mean is NaN: undefined is not the same as unknown, for who monitors it (the federation, ModelCheckpoint).
    """
    if not bool(defined.any()):
        return {name: values.new_tensor(torch.nan)}
    scores = {name: values[defined].mean()}
    if values.numel() > 1:
        scores.update({f"{name}_{task}": values[task] for task in defined.nonzero().flatten().tolist()})
    return scores


class _TaskScores(Metric):
    """Mean loss per task, the base of both kinds of scores; ``compute()`` holds the tasks that are defined."""

    full_state_update = False
    count: Tensor
    loss: Tensor

    def __init__(self, num_tasks: int) -> None:
        super().__init__()
        self.num_tasks = num_tasks
        for name in ("count", "loss"):
            self.add_state(name, torch.zeros(num_tasks), dist_reduce_fx="sum")

    def update(self, outputs: Tensor, target: Tensor, mask: Tensor, loss: Tensor) -> None:
        """Add molecules; all (B, T)."""
        self.count += mask.sum(0)
        self.loss += torch.where(mask, loss, 0.0).sum(0)

    def mean_loss(self) -> dict[str, Tensor]:
        total = self.count.sum()
        return {"loss": self.loss.sum() / total} if total > 0 else {}


class RegressionScores(_TaskScores):
    """RMSE and MAE per task, as torchmetrics' on the observed labels of that task, and their means over tasks."""

    squared: Tensor
    absolute: Tensor

    def __init__(self, num_tasks: int) -> None:
        super().__init__(num_tasks)
        for name in ("squared", "absolute"):
            self.add_state(name, torch.zeros(num_tasks), dist_reduce_fx="sum")

    def update(self, outputs: Tensor, target: Tensor, mask: Tensor, loss: Tensor) -> None:
        super().update(outputs, target, mask, loss)
        error = torch.where(mask, outputs.float() - target.float(), 0.0)
        self.squared += error.square().sum(0)
        self.absolute += error.abs().sum(0)

    def compute(self) -> dict[str, Tensor]:
        defined = self.count > 0
        number = self.count.clamp(min=1)
        rmse, mae = (self.squared / number).sqrt(), self.absolute / number
        return {
            **task_mean("rmse", rmse, defined),
            **task_mean("mae", mae, defined),
            **self.mean_loss(),
            "undefined_tasks": (~defined).sum().float(),
        }


class AurocScores(_TaskScores):
    """ROC-AUC per task on its observed labels, and the mean over the tasks that have both classes."""

    outputs: list[Tensor]
    target: list[Tensor]
    mask: list[Tensor]

    def __init__(self, num_tasks: int) -> None:
        super().__init__(num_tasks)
        for name in ("outputs", "target", "mask"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, outputs: Tensor, target: Tensor, mask: Tensor, loss: Tensor) -> None:
        super().update(outputs, target, mask, loss)
        self.outputs.append(outputs)
        self.target.append(target)
        self.mask.append(mask)

    def compute(self) -> dict[str, Tensor]:
        values = torch.full((self.num_tasks,), torch.nan, device=self.count.device)
        defined = torch.zeros(self.num_tasks, dtype=torch.bool, device=self.count.device)
        if isinstance(self.outputs, Tensor) or self.outputs:
            outputs, target, mask = (_joined(state) for state in (self.outputs, self.target, self.mask))
            for task in range(self.num_tasks):
                labels, logits = target[mask[:, task], task].round().long(), outputs[mask[:, task], task]
                defined[task] = bool((labels == 0).any()) and bool((labels == 1).any())
                if defined[task]:
                    values[task] = auroc(logits, labels)
        return {**task_mean("auroc", values, defined), **self.mean_loss(), "undefined_tasks": (~defined).sum().float()}


def auroc(logits: Tensor, labels: Tensor) -> Tensor:
    """Exact ROC-AUC of logits [S]; NaN if a logit is. Ranks are scored: a sigmoid would tie what saturates."""
    if bool(logits.isnan().any()):
        return logits.new_tensor(torch.nan)
    ranks = torch.unique(logits, return_inverse=True)[1].cpu().double()
    return binary_auroc(ranks / ranks.max().clamp(min=1), labels.cpu()).to(logits)


def _joined(state: Tensor | list[Tensor]) -> Tensor:
    return state if isinstance(state, Tensor) else torch.cat(state)
