"""What chooses the best model, in a federation and centrally: which metric, which direction, which value, which of two."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fl_lightning.engine.names import without_stage
from fl_lightning.reporting.scores import of_clients, summarise

LESS_IS_BETTER = ("loss", "error", "mae", "mse", "mape", "rmsd", "nll", "perplexity", "entropy", "brier", "deviance")
"""Parts of the names of metrics of which less is better."""
MORE_IS_BETTER = (
    "acc", "auc", "auroc", "auprc", "precision", "recall", "f1", "fscore", "dice", "jaccard", "iou", "kappa", "mcc", "matthews",
    "r2", "r_squared", "pearson", "spearman", "kendall", "corr", "concordance", "cindex", "ndcg", "mrr", "hit", "sensitivity",
    "specificity", "top", "likelihood", "elbo", "psnr", "ssim", "bleu", "rouge", "explained_variance",
)  # fmt: skip
"""Parts of those of which more is better beyond doubt; of all others it is a guess, and said to be one."""
LOG = logging.getLogger("fl_lightning")


@dataclass(frozen=True)
class Monitor:
    """The metric that chooses the best round or epoch.

    Args:
        metric: Its name without the stage (``accuracy`` for ``val/accuracy`` and ``val_accuracy``).
        mode: ``"max"`` or ``"min"``.
        module: Name of the module's class, for messages.
        source: Who named it: ``"federation"`` (``federation.monitor``), ``"module"`` (its ``monitor``), ``"early_stopping"``
            (``federation.early_stopping.metric``), ``"scheduler"`` (a plateau scheduler) or ``"default"``.
        typed: The name as they wrote it (``val/accuracy``), for messages.
        is_guessed: Whether nobody has said the mode, and the name does not tell it either.
    """

    metric: str
    mode: str
    module: str = "LightningModule"
    source: str = "default"
    typed: str | None = None
    is_guessed: bool = False

    @classmethod
    def of(cls, module: Any, monitor: str | None = None, mode: str | None = None) -> Monitor:
        """``federation.monitor`` and ``federation.monitor_mode`` if given, else the module's ``monitor`` and
        ``monitor_mode``, else ``loss``, and the direction by the name.

        The module's direction belongs to the module's own metric: it says nothing of another one.

        Raises:
            ValueError: If a direction is neither ``min`` nor ``max``.
        """
        kind = type(module).__name__
        own = getattr(module, "monitor", None)
        typed = monitor or (own if isinstance(own, str) else None)
        own = without_stage(own, "val") if isinstance(own, str) else None
        metric = without_stage(monitor, "val") if monitor else own or "loss"
        where = "`federation.monitor_mode`"
        if mode is None and metric == own:
            mode, where = getattr(module, "monitor_mode", None), f"`{kind}.monitor_mode`"
        is_guessed = mode is None and not _tells(metric, (*LESS_IS_BETTER, *MORE_IS_BETTER))
        if mode is None:
            mode = mode_by_name(metric)
        if mode not in ("min", "max"):
            raise ValueError(f"{where} is {mode!r}; write `min` (less is better) or `max`.")
        source = "federation" if monitor else "default" if own is None else "module"
        return cls(metric, mode, kind, source, typed, is_guessed)

    def tell_guess(self) -> None:
        """Say which direction was taken if it was guessed."""
        if self.is_guessed:
            key = "federation.early_stopping.mode" if self.source == "early_stopping" else "federation.monitor_mode"
            LOG.warning("`%s` is taken for a metric of which more is better, for want of a word. Set `%s`: `min` if less is, "
                        "else `max`.", self.metric, key)  # fmt: skip

    def check(self, logged: Iterable[Mapping[str, Any] | None]) -> None:
        """Is the metric among what was logged on validation data? ``None`` and nothing logged say nothing.

        Args:
            logged: Metrics of each data set, by name without the stage.

        Raises:
            ValueError: With who named it, and what there is.
        """
        names = {name for metrics in logged if metrics is not None for name in metrics}
        if not names or self.metric in names:
            return
        named, remedy = {
            "federation": ("`federation.monitor`", "Set `federation.monitor`"),
            "module": (f"`{self.module}.monitor`", f"Set `{self.module}.monitor` or `federation.monitor`"),
            "default": (f"`federation.monitor` is not set and `{self.module}` names no `monitor`: it",
                        "Set `federation.monitor`"),
            "early_stopping": ("`federation.early_stopping.metric`", "Set it"),
            "scheduler": (f"The `monitor` of a plateau scheduler in `{self.module}.configure_optimizers`", "Set it"),
        }[self.source]  # fmt: skip
        as_typed = f"`{self.metric}`" if self.typed in (None, self.metric) else f"`{self.typed}` (`{self.metric}`)"
        raise ValueError(
            f"{named} is {as_typed}, but `{self.module}` logs for `val` only: {', '.join(sorted(names))}. "
            f"{remedy} to one of these."
        )

    def value_of(self, summary: Mapping[str, Any]) -> float | None:
        """Its value in a summary of any metric: the global model's if there is one, else the mean over clients.

        Raises:
            ValueError: As :meth:`check`.
        """
        overall, per_client = summary["global_metrics"], summary["per_client_metrics"]
        self.check([overall, *per_client])
        return selection_value(summarise(self.metric, self.mode, overall, per_client))


def mode_by_name(metric: str) -> str:
    """``"min"`` for losses and errors, else ``"max"``."""
    return "min" if _tells(metric, LESS_IS_BETTER) else "max"


def _tells(metric: str, parts: Iterable[str]) -> bool:
    return any(part in metric.lower() for part in parts)


def selection_value(summary: Mapping[str, Any]) -> float | None:
    """What chooses the best round: the global model's validation score if there is one, else the mean over clients."""
    return summary["global"] if summary["global"] is not None else summary["mean"]


def said(summary: Mapping[str, Any], undefined: str = "-") -> str:
    """:func:`selection_value` for people: ``0.5123``; ``0.5123 (2 of 4 clients)`` where it is a mean that leaves clients out;
    ``undefined`` where there is none."""
    value = selection_value(summary)
    if value is None:
        return undefined
    return f"{value:.4f}" + (of_clients(summary["per_client"]) if summary["global"] is None else "")


def is_better(value: float | None, best: float | None, mode: str) -> bool:
    """Whether ``value`` is strictly better; the first of equal rounds stays the best, and an undefined one is never it."""
    if value is None:
        return False
    return best is None or (value > best if mode == "max" else value < best)
