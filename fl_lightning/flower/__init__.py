"""A federation across machines, on Flower: the same config, strategies and bits as in one process.

``fl-lightning fit --config X --federation.engine fl_lightning.flower.Flower``; docs/deployment.md. Needs the extra
``fl-lightning[flower]``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_lightning.engine.remote import AtSites
    from fl_lightning.flower.engine import Flower

__all__ = ["AtSites", "Flower"]


def __getattr__(name: str) -> Any:
    """Imported on first use: the commands of a site and of a server need no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'fl_lightning.flower' has no attribute {name!r}")
    return getattr(import_module("fl_lightning.engine.remote" if name == "AtSites" else "fl_lightning.flower.engine"), name)
