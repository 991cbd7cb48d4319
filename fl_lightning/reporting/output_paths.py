"""Places that a user names for output: asked before the work that is to be written there. Needs no torch."""

from __future__ import annotations

import os
from pathlib import Path


def make_folder(folder: Path, key: str) -> None:
    """Make a folder in which files will be written, with those above it.

    Args:
        folder: The folder.
        key: What named it: a key of the config or an option.

    Raises:
        ValueError: It cannot be made, or not be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(no_folder(folder, key, error)) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"`{key}`: nothing can be written in `{folder}` (no permission). Make it writable, or name another.")


def no_folder(folder: Path, key: str, error: OSError) -> str:
    """The sentence about a folder that cannot be made."""
    return f"`{key}`: the folder `{folder}` cannot be made ({error.strerror}). Make room for it, or name another."


def check_file(path: Path, key: str) -> None:
    """Can a file be written there?

    Raises:
        ValueError: There is no such folder, the folder or the file cannot be written, or it is a folder itself.
    """
    folder = path.parent
    if not folder.is_dir():
        raise ValueError(f"`{key} {path}`: there is no folder `{folder}`. Make it, or name another.")
    if path.is_dir():
        raise ValueError(f"`{key} {path}` is a folder. Name a file in it.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ValueError(f"`{key} {path}` cannot be written (no permission). Name another file.")
