"""Numbers that stand for a blank and slips are found by hand; tails, counts and classes are not."""

import numpy as np
import pytest

from datamodules.tables.measured import Measured
from datamodules.tables.odd_values import find_odd_values

NOISE = np.random.default_rng(0).normal(size=200)


def find(values, owner=None):
    return find_odd_values(
        [Measured("values of `f`", np.asarray(values, dtype=np.float32))],
        np.full(len(values), -1) if owner is None else owner,
        lambda place: {"row": place, "id": f"n{place}", "file": "a.csv", "file_row": place},
    )


def put(value, *places, among=NOISE):
    return np.where(np.isin(np.arange(len(among)), places), value, among)


def test_a_number_that_stands_for_a_blank():
    (found,) = find(put(-999, 4, 40, 44))
    assert (found["kind"], found["client"], found["count"]) == ("sentinels", None, 3)
    assert found["message"].startswith("3 of 200 values of `f` are -999, but the others are from -")
    assert found["message"].endswith(": a.csv row 4 (id 'n4'); a.csv row 40 (id 'n40'); a.csv row 44 (id 'n44').")
    assert [row["file_row"] for row in found["rows"]] == [4, 40, 44] and "leave the field blank" in found["remedy"]
    kinds = [(f["kind"], f["count"]) for f in find(put(-9999, 7, among=put(9999, *range(20, 80))))]
    assert kinds == [("sentinels", 1), ("sentinels", 60)]  # in many rows, and in one


@pytest.mark.parametrize(("value", "among"), [(-1, np.exp(NOISE)), (-99, 5 + NOISE), (-999.9, 300 + 80 * NOISE)])
def test_other_numbers_that_stand_for_a_blank(value, among):
    assert [(f["kind"], f["count"]) for f in find(put(value, 3, 9, among=among))] == [("sentinels", 2)]


@pytest.mark.parametrize(("value", "among"), [(1e9, NOISE), (352, 3.5 + 0.5 * NOISE), (60, 6 + NOISE), (-2500.5, NOISE)])
def test_a_slip_is_told_by_row(value, among):
    (found,) = find(put(value, 16, among=among))
    assert found["kind"] == "outliers" and [row["id"] for row in found["rows"]] == ["n16"]
    assert f": {value:.7g} in a.csv row 16 (id 'n16')." in found["message"]


def test_a_slip_among_counts_that_are_mostly_zero():
    counts = np.where(NOISE > 1, np.round(10 * NOISE), 0)
    assert [f["kind"] for f in find(put(1e6, 5, among=counts))] == ["outliers"] and find(counts) == []


@pytest.mark.parametrize(
    "values",
    [
        NOISE,
        np.exp(2 * NOISE),  # incomes
        np.round(np.exp(3 * NOISE)),
        np.random.default_rng(1).standard_t(2, size=200),
        NOISE > 1.5,
        np.where(NOISE > 0, 1, -1),
        put(-1, 3, 9, among=np.round(NOISE) + 2),  # zero is among them
        put(999, 3, 9, among=900 + 60 * NOISE),
        put(-1, 3, among=np.exp(NOISE)),
        put(99, 4, among=NOISE * 40),
        np.full(200, np.nan),
        put(1e9, 3)[:9],
    ],
)
def test_measurements(values):
    assert find(values) == []


def test_a_site_in_another_unit_hides_nothing_of_the_others():
    owner = np.arange(200) % 2
    values = put(1e6, 9, among=put(-999, 3, 5, among=np.where(owner == 0, 1e4 * (5 + NOISE), 5 + NOISE)))
    assert [(f["kind"], [row["row"] for row in f["rows"]]) for f in find(values, owner)] == [
        ("sentinels", [3, 5]),
        ("outliers", [9]),
    ]
    assert find(values) == []
