"""Files and folders that programs leave beside tables: nobody's data, whatever their ending is."""

from __future__ import annotations

STARTS = (".", "~$", "__MACOSX")  # hidden, .~lock.x.csv#, ._x.csv; an opened sheet; an unpacked archive
ENDS = ("~", "#", ".bak", ".old", ".orig", ".swp", ".tmp", ".part")  # copies of editors, and what is not yet all there
NAMES = frozenset(("thumbs.db", "desktop.ini"))


def is_stray(name: str) -> bool:
    """Whether a file or folder in a folder of data is no client's by its name."""
    folded = name.lower()
    return name.startswith(STARTS) or folded.endswith(ENDS) or folded in NAMES
