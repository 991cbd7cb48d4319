"""Columns that tell the class are found with a few slips, too; chance, few nodes and one large class are not."""

import numpy as np
import pytest
import scipy.sparse as sp

from datamodules.tables.label_codes import Telling, determining_columns, is_label_code

RANDOM = np.random.default_rng(0)
LABELS = ["red", "green", "blue"] * 40
CODE = np.tile([2.0, 0.0, 1.0], 40)
NOISE = RANDOM.normal(size=120)
SLIPS = np.isin(np.arange(120), (3, 31, 71))


def tell(column, labels=LABELS):
    return determining_columns(sp.csr_matrix(np.asarray(column)[:, None]), ["score"], labels).get("score")


def test_a_code_with_slips_is_one():
    exact, odd, swapped = tell(CODE), tell(np.where(SLIPS, 7, CODE)), tell(np.where(SLIPS, 2 - CODE, CODE))
    assert exact == Telling(3, 3, 120, 120) and str(exact) == "each value has nodes of one class only"
    assert odd == Telling(4, 3, 118, 120)  # the three with a 7 are of three classes, and one of them is right
    assert swapped.right == 118 and str(swapped) == "it tells the class of 118 of 120 nodes"  # the middle one stays
    assert all(is_label_code("score", told, "kind", 3) for told in (exact, odd, swapped))
    assert not is_label_code("score", tell(CODE > 0, ["red" if c else "blue" for c in CODE]), "kind", 2)


def test_a_measurement_around_the_code_tells_as_well():
    told = tell(10 * CODE + NOISE)
    assert told == Telling(0, 0, told.right, 120) and told.right >= 118
    assert not is_label_code("score", told, "kind", 3) and is_label_code("kind_score", told, "kind", 3)
    assert str(Telling(0, 0, 120, 120)) == "it tells the class of 120 of 120 nodes"


@pytest.mark.parametrize(
    ("column", "labels"),
    [
        (CODE + NOISE, LABELS),
        (NOISE, LABELS),
        (np.arange(120.0), LABELS),
        (np.where(np.isin(np.arange(120) % 12, (0, 1)), 7, CODE), LABELS),  # a tenth of slips
        (np.where(SLIPS, 7, CODE)[:48], LABELS[:48]),  # too few nodes to allow for slips
        (10 * CODE[:48] + NOISE[:48], LABELS[:48]),
        (np.arange(120) < 3, ["rare" if i < 6 else "usual" for i in range(120)]),  # 97 % are of one class
        (np.zeros(120), LABELS),
    ],
)
def test_what_proves_nothing(column, labels):
    assert tell(column, labels) is None
