"""Random streams: pure functions of (seed, purpose, round, client), and nobody else's state is touched."""

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fl_lightning.engine import seeds
from fl_lightning.engine.seeds import derive, stream


def test_values_by_sha256_of_the_name():
    # sha256 of "0/fit/3/1" begins 78724b2e721071ee, of "0/fit/-1/-1" 4ced938b9b3b312b (sha256sum); halved.
    assert derive(0, "fit", 3, 1) == 8590766067992082748
    assert derive(0, "fit") == 1556167178368710310


def test_streams_do_not_collide():
    names = list(itertools.product(range(3), ("fit", "val", "test"), range(-1, 12), range(-1, 12)))
    assert len({derive(*name) for name in names}) == len(names)
    assert all(0 <= derive(*name) < 2**63 for name in names)


def test_names_are_not_ambiguous():
    assert derive(1, "fit", 11, 1) != derive(1, "fit", 1, 11)
    assert derive(11, "fit", 1, 1) != derive(1, "fit", 11, 1)


def draws():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), [random.random() for _ in range(3)]


def test_a_stream_restores_the_callers_states_also_after_an_error():
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    expected = draws()
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    try:
        with stream(0, "fit", 1, 2):
            draws()
            raise KeyError
    except KeyError:
        pass
    assert draws() == expected


def test_a_stream_repeats_itself_and_differs_from_others():
    found = {}
    for name in ((0, "fit", 1, 2), (0, "fit", 1, 3), (0, "fit", 2, 2), (0, "val", 1, 2), (1, "fit", 1, 2)):
        with stream(*name):
            found[name] = draws()
        draws()
        with stream(*name):
            assert draws() == found[name]
    for kind in range(3):
        assert len({tuple(d[kind]) for d in found.values()}) == len(found)


@pytest.mark.parametrize(("there", "in_use"), [(True, True), (True, False), (False, True), (False, False)])
def test_the_states_of_gpus_come_back_too_if_there_are_any_in_use(monkeypatch, there, in_use):
    calls, states = [], ["state of gpu 0"]
    monkeypatch.setattr(seeds, "_has_accelerator", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: calls.append("get") or states)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", calls.append)
    with stream(0, "fit"):
        assert calls == (["get"] if there and in_use else [])
    assert calls == (["get", states] if there and in_use else [])


@pytest.mark.parametrize(("cuda", "mps"), [(True, False), (False, True), (False, False)])
def test_accelerators_are_seeded_with_the_cpu(monkeypatch, cuda, mps):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    everywhere, here = [], []
    monkeypatch.setattr(torch, "manual_seed", everywhere.append)
    monkeypatch.setattr(torch, "default_generator", SimpleNamespace(manual_seed=here.append))
    seeds._has_accelerator.cache_clear()
    try:
        with stream(5, "fit", 1, 2):
            pass
    finally:
        seeds._has_accelerator.cache_clear()
    assert (everywhere, here) == (([derive(5, "fit", 1, 2)], []) if cuda or mps else ([], [derive(5, "fit", 1, 2)]))


def test_a_stream_without_round_and_client_is_that_of_neither():
    with stream(7, "setup"):
        assert torch.initial_seed() == derive(7, "setup", -1, -1)
    with stream(7, "setup", client=3):
        assert torch.initial_seed() == derive(7, "setup", -1, 3)


def test_numpy_is_seeded_with_the_last_32_bits():
    with stream(7, "fit", 1, 2):
        drawn = np.random.rand(3).tolist()
    assert drawn == np.random.RandomState(derive(7, "fit", 1, 2) % 2**32).rand(3).tolist()
