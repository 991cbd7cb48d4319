"""The distance of distillation: hand values for each kind of outputs."""

import math

import pytest
import torch

from lit_models.distillation import OUTPUT_KINDS, distance

LN3 = math.log(3.0)
KL = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)  # (3/4, 1/4) against (1/2, 1/2): .130812


def test_classes_by_hand():
    # rows: logits (log 3, 0) -> p = (3/4, 1/4), q = (1/2, 1/2): KL; and equal ones: 0. The mean of both rows.
    teacher, student = torch.tensor([[LN3, 0.0], [1.0, 5.0]]), torch.tensor([[0.0, 0.0], [2.0, 6.0]])
    assert distance("classes", teacher, student).item() == pytest.approx(KL / 2, abs=1e-6)
    # T = 2: logits twice as large are the same p and q, and T^2 is before it
    assert distance("classes", 2 * teacher, 2 * student, 2.0).item() == pytest.approx(4 * KL / 2, abs=1e-6)


def test_labels_and_values_by_hand():
    # labels: sigmoid(log 3) = 3/4 against 1/2: the same KL, mean over 1 x 2 numbers of which one is equal
    teacher, student = torch.tensor([[LN3, 1.0]]), torch.tensor([[0.0, 1.0]])
    assert distance("labels", teacher, student).item() == pytest.approx(KL / 2, abs=1e-6)
    assert distance("labels", 3 * teacher, 3 * student, 3.0).item() == pytest.approx(9 * KL / 2, abs=1e-6)
    # values: (1 - 4)^2 and 0; the temperature is not asked
    teacher, student = torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, 2.0]])
    assert distance("values", teacher, student, 7.0).item() == pytest.approx(4.5)


@pytest.mark.parametrize("kind", OUTPUT_KINDS)
def test_none_of_the_teacher_itself_and_it_grows_away_from_it(kind):
    teacher = torch.randn(5, 3, dtype=torch.float64)
    student = teacher.clone().requires_grad_()
    loss = distance(kind, teacher, student, 2.0)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-12) and student.grad.abs().max() < 1e-12
    assert distance(kind, teacher, teacher + torch.randn(5, 3), 2.0) > 1e-3
