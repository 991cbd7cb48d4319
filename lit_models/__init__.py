"""LightningModules and every client-side equation; they run as they are under a stock ``lightning.Trainer``."""

from lit_models.base import LitGraphModule as LitGraphModule
from lit_models.base import SampleLosses as SampleLosses
from lit_models.base import snapshot as snapshot
