r"""Ensemble distillation (FedDF: Lin, Kong, Stich, Jaggi; NeurIPS 2020): how far a student is from the mean of its teachers.

.. math:: \mathrm{AVGLOGITS}(x) = \frac{1}{|S|} \sum_{k \in S} f(x; \theta_k), \qquad
          \mathrm{KL}\bigl(\sigma(\mathrm{AVGLOGITS}(x)) \,\Vert\, \sigma(f(x; \theta))\bigr)

The paper has classes only, and no temperature T; here both are divided by T before the softmax, and the distance is multiplied
by :math:`T^2`, so that its gradient keeps its size (Hinton, Vinyals, Dean 2015). For several labels at once the same of each
label's Bernoulli variable, which is their cross entropy up to what the student cannot change; for values the squared distance.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from lit_models.molecule_predictor import bernoulli_kl

OutputKind = Literal["classes", "labels", "values"]
OUTPUT_KINDS: tuple[OutputKind, ...] = ("classes", "labels", "values")
"""What a module's outputs are: logits of classes that exclude each other, a logit of each label, or values."""


def distance(kind: OutputKind, teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """How far the student's outputs are from the teachers' mean.

    Args:
        kind: What outputs are, of :data:`OUTPUT_KINDS`.
        teacher: Mean outputs of the teachers, shape ``(N, C)``, without a gradient.
        student: Outputs of the student, same shape.
        temperature: T, above 0; of values it is not asked.

    Returns:
        A scalar: for ``classes`` the mean over the N rows, else over all N x C numbers; 0 where they are equal.
    """
    if kind == "values":
        return F.mse_loss(student, teacher)
    reference, outputs = teacher / temperature, student / temperature
    if kind == "labels":
        return temperature**2 * bernoulli_kl(reference, outputs).mean()
    log_p, log_q = reference.log_softmax(-1), outputs.log_softmax(-1)
    return temperature**2 * F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
