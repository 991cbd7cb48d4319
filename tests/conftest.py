"""Quiet, seeded tests; `federations.py` beside this file holds the small generated federations."""

import warnings

import pytest
import torch


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
