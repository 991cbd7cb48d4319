"""Further passes leave no trace: modes, statistics, hooks and random streams are as before, also after an error."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lit_models.objectives.support import extra_passes
from lit_models.objectives.support.extra_passes import Replay, evaluating, extra_pass, first_outputs, without_statistics


class Norms(nn.Module):
    """One layer of each kind: with and without statistics, in training and frozen."""

    def __init__(self):
        super().__init__()
        self.kept, self.frozen = nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval()
        self.without = nn.BatchNorm1d(2, track_running_stats=False)
        self.instance, self.other = nn.InstanceNorm1d(2, track_running_stats=True), nn.LayerNorm(2)


@pytest.mark.parametrize("error", [False, True])
def test_statistics_are_off_for_the_block_where_a_layer_would_move_them(error):
    module = Norms()
    names = ("kept", "frozen", "without", "instance")
    tracked = lambda: [getattr(module, n).track_running_stats for n in names]  # noqa: E731
    try:
        with without_statistics(module):
            assert tracked() == [False, True, False, False]  # a frozen layer goes on with its statistics
            if error:
                raise RuntimeError
    except RuntimeError:
        pass
    assert tracked() == [True, True, False, True]


def test_the_batchs_own_statistics_are_used_and_not_added():
    layer, x = nn.BatchNorm1d(2), torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    expected = nn.BatchNorm1d(2)(x)
    with without_statistics(layer):
        torch.testing.assert_close(layer(x), expected)
    assert layer.running_mean.tolist() == [0.0, 0.0] and layer.num_batches_tracked == 0


def test_an_extra_pass_repeats_the_random_numbers_if_there_is_something_to_repeat():
    layer = nn.BatchNorm1d(2)
    replay = Replay("cpu")
    drawn = torch.rand(3)
    with extra_pass(layer, replay):
        assert torch.equal(torch.rand(3), drawn) and not layer.track_running_stats
    before = torch.get_rng_state()
    with extra_pass(layer, None):
        assert not torch.equal(torch.rand(3), drawn) and not layer.track_running_stats
    assert not torch.equal(torch.get_rng_state(), before) and layer.track_running_stats


@pytest.mark.parametrize("error", [False, True])
def test_evaluating_brings_back_the_mode_of_every_part_and_the_random_stream(error):
    module = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5).eval()))
    before = torch.get_rng_state()
    try:
        with evaluating(module):
            assert not any(part.training for part in module.modules())
            torch.rand(5)
            if error:
                raise RuntimeError
    except RuntimeError:
        pass
    assert [part.training for part in module.modules()] == [True, True, True, False]
    assert error or torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("places", "expected"), [([False, True], True), ([False, False], False), ([], False)])
def test_the_streams_of_gpus_are_kept_if_any_parameter_is_on_one(monkeypatch, places, expected):
    asked, real = [], extra_passes.isolate_rng
    monkeypatch.setattr(extra_passes, "isolate_rng", lambda include_cuda: asked.append(include_cuda) or real(False))
    parameters = [SimpleNamespace(is_cuda=place) for place in places]
    module = SimpleNamespace(parameters=lambda: parameters, modules=lambda: [], eval=lambda: None)
    with evaluating(module):
        pass
    assert asked == [expected]


def test_of_several_passes_the_first_ones_output_is_kept_and_none_of_later():
    module = nn.Identity()
    with first_outputs(module) as outputs:
        assert outputs == []
        module(torch.tensor(1.0)), module(torch.tensor(2.0))
    with first_outputs(module) as others:
        pass
    module(torch.tensor(3.0))
    assert [float(o) for o in outputs] == [1.0] and others == []
    with pytest.raises(RuntimeError), first_outputs(module) as others:
        raise RuntimeError
    module(torch.tensor(4.0))
    assert others == []


def test_the_streams_of_a_gpu_are_replayed_with_those_of_the_processor(monkeypatch):
    """Without a GPU: its state is a number that dropout would move."""
    state = {"now": torch.tensor(1)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: state["now"])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda value, device: state.update(now=value))
    replays = {name: Replay(name) for name in ("cuda", "cpu")}
    state["now"] = torch.tensor(2)
    for name, seen in (("cuda", 1), ("cpu", 2)):
        with replays[name]():
            assert state["now"] == seen
        assert state["now"] == 2
    with pytest.raises(RuntimeError), replays["cuda"]():
        raise RuntimeError
    assert state["now"] == 2
