"""What one client remembers between two requests. It never leaves the client."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class ClientStore:
    """Private state of a client: named tensors and JSON values. Stored tensors are never changed in place.

    A client's code may be rebuilt between any two requests (as it is across machines), so whatever must survive is here.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.values: dict[str, Any] = {}

    def draft(self) -> ClientStore:
        """A shallow copy to work on; it replaces the store only when the request was answered."""
        other = ClientStore()
        other.tensors, other.values = dict(self.tensors), dict(self.values)
        return other

    def section(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under ``prefix/``, without the prefix."""
        start = f"{prefix}/"
        return {name[len(start) :]: tensor for name, tensor in self.tensors.items() if name.startswith(start)}

    def put_section(self, prefix: str, tensors: dict[str, Tensor]) -> None:
        """Replace everything under ``prefix/``."""
        start = f"{prefix}/"
        self.tensors = {n: t for n, t in self.tensors.items() if not n.startswith(start)}
        self.tensors.update({start + name: tensor for name, tensor in tensors.items()})

    def part(self, name: str) -> ClientStore:
        """A memory within this one: what a client remembers of another model than its own, say. A copy, to be put back."""
        part = ClientStore()
        part.tensors, part.values = self.section(name), dict(self.values.get(name, {}))
        return part

    def put_part(self, name: str, part: ClientStore) -> None:
        """Replace the memory of this name."""
        self.put_section(name, part.tensors)
        if part.values:
            self.values[name] = dict(part.values)
        else:
            self.values.pop(name, None)

    def same_as(self, other: ClientStore) -> bool:
        """Whether both hold the very same tensors and equal values."""
        if self.tensors.keys() != other.tensors.keys() or self.values != other.values:
            return False
        return all(tensor is other.tensors[name] for name, tensor in self.tensors.items())

    def __bool__(self) -> bool:
        return bool(self.tensors or self.values)

    def save(self, path: Path) -> None:
        """Write tensors and JSON to ``path``; loadable with ``weights_only=True``."""
        write_tensors(path, self.tensors, self.values)

    @staticmethod
    def load(path: Path) -> ClientStore:
        """Inverse of :meth:`save`; a missing file is an empty store."""
        store = ClientStore()
        if path.is_file():
            store.tensors, store.values = read_tensors(path)
        return store


def write_tensors(path: Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Write ``{"tensors": ..., "values": JSON}`` durably (fsync)."""
    with path.open("wb") as file:
        torch.save({"tensors": dict(tensors), "values": json.dumps(values)}, file)
        file.flush()
        os.fsync(file.fileno())


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Inverse of :func:`write_tensors`; nothing but tensors and JSON is ever constructed."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    return content["tensors"], json.loads(content["values"])
