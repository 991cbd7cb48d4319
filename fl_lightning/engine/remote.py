"""Data that the server never sees: it knows of each client what the client tells at the first contact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning as L

from fl_lightning.engine.replies import Expected, sample_count
from fl_lightning.engine.statistics import fault

CONTACT = Expected(
    {
        "num_train_samples": sample_count,
        "schema": lambda value: None if value is None or isinstance(value, Mapping) else "a mapping or null",
        "fingerprint": lambda value: None,
        "initial": lambda value: None if isinstance(value, str) else "a SHA-256 as text",
        "statistics": fault,
        "start": lambda value: None if _are_hashes(value) else "hashes by name",
        "unlearnt": lambda value: None if _are_hashes(value) else "hashes by name",
    }
)
"""What a client elsewhere tells at the first contact."""


def _are_hashes(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(sha, str) for sha in value.values())


class AtSites(L.LightningDataModule):
    """``data:`` of a server that has no data. Nothing can be scored on the server; every client scores on its own data.

    Needs an engine that can ask the clients: ``fl_lightning.flower.Flower``.
    """


class SiteData(L.LightningDataModule):
    """Stands for the data module of a client elsewhere.

    Args:
        told: What the client told: ``num_train_samples``, ``schema`` (or ``None``), ``fingerprint``.
        site: Its name, for messages.
    """

    def __init__(self, told: Mapping[str, Any], site: str = "") -> None:
        super().__init__()
        self.num_train_samples = int(told["num_train_samples"])
        self.schema, self.site = told["schema"], site
        self._fingerprint, self._statistics = told["fingerprint"], told.get("statistics", {})

    def statistics(self) -> Mapping[str, Any]:
        """What the client tells of its data before they use what is agreed."""
        told: Mapping[str, Any] = self._statistics
        return told

    def fingerprint(self) -> Any:
        """That of the client's data, as the client computed it."""
        return self._fingerprint
