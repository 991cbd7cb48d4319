"""Results of costly pure functions on disk: arrays and strings in an ``.npz`` without pickle, keyed by content.

The key hashes the input, the options, the version of RDKit and of this format, so nothing stale is ever read. Files are
written whole or not at all; one that cannot be read, or whose arrays do not fit together, is computed anew, and one that
cannot be written is done without.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from rdkit import rdBase

FORMAT = "2"
STRINGS = ("canonical", "scaffold", "reason")  # arrays that `pack_strings` made
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


def cached(folder: str | Path | None, key: str, compute: Callable[[], Arrays], fault: Callable[[Arrays], str]) -> Arrays:
    """The arrays stored under ``key`` in ``folder``, or those of ``compute()``, which are then stored.

    Args:
        folder: Where; ``None`` = nothing is stored.
        key: See :func:`content_key`.
        compute: Makes the arrays.
        fault: What is wrong with stored arrays, ``""`` where nothing is; see :func:`fault_of`.
    """
    if folder is None:
        return compute()
    path = Path(folder) / f"{key}.npz"
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        wrong = fault(arrays)
        if not wrong:
            return arrays
        log.warning("cache file %s does not hold what it should (%s): computed anew", path, wrong)
    except FileNotFoundError:
        pass
    except Exception as error:  # noqa: BLE001  whatever a damaged file provokes
        log.warning("unreadable cache file %s (%s): computed anew", path, error)
    arrays = compute()
    try:
        _write(path, arrays)
    except OSError as error:
        log.warning("cannot cache in %s (%s): set `data.init_args.cache_dir`", path.parent, error)
    return arrays


def fault_of(arrays: Arrays, empty: Arrays, size: int, counted_by: Mapping[str, str]) -> str:
    """What is wrong with the arrays of a table, ``""`` where nothing is.

    Args:
        arrays: As they were found.
        empty: The arrays of a table without rows: names, types, and shapes behind the first axis.
        size: Rows R. Arrays have R entries, packed strings R line ends,
        counted_by: but these as many entries as another array sums up to (atoms of all rows).
    """
    if arrays.keys() != empty.keys():
        return f"arrays {', '.join(sorted(arrays))} instead of {', '.join(sorted(empty))}"
    for name, array in arrays.items():
        if array.dtype != empty[name].dtype or array.shape[1:] != empty[name].shape[1:] or array.ndim != empty[name].ndim:
            return f"`{name}` is {array.dtype} {array.shape}"
    for name, array in arrays.items():
        if name in STRINGS:
            found, wanted = int((array == ord("\n")).sum()), size
        else:
            found, wanted = len(array), int(arrays[counted_by[name]].sum()) if name in counted_by else size
        if found != wanted:
            return f"`{name}` has {found} entries instead of {wanted}"
    return ""


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
