"""Intervals against SciPy and by hand."""

import math

import pytest
from scipy import stats

from fl_lightning.reporting.statistics import estimate, paired


def test_by_hand():
    # mean 2, sd 1, n 3; t(0.975, 2) = 4.302653, so half = 4.302653 / sqrt(3) = 2.484138
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.sd, found.number) == (2.0, 1.0, 3)
    assert found.low == pytest.approx(-0.484138, abs=1e-6) and found.high == pytest.approx(4.484138, abs=1e-6)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("values", [[0.81, 0.84, 0.79, 0.86, 0.8], [1e-3, -4.0], [5.0, 5.0, 5.1]])
def test_estimate_is_scipys_t_interval(values, confidence):
    found = estimate(values, confidence)
    low, high = stats.t.interval(confidence, len(values) - 1, loc=stats.tmean(values), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.sd == pytest.approx(stats.tstd(values))


def test_paired_is_scipys_paired_t_test_on_the_common_keys():
    a = {0: 0.81, 1: 0.84, 2: 0.79, 3: 0.9, 7: 0.1}
    b = {3: 0.85, 2: 0.8, 1: 0.8, 0: 0.77, 9: 0.2}
    keys = [0, 1, 2, 3]
    interval = stats.ttest_rel([a[k] for k in keys], [b[k] for k in keys]).confidence_interval(0.95)
    found = paired(a, b)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high)) and found.number == 4
    unpaired = stats.ttest_ind([a[k] for k in keys], [b[k] for k in keys]).confidence_interval(0.95)
    assert not math.isclose(found.low, unpaired.low, rel_tol=0.05)  # pairing matters here, so the test can tell


def test_one_value_has_no_interval_and_none_no_mean():
    assert estimate([0.5]) == estimate([0.5], 0.9) and estimate([0.5]).low is None and estimate([0.5]).mean == 0.5
    assert estimate([]).mean is None and estimate([]).number == 0
    assert paired({0: 1.0}, {1: 2.0}).number == 0
