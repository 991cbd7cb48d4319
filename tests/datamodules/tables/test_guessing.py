"""Counters and ids by hand: what is taken for one, and what looks like one and is a measurement."""

import numpy as np
import pytest

from datamodules.tables.guessing import counter_or_id

ROWS = np.arange(60.0)


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
        ("Row No.", [4, 9, 2], "is a running number by its name, and no number repeats"),
        ("rowIndex", [4, 9, 2], "is a running number by its name, and no number repeats"),
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
        ("id", []),
        ("", 7 * ROWS),
    ],
)
def test_measurements(name, values):
    assert counter_or_id(name, values) is None
