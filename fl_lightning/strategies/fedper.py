r"""FedPer (Arivazhagan, Aggarwal, Singh, Choudhary; 2019): the body is averaged, each client keeps a head of its own.

.. math:: \theta \leftarrow \sum_i \frac{n_i}{\sum_j n_j} \theta_i, \qquad h_i \text{ stays at client } i

A client trains body and head together, from the body as received and the head as it left it, and is scored with both.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

import lightning as L
from torch import Tensor

from fl_lightning.strategies.fedavg import FedAvg


def head_patterns(strategy: str, head: Sequence[str] | None, module: L.LightningModule) -> tuple[str, ...]:
    """Patterns of the head's entries: the user's, or else those that the module names as its ``head_entries``.

    Args:
        strategy: The class that asks.
        head: What the user wrote.
        module: The module, with its layers.

    Raises:
        ValueError: Neither names a head, or a pattern matches no entry.
    """
    entries, kind = list(module.state_dict()), type(module).__name__
    patterns = tuple(getattr(module, "head_entries", ()) if head is None else head)
    if not patterns:
        raise ValueError(
            f"`{strategy}` keeps the head (the last layer) at each client, but `{kind}` does not say which of its entries that "
            "is. Write `federation.strategy.init_args.head`, a list of patterns over their names; they are: "
            f"{', '.join(entries)}."
        )
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in entries):
            where = f"`{kind}.head_entries`" if head is None else "`federation.strategy.init_args.head`"
            raise ValueError(f"{where} names `{pattern}`, which no entry of `{kind}` matches; they are: {', '.join(entries)}.")
    return patterns


class FedPer(FedAvg):
    """FedAvg of the body; the head of each client never leaves it.

    Args:
        head: ``fnmatch`` patterns of the head's entries in ``state_dict``, e.g. ``["net.4.*"]``. Default: the last layer, as
            the module says (``head_entries``; all modules and encoders of ``lit_models`` do).
        weighting: ``num_samples`` (the paper's) or ``uniform``, as for ``FedAvg``.
    """

    def __init__(self, head: list[str] | None = None, weighting: Literal["uniform", "num_samples"] = "num_samples") -> None:
        super().__init__(weighting)
        if head is not None and (isinstance(head, str) or not head):
            raise ValueError(
                f"`federation.strategy.init_args.head` is a list of at least one pattern, got {head!r}. Leave it out for the "
                "module's own last layer; with nothing to keep it is `FedAvg`."
            )
        self.head = head

    def private_entries(self, module: L.LightningModule) -> Sequence[str]:
        return head_patterns(type(self).__name__, self.head, module)

    def start(self, initial: dict[str, Tensor], private: Sequence[str]) -> None:
        super().start(initial, private)
        if not self.uploads():
            raise ValueError(
                f"`{type(self).__name__}` shares all but the head, but nothing is left to be shared: {', '.join(private)} stay "
                "with the clients. Name fewer entries in `federation.strategy.init_args.head`, give the encoder more layers, "
                "or use `LocalOnly`."
            )
