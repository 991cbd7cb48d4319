"""What stays as it was at the start is named in a message, not sent: frozen weights, scalers, lookup tables.

Server and clients begin with the same buffers and frozen parameters (`engine/buffers.py` checks it before round 1). An entry
of a request that still has its first value, to the bit, travels as a name with a hash, and so does the client's answer to it.
What a client or the server changes after all (a layer thawed in mid-training, a running mean) travels as before: nothing is
lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from fl_lightning.engine.buffers import sha256
from fl_lightning.engine.messages import Payload

AS_AT_START = "as_at_start"
"""Among a message's values: hashes of the entries left out, by name."""


class Start:
    """Entries as a run begins with them, at one end.

    Args:
        tensors: By name; not to be changed.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)
        self._hashes: dict[str, str] = {}

    def leave_out(self, payload: Payload, names: Collection[str] | None = None) -> Payload:
        """The payload without what is as at the start, to the bit, of these entries (default: of all)."""
        asked = self._tensors if names is None else names
        still = {name for name in asked if name in payload.tensors and _same(payload.tensors[name], self._tensors[name])}
        if not still:
            return payload
        tensors = {name: tensor for name, tensor in payload.tensors.items() if name not in still}
        return Payload(tensors, {**payload.values, AS_AT_START: {name: self._hash(name) for name in sorted(still)}})

    def put_back(self, payload: Payload) -> Payload:
        """Inverse of :meth:`leave_out` at the other end, with copies of its own entries.

        Raises:
            ValueError: If an entry is unknown here, was sent as well, or is another one here.
        """
        if AS_AT_START not in payload.values:
            return payload
        told = payload.values[AS_AT_START]
        if not isinstance(told, Mapping):
            raise ValueError(f"`{AS_AT_START}` must hold hashes by name, found {told!r:.100}.")
        for name, value in told.items():
            if name not in self._tensors or name in payload.tensors:
                raise ValueError(f"`{AS_AT_START}` names `{name}`, which is no entry here, or was sent as well.")
            if value != self._hash(name):
                raise ValueError(f"The frozen entry or buffer `{name}` is not the same here and on the other side.")
        values = {name: value for name, value in payload.values.items() if name != AS_AT_START}
        return Payload({**payload.tensors, **{name: self._tensors[name].clone() for name in told}}, values)

    def _hash(self, name: str) -> str:
        if name not in self._hashes:
            self._hashes[name] = sha256(self._tensors[name])[:16]
        return self._hashes[name]


def _same(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    one, other = (tensor.to("cpu").contiguous().flatten().view(torch.uint8) for tensor in (one, other))
    return torch.equal(one, other)
