"""A federation across machines, on Flower: the same config, strategies and bits as in one process.

``fl-lightning fit --config X --federation.engine fl_lightning.flower.Flower``; docs/deployment.md. Needs the extra
``fl-lightning[flower]``.
"""

from fl_lightning.engine.remote import AtSites
from fl_lightning.flower.engine import Flower

__all__ = ["AtSites", "Flower"]
