"""FedGTA's client equations: hand values, and a dense solution that knows nothing of sparse matrices."""

import math

import pytest
import torch

from lit_models.label_propagation import (
    mixed_moments,
    num_moments,
    propagate_labels,
    smoothing_confidence,
    soft_labels,
    with_labels,
)

PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])  # 0 - 1 - 2
ROOT6 = math.sqrt(6.0)


def test_two_steps_on_a_path_by_hand():
    """Degrees with self-loop 2, 3, 2: A^ = [[1/2, 1/sqrt 6, 0], [1/sqrt 6, 1/3, 1/sqrt 6], [0, 1/sqrt 6, 1/2]]."""
    first, second = propagate_labels(torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64), PATH, 2)
    torch.testing.assert_close(first, torch.tensor([[3 / 4], [1 / (2 * ROOT6)], [0.0]], dtype=torch.float64))
    # A^ Y^1 = (3/8 + 1/12, 3/(4 sqrt 6) + 1/(6 sqrt 6), 1/12)
    wanted = [[35 / 48], [11 / (24 * ROOT6)], [1 / 24]]
    torch.testing.assert_close(second, torch.tensor(wanted, dtype=torch.float64))


def test_many_steps_reach_the_solution_of_the_linear_system():
    """Y = (I - A^ / 2)^-1 Y^0 / 2, with A^ made densely of the definition; node 4 has no links and stays."""
    edges = torch.tensor([[0, 1, 1, 2, 2, 0, 2, 3], [1, 0, 2, 1, 0, 2, 3, 2]])
    adjacency = torch.eye(5, dtype=torch.float64)
    adjacency[edges[0], edges[1]] = 1.0
    root = adjacency.sum(1).rsqrt()
    normalised = root[:, None] * adjacency * root[None, :]
    start = torch.rand(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    limit = torch.linalg.solve(torch.eye(5, dtype=torch.float64) - normalised / 2, start / 2)
    found = propagate_labels(start, edges, 60)
    torch.testing.assert_close(found[-1], limit)
    assert len(found) == 60 and all(torch.equal(step[4], start[4]) for step in found)
    assert torch.equal(propagate_labels(start, edges[:, :0], 2)[1], start)  # a client without links


def test_known_labels_replace_rows_and_unknown_ones_are_not_looked_at():
    p = torch.tensor([[0.2, 0.8], [0.4, 0.6], [0.5, 0.5]])
    found = with_labels(p, torch.tensor([0, 99, -1]), torch.tensor([True, False, False]))
    assert torch.equal(found, torch.tensor([[1.0, 0.0], [0.4, 0.6], [0.5, 0.5]])) and p[0, 0] == 0.2
    ln3 = math.log(3.0)
    y = torch.tensor([[ln3, 0.0], [0.0, 2 * ln3]])
    half = soft_labels(y, torch.tensor([0, 0]), torch.tensor([False, False]), temperature=2.0)
    torch.testing.assert_close(half, torch.tensor([[3**0.5 / (1 + 3**0.5), 1 / (1 + 3**0.5)], [0.25, 0.75]]))
    torch.testing.assert_close(
        soft_labels(y, torch.tensor([0, 0]), torch.tensor([False, True])), torch.tensor([[0.75, 0.25], [1.0, 0.0]])
    )


def test_confidence_by_hand():
    """A sure node with 3 links: 3 (2/e + 0); an unsure one with 1: 2/e - ln 2; one without links: 0."""
    q = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    found = smoothing_confidence(q, torch.tensor([3, 1, 0]))
    assert float(found) == pytest.approx(3 * 2 / math.e + 2 / math.e - math.log(2.0), abs=1e-12)
    assert float(smoothing_confidence(q, torch.zeros(3, dtype=torch.int64))) == 0.0


@pytest.mark.parametrize("classes", [1, 2, 3, 4, 7, 40])
def test_confidence_is_never_negative_even_where_a_model_knows_nothing(classes):
    q = torch.full((5, classes), 1 / classes, dtype=torch.float64)
    found = float(smoothing_confidence(q, torch.ones(5)))
    assert found == pytest.approx(5 * (classes / math.e - math.log(classes))) and found > 0
    worst = torch.full((5, classes), 1 / math.e, dtype=torch.float64)  # each term at its least
    assert float(smoothing_confidence(worst, torch.ones(5))) == pytest.approx(0.0, abs=1e-12)


def test_moments_by_hand():
    """Columns (1, 0, 0, 0) and (.5, .5, .5, .5): means 1/4, 1/2; deviations (3/4, -1/4 x 3) and 0."""
    q = torch.tensor([[1.0, 0.5], [0.0, 0.5], [0.0, 0.5], [0.0, 0.5]])
    raw = [0.25, 0.5, 0.25, 0.25, 0.25, 0.125]
    central = [3 / 16, 0.0, (27 - 3) / 256, 0.0]
    assert mixed_moments([q], 3, "raw").tolist() == pytest.approx(raw)
    assert mixed_moments([q], 3, "central").tolist() == pytest.approx(central)
    both = mixed_moments([q, 2 * q], 3)
    assert both[:10].tolist() == pytest.approx(raw + central) and both[10:12].tolist() == pytest.approx([0.5, 1.0])
    for kind in ("raw", "central", "mixed"):
        assert len(mixed_moments([q, q], 3, kind)) == 2 * 2 * num_moments(3, kind)
