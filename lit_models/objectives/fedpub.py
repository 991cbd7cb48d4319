r"""FED-PUB, client half: what a client minimises (Baek, Jeong, Jin, Yoon, Hwang; ICML 2023).

min over (W, mu)   L(G_i; W * mu) + lambda_1 ||mu_i||_1 + lambda_2 ||theta_i - theta_bar_i||_2^2     MaskedProximal
theta_i = theta_bar_i * mu_i       so the last term is ||theta_bar * mu - theta_bar||^2            note_proximal
sum over tensors of ||W - W_bar||_2, not squared, as the authors' code has it                      code_proximal

``theta_bar = W_bar`` are the weights as received, constant during local training; ``W`` starts there and is trained,
``mu`` is the mask. So the note's last term holds the *mask* near one, weighted by the size of each received weight, and
its gradient, 2 lambda_2 theta_bar^2 (mu - 1), goes to the mask alone. Biases have no mask and add nothing to it.

The authors' code computes both penalties on ``state_dict()``, whose tensors are detached: they train nothing. Here they
are live. Profiles: *default* ``MaskedProximal()``; *reference*, the authors' effective objective,
``MaskedProximal(l1=0, l2=0)``.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lit_models.masks import PRIVATE_MASKS, masked_layers, named_masks, raw_weight
from lit_models.objectives.base import Objective
from lit_models.objectives.support.added_term import AddedTerm

if TYPE_CHECKING:
    from lit_models.base import LitGraphModule

_REDUCTIONS = ("sum", "mean")
_PROXIMALS = ("note", "code", "none")


def mask_l1(masks: Iterable[Tensor], reduction: str = "sum") -> Tensor:
    r""":math:`\lVert\mu\rVert_1` over all masks: ``"sum"`` of absolute values, or their ``"mean"`` over all entries."""
    masks = list(masks)
    total = torch.stack([mask.abs().sum() for mask in masks]).sum()
    return total / sum(mask.numel() for mask in masks) if reduction == "mean" else total


def note_proximal(received: dict[str, Tensor], masks: dict[str, Tensor]) -> Tensor:
    r""":math:`\lVert\bar\theta\odot\mu-\bar\theta\rVert_2^2` over the masked matrices; ``received`` is detached."""
    return torch.stack([F.mse_loss(w * masks[name], w, reduction="sum") for name, w in received.items()]).sum()


def code_proximal(received: dict[str, Tensor], weights: dict[str, Tensor]) -> Tensor:
    r""":math:`\sum_t\lVert W_t-\bar W_t\rVert_2` over tensors, not squared; zero gradient at :math:`W=\bar W`.
    ``received`` is detached."""
    return torch.stack([torch.linalg.vector_norm(weights[name] - w) for name, w in received.items()]).sum()


class MaskedProximal(AddedTerm):
    r"""FED-PUB's local objective: a base loss, the mask's L1 norm, and a pull towards the weights as received.

    Args:
        l1: :math:`\lambda_1`; ``0`` switches the term off. On the sum of absolute values more than about 1e-5 ruins the
            model (1e-3 on Cora, 10 clients, 100 rounds: 80 % of the mask entries pruned, 12 points of accuracy lost).
        l2: :math:`\lambda_2` of the proximal term; ``0`` switches it off.
        l1_reduction: ``"sum"`` of absolute values, or their ``"mean"`` over all mask entries.
        proximal: ``"note"``, :math:`\lVert\bar\theta\odot\mu-\bar\theta\rVert_2^2`; ``"code"``,
            :math:`\sum\lVert W-\bar W\rVert_2` over weights and biases (zero, gradient too, in the first local step,
            so without any effect where one local step is all); or ``"none"``.
        base: The loss that the penalties are added to; `ERM` by default.

    Logs ``train/mask_l1`` and ``train/proximal``, each with its lambda, so that they add up in ``train/loss``.

    Raises:
        ValueError: On unknown choices or negative factors; and, when training starts, on a model without masks.
    """

    def __init__(
        self,
        l1: float = 0.0,
        l2: float = 1e-3,
        l1_reduction: Literal["sum", "mean"] = "sum",
        proximal: Literal["note", "code", "none"] = "note",
        base: Objective | None = None,
    ) -> None:
        super().__init__(base, warmup_rounds=0)  # the paper has none
        if not (l1 >= 0 and l2 >= 0):
            raise ValueError(f"`l1` and `l2` of `MaskedProximal` must be >= 0, but are {l1} and {l2}.")
        if l1_reduction not in _REDUCTIONS:
            raise ValueError(f"`l1_reduction` must be one of {_REDUCTIONS}, but is {l1_reduction!r}.")
        if proximal not in _PROXIMALS:
            raise ValueError(f"`proximal` must be one of {_PROXIMALS}, but is {proximal!r}.")
        if l1 > 1e-5 and l1_reduction == "sum":
            warnings.warn(
                f"`l1: {l1}` on the sum of all mask entries prunes most of them and costs many points of accuracy. "
                "Use at most 1.0e-5, or `l1_reduction: mean`.",
                stacklevel=2,
            )
        self.l1 = l1
        self.l2 = 0.0 if proximal == "none" else l2
        self.l1_reduction = l1_reduction
        self.proximal = proximal
        self._received: dict[str, Tensor] | None = None

    def on_train_start(self, module: LitGraphModule) -> None:
        self._require_masks(module)
        if self.l2:
            self._received = {name: weight.detach().clone() for name, weight in self._held(module).items()}
        super().on_train_start(module)

    def __call__(self, module: LitGraphModule, batch: Any) -> Tensor:
        loss = self.base(module, batch)
        terms = self.penalties(module)
        if not terms:
            return loss
        module.observe(terms)
        return loss + torch.stack(list(terms.values())).sum()

    def penalties(self, module: nn.Module) -> dict[str, Tensor]:
        """The terms that are switched on, each with its lambda: ``mask_l1``, ``proximal``; scalars with a gradient."""
        terms = {}
        if self.l1:
            terms["mask_l1"] = self.l1 * mask_l1(named_masks(module).values(), self.l1_reduction)
        if self.l2:
            if self._received is None:
                raise ValueError(
                    "`MaskedProximal` needs the weights as received: call `on_train_start` before the first batch "
                    "(`lightning.Trainer.fit` does)."
                )
            if self.proximal == "note":
                terms["proximal"] = self.l2 * note_proximal(self._received, dict(named_masks(module)))
            else:
                terms["proximal"] = self.l2 * code_proximal(self._received, self._held(module))
        return terms

    def on_train_end(self, module: LitGraphModule) -> None:
        self._received = None
        super().on_train_end(module)

    def _held(self, module: nn.Module) -> dict[str, Tensor]:
        """What the proximal term compares: the masked matrices (note), or every parameter but the masks (code)."""
        if self.proximal == "note":
            return {name: raw_weight(layer) for name, layer in masked_layers(module)}
        return {
            name: parameter
            for name, parameter in module.named_parameters()
            if not any(fnmatch.fnmatch(name, pattern) for pattern in PRIVATE_MASKS)
        }

    def _require_masks(self, module: nn.Module) -> None:
        if (self.l1 or (self.l2 and self.proximal == "note")) and not named_masks(module):
            raise ValueError(
                f"`MaskedProximal` penalises personal masks, but `{type(module).__name__}` has no parameter named "
                "`*.mask`. Use `model.init_args.encoder: lit_models.MaskedGCN`, "
                "or `model.init_args.objective: lit_models.objectives.ERM`."
            )
