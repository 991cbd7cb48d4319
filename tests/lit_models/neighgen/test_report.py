"""The report's figures by hand."""

import torch
from neighgen_samples import neighgen, reference_candidates
from torch_geometric.data import Data

from lit_models.neighgen.report import report_quality


def test_the_report_by_hand():
    """ñ = .6, 3.2, 3.6, 0 and n = 2, 0, 6, 5, of which the last two are held out; P = 3."""
    module = neighgen(embedding_norm=None)
    said = torch.tensor([0.6, 3.2, 3.6, 0.0])
    module.dgen.forward = lambda z: said
    module.encoder.forward = lambda x, edges: torch.zeros(4, 8)
    hidden = torch.tensor([[1.0, 0, 0, 0, 0, 0], [0, 2.0, 0, 0, 0, 0]])
    batch = Data(
        x=torch.full((4, 6), 0.5), edge_index=torch.zeros(2, 0, dtype=torch.long), hidden_x=hidden,
        missing_count=torch.tensor([2, 0, 6, 5]), count_mask=torch.tensor([True, True, False, False]),
        pair_ptr=torch.tensor([0, 2, 2, 2, 2]), pair_target=torch.tensor([0, 1]),
        holdout_ptr=torch.tensor([0, 0, 0, 1, 1]), holdout_target=torch.tensor([1]), num_nodes=4,
    )  # fmt: skip
    found = report_quality(module, batch)
    close = lambda name, value: torch.testing.assert_close(found[name], value, atol=1e-5, rtol=0)  # noqa: E731
    close("count_mae", (2.4 + 5.0) / 2)
    close("mean_count_mae", (5.0 + 4.0) / 2)  # mean n of those trained on: 1
    close("count_saturation", 0.25)  # 4 > 3, but not 3 > 3
    close("generated_per_node", (1 + 3 + 3 + 0) / 4)
    close("missing_per_node", 13 / 4)
    close("zero_error", 4.0)
    close("train_zero_error", 1.0)  # the nearer of both
    close("mean_error", 5 * 0.25 + 1.5**2)
    close("train_mean_error", 6 * 0.25)
    for name, targets in (("generator_error", hidden[1:]), ("train_generator_error", hidden)):  # z = 0, all slots
        u = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
        candidates = reference_candidates(dict(module.fgen.named_parameters()), u, 3)[0].detach()
        close(name, float(torch.cdist(candidates, targets).square().amin(1).mean()))
    assert report_quality(module, batch) == found
    assert report_quality(module, batch, seed=1)["generator_error"] != found["generator_error"]
    for value in (True, False):  # nothing held out, or nothing else
        batch.count_mask = torch.full((4,), value)
        assert "count_mae" not in report_quality(module, batch)
    module.dgen.forward, nothing = lambda z: torch.zeros(0), torch.zeros(0, dtype=torch.long)
    module.encoder.forward = lambda x, edges: torch.zeros(0, 8)
    pointers = {f"{part}_{what}": torch.zeros(1, dtype=torch.long) if what == "ptr" else nothing
                for part in ("pair", "holdout") for what in ("ptr", "target")}  # fmt: skip
    empty = Data(x=torch.zeros(0, 6), edge_index=batch.edge_index, hidden_x=hidden[:0], missing_count=nothing,
                 count_mask=nothing.bool(), num_nodes=0, **pointers)  # fmt: skip
    assert report_quality(module, empty) == {}
