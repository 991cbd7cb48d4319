"""Our arrays say what scikit-learn's forests say, to the bit."""

import numpy as np
import pytest
import torch

from lit_models.forest.arrays import fault_of, predict
from lit_models.forest.growing import Growth, fitted, grow, require_sklearn

pytest.importorskip("sklearn", reason="needs the extra `fl-lightning[forest]`")
GROWTH = Growth(num_trees=7, max_features=None, min_samples_leaf=1, num_jobs=1)


def table(classes, size=40, features=12):
    draw = np.random.default_rng(0)
    x = draw.poisson(0.7, (size, features)).astype(np.float32)
    y = x[:, 0] - 0.3 * x[:, 3] * x[:, 1] + 0.5 * draw.standard_normal(size)
    return x, (y > 0.4).astype(np.float64) if classes else y


@pytest.mark.parametrize("classes", [False, True])
def test_the_same_bits_as_scikit_learn(classes):
    x, y = table(classes)
    theirs = fitted(x[:30], y[:30], classes, GROWTH, seed=3)
    wanted = theirs.predict_proba(x)[:, 1] if classes else theirs.predict(x)
    arrays = grow(torch.from_numpy(x[:30]).byte(), torch.from_numpy(y[:30, None]), classes, GROWTH, [3])
    assert fault_of(arrays, 1, x.shape[1]) is None and arrays["forest_weight"].tolist() == [30.0]
    assert np.array_equal(predict(arrays, torch.from_numpy(x), 1, 0.0)[:, 0].numpy(), wanted)
    assert len(set(np.round(wanted, 6))) > 5


def test_each_task_learns_from_the_molecules_that_have_its_label():
    x, y = table(classes=True)
    labels = torch.from_numpy(np.stack([y, np.where(np.arange(len(y)) < 15, y, np.nan), np.full(len(y), np.nan)], 1))
    arrays = grow(torch.from_numpy(x), labels, True, GROWTH, [5, 6, 7])
    assert arrays["forest_task"].tolist() == [0, 1] and arrays["forest_weight"].tolist() == [40.0, 15.0]
    found = predict(arrays, torch.from_numpy(x), 3, 0.5)
    assert np.array_equal(found[:, 1].numpy(), fitted(x[:15], y[:15], True, GROWTH, 6).predict_proba(x)[:, 1])
    assert found[:, 2].tolist() == [0.5] * 40


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_labels_of_one_class_alone_are_predicted_everywhere(label):
    x, _ = table(classes=True)
    arrays = grow(torch.from_numpy(x), torch.full((40, 1), label), True, GROWTH, [0])
    assert predict(arrays, torch.from_numpy(x), 1, 0.5).unique().tolist() == [label]


def test_leaves_alone_have_values_and_their_size_is_kept():
    x, y = table(classes=False)
    arrays = grow(torch.from_numpy(x), torch.from_numpy(y[:, None]), False, GROWTH, [0])
    assert bool((arrays["value"][arrays["feature"] >= 0] == 0).all())
    larger = grow(torch.from_numpy(x), torch.from_numpy(y[:, None]), False, Growth(7, "sqrt", 10, 1), [0])
    assert len(larger["feature"]) < len(arrays["feature"]) / 3 and len(larger["tree_start"]) == 8


def test_a_missing_scikit_learn_is_told_by_name(monkeypatch):
    monkeypatch.setattr("lit_models.forest.growing.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"scikit-learn, which is not installed: `pip install 'fl-lightning\[forest\]'`"):
        require_sklearn()
