"""Results of costly pure functions on disk: arrays and strings in an ``.npz`` without pickle, keyed by content.

The key hashes the input, the options, the version of RDKit and of this format, so nothing stale is ever read. Files are
written whole or not at all; one that cannot be read is computed anew, and one that cannot be written is done without.
"""
from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from rdkit import rdBase

FORMAT = "1"
Arrays = dict[str, np.ndarray]
log = logging.getLogger(__name__)


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/fl_lightning/molecules``, by default below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fl_lightning" / "molecules"


def content_key(kind: str, options: str, items: Iterable[str]) -> str:
    """SHA-256 of the rows, the options, RDKit's version and this format's version."""
    digest = hashlib.sha256(f"{FORMAT}\0{rdBase.rdkitVersion}\0{kind}\0{options}\0".encode())
    for item in items:
        data = item.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def cached(folder: str | Path | None, key: str, compute: Callable[[], Arrays]) -> Arrays:
    """The arrays stored under ``key`` in ``folder``, or those of ``compute()``, which are then stored."""
    if folder is None:
        return compute()
    path = Path(folder) / f"{key}.npz"
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        log.warning("unreadable cache file %s (%s): computed anew", path, error)
    arrays = compute()
    try:
        _write(path, arrays)
    except OSError as error:
        log.warning("cannot cache in %s (%s): set `data.init_args.cache_dir`", path.parent, error)
    return arrays


def _write(path: Path, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def pack_strings(strings: list[str]) -> np.ndarray:
    """Strings without line breaks as one uint8 array, each ended by a line break."""
    return np.frombuffer("".join(text + "\n" for text in strings).encode(), dtype=np.uint8)


def unpack_strings(packed: np.ndarray) -> list[str]:
    """Inverse of ``pack_strings``."""
    return packed.tobytes().decode().split("\n")[:-1]
