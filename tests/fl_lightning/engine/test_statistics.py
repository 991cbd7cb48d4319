"""The exchange of statistics before round 1: sums by hand, names by value, and whatever a client may say wrongly."""

import pytest
import torch
from federations import Linear, Table, checkpoint_tensors, federate, last_checkpoint

from fl_lightning.engine.statistics import combine, exchange, fault


def sums(*columns):
    count, total, square = zip(*columns, strict=True)
    return {"sums": {"x": {"count": list(count), "sum": list(total), "square": list(square)}}}


def test_sums_by_hand_in_the_order_of_the_clients():
    found = combine({1: sums((2.0, 3.0, 5.0), (0.0, 0.0, 0.0)), 0: sums((1.0, 1e16, 1.0), (1.0, -4.0, 16.0))})
    assert found == {"sums": {"x": {"count": [3.0, 1.0], "sum": [1e16 + 3.0, -4.0], "square": [6.0, 16.0]}}, "names": {}}
    # In client order: (0 + 1e16) + 1 + 1 loses what 1 + 1 first would keep.
    three = {client: sums((1.0, value, 0.0)) for client, value in ((2, 1.0), (1, 1.0), (0, 1e16))}
    assert combine(three)["sums"]["x"]["sum"] == [1e16] != [1e16 + 2.0]
    with pytest.raises(ValueError, match="Client 1 tells 1 sums of `x` where others tell 2: all must have the same tasks"):
        combine({0: sums((1.0, 1.0, 1.0), (1.0, 1.0, 1.0)), 1: sums((1.0, 1.0, 1.0))})


def test_names_are_merged_by_value_in_sorted_order():
    def names(*own):
        return {"names": {"classes": list(own)}}

    assert combine({0: names("b", "a"), 1: names("b", "a")})["names"] == {"classes": ["b", "a"]}  # as all have them
    assert combine({0: names("a", "b"), 1: names("b", "c")})["names"] == {"classes": ["a", "b", "c"]}  # of equal size
    assert combine({0: names("b", "a"), 1: names("a", "b")})["names"] == {"classes": ["a", "b"]}


def test_a_client_without_a_label_of_a_task_tells_a_count_of_zero():
    assert fault({"sums": {"labels": {"count": [0.0, 2.0], "sum": [0.0, 1.0], "square": [0.0, 1.0]}}}) is None


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"sums": [1.0]}, "a mapping with `sums`"), ({"names": ["a"]}, "a mapping with `sums`"),
        ({"names": {"x": ["a", 1]}}, "names as lists of texts"),
        ([], "a mapping with `sums`"), ({"raw": [1.0]}, "a mapping with `sums`"),
        ({"sums": {"x": [1.0]}}, "sums as lists of finite numbers: count, sum, square"),
        ({"sums": {"x": {"count": [1.0], "sum": [1.0]}}}, "sums as lists"),
        ({"sums": {"x": {"count": [1.0], "sum": [float("nan")], "square": [1.0]}}}, "sums as lists of finite"),
        ({"sums": {"x": {"count": [True], "sum": [1.0], "square": [1.0]}}}, "sums as lists of finite"),
        ({"sums": {"x": {"count": [1.0], "sum": [1.0, 2.0], "square": [1.0]}}}, "as many counts"),
        ({"sums": {"x": {"count": [-1.0], "sum": [1.0], "square": [1.0]}}}, "as many counts (from 0)"),
        ({"names": {"x": "abc"}}, "names as lists of texts"), ({"names": {"x": [1]}}, "names as lists of texts"),
    ],
)  # fmt: skip
def test_what_is_malformed_is_told(values, text):
    assert text in fault(values)

    class Wrong:
        def statistics(self):
            return values

    with pytest.raises(ValueError, match="Client 1: the `statistics\\(\\)` of `Wrong` must be"):
        exchange([object(), Wrong()])


class Scaled(Table):
    """Learns its targets as (y - mean) / deviation over all clients."""

    agreed = None

    def statistics(self):
        y = self.train.tensors[1].double()
        return {"sums": {"y": {"count": [float(len(y))], "sum": y.sum(0).tolist(), "square": y.square().sum(0).tolist()}}}

    def use_statistics(self, agreed):
        self.agreed = agreed["sums"]["y"]


class Rescaling(Linear):
    """Takes the scale of the labels itself, as a module with an output transform does."""

    def __init__(self):
        super().__init__()
        self.scale = 1.0

    def use_statistics(self, agreed):
        parts = agreed["sums"]["y"]
        self.scale = (parts["square"][0] / parts["count"][0]) ** 0.5

    def forward(self, x):
        return super().forward(x) * self.scale


def test_data_modules_and_the_module_get_what_all_have_together_and_the_ledger_lists_it(tmp_path):
    data = [Scaled(n, seed=n) for n in (10, 16)]
    fed = federate(tmp_path, Rescaling, data, num_rounds=1)
    y = torch.cat([part.train.tensors[1] for part in data]).double()
    for part in data:
        assert part.agreed["count"] == [26.0] and part.agreed["sum"] == pytest.approx([float(y.sum())])
    assert fed.module.scale == pytest.approx(float(y.square().mean().sqrt()))
    lines = (fed.run_dir / "ledger.jsonl").read_text().splitlines()
    listed = [line for line in lines if '"statistics"' in line]
    assert len(listed) == 4 and sum('"up"' in line for line in listed) == 2
    plain = federate(tmp_path / "plain", Rescaling, [Table(10, 1)], num_rounds=1)
    assert "statistics" not in (plain.run_dir / "ledger.jsonl").read_text() and plain.module.scale == 1.0
    assert checkpoint_tensors(last_checkpoint(fed.run_dir))


class AgreedScale(torch.nn.Module):
    """A layer that takes the scale of the labels, in a module that knows nothing of it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("root", torch.ones(1))

    def use_statistics(self, agreed):
        parts = agreed["sums"]["y"]
        self.root.fill_((parts["square"][0] / parts["count"][0]) ** 0.5)

    def forward(self, x):
        return x * self.root


class WithALayer(Linear):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 1), AgreedScale())


def test_a_layer_gets_it_in_a_module_without_the_method(tmp_path):
    data = [Scaled(n, seed=n) for n in (10, 16)]
    fed = federate(tmp_path, WithALayer, data, num_rounds=1)
    y = torch.cat([part.train.tensors[1] for part in data]).double()
    assert float(fed.module.net[1].root) == pytest.approx(float(y.square().mean().sqrt()))
    kept = checkpoint_tensors(last_checkpoint(fed.run_dir))
    assert any(torch.equal(tensor, fed.module.net[1].root) for tensor in kept.values())
