"""Dropout: rate, scale, independence of neighbouring entries, gradient, reproducibility."""

import pytest
import torch

from lit_models.dropout import dropout


@pytest.mark.parametrize("p", [0.25, 0.5, 0.3])  # 0.3 is no multiple of 1 / 256
def test_rate_scale_and_gradient(p):
    h = torch.full((500, 401), 2.0, requires_grad=True)  # not a multiple of eight entries
    out = dropout(h, p, training=True)
    kept = out != 0
    standard_error = (p * (1 - p) / h.numel()) ** 0.5
    assert abs(kept.float().mean() - (1 - p)) < 5 * standard_error
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 2.0 / (1 - p)))
    out.sum().backward()
    torch.testing.assert_close(h.grad, kept / (1 - p))


def test_every_byte_of_a_draw_is_fair_and_independent():
    kept = (dropout(torch.ones(100_000, 8), 0.5, training=True) > 0).float()
    assert (kept.mean(0) - 0.5).abs().max() < 5 * 0.5 / 100_000**0.5
    assert (torch.corrcoef(kept.t()) - torch.eye(8)).abs().max() < 5 / 100_000**0.5


def test_seeded_and_off_in_evaluation():
    h = torch.randn(9, 7)
    torch.manual_seed(4)
    first = dropout(h, 0.5, training=True)
    torch.manual_seed(4)
    assert torch.equal(dropout(h, 0.5, training=True), first)
    assert torch.equal(dropout(h, 0.5, training=False), h)
    assert torch.equal(dropout(h, 0.0, training=True), h)
    assert dropout(torch.empty(0, 3), 0.5, training=True).shape == (0, 3)
