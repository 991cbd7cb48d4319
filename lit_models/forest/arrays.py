r"""Forests as plain arrays: no pickle, and nothing of scikit-learn is needed to predict (Breiman, Machine Learning 2001).

Trees of several forests lie one behind the other. A forest is for one task and has a weight (its number of training labels).

=================  ==============  =====================================================================================
feature            int32 (N,)      of each node: which input is looked at; -1 is a leaf
threshold          float32 (N,)    an input up to it goes left; exact, since counts have thresholds at whole and half numbers
left, right        int32 (N,)      its children, as numbers of nodes within the tree, larger than its own; -1 of a leaf
value              float64 (N,)    of a leaf: the mean label, or the share of class 1; 0 of an inner node
tree_start         int64 (R + 1,)  where each tree's nodes begin, and the end
forest_start       int64 (F + 1,)  where each forest's trees begin, and the end
forest_task        int64 (F,)      the task that each forest is for
forest_weight      float64 (F,)    w of each forest, above 0
=================  ==============  =====================================================================================

What they predict of task t for an input x, with :math:`h_j` the leaf that x comes to in tree j:

.. math:: F_t(x) = \sum_{k: t_k = t} \frac{w_k}{\sum_{l: t_l = t} w_l} \cdot \frac{1}{R_k} \sum_{j \in k} h_j(x)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Arrays = Mapping[str, Tensor]
LAYOUT = {
    "feature": torch.int32,
    "threshold": torch.float32,
    "left": torch.int32,
    "right": torch.int32,
    "value": torch.float64,
    "tree_start": torch.int64,
    "forest_start": torch.int64,
    "forest_task": torch.int64,
    "forest_weight": torch.float64,
}
NODES = ("feature", "threshold", "left", "right", "value")
AT_ONCE = 2**19
"""Pairs of an input and a tree that are followed at the same time: what keeps memory small."""


def no_forest() -> dict[str, Tensor]:
    """The arrays of no forest at all."""
    sizes = {"tree_start": 1, "forest_start": 1}
    return {name: torch.zeros(sizes.get(name, 0), dtype=dtype) for name, dtype in LAYOUT.items()}


def join(parts: Sequence[Arrays]) -> dict[str, Tensor]:
    """All forests of several arrays as one, in order; only where trees and forests start has to be moved."""
    joined = {name: torch.cat([no_forest()[name], *(part[name] for part in parts)]) for name in LAYOUT}
    for start, size in (("tree_start", "feature"), ("forest_start", "tree_start")):
        pieces, end = [torch.zeros(1, dtype=torch.int64)], 0
        for part in parts:
            pieces.append(part[start][1:] + end)
            end += len(part[size]) - (size == "tree_start")
        joined[start] = torch.cat(pieces)
    return joined


def leaf_values(arrays: Arrays, x: Tensor, first: int, last: int) -> Tensor:
    """h: what trees ``first`` to ``last`` (without it) say of each input.

    Args:
        arrays: Forests.
        x: Inputs, float32 ``(B, S)``.
        first: Number of the first tree.
        last: Number after that of the last one.

    Returns:
        Float64 ``(B, last - first)``.
    """
    starts = arrays["tree_start"][first : last + 1]
    root = starts[:-1].repeat(len(x))  # of each pair of an input and a tree
    row = torch.arange(len(x), device=x.device).repeat_interleave(last - first) * x.shape[1]
    node, flat = root.clone(), x.reshape(-1)
    under_way = torch.arange(len(node), device=x.device)
    for _ in range(int(starts.diff().max())):  # no path is longer, whatever the arrays hold
        at = node[under_way]
        feature = arrays["feature"][at]
        inner = feature >= 0
        under_way = under_way[inner]
        if not len(under_way):
            break
        at, feature = at[inner], feature[inner]
        goes_left = flat[row[under_way] + feature] <= arrays["threshold"][at]
        node[under_way] = root[under_way] + torch.where(goes_left, arrays["left"][at], arrays["right"][at])
    return arrays["value"][node].view(len(x), last - first)


def forest_mean(arrays: Arrays, x: Tensor, forest: int) -> Tensor:
    """The mean over one forest's trees, float64 ``(B,)``, added one by one as scikit-learn does: the same bits."""
    first, last = arrays["forest_start"][forest : forest + 2].tolist()
    total, step = x.new_zeros(len(x), dtype=torch.float64), max(1, AT_ONCE // max(1, len(x)))
    for begin in range(first, last, step):
        for values in leaf_values(arrays, x, begin, min(begin + step, last)).unbind(1):
            total += values
    return total / (last - first)


def predict(arrays: Arrays, x: Tensor, num_tasks: int, otherwise: float) -> Tensor:
    """F of the top of this file.

    Args:
        arrays: Forests.
        x: Inputs, ``(B, S)``.
        num_tasks: T.
        otherwise: What is predicted of a task without a forest.

    Returns:
        Float64 ``(B, T)``.
    """
    x = x.float()
    task, weight = arrays["forest_task"], arrays["forest_weight"]
    total = torch.zeros(num_tasks, dtype=torch.float64, device=x.device).index_add_(0, task, weight)
    result = torch.where(total > 0, 0.0, torch.full_like(total, otherwise)).repeat(len(x), 1)
    for forest, of in enumerate(task.tolist()):
        result[:, of] += weight[forest] / total[of] * forest_mean(arrays, x, forest)
    return result


def fault_of(arrays: Arrays, num_tasks: int, num_features: int) -> str | None:
    """Why arrays of the right names and types are no forests, or ``None`` if they are: who sends nonsense is told so here, and
    not by an index out of range."""
    starts = _fault_of_starts(arrays)
    if starts is not None:
        return starts
    task, weight, feature = arrays["forest_task"], arrays["forest_weight"], arrays["feature"]
    if bool(((task < 0) | (task >= num_tasks)).any()):
        return f"`forest_task` must be from 0 to {num_tasks - 1}"
    if not bool((weight > 0).all()):
        return "`forest_weight` must be above 0"
    if bool(((feature < -1) | (feature >= num_features)).any()):
        return f"`feature` must be from -1 to {num_features - 1}"
    sizes = arrays["tree_start"].diff()
    size = sizes.repeat_interleave(sizes)
    number = torch.arange(len(feature)) - arrays["tree_start"][:-1].repeat_interleave(sizes)
    for side in ("left", "right"):
        child = arrays[side]
        if bool(torch.where(feature < 0, child != -1, (child <= number) | (child >= size)).any()):
            return f"`{side}` must be a later node of the same tree, and -1 of a leaf"
    return None


def _fault_of_starts(arrays: Arrays) -> str | None:
    """Do the lengths go together?"""
    if any(arrays[name].dim() != 1 for name in LAYOUT):
        return "all arrays must have one dimension"
    if len({len(arrays[name]) for name in NODES}) > 1:
        return f"{', '.join(f'`{name}`' for name in NODES)} must have one length"
    trees, forests = len(arrays["tree_start"]) - 1, len(arrays["forest_task"])
    if len(arrays["forest_weight"]) != forests or len(arrays["forest_start"]) != forests + 1:
        return "`forest_start`, `forest_task` and `forest_weight` must be of the same forests"
    for name, end in (("tree_start", len(arrays["feature"])), ("forest_start", trees)):
        start = arrays[name]
        if len(start) == 0 or int(start[0]) != 0 or int(start[-1]) != end or bool((start.diff() < 1).any()):
            return f"`{name}` must grow from 0 to {end}"
    return None
