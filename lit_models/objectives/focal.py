r"""FedFocal: hard samples weigh more (Lin et al., ICCV 2017; a rival in FedChem, Zhu, Luo, White; Patterns 2022).

Eq. 4, 5  (1 - p_t) ** gamma * L = (1 - exp(-L)) ** gamma * L,  L = -log p_t           focal_factor
Eq. 12    mean_omega <- beta mean_omega + (1 - beta) batch mean of omega, per task     moving_average
          omega <- omega / mean_omega, with omega = L: the normalised form             normalised

The factor is differentiated, too, unless ``detach_weight``; mean_omega never is. Losses stay unreduced, shape (S, T),
until each has its own factor. A pair without label is in no sum, no mean and no gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_models.objectives.base import masked_mean
from lit_models.objectives.support.warm_up import WarmUp
from lit_models.objectives.support.weight_histogram import group_histogram

if TYPE_CHECKING:
    from lit_models.base import LitGraphModule, SampleLosses


def focal_factor(omega: Tensor, gamma: float, eps: float = 1e-7) -> Tensor:
    """Eq. 5: ``(1 - exp(-omega)) ** gamma``. ``eps`` keeps the gradient finite at ``omega = 0`` for ``gamma < 1``."""
    return (eps - torch.expm1(-omega.clamp(min=0))) ** gamma


def moving_average(previous: Tensor | None, omega: Tensor, mask: Tensor, beta: float) -> Tensor:
    """Eq. 12, detached: per task, this batch included; the batch mean where there was nothing before.

    Args:
        previous: Shape ``(T,)``, NaN for tasks not seen yet; ``None`` at the start.
        omega: Shape ``(S, T)``.
        mask: Bool ``(S, T)``. A task without any True keeps its average.
        beta: Weight of the past.
    """
    number = mask.sum(0)
    mean = torch.where(mask, omega.detach(), 0.0).sum(0) / number  # NaN where there is no label
    if previous is None:
        return mean
    moved = torch.where(previous.isnan(), mean, beta * previous + (1 - beta) * mean)
    return torch.where(number > 0, moved, previous)


def normalised(omega: Tensor, average: Tensor, eps: float = 1e-7) -> Tensor:
    """``omega / average``, shape ``(S, T)``; finite, and without meaning, for tasks not seen yet."""
    return omega / (torch.where(average.isnan(), 1.0, average).detach() + eps)


class Reweighted(WarmUp):
    """Base of FedFocal, FLIT and FLIT+: ``mean of factor(omega) * loss`` over the labelled pairs.

    Subclasses say what omega is. The moving average starts anew in each local fit.

    Args:
        gamma: Exponent; 0 is the plain mean.
        beta: Weight of the past in the moving average.
        detach_weight: Treat the factors as constants.
        warmup_rounds: First rounds with the plain mean.

    Logs ``train/weight`` (mean omega, normalised) and ``train/lr_factor`` (mean factor: by how much the steps shrink).
    Where batches say the ``scaffold`` of each sample, `pictures` has a histogram of the scaffolds' mean factors.
    """

    def __init__(self, gamma: float, beta: float, detach_weight: bool, warmup_rounds: int) -> None:
        super().__init__(warmup_rounds)
        self.check("gamma", gamma, gamma >= 0, "at least 0")
        self.check("beta", beta, 0 <= beta < 1, "at least 0 and below 1")
        self.gamma, self.beta, self.detach_weight = gamma, beta, detach_weight
        self.average: Tensor | None = None
        self._seen: list[tuple[Tensor, Tensor, Tensor]] = []
        self._histogram: list[int] = []

    def on_train_start(self, module: LitGraphModule) -> None:
        self.average = None
        self._seen, self._histogram = [], []

    def on_train_end(self, module: LitGraphModule) -> None:
        super().on_train_end(module)
        self.average = None
        self._histogram = group_histogram(self._seen) if self._seen else []
        self._seen = []

    def pictures(self) -> dict[str, list[int]]:
        return {"weight_by_scaffold": self._histogram} if self._histogram else {}

    def factors(
        self, module: LitGraphModule, batch: Any, losses: SampleLosses, omega: Tensor, normalise: bool = True
    ) -> Tensor:
        """One factor for each sample and task, ``(S, T)``; moves the average on."""
        omega = omega.to(torch.promote_types(omega.dtype, torch.float32))  # eps is nothing in half precision
        if normalise:
            self.average = moving_average(self.average, omega, losses.mask, self.beta)
            omega = normalised(omega, self.average)
        factor = focal_factor(omega, self.gamma)
        module.observe({"weight": omega, "lr_factor": factor}, losses.mask)
        scaffold = getattr(batch, "scaffold", None)
        if scaffold is not None:
            self._seen.append((scaffold, factor.detach(), losses.mask))
        return factor.detach() if self.detach_weight else factor


class FedFocal(Reweighted):
    """Focal loss: omega is the sample's own loss.

    Args:
        gamma: Exponent; 0 is the plain mean (FedAvg). FedChem's grid: .5, 1, 2.
        normalise: Divide by the moving average of the losses of each task. Regression needs it: there a loss is no
            negative log probability, its scale is that of the labels. ``False`` is Eq. 4 as it stands.
        beta, detach_weight, warmup_rounds: As for `Reweighted`, which also says what is logged.
    """

    def __init__(
        self, gamma: float = 0.5, normalise: bool = True, beta: float = 0.8, detach_weight: bool = False, warmup_rounds: int = 1
    ) -> None:
        super().__init__(gamma, beta, detach_weight, warmup_rounds)
        self.normalise = normalise

    def __call__(self, module: LitGraphModule, batch: Any) -> Tensor:
        losses = module.losses(module(batch), batch)
        if self.warming_up:
            return masked_mean(losses.loss, losses.mask)
        factor = self.factors(module, batch, losses, losses.loss, self.normalise)
        return masked_mean(factor * losses.loss, losses.mask)
