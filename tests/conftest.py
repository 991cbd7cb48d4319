"""Quiet, seeded tests; `federations.py` beside this file holds the small generated federations."""

import sys
import warnings
from pathlib import Path

import pytest
import torch

# pytest puts this folder first on the path, where `fl_lightning/`, without `__init__.py`, would hide the package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


@pytest.fixture(autouse=True)
def _quiet_and_one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _no_seed_from_elsewhere(monkeypatch):
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
