"""What crosses the border between server and clients: typed messages of tensors and plain (JSON) values, nothing else."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

_HEADER = struct.Struct("<Q")


@dataclass(frozen=True)
class Payload:
    """The content of a message.

    Args:
        tensors: Named dense tensors of any dtype and shape.
        values: JSON-able values (``None``, bool, int, finite float, str, lists and dicts of these).
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Message:
    """One request or reply.

    Args:
        kind: Name of the protocol step, e.g. ``"fit"``.
        run: Identifier of the run.
        round: Round the message belongs to (0-based).
        client: Id of the client that receives the request or sent the reply.
        payload: Tensors and values.
        error: For a reply: why the client could not answer, else ``None``.
    """

    kind: str
    run: str
    round: int
    client: int
    payload: Payload = field(default_factory=Payload)
    error: str | None = None

    def cloned(self) -> Message:
        """A copy that shares no storage with the original: detached, contiguous, on the CPU.

        Raises:
            ValueError: If a payload entry is not a dense tensor.
        """
        tensors = {name: _plain(name, tensor) for name, tensor in self.payload.tensors.items()}
        return replace(self, payload=Payload(tensors, json.loads(_dump(self.payload.values))))

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors plus those of the values as JSON and of the error's text."""
        tensors = sum(t.numel() * t.element_size() for t in self.payload.tensors.values())
        values = json.dumps(self.payload.values, separators=(",", ":"))  # as received: a NaN in it is counted, too
        return tensors + len(values.encode()) + len((self.error or "").encode())

    def encode(self) -> bytes:
        """Serialise: length of the header, JSON header, safetensors body."""
        header = {
            "kind": self.kind,
            "run": self.run,
            "round": self.round,
            "client": self.client,
            "error": self.error,
            "values": dict(self.payload.values),
            "names": list(self.payload.tensors),  # their order, which safetensors does not keep
        }
        head = _dump(header).encode()
        tensors = {name: _plain(name, tensor) for name, tensor in self.payload.tensors.items()}
        return _HEADER.pack(len(head)) + head + safetensors.torch.save(tensors)

    @staticmethod
    def decode(data: bytes) -> Message:
        """Inverse of :meth:`encode`; dtypes, shapes and bits come back exactly.

        Raises:
            ValueError: If it is no message: damaged, cut off, or with values that are not finite.
        """
        try:
            (length,) = _HEADER.unpack_from(data)
            header = json.loads(data[_HEADER.size : _HEADER.size + length])
            tensors = safetensors.torch.load(data[_HEADER.size + length :])
            payload = Payload({name: tensors[name] for name in header.pop("names")}, header.pop("values"))
            message = Message(payload=payload, **header)
            check_payload(payload)
        except (struct.error, SafetensorError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"these {len(data)} bytes are no message ({type(error).__name__}: {error})") from error
        return message


@dataclass(frozen=True)
class NoReply(Message):
    """Stands for a reply that never came: nothing crossed the border, ``error`` says why."""


def check_payload(payload: Payload) -> None:
    """Can this be sent?

    Raises:
        ValueError: For anything but dense tensors and finite JSON values.
        TypeError: For values that are no JSON.
    """
    if not isinstance(payload, Payload) or not isinstance(payload.tensors, Mapping) or not isinstance(payload.values, Mapping):
        raise ValueError(f"A step answers with a Payload of named tensors and named values, not with {payload!r:.200}.")
    for name, tensor in payload.tensors.items():
        _check_dense(name, tensor)
    _dump(payload.values)


def non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Name of the first floating-point tensor that holds a NaN or an infinity, else ``None``."""
    for name, tensor in tensors.items():
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        # A sum is finite only of finite numbers, and costs a tenth; it may overflow, so its word is not the last.
        if not bool(torch.isfinite(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
            return name
    return None


def _plain(name: str, tensor: Tensor) -> Tensor:
    _check_dense(name, tensor)
    return tensor.detach().to("cpu", copy=True).contiguous()


def _check_dense(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
        raise ValueError(
            f"A message holds dense tensors only; entry `{name}` is {getattr(tensor, 'layout', type(tensor).__name__)}."
        )


def _dump(values: Any) -> str:
    return json.dumps(values, allow_nan=False, separators=(",", ":"))
