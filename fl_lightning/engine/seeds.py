"""Random streams: each is a pure function of (run seed, purpose, round, client), so nothing needs to be stored to resume."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch


def derive(seed: int, purpose: str, round: int = -1, client: int = -1) -> int:
    """A 63-bit seed for one stream, by SHA-256: independent of Python's hash seed, process and platform."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{round}/{client}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@cache
def _has_accelerator() -> bool:
    return torch.cuda.is_available() or torch.backends.mps.is_available()


@contextmanager
def stream(seed: int, purpose: str, round: int = -1, client: int = -1) -> Iterator[None]:
    """Run a block under its own seed for ``torch``, ``numpy`` and ``random``; the callers' states come back after it."""
    value = derive(seed, purpose, round, client)
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    if _has_accelerator():
        torch.manual_seed(value)
    else:  # the same, without a stack trace for each backend that might come up later
        torch.default_generator.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
