"""Entry rules: what is shared and what is private, tied weights once, no silent mismatch, no aliases."""

import copy

import pytest
import torch
from torch import nn

from fl_lightning.engine.entries import Entries, check_layout, first_difference, rows_by_learners


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 3, bias=False)
        self.decoder = nn.Linear(3, 3, bias=False)
        self.decoder.weight = self.encoder.weight


def test_names_follow_the_patterns():
    entries = Entries(net(), ["1.*", "2.bias"])
    assert entries.shared == ("0.weight", "0.bias", "2.weight")
    assert entries.private == (
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
        "2.bias",
    )


def test_what_a_checkpoint_must_hold_to_be_loaded():
    wanted = {"a": torch.ones(2, 3), "b": torch.ones(1)}
    assert first_difference({**wanted, "0/a": torch.ones(5)}, wanted) is None  # more than that is no matter
    taller = {"a": torch.ones(4, 3), "b": wanted["b"]}
    assert first_difference(taller, wanted) == "entry `a` is float32[4, 3] there and float32[2, 3] now"
    doubled = {"a": wanted["a"], "b": wanted["b"].double()}
    assert first_difference(doubled, wanted) == "entry `b` is float64[1] there and float32[1] now"
    assert first_difference({"a": wanted["a"]}, wanted) == "it holds no entry `b`"


def test_a_pattern_that_matches_nothing_lists_what_there_is():
    with pytest.raises(ValueError, match=r"No entry of Sequential matches `head\.\*`.*0\.weight, 0\.bias, 1\.weight"):
        Entries(net(), ["head.*"])


def test_tied_weights_are_one_entry_and_stay_tied():
    module = Tied()
    entries = Entries(module)
    assert entries.shared == ("encoder.weight",)
    entries.set({"encoder.weight": torch.full((3, 3), 7.0)})
    assert module.decoder.weight is module.encoder.weight and (module.decoder.weight == 7).all()


@pytest.mark.parametrize("pattern", ["encoder.*", "decoder.*"])
def test_a_tied_weight_is_private_under_each_of_its_names(pattern):
    entries = Entries(Tied(), [pattern])
    assert entries.shared == () and entries.private == ("encoder.weight",)


def test_get_gives_copies_not_the_live_state():
    module = net()
    entries = Entries(module)
    taken = entries.get(entries.shared)
    expected = copy.deepcopy(taken)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.add_(1)
    for name, tensor in expected.items():
        assert torch.equal(taken[name], tensor) and not taken[name].requires_grad


def test_set_copies_and_keeps_the_parameters_themselves():
    module = net()
    weight = module[0].weight
    received = {"0.weight": torch.ones(4, 3)}
    Entries(module).set(received)
    received["0.weight"].zero_()
    assert module[0].weight is weight and (weight == 1).all() and weight.requires_grad


def test_set_refuses_what_does_not_fit_and_changes_nothing_before():
    module = net()
    entries, before = Entries(module), copy.deepcopy(net().state_dict())
    module.load_state_dict(before)
    good = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"does not have: tail\.weight\. It has: 0\.weight"):
        entries.set({"tail.weight": good})
    with pytest.raises(ValueError, match=r"`0\.weight` was received as float32\[3, 4\], the module has float32\[4, 3\]"):
        entries.set({"0.weight": good.T})
    with pytest.raises(ValueError, match=r"`0\.bias` was received as float32\[4, 1\], the module has float32\[4\]"):
        entries.set({"0.bias": torch.zeros(4, 1)})
    with pytest.raises(ValueError, match=r"`0\.bias` was received as float64\[4\], the module has float32\[4\]"):
        entries.set({"0.bias": torch.zeros(4, dtype=torch.float64)})
    with pytest.raises(ValueError, match=r"`1\.num_batches_tracked` was received as float32"):
        entries.set({"1.num_batches_tracked": torch.tensor(0.5)})
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_extra_state_is_refused_by_name():
    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"a": 1}

        def set_extra_state(self, state):
            pass

    with pytest.raises(ValueError, match="`_extra_state` of Extra is dict, not a tensor"):
        Entries(Extra(1, 1))


def test_lazy_layers_are_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"`0\.weight`.*size is not known yet"):
        Entries(nn.Sequential(nn.LazyLinear(3)))


def test_check_layout_names_what_is_wrong():
    reference = {"a": torch.zeros(2), "b": torch.zeros(2, 1)}
    assert check_layout({"b": torch.ones(2, 1), "a": torch.ones(2)}, reference) is None
    assert "missing: ['b']" in check_layout({"a": torch.ones(2)}, reference)
    assert "unexpected: ['c']" in check_layout({**reference, "c": torch.ones(2)}, reference)
    assert "`b` is float32[2], expected float32[2, 1]" in check_layout({**reference, "b": torch.ones(2)}, reference)
    assert "`a` is float16[2]" in check_layout({**reference, "a": torch.ones(2).half()}, reference)


def test_an_entry_has_one_name_under_which_it_travels():
    entries = Entries(Tied())
    assert entries.canonical("decoder.weight") == entries.canonical("encoder.weight") == "encoder.weight"
    with pytest.raises(ValueError, match="There is no entry `head` in the model; it has: encoder.weight, decoder.weight"):
        entries.canonical("head")


def test_rows_are_grouped_by_who_has_learnt_them():
    # Rows 0, 1, 2, 3 of three models: the first has not trained row 0, the second neither 0 nor 2.
    groups = {tuple(rows.tolist()): learners for rows, learners in rows_by_learners(4, [[0], [0, 2], []])}
    assert groups == {(1, 3): [0, 1, 2], (2,): [0, 2], (0,): [2]}
    assert [(rows.tolist(), who) for rows, who in rows_by_learners(2, [[0, 1]])] == [([0, 1], [])]  # nobody's


class Grown(nn.Module):
    """Its rows are as many as it has learnt."""

    varying_entries = ("rows",)

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(0, 2))
        self.register_buffer("fixed", torch.zeros(3))


def test_entries_of_varying_length_are_taken_as_they_come():
    module = Grown()
    entries, other = Entries(module), torch.arange(8.0).view(4, 2)
    assert entries.varying == {"rows"}
    for rows in (other, other[:1], torch.zeros(0, 2)):
        entries.set({"rows": rows})
        assert torch.equal(module.rows, rows) and module.rows.untyped_storage().nbytes() == rows.numel() * 4
    for name, wrong in (
        ("rows", torch.zeros(4, 3)),
        ("rows", torch.zeros(4)),
        ("rows", torch.zeros(4, 2).int()),
        ("fixed", torch.zeros(2)),
    ):
        with pytest.raises(ValueError, match=f"Entry `{name}` was received as"):
            entries.set({name: wrong})
    layout = entries.get(entries.shared)
    assert check_layout({**layout, "rows": other}, layout, entries.varying) is None
    assert "entry `rows`" in check_layout({**layout, "rows": other}, layout)
    assert "entry `rows`" in check_layout({**layout, "rows": torch.zeros(4, 3)}, layout, entries.varying)
    assert "entry `fixed`" in check_layout({**layout, "fixed": torch.zeros(2)}, layout, entries.varying)
