"""Independent random streams from one seed: one generator per purpose, so that no draw depends on what ran before
it."""

import hashlib

import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 32-bit seed for one purpose, for example ``derive_seed(seed, "split")``: SHA-256 of the seed and the purpose.

    Two purposes of one seed give unrelated streams, and the value depends on no library version.
    """
    text = "/".join(str(part) for part in (int(seed), *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator that is seeded for one purpose; the global stream is not touched."""
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))
