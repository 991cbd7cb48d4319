"""How good a NeighGen is on an impaired graph, in figures that may leave the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_models.neighgen.calibration import mean_features
from lit_models.neighgen.losses import mend_counts, nearest_hidden

if TYPE_CHECKING:
    from lit_models.neighgen.module import LitNeighGen


@torch.no_grad()
def report_quality(module: LitNeighGen, batch: Any, seed: int = 0) -> dict[str, float]:
    """Quality on an impaired graph; an entry that has no sample is left out.

    ``generator_error``: mean over nodes with held-out hidden neighbours and all P slots of min_u ||x̃ - x_u||^2 over
    those neighbours; ``zero_error``, ``mean_error``: the same for the zero vector and the client's mean vector;
    ``train_generator_error``, ``train_zero_error``, ``train_mean_error``: on the pairs trained on. ``count_mae``,
    ``mean_count_mae``: |ñ - n| on held-out nodes, and that of the constant mean(n). ``count_saturation``: share of
    nodes with round ñ > P. ``generated_per_node`` and ``missing_per_node``: mean k and mean n.

    Args:
        module: The generator; its mode stays.
        batch: The impaired graph.
        seed: Of eps.
    """
    z = module.embed_eval(batch)
    mean, hidden_x = mean_features(batch.x).to(z), batch.hidden_x.to(z)
    values: dict[str, float] = {}
    for prefix, part in (("", "holdout"), ("train_", "pair")):
        errors = _feature_errors(module, z, mean, hidden_x, batch[f"{part}_ptr"], batch[f"{part}_target"], seed)
        values |= {prefix + name: error for name, error in errors.items()}
    return values | _count_figures(module.dgen(z), batch.missing_count.to(z), batch.count_mask, module.num_slots)


def _feature_errors(
    module: LitNeighGen, z: Tensor, mean: Tensor, hidden_x: Tensor, pointer: Tensor, target: Tensor, seed: int
) -> dict[str, float]:
    """Mean squared distance to the nearest of a node's targets (CSR) of what is generated, of zero and of the mean vector."""
    rows = pointer.diff().nonzero().squeeze(1)
    if len(rows) == 0:
        return {}
    generator = torch.Generator().manual_seed(seed)
    u = z[rows] + torch.randn(len(rows), z.shape[1], generator=generator).to(z)
    candidates, owner = module.fgen(u, torch.ones(len(rows), module.num_slots, dtype=torch.bool, device=z.device))
    errors = {}
    for name, vectors, nodes in (
        ("generator_error", candidates, rows[owner]),
        ("zero_error", torch.zeros_like(mean).expand(len(rows), -1), rows),
        ("mean_error", mean.expand(len(rows), -1), rows),
    ):
        nearest = nearest_hidden(vectors, nodes, pointer, target, hidden_x)
        errors[name] = float((vectors - hidden_x[nearest]).square().sum(-1).mean())
    return errors


def _count_figures(predicted: Tensor, missing: Tensor, known: Tensor, num_slots: int) -> dict[str, float]:
    """What ñ is worth beside n, both of shape ``(N,)``; ``known`` are the nodes whose n was trained on."""
    values, unseen = {}, ~known
    if bool(unseen.any()) and bool(known.any()):
        values["count_mae"] = float((predicted - missing)[unseen].abs().mean())
        values["mean_count_mae"] = float((missing[known].mean() - missing[unseen]).abs().mean())
    if len(predicted):
        values["count_saturation"] = float((predicted.round() > num_slots).float().mean())
        values["generated_per_node"] = float(mend_counts(predicted, num_slots).float().mean())
        values["missing_per_node"] = float(missing.mean())
    return values
