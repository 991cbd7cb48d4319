"""Measurements that a site writes otherwise are found by hand, and sites that merely differ are not."""

import numpy as np
import pytest

from datamodules.tables.measured import Measured
from datamodules.tables.sites_apart import find_constants, find_sites_apart

OWNER, CLIENTS = np.repeat([0, 1, 2], 40), ["a", "b", "c"]
NOISE = np.random.default_rng(0).normal(size=120)


def find(values, owner=OWNER, clients=CLIENTS):
    return find_sites_apart([Measured("labels of `y`", np.asarray(values, dtype=np.float32))], owner, clients)


def at(client, values, otherwise):
    return np.where(client == OWNER, values, otherwise)


@pytest.mark.parametrize("spread", [20, 60])
def test_kelvin_among_celsius(spread):
    celsius = 150 + spread * NOISE
    (found,) = find(at(2, celsius + 273.15, celsius))
    assert (found["kind"], found["client"], found["count"]) == ("range_differs", 2, 40)
    assert found["message"].startswith("The labels of `y` of client 'c' are from ")
    assert found["message"].endswith("the medians are about 273.15 apart, as kelvin and degrees Celsius are.")
    assert [f["client"] for f in find(at(1, celsius, celsius + 273.15))] == [1]  # the others are in kelvin


def test_another_zero_without_a_known_cause():
    (found,) = find(at(0, NOISE + 8, NOISE))
    assert found["message"].endswith("is it another unit, or another thing that was measured?")
    assert found["remedy"] == "Convert them in the file, or nothing if this is meant."
    blank = np.where(np.arange(120) % 40 < 31, np.nan, at(0, NOISE + 8, NOISE))
    assert find(blank) == []  # nine values a site


def test_another_sign():
    potency = 6 + 0.8 * NOISE
    (found,) = find(at(1, -potency, potency))
    assert found["kind"] == "sign_differs" and found["client"] == 1 and "client 'b' are negative (from -" in found["message"]
    assert "those of the others positive (from 4.14" in found["message"] and "log and -log?" in found["message"]
    assert [f["kind"] for f in find(at(1, potency, -potency))] == ["sign_differs"]
    assert [f["kind"] for f in find(at(1, -potency, potency), np.minimum(OWNER, 1), ["a", "b"])] == []  # b has both signs


def test_another_unit_is_told_once_for_each_site():
    amounts = np.exp(NOISE)
    (found,) = find(at(1, 1000 * amounts, amounts))
    assert found["kind"] == "scale_differs" and found["client"] == 1 and "are about 1.5e+03 times" in found["message"]
    two = find((amounts * np.where(OWNER == 1, 1e-3, 1))[:80], OWNER[:80], CLIENTS[:2])
    assert [(f["kind"], f["client"]) for f in two] == [("scale_differs", 0)]  # one of the two


@pytest.mark.parametrize(
    "values",
    [
        NOISE,
        NOISE + 2 * OWNER,  # a site after the other, each near the next
        np.exp(NOISE) * 30.0**OWNER,
        OWNER,  # the site itself
        (NOISE > 0) * 1000.0,
        at(2, 0, NOISE),
        at(2, np.nan, NOISE),
        np.full(120, np.nan),
        at(0, NOISE + 4, NOISE),  # far, and some values are among the others'
        -np.abs(NOISE) * (1 + OWNER) + (OWNER == 2) * 3,
    ],
)
def test_sites_that_merely_differ(values):
    assert find(values) == []


def test_labels_that_are_all_the_same():
    def constants(values, clients=CLIENTS):
        return find_constants([Measured("labels of `y`", np.asarray(values, dtype=float))], OWNER, clients)

    (found,) = constants(np.full(120, -2.0))
    assert (found["kind"], found["client"], found["count"]) == ("constant_labels", None, 120)
    assert found["message"] == "All 120 labels of `y` are -2: there is nothing to learn."
    (found,) = constants(at(1, -2.0, NOISE))
    assert found["client"] == 1 and found["message"] == (
        "All 40 labels of `y` of client 'b' are -2; those of the others are not."
    )
    assert constants(NOISE) == constants(np.full(120, np.nan)) == constants(at(1, -2.0, NOISE), ()) == []
    assert constants(np.where(np.arange(120) == 50, 1.0, np.nan)) == []  # a single label
