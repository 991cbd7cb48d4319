"""LocalOnly: every client trains alone (LocSage for a GraphSAGE). The baseline of every table; no model crosses the border."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fl_lightning.engine.client import Client, ClientHalf
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.strategies.base import Strategy


class LocalOnly(Strategy):
    """Each client goes on from its own weights; requests and replies carry no tensors.

    Args:
        score_on_global: After training, also score every client's own model on the server's data (``each_on_global``). For
            that one step the models are uploaded; the ledger shows them as kind ``model``.
    """

    personal = True
    takes_varying_entries = True

    def __init__(self, score_on_global: bool = True) -> None:
        self.score_on_global = score_on_global

    def client_half(self) -> ClientHalf:
        return _Alone(personal=True)

    def start(self, initial: dict[str, Tensor], private: Sequence[str]) -> None:
        super().start({}, private)

    def download(self, client: int) -> Payload:
        return Payload()

    def aggregate(self, federation: Federation, round: int, replies: Mapping[int, Payload]) -> None:
        pass


class _Alone(ClientHalf):
    def reply_tensors(self, client: Client) -> dict[str, Tensor]:
        return {}
