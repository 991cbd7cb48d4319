"""Trees as arrays: predictions by hand, what is told of nonsense, and forests put one behind the other."""

import pytest
import torch

from lit_models.forest.arrays import AT_ONCE, LAYOUT, fault_of, forest_mean, join, no_forest, predict

X = torch.tensor([[0, 0], [1, 0], [1, 3], [2, 0]], dtype=torch.uint8)


def arrays(task=0, weight=1.0, shift=0.0):
    """Two trees: a stump on input 0 at 1 (1 goes left), and input 0 at 0.5, then input 1 at 2.5."""
    lists = {
        "feature": [0, -1, -1, 0, -1, 1, -1, -1],
        "threshold": [1.0, 0, 0, 0.5, 0, 2.5, 0, 0],
        "left": [1, -1, -1, 1, -1, 3, -1, -1],
        "right": [2, -1, -1, 2, -1, 4, -1, -1],
        "value": [0, 10 + shift, 20 + shift, 0, 1 + shift, 0, 2 + shift, 3 + shift],
        "tree_start": [0, 3, 8],
        "forest_start": [0, 2],
        "forest_task": [task],
        "forest_weight": [weight],
    }
    return {name: torch.tensor(lists[name], dtype=dtype) for name, dtype in LAYOUT.items()}


def test_a_forest_by_hand():
    # tree 1: 10, 10, 10, 20; tree 2: 1, 2, 3, 2; an input equal to the threshold goes left.
    assert forest_mean(arrays(), X.float(), 0).tolist() == [5.5, 6.0, 6.5, 11.0]


def test_the_weighted_mean_of_two_clients_and_tasks_by_hand():
    joined = join([arrays(0, 1.0), arrays(1, 5.0, shift=100.0), arrays(0, 3.0, shift=4.0)])
    assert joined["forest_task"].tolist() == [0, 1, 0] and joined["forest_start"].tolist() == [0, 2, 4, 6]
    assert joined["tree_start"].tolist() == [0, 3, 8, 11, 16, 19, 24]
    # task 0: (1 f + 3 (f + 4)) / 4 = f + 3; task 1: f + 100; task 2: nobody.
    found = predict(joined, X, 3, otherwise=0.5)
    f = torch.tensor([5.5, 6.0, 6.5, 11.0], dtype=torch.float64)
    torch.testing.assert_close(found, torch.stack([f + 3, f + 100, torch.full_like(f, 0.5)], 1), rtol=0, atol=1e-12)


def test_no_forest_and_no_molecule():
    assert predict(no_forest(), X, 2, 0.0).tolist() == [[0.0, 0.0]] * 4
    assert predict(arrays(), X[:0], 1, 0.0).shape == (0, 1)
    assert fault_of(no_forest(), 1, 2) is None and fault_of(join([]), 1, 2) is None


def test_many_inputs_are_followed_in_parts(monkeypatch):
    whole = forest_mean(arrays(), X.float(), 0)
    monkeypatch.setattr("lit_models.forest.arrays.AT_ONCE", 1)
    assert torch.equal(forest_mean(arrays(), X.float(), 0), whole) and AT_ONCE > 1


def test_a_circle_ends():
    circle = {**arrays(), "left": torch.zeros(8, dtype=torch.int32), "right": torch.zeros(8, dtype=torch.int32)}
    assert forest_mean(circle, X.float(), 0).tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("feature", [0, -1, -1, 0, -1, 2, -1, -1], "`feature` must be from -1 to 1"),
        ("left", [1, -1, -1, 1, -1, 2, -1, -1], "`left` must be a later node"),
        ("right", [2, -1, -1, 2, -1, 5, -1, -1], "`right` must be a later node"),
        ("right", [2, 2, -1, 2, -1, 4, -1, -1], "-1 of a leaf"),
        ("value", [0.0], "must have one length"),
        ("tree_start", [0, 3, 7], "`tree_start` must grow from 0 to 8"),
        ("tree_start", [0, 8, 8], "`tree_start` must grow"),
        ("forest_start", [0, 1], "`forest_start` must grow from 0 to 2"),
        ("forest_start", [0, 1, 2], "of the same forests"),
        ("forest_task", [3], "`forest_task` must be from 0 to 2"),
        ("forest_weight", [0.0], "`forest_weight` must be above 0"),
        ("forest_weight", [[1.0]], "one dimension"),
    ],
)
def test_nonsense_is_told(name, content, said):
    assert fault_of(arrays(), 3, 2) is None
    wrong = {**arrays(), name: torch.tensor(content, dtype=LAYOUT[name])}
    assert said in fault_of(wrong, 3, 2)
