"""Weighted means by hand: which weights are allowed, in which types they are taken, and over whom in which row."""

import warnings

import pytest
import torch

from fl_lightning.strategies.averaging import average, average_learnt


def models(*values, dtype=torch.float32):
    return [{"w": torch.tensor([v, 10 * v], dtype=dtype)} for v in values]


@pytest.mark.parametrize(
    ("weights", "mean"),
    [([1, 3], 3.5), ([0, 2], 4.0), ([2, 0], 2.0), ([0.25, 0.25], 3.0), ([1e-300, 1e-300], 3.0), ([1e300, 1e300], 3.0)],
)
def test_any_weights_of_positive_sum(weights, mean):
    torch.testing.assert_close(average(models(2.0, 4.0), weights)["w"], torch.tensor([mean, 10 * mean]))


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("weights", [[0, 0], [-1, 3], [3, -1], [-1e-9, 1], [INF, 1], [NAN, 1], [1e308, 1e308]])
def test_all_others_are_an_error_that_shows_them(weights):
    with pytest.raises(ValueError, match="must be non-negative with a positive sum, got ") as error:
        average(models(2.0, 4.0), weights)
    assert str(weights) in str(error.value)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_types_stay_without_a_warning(name):
    dtype = getattr(torch, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a mean over complex numbers that is cast back to floats would warn
        found = average(models(1.0, 2.0, dtype=dtype), [1, 1])["w"]
    assert found.dtype == dtype and found.tolist() == [1.5, 15.0]


def test_imaginary_parts_are_averaged_too():
    found = average([{"z": torch.tensor([1 + 2j])}, {"z": torch.tensor([3 - 4j])}], [1, 3])
    assert found["z"].tolist() == [2.5 - 2.5j]


def test_rows_are_averaged_over_those_who_have_trained_them():
    """Row 0 all: (1 + 3 x 5) / 4; row 1 the first, row 2 the second, row 3 nobody, so it stays. All train ``b``."""
    given = [{"w": torch.full((4, 2), v), "b": torch.full((4,), v)} for v in (1.0, 5.0)]
    before = {"w": torch.full((4, 2), 7.0), "b": torch.full((4,), 7.0)}
    found = average_learnt(given, [1.0, 3.0], [{"w": [2, 3]}, {"w": [1, 3]}], before)
    assert found["w"].tolist() == [[4.0] * 2, [1.0] * 2, [5.0] * 2, [7.0] * 2] and found["b"].tolist() == [4.0] * 4
    assert all(g["w"].eq(v).all() for g, v in zip(given, (1.0, 5.0), strict=True)) and before["w"].eq(7.0).all()


def test_nothing_untrained_is_the_average():
    given = [{"w": torch.rand(3, 2)} for _ in range(3)]
    for told in ([{}, {}, {}], [{"w": []}, {}, {"w": []}]):
        found = average_learnt(given, [1.0, 2.0, 3.0], told, {"w": torch.zeros(3, 2)})
        assert torch.equal(found["w"], average(given, [1.0, 2.0, 3.0])["w"])
