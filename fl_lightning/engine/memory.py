"""How much memory a process took at most."""

from __future__ import annotations

import resource
import sys


def peak_rss_bytes(children: bool = False) -> int:
    """The most resident memory so far, of this process or of the largest of its ended ``children``.

    Linux counts ``ru_maxrss`` in kilobytes, macOS in bytes.
    """
    peak = resource.getrusage(resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
