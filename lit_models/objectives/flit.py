r"""FLIT and FLIT+: federated learning by instance reweighting (Zhu, Luo, White; Patterns 2022).

Eq. 8    phi(x, F) = L(F(x), y)                                                         the unreduced loss
Eq. 7    omega(x) = phi(x, F_l) + max(phi(x, F_l) - phi(x, F_g), 0)                     uncertainty
Eq. 12   mean_omega <- beta mean_omega + (1 - beta) batch mean of omega, per task       focal.moving_average
Eq. 6    L_FLIT = (1 - exp(-omega / mean_omega)) ** gamma * L(F_l(x), y)                focal.focal_factor

Eq. 9    Delta(x, F) = D(F(x), F(x + r_adv))                                            vat.VAT
Eq. 10   phi_+(x, F) = L(F(x), y) + lambda Delta(x, F)                                  uncertainty_plus
Eq. 11   L_FLIT+ = (1 - exp(-omega_+ / mean_omega_+)) ** gamma * (L(F_l(x), y) + c Delta(x, F_l))

``F_l`` is being trained, ``F_g`` is the model as received: phi(x, F_g) is measured once per local fit for every
training sample, in evaluation mode, and kept by sample id. The gradient flows through L, Delta and the factor (unless
``detach_weight``), never through ``F_g``, mean_omega or r_adv. The average starts anew in each local fit.

Variant ``official``, what FedChem's code does: in omega_+ a sum of two maxima instead of the maximum of the sum, VAT's
direction probed at 1e-3 and with a guard that switches it off while gradients are small, and zeros for what the
received model predicts on the n mod batch_size samples that a loader with ``drop_last`` leaves out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from lit_models.objectives.base import masked_mean
from lit_models.objectives.focal import Reweighted
from lit_models.objectives.focal import focal_factor as focal_factor
from lit_models.objectives.support.extra_passes import Replay
from lit_models.objectives.support.received import SampleTable, batch_size_of, measure_training_data
from lit_models.objectives.support.warm_up import VARIANTS
from lit_models.objectives.vat import PROBE, VAT

if TYPE_CHECKING:
    from lit_models.base import LitGraphModule


def uncertainty(local_loss: Tensor, global_loss: Tensor) -> Tensor:
    """Eq. 7: the local loss, plus by how much it exceeds the global one, a constant. All shapes (S, T)."""
    return local_loss + (local_loss - global_loss.detach()).relu()


def uncertainty_plus(
    local_loss: Tensor, global_loss: Tensor, local_delta: Tensor, global_delta: Tensor, lam: float, variant: str = "paper"
) -> Tensor:
    """Eq. 7 of phi_+ (Eq. 10), shapes (S, T). ``official``: the maximum with zero is taken of L and Delta apart."""
    if variant == "official":
        return uncertainty(local_loss, global_loss) + lam * uncertainty(local_delta, global_delta)
    return uncertainty(local_loss + lam * local_delta, global_loss + lam * global_delta)


class FLIT(Reweighted):
    """Eq. 6: samples weigh more where the local model is uncertain, more still where it is less sure than the global.

    Args:
        gamma: Exponent; 0 is the plain mean (FedAvg). The paper's grid: .5, 1, 2.
        beta: Weight of the past in the moving average.
        detach_weight: Treat the factors as constants.
        warmup_rounds: First rounds with the plain mean.
        variant: ``"paper"`` or ``"official"``, see the top of this file.

    Logs, beside what `Reweighted` does, ``train/less_sure``: the share of samples with ``phi(x, F_l) > phi(x, F_g)``.
    """

    def __init__(
        self,
        gamma: float = 0.5,
        beta: float = 0.8,
        detach_weight: bool = False,
        warmup_rounds: int = 1,
        variant: Literal["paper", "official"] = "paper",
    ) -> None:
        super().__init__(gamma, beta, detach_weight, warmup_rounds)
        self.check("variant", variant, variant in VARIANTS, f"one of {VARIANTS}")
        self.variant = variant
        self._received: SampleTable | None = None

    def on_train_start(self, module: LitGraphModule) -> None:
        super().on_train_start(module)
        self._received = None
        if not self.warming_up:
            table = measure_training_data(module, lambda batch: self.measure(module, batch))
            self._received = forget_remainder(table, module) if self.variant == "official" else table

    def on_train_end(self, module: LitGraphModule) -> None:
        super().on_train_end(module)
        self._received = None

    def measure(self, module: LitGraphModule, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """What the received model says about a batch: ids and ``loss`` (``loss_of_zero`` is for `forget_remainder`)."""
        outputs = module(batch)
        losses = module.losses(outputs, batch)
        values = {"loss": losses.loss}
        if self.variant == "official":
            values["loss_of_zero"] = module.losses(torch.zeros_like(outputs), batch).loss
        return losses.ids, values

    def received(self, ids: Tensor) -> dict[str, Tensor]:
        """What `measure` gave for these samples."""
        if self._received is None:
            raise ValueError(
                f"`{type(self).__name__}` compares with the model as received: call `on_train_start` before the first "
                "batch (`lightning.Trainer.fit` does)."
            )
        return self._received.at(ids)

    def __call__(self, module: LitGraphModule, batch: Any) -> Tensor:
        losses = module.losses(module(batch), batch)
        if self.warming_up:
            return masked_mean(losses.loss, losses.mask)
        global_loss = self.received(losses.ids)["loss"]
        module.observe({"less_sure": (losses.loss > global_loss).float()}, losses.mask)
        factor = self.factors(module, batch, losses, uncertainty(losses.loss, global_loss))
        return masked_mean(factor * losses.loss, losses.mask)


class FLITPlus(FLIT):
    """Eq. 11: FLIT with the virtual adversarial discrepancy in the uncertainty and in the loss.

    Args:
        gamma: Exponent; with 0 it is `FedVAT` with ``lam`` = c. The paper's grid: .5, 1, 2.
        lam: lambda, the weight of Delta in the uncertainty. The paper's grid: .01, .1, 1.
        c: The weight of Delta in the loss; with lam = c = 0 it is `FLIT`.
        radius, power_iterations: See `VAT`.
        probe, official_norm: See `VAT`; by default its own, or with variant ``official`` 1e-3 and true.
        beta, detach_weight, warmup_rounds, variant: As for `FLIT`, which also says what is logged; here "less sure"
            compares phi_+, and ``train/vat`` is the mean Delta of the model in training.
    """

    def __init__(
        self,
        gamma: float = 0.5,
        lam: float = 0.1,
        c: float = 1.0,
        radius: float = 2.5,
        probe: float | None = None,
        power_iterations: int = 1,
        official_norm: bool | None = None,
        beta: float = 0.8,
        detach_weight: bool = False,
        warmup_rounds: int = 1,
        variant: Literal["paper", "official"] = "paper",
    ) -> None:
        super().__init__(gamma, beta, detach_weight, warmup_rounds, variant)
        self.check("lam", lam, lam >= 0, "at least 0")
        self.check("c", c, c >= 0, "at least 0")
        self.lam, self.c = lam, c
        official = variant == "official"
        probe = (1e-3 if official else PROBE) if probe is None else probe
        self.vat = VAT(radius, probe, power_iterations, official if official_norm is None else official_norm)

    def on_train_start(self, module: LitGraphModule) -> None:
        self.vat.begin(purpose="received")
        super().on_train_start(module)
        self.vat.begin(purpose="training")

    def on_train_end(self, module: LitGraphModule) -> None:
        super().on_train_end(module)
        self.vat.end()

    def measure(self, module: LitGraphModule, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        if not self.lam:
            return super().measure(module, batch)
        outputs = module(batch)
        losses = module.losses(outputs, batch)
        values = {"loss": losses.loss, "delta": self.vat(module, batch, outputs, losses.mask)}
        if self.variant == "official":
            values["loss_of_zero"] = module.losses(torch.zeros_like(outputs), batch).loss
        return losses.ids, values

    def __call__(self, module: LitGraphModule, batch: Any) -> Tensor:
        if self.warming_up or (not self.lam and not self.c):
            return super().__call__(module, batch)
        replay = Replay(module.device)
        outputs = module(batch)
        losses = module.losses(outputs, batch)
        delta = self.vat(module, batch, outputs, losses.mask, replay)
        received = self.received(losses.ids)
        global_delta = received.get("delta", torch.zeros_like(delta))
        omega = uncertainty_plus(losses.loss, received["loss"], delta, global_delta, self.lam, self.variant)
        less_sure = losses.loss + self.lam * delta > received["loss"] + self.lam * global_delta
        module.observe({"less_sure": less_sure.float(), "vat": delta}, losses.mask)
        factor = self.factors(module, batch, losses, omega)
        return masked_mean(factor * losses.loss, losses.mask) + self.c * masked_mean(factor * delta, losses.mask)


def forget_remainder(table: SampleTable, module: LitGraphModule) -> SampleTable:
    """The official code's cache: a random n mod batch_size samples keep zeros as the received model's prediction."""
    size = batch_size_of(module.trainer)
    number = len(table.ids)
    left_out = torch.randperm(number)[number - number % size if size else number :].to(table.ids.device)
    values = {name: value.clone() for name, value in table.values.items()}
    values["loss"][left_out] = values.pop("loss_of_zero")[left_out]
    if "delta" in values:
        values["delta"][left_out] = 0.0
    return SampleTable(table.ids, values)
