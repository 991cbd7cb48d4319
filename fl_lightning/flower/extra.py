"""Is Flower there, in the version that the adapters were written for?"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

MINOR = "1.42"


def require_flower() -> None:
    """Raises:
    ValueError: If not, with what to install.
    """
    if sys.version_info < (3, 11):
        raise ValueError(
            "A federation across machines needs Python 3.11 or newer (Flower does); this is "
            f"{sys.version_info.major}.{sys.version_info.minor}. Everything else of fl-lightning runs here."
        )
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise ValueError(
            "A federation across machines needs Flower, which is not installed: `pip install 'fl-lightning[flower]'` "
            f"(or `pip install 'flwr=={MINOR}.*'`). Within one machine use `fl_lightning.engine.WorkerProcesses`."
        ) from None
    if not found.startswith(f"{MINOR}."):
        raise ValueError(f"flwr {found} is installed, but fl-lightning needs flwr {MINOR}: `pip install 'flwr=={MINOR}.*'`.")
