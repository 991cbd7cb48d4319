"""What stays as at the start is named, not sent; what changes after all is sent, and no bit of a run differs by it."""

import json

import pytest
import torch
from federations import Linear, assert_same_bits, checkpoint_tensors, clients, federate, last_checkpoint
from torch import nn

from fl_lightning.engine import InProcess, WorkerProcesses
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.still import AS_AT_START, Start
from fl_lightning.engine.upload_transforms import UploadTransform

VALUES = torch.tensor([1.0, -2.0])


def test_what_is_as_at_the_start_is_named_with_a_hash_and_comes_back():
    here = {"scaler": VALUES, "frozen": torch.ones(2, 2), "learnt": torch.zeros(1)}
    payload = Payload({**{n: t.clone() for n, t in here.items()}, "more": torch.zeros(1)}, {"num_samples": 3})
    start = Start({"scaler": VALUES, "frozen": torch.ones(2, 2), "absent": torch.zeros(1)})
    sent = start.leave_out(payload)
    assert list(sent.tensors) == ["learnt", "more"] and list(sent.values[AS_AT_START]) == ["frozen", "scaler"]
    back = Start(here).put_back(sent)
    assert_same_bits(dict(sorted(back.tensors.items())), dict(sorted(payload.tensors.items())))
    assert back.values == {"num_samples": 3} == start.leave_out(payload, []).values
    back.tensors["scaler"].zero_()
    assert here["scaler"].tolist() == [1.0, -2.0]  # a copy
    assert list(start.leave_out(payload, ["scaler"]).values[AS_AT_START]) == ["scaler"]


@pytest.mark.parametrize("other", [VALUES + 1e-6, VALUES.double(), VALUES.reshape(1, 2), torch.tensor([1.0, -2.0, 0.0])])
def test_another_value_type_or_shape_is_sent(other):
    payload = Payload({"x": other})
    assert Start({"x": VALUES}).leave_out(payload) is payload


def test_bits_count_not_values():
    start = Start({"x": torch.tensor([0.0])})
    assert AS_AT_START not in start.leave_out(Payload({"x": torch.tensor([-0.0])})).values
    assert AS_AT_START not in start.leave_out(Payload({"x": torch.tensor([0], dtype=torch.int32)})).values
    odd = Start({"x": torch.tensor([float("nan")])})
    assert AS_AT_START in odd.leave_out(Payload({"x": torch.tensor([float("nan")])})).values


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"x": "0123"}, "`x` is not the same here"),
        ({"y": "0123"}, "names `y`, which is no entry here"),
        ({"z": "0123"}, "names `z`, which is no entry here, or was sent as well"),
        (["x"], "must hold hashes by name"),
    ],
)
def test_what_cannot_be_put_back_is_named(told, text):
    start = Start({"x": VALUES, "z": VALUES})
    with pytest.raises(ValueError, match=text):
        start.put_back(Payload({"z": VALUES}, {AS_AT_START: told}))


class Backbone(Linear):
    """A frozen layer, a scaler and a head that learns; the layer is thawed at a round, if asked."""

    def __init__(self, thaw_at=None):
        super().__init__()
        self.thaw_at = thaw_at
        self.backbone = nn.Linear(3, 3)
        self.backbone.requires_grad_(False)
        self.register_buffer("scale", torch.full((3,), 2.0))

    def forward(self, x):
        return super().forward(self.backbone(x / self.scale))

    def on_round_start(self, round, num_rounds):
        self.backbone.requires_grad_(self.thaw_at is not None and round >= self.thaw_at)


def sent(run):
    """By round and direction, the names of the entries that a fit sends."""
    lines = map(json.loads, (run / "ledger.jsonl").read_text().splitlines())
    return {(line["round"], line["direction"]): sorted(line["tensors"]) for line in lines if line["kind"] == "fit"}


HEAD = ["net.bias", "net.weight"]
THAWED = ["backbone.bias", "backbone.weight", *HEAD]


def test_frozen_layers_and_scalers_do_not_travel(tmp_path):
    run = federate(tmp_path, Backbone, clients(), num_rounds=2).run_dir
    assert sent(run) == {(r, direction): HEAD for r in (0, 1) for direction in ("up", "down")}
    entries = federate(tmp_path / "b", Backbone, clients(), num_rounds=1).module.state_dict()
    torch.manual_seed(0)
    assert torch.equal(entries["backbone.weight"], Backbone().backbone.weight) and entries["scale"].tolist() == [2, 2, 2]


def test_a_layer_that_is_thawed_travels_from_then_on(tmp_path):
    run = federate(tmp_path, lambda: Backbone(thaw_at=1), clients(), num_rounds=3).run_dir
    assert sent(run) == {(0, "down"): HEAD, (0, "up"): HEAD, (1, "down"): HEAD, (1, "up"): THAWED, (2, "down"): THAWED,
                         (2, "up"): THAWED}  # fmt: skip


WORKERS = pytest.param(lambda: WorkerProcesses(num_workers=2), marks=pytest.mark.slow)


@pytest.mark.parametrize("engine", [lambda: InProcess(rebuild_clients=True), WORKERS])
def test_no_bit_differs_by_it_in_any_engine_or_after_resuming(tmp_path, engine, monkeypatch):
    def run(folder, **options):
        settings = {"num_rounds": 4, **options}
        return federate(tmp_path / folder, lambda: Backbone(thaw_at=2), clients((10, 16)), **settings).run_dir

    named = run("named", engine=engine())
    monkeypatch.setattr(Start, "leave_out", lambda self, payload, names=None: payload)
    whole = run("whole")
    monkeypatch.undo()
    assert len((named / "ledger.jsonl").read_text()) != len((whole / "ledger.jsonl").read_text())
    assert_same_bits(checkpoint_tensors(last_checkpoint(named)), checkpoint_tensors(last_checkpoint(whole)))


def test_transforms_get_no_frozen_entry_but_a_thawed_one(tmp_path):
    class Notes(UploadTransform):
        seen: list = []

        def __call__(self, update, upload):
            self.seen.append((upload.round, sorted(update)))
            return {name: delta + 1 for name, delta in update.items()}

    run = federate(tmp_path, lambda: Backbone(thaw_at=1), clients((10, 16)), num_rounds=2, upload_transforms=[Notes()])
    assert Notes.seen == [(0, HEAD)] * 2 + [(1, THAWED)] * 2
    assert run.module.state_dict()["scale"].tolist() == [2, 2, 2]
