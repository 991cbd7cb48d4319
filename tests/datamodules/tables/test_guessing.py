"""Counters and ids by hand: what is taken for one, and what looks like one and is a measurement."""

import numpy as np
import pytest

from datamodules.tables.guessing import counter_or_id, date_or_batch, number_owners

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
        # Damaged rows have left some numbers out: up to a twentieth, and one of a few.
        ("x", np.where(np.isin(ROWS, (4, 30, 59)), np.nan, ROWS), "counts the rows (0 to 58, nearly each once)"),
        ("x", ROWS[:12][ROWS[:12] != 5][::-1], "counts the rows (0 to 11, nearly each once)"),
        ("x", ROWS + 2, "counts the rows (2 to 61, each once)"),
        ("x", np.delete(ROWS, (7, 30)) + 501, "goes on by 1 from row to row (501 to 560, with gaps)"),
        ("x", 20240100.0 + ROWS % 9, "has dates"),
        ("x", [19991231] * 10 + [20240131, 20240229], "has dates"),
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
        ("x", ROWS[ROWS % 10 != 3]),  # a tenth is missing
        ("x", np.delete(ROWS, range(0, 60, 12)) + 501),
        ("x", 20241300.0 + 100 * (ROWS % 9)),  # no months
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
    assert counter_or_id("x", blank, owners) == "counts the rows (0 to 29, nearly each once), at each client"  # there is no 7
    several = np.where(np.isin(np.arange(60), (7, 8, 9)), np.nan, rows)
    assert counter_or_id("x", several, owners) is None
    assert counter_or_id("x", np.where(owners == 2, 50.0, rows), owners) is None
    assert counter_or_id("x", np.where(owners == 1, 7 * rows, rows), owners) is None
    nobody = np.where(owners == 2, -1, owners)
    assert counter_or_id("x", np.where(owners == 2, 50.0, rows), nobody).endswith("at each client")
    assert counter_or_id("x", rows[:9], np.arange(9) // 3) is None  # too few rows to tell


@pytest.mark.parametrize(
    "name", ["date", "Year", "assay_date", "dateMeasured", "batch", "batch_no", "Plate ID", "plate 2", "lot", "year [CE]"]
)
def test_dates_and_batches_by_name(name):
    assert date_or_batch(name, ROWS / 3) == "is a date or a batch by its name"


@pytest.mark.parametrize("name", ["y", "half_life [year]", "cost_per_year", "batch_yield", "plate_count", "update", "id", ""])
def test_labels_that_only_look_like_dates_and_batches(name):
    assert date_or_batch(name, ROWS / 3) is None
    assert date_or_batch(name, [20240131, np.nan]) == "has dates"
