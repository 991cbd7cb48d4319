r"""Personal weight masks (FED-PUB: Baek, Jeong, Jin, Yoon, Hwang; ICML 2023).

theta = W * mu                               one real-valued mask per weight matrix, none on biases   MaskedWeight
mu <- mu where |mu| >= threshold, else 0     pruning, in evaluation only                              pruned

`apply_masks` gives the layers of any module a mask without forking them: ``layer.weight`` *reads* as ``W * mu``, while
``W`` stays the parameter ``weight`` under its old state-dict name and ``mu`` is added as the parameter ``mask``. So a
masked model has the entries of the unmasked one plus ``*.mask``, which must stay with the client (`PRIVATE_MASKS`).
Why not ``torch.nn.utils.parametrize``: it refuses to be pickled (worker processes), renames the shared weights, and
PyG's ``Linear`` would write ``W * mu`` into the state dict beside them, which is exactly what must not leave a client.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

PRIVATE_MASKS: tuple[str, ...] = ("*.mask",)
"""Patterns (fnmatch) over state-dict names that match the masks and nothing else."""


def pruned(mask: Tensor, threshold: float) -> Tensor:
    """The mask with its entries of absolute value below ``threshold`` set to zero; same shape."""
    return torch.where(mask.abs() < threshold, 0.0, mask)


class MaskedWeight(nn.Module):
    r"""What `apply_masks` puts in front of a layer's own class: ``weight`` reads as :math:`W \odot \mu`.

    ``W`` is ``self._parameters["weight"]`` (see `raw_weight`), :math:`\mu` is ``self.mask``. Training uses the mask as
    it is, evaluation the `pruned` one.
    """

    _unmasked: type[nn.Module]
    mask: nn.Parameter
    prune_below: float

    @property
    def weight(self) -> Tensor:
        mask = self.mask if self.training else pruned(self.mask, self.prune_below)
        return raw_weight(self) * mask

    def reset_parameters(self) -> None:
        """Initialise ``W`` as the layer always does, and the mask to ones."""
        layer = self._unmasked.__new__(self._unmasked)  # the layer as it was before masking, over the same parameters
        layer.__dict__.update(self.__dict__)
        layer.reset_parameters()  # type: ignore[operator]  # PyG's layers and torch's have it
        nn.init.ones_(self.mask)

    # PyG's `Linear` saves `self.weight`, the product here; these two save and load the parameters as nn.Module does.
    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        nn.Module._save_to_state_dict(self, *args, **kwargs)  # noqa: SLF001  torch's hook for subclasses

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        nn.Module._load_from_state_dict(self, *args, **kwargs)  # noqa: SLF001

    # The class is made at run time, so copies and pickles name the layer's own class.
    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _new_masked, (self._unmasked,), self.__dict__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        clone = memo[id(self)] = _new_masked(self._unmasked)
        clone.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return clone


@cache
def _masked_class(layer_class: type[nn.Module]) -> type[nn.Module]:
    return type(f"Masked{layer_class.__name__}", (MaskedWeight, layer_class), {"_unmasked": layer_class})


def _new_masked(layer_class: type[nn.Module]) -> nn.Module:
    masked_class = _masked_class(layer_class)  # type: ignore[arg-type]  # classes are hashable
    return masked_class.__new__(masked_class)


def apply_masks(module: nn.Module, prune_below: float = 1e-3) -> nn.Module:
    r"""Give every weight matrix of ``module`` a mask of ones, in place: :math:`\theta = W \odot \mu`.

    A weight matrix is a parameter called ``weight`` of two or more dimensions (``Linear`` layers of torch and of PyG,
    hence ``GCNConv.lin``, ``SAGEConv.lin_l`` and ``lin_r``, classifier heads). Biases and normalisation weights get
    none; layers that have a mask already keep it.

    Args:
        module: Any module whose layers exist (no lazy ones).
        prune_below: Entries of absolute value below this count as zero in evaluation; ``0`` prunes nothing.

    Returns:
        ``module`` itself.

    Raises:
        ValueError: If the threshold is negative, a layer is lazy, or nothing could be masked.
    """
    if not prune_below >= 0:
        raise ValueError(f"`prune_below` is a threshold on |mask| and must be >= 0, but it is {prune_below}.")
    for name, layer in list(module.named_modules()):
        weight = dict(layer.named_parameters(recurse=False)).get("weight")
        if weight is None or isinstance(layer, MaskedWeight):
            continue
        if nn.parameter.is_lazy(weight):
            raise ValueError(
                f"Layer `{name}` of `{type(module).__name__}` has no size yet, so it cannot be masked. "
                "Give its `in_channels`, or run one forward pass before `apply_masks`."
            )
        if weight.dim() < 2:
            continue
        layer.__class__ = _masked_class(type(layer))  # type: ignore[arg-type]  # classes are hashable
        layer.register_parameter("mask", nn.Parameter(torch.ones_like(weight)))
        layer.prune_below = float(prune_below)
    if next(masked_layers(module), None) is None:
        raise ValueError(
            f"`{type(module).__name__}` has no weight matrix to mask: no layer has a parameter `weight` of two dimensions."
        )
    return module


def masked_layers(module: nn.Module) -> Iterator[tuple[str, MaskedWeight]]:
    """Everything in ``module`` that has a mask: state-dict prefix (without the dot) and layer."""
    for name, layer in module.named_modules():
        if isinstance(layer, MaskedWeight):
            yield name, layer


def named_masks(module: nn.Module) -> dict[str, nn.Parameter]:
    """The masks themselves (live parameters) by the name of their layer."""
    return {name: layer.mask for name, layer in masked_layers(module)}


def raw_weight(layer: nn.Module) -> nn.Parameter:
    """The parameter ``W`` of a layer, without its mask (``layer.weight`` is ``W * mu``)."""
    return layer._parameters["weight"]  # type: ignore[return-value]  # noqa: SLF001  `layer.weight` is the product


@torch.no_grad()
def masked_weights(module: nn.Module) -> dict[str, Tensor]:
    r"""The client's own :math:`\theta = W \odot \mu` (not pruned), new tensors by the state-dict name of ``W``."""
    return {f"{name}.weight".lstrip("."): raw_weight(layer) * layer.mask for name, layer in masked_layers(module)}


@torch.no_grad()
def mask_statistics(module: nn.Module) -> dict[str, dict[str, float]]:
    """Per masked layer: ``sparsity`` (share of entries that evaluation prunes) and ``mean`` (of the mask)."""
    return {
        name: {
            "sparsity": 1 - int(pruned(layer.mask, layer.prune_below).count_nonzero()) / layer.mask.numel(),
            "mean": float(layer.mask.mean(dtype=torch.float64)),
        }
        for name, layer in masked_layers(module)
    }
