"""Random streams: pure functions of (seed, purpose, round, client), and nobody else's state is touched."""

import itertools
import random

import numpy as np
import torch

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
