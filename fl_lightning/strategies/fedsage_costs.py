r"""What the phases of FedSage+ send and keep, before anything is trained.

With M clients, of which A ask, T the bytes of one fGen and q_i those of client i's question (d_z floats and a count a row):

    query          up      A T + sum_i q_i
    peer_gradient  down    (M - 1) (A T + sum_i q_i)         every client gets the questions of all others
                   up      (M - 1) A T                       and answers each with a gradient
    exchange       down    A T                               the sum of the answers

With prototypes of C classes and F features, every client sends C F + C + C^2 numbers of 8 bytes, is sent C F + C^2 of 4 bytes
and keeps these and the C probabilities of each of its nodes.

Nobody knows before phase 1 who will ask: a client does for the nodes for which its generator finds a missing neighbour. So
these are upper bounds, in which every client that can ask does, for every node that is not hidden.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fl_lightning.strategies.base import PhaseCosts
from lit_models.neighgen.exchange import fgen_weights

if TYPE_CHECKING:
    from fl_lightning.strategies.fedsage import FedSagePlus

NOTE = (
    "Before round 1 at most: a client asks the others only for nodes for which its generator finds a missing neighbour, and a "
    "mended graph is taken to get as many neighbours as `hide_portion` of its links."
)


def phase_costs(strategy: FedSagePlus, datamodules: Sequence[Any], oracle: Mapping[int, tuple[Tensor, Tensor]]) -> PhaseCosts:
    """Costs of the generator, the exchange and mending.

    Args:
        strategy: Checked against these clients.
        datamodules: Of all clients.
        oracle: Counts and features of each client's true neighbours, with ``mending: oracle``.
    """
    if strategy.mending == "none" or strategy.hide_portion == 0:
        return PhaseCosts()
    dense = sum(_mended_bytes(strategy, c, d, oracle) for c, d in enumerate(datamodules))
    if strategy.mending == "prototype":
        return _prototype_costs(strategy, datamodules, dense)
    told = sum(_nbytes(tensor) for pair in oracle.values() for tensor in pair)
    if not strategy.needs_generator:
        return PhaseCosts(down=told, data=dense, clients=told)
    generator = copy.deepcopy(strategy.generator)
    generator.build(datamodules[0].schema)
    weights = sum(map(_nbytes, fgen_weights(generator).values()))
    whole = sum(map(_nbytes, generator.state_dict().values()))
    questions = [q for d in datamodules if (q := _question_bytes(strategy, generator, d)) is not None]
    others, asking = len(datamodules) - 1, len(questions) * weights
    steps = strategy.exchange_rounds if strategy.alpha > 0 else 0
    query, asked, answered = asking + sum(questions), others * (asking + sum(questions)), others * asking
    summed = asking if others else 0
    return PhaseCosts(
        up=steps * (query + answered),
        down=steps * (asked + summed),
        data=dense,
        messages=query + answered + summed if steps else 0,  # the questions are sent on as they are
        clients=len(datamodules) * (whole + 2 * weights),  # fGen with Adam's two moments
        note=NOTE,
    )


def _prototype_costs(strategy: FedSagePlus, datamodules: Sequence[Any], dense: int) -> PhaseCosts:
    schema, clients = datamodules[0].schema, len(datamodules)
    features, classes = int(schema["num_features"]), int(schema["num_classes"])
    up, down = 8 * (classes * features + classes + classes**2), 4 * (classes * features + classes**2)
    kept = clients * down + sum(4 * classes * int(d.data.num_nodes) for d in datamodules)
    if strategy.needs_generator:
        generator = copy.deepcopy(strategy.generator)
        generator.build(schema)
        kept += clients * sum(map(_nbytes, generator.state_dict().values()))
    return PhaseCosts(up=clients * up, down=clients * down, data=dense, messages=clients * up, clients=kept)


def _question_bytes(strategy: FedSagePlus, generator: Any, datamodule: Any) -> int | None:
    """Bytes of a client's question without fGen; ``None`` if it is too small ever to ask."""
    nodes: int = datamodule.data.num_nodes
    hidden = min(round(strategy.hide_portion * nodes), nodes - 1)
    rows: int = min(nodes - hidden, generator.max_rows or nodes)
    if hidden < 1 or rows * generator.num_slots < strategy.min_batch:
        return None
    bytes_a_row: int = 4 * generator.embedding_channels + 8
    return rows * bytes_a_row


def _mended_bytes(strategy: FedSagePlus, client: int, datamodule: Any, oracle: Mapping[int, tuple[Tensor, Tensor]]) -> int:
    """Bytes of a client's mended graph, whose features are dense."""
    data = datamodule.data
    if client in oracle:
        new = int(oracle[client][0].sum())
    elif strategy.needs_counts:
        new = int(datamodule.links_elsewhere.clamp(max=strategy.generator.num_slots).sum())
    elif strategy.counts == "any" and getattr(datamodule, "links_elsewhere", None) is not None:
        new = int((datamodule.links_elsewhere > 0).sum())
    elif strategy.counts in (
        "any",
        "mean",
        "one",
    ):  # the mean is about one: what it is exactly, the clients tell before round 1
        new = int(data.num_nodes)
    else:
        new = round(strategy.hide_portion * data.num_edges)
    return 4 * (data.num_nodes + new) * data.x.shape[1] + 16 * (data.num_edges + 2 * new) if new else 0


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
