"""Counters and ids by hand: what is taken for one, and what looks like one and is a measurement."""

import numpy as np
import pytest

from datamodules.tables.guessing import counter_or_id, number_owners

ROWS = np.arange(60.0)
SIX = np.random.default_rng(0).choice(np.arange(100_000.0, 1_000_000), 60, replace=False)
COUNTS = np.exp(np.random.default_rng(0).normal(13, 2, 60)).round()  # of inhabitants


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("x", ROWS, "counts the rows (0 to 59, each once)"),
        ("x", np.random.default_rng(0).permutation(60) + 1, "counts the rows (1 to 60, each once)"),
        ("x", ROWS[:10], "counts the rows (0 to 9, each once)"),
        ("x", np.where(ROWS == 59, np.nan, ROWS), "counts the rows (0 to 58, each once)"),
        ("x", ROWS + 501, "goes on by 1 from row to row (501 to 560)"),
        ("customer_id", [7, 7, 8, 9], "is an id by its name"),  # a customer with two rows
        ("PubChem CID", 10000 + 7 * ROWS, "is an id by its name"),
        ("CustomerID", 10000 + 7 * ROWS, "is an id by its name"),
        ("num", [4, 9, 2], "is a running number by its name, and no number repeats"),
        ("customer_number", [*range(300, 0, -3), 9], "is a running number by its name, and nearly no number repeats"),
        ("Row No.", [4, 9, 2], "is a number of rows by its name"),
        ("rowIndex", ROWS % 30, "is a number of rows by its name"),  # of two tables, one behind the other
        ("rownum", ROWS % 30, "is a number of rows by its name"),
        ("customer", 100 + 7 * ROWS, "is an id by its name, and no number repeats"),
        ("x", SIX, "has whole numbers of 6 digits, and each is there once, as ids are"),
        ("x", np.append(SIX, SIX[:3]), "has whole numbers of 6 digits, and nearly each is there once, as ids are"),
        ("x", np.where(ROWS < 5, np.nan, 200 * SIX + 7), "has whole numbers of 9 digits, and each is there once, as ids are"),
    ],
)
def test_counters_and_ids(name, values, reason):
    assert counter_or_id(name, values) == reason


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("x", ROWS[:9]),  # too few rows to tell
        ("x", ROWS + 0.5),
        ("x", 3 * ROWS),
        ("income", 1000 + ROWS[:30]),
        ("age", ROWS % 30),
        ("x", np.where(ROWS == 30, 31, ROWS)),  # one repeats
        ("number", ROWS % 30),  # a measurement: it repeats
        ("num_atoms", 7 * ROWS),
        ("valid", ROWS % 5),
        ("refraction_index", ROWS / 10),
        ("paid", [0, 0, 2, 1]),
        ("has_id", [0, 1, 1, 0]),  # yes and no
        ("compound", 1 + ROWS % 30),  # measured twice each: nothing but the name says what it is
        ("customers", 7 + 3 * ROWS),
        ("user", 5 + 3 * ROWS[:30]),  # two digits
        ("weight", np.append(SIX, SIX[:10])),  # a measurement repeats
        ("price", 10 * (SIX // 10)),
        ("loss", -SIX),
        ("mass", SIX + 0.5),
        ("inhabitants", COUNTS),
        ("steps", 9_000 + 13 * ROWS),  # four digits
        ("x", SIX[:9]),
        ("id", []),
        ("", 7 * ROWS),
    ],
)
def test_measurements(name, values):
    assert counter_or_id(name, values) is None


def test_what_counts_the_rows_of_each_client_is_a_counter():
    owners = number_owners([*"a" * 30, *"b" * 27, *"c" * 3])
    assert owners.tolist() == [0] * 30 + [1] * 27 + [2] * 3 and number_owners(["", "x", ""]).tolist() == [-1, 0, -1]
    rows = np.concatenate([np.arange(30.0), 26 - np.arange(27.0), np.arange(3.0)])
    assert counter_or_id("x", rows) is None
    assert counter_or_id("x", rows, owners) == "counts the rows (0 to 29, each once), at each client"
    assert counter_or_id("num", 7 * rows, owners) == "is a running number by its name, and no number repeats, at each client"
    mixed = np.random.default_rng(0).permutation(60)
    assert counter_or_id("x", rows[mixed], owners[mixed]).startswith("counts the rows (0 to 29")
    blank = np.where(np.arange(60) == 7, np.nan, rows)
    assert counter_or_id("x", blank, owners) is None  # the first client has no 7
    assert counter_or_id("x", np.where(owners == 2, 50.0, rows), owners) is None
    assert counter_or_id("x", np.where(owners == 1, 7 * rows, rows), owners) is None
    nobody = np.where(owners == 2, -1, owners)
    assert counter_or_id("x", np.where(owners == 2, 50.0, rows), nobody).endswith("at each client")
    assert counter_or_id("x", rows[:9], np.arange(9) // 3) is None  # too few rows to tell
