"""What happens to an update before it leaves: clipping by hand, order, streams, and that nothing goes past it."""

import pytest
import torch
from federations import Central, Linear, assert_same_bits, checkpoint_tensors, clients, federate, last_checkpoint

from fl_lightning import FederatedTrainer, FedPub
from fl_lightning.engine import ClipNorm, UploadTransform, WorkerProcesses
from fl_lightning.engine.client import ClientHalf, protocol_step, step_of
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.upload_transforms import Upload, transformed

WHO = Upload(client=2, round=3, seed=0)


def test_clipping_by_hand():
    update = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}  # of norm 5
    assert {n: t.tolist() for n, t in ClipNorm(2.5)(update, WHO).items()} == {"a": [1.5, 0.0], "b": [[2.0]]}
    assert ClipNorm(5.0)(update, WHO)["a"].tolist() == [3.0, 0.0] == ClipNorm(100.0)(update, WHO)["a"].tolist()
    assert ClipNorm(1.0)({"a": torch.zeros(2)}, WHO)["a"].tolist() == [0.0, 0.0]
    assert ClipNorm(1.0)({"a": torch.tensor([3 + 4j])}, WHO)["a"].tolist() == [pytest.approx(0.6 + 0.8j)]
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="`max_norm` must be above 0"):
            ClipNorm(wrong)


class Add(UploadTransform):
    def __init__(self, value):
        self.value = value

    def __call__(self, update, upload):
        return {name: delta + self.value for name, delta in update.items()}


class Noise(UploadTransform):
    def __call__(self, update, upload):
        return {name: delta + torch.randn_like(delta) for name, delta in update.items()}


def test_transforms_see_the_update_in_order_and_leave_what_is_no_weight():
    sent = {"w": torch.tensor([3.0]), "embedding": torch.tensor([7.0])}
    received = {"w": torch.tensor([1.0]), "count": torch.tensor([4])}
    assert transformed([], sent, received, WHO)["w"] is sent["w"]
    found = transformed([ClipNorm(1.0), Add(0.5)], sent, received, WHO)  # 1 + (1 + .5)
    assert {name: t.item() for name, t in found.items()} == {"w": 2.5, "embedding": 7.0}
    assert transformed([Add(0.5), ClipNorm(1.0)], sent, received, WHO)["w"].item() == 2.0
    assert sent["w"].item() == 3.0


def test_what_is_drawn_is_of_the_client_and_the_round():
    def drawn(**who):
        return transformed([Noise()], {"w": torch.zeros(1)}, {"w": torch.zeros(1)}, Upload(**{**vars(WHO), **who}))["w"].item()

    torch.manual_seed(5)
    state = torch.get_rng_state()
    values = [drawn(), drawn(client=1), drawn(round=1), drawn(seed=1)]
    noise = transformed([Noise(), Noise()], {"w": torch.zeros(1)}, {"w": torch.zeros(1)}, WHO)["w"].item()
    assert noise != pytest.approx(2 * values[0])  # the second of the same class draws something else
    assert drawn() == values[0] and len(set(values)) == 4 and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("change", [
    lambda update: {}, lambda update: {name: t.double() for name, t in update.items()},
    lambda update: {name: t[:1] for name, t in update.items()},
])  # fmt: skip
def test_another_layout_is_refused(change):
    class Wrong(UploadTransform):
        def __call__(self, update, upload):
            return change(update)

    with pytest.raises(ValueError, match="`Wrong` must give the entries, shapes and types"):
        transformed([Wrong()], {"w": torch.ones(2)}, {"w": torch.zeros(2)}, WHO)
    with pytest.raises(NotImplementedError, match="`__call__"):
        UploadTransform()({}, WHO)


def test_clients_upload_clipped_updates(tmp_path):
    plain = federate(tmp_path / "plain", Linear, clients((10, 16)), num_rounds=1)
    none = federate(tmp_path / "none", Linear, clients((10, 16)), num_rounds=1, upload_transforms=[])
    assert torch.equal(plain.module.net.weight, none.module.net.weight)
    torch.manual_seed(0)
    start = Linear().net.weight.detach()
    settings = {"num_rounds": 1, "upload_transforms": [ClipNorm(0.01)]}
    clipped = federate(tmp_path / "a", Linear, clients((10, 16)), **settings)
    assert 0 < (clipped.module.net.weight - start).norm() <= 0.01 < (plain.module.net.weight - start).norm()


@pytest.mark.slow
def test_worker_processes_clip_the_same(tmp_path):
    settings = {"num_rounds": 1, "upload_transforms": [ClipNorm(0.01)]}
    clipped = federate(tmp_path / "a", Linear, clients((10, 16)), **settings)
    workers = federate(tmp_path / "b", Linear, clients((10, 16)), engine=WorkerProcesses(1), **settings)
    both = (checkpoint_tensors(last_checkpoint(run.run_dir)) for run in (clipped, workers))
    assert_same_bits(*both)


def test_whole_models_do_not_go_past_the_transforms(tmp_path):
    data = Central(*clients((10, 16)))
    with pytest.raises(ValueError, match="uploads whole models as they are, past `federation.upload_transforms`"):
        federate(tmp_path, Linear, data, score_each_on_global=True, upload_transforms=[ClipNorm(1.0)])


def test_only_declared_steps_can_be_asked_for():
    class Half(ClientHalf):
        @protocol_step
        def mine(self, client, request):
            return Payload()

        def fit(self, client, request):  # what overrides a step is one
            return Payload()

        def helper(self, client, request):
            return Payload()

    half = Half()
    assert step_of(half, "mine")(None, None) == step_of(half, "fit")(None, None) == Payload()
    for hidden in ("helper", "reply_tensors", "personal", "__init__", "nothing", ""):
        with pytest.raises(ValueError, match=f"Half has no protocol step `{hidden}`"):
            step_of(half, hidden)
    for name in ("pretrain", "query", "exchange", "_keep"):
        with pytest.raises(ValueError, match="has no protocol step"):
            step_of(FedPub().client_half(), name)


def test_a_run_with_transforms_goes_on(tmp_path):
    settings = {"upload_transforms": [ClipNorm(0.01)], "name": "clipped"}
    first = federate(tmp_path, Linear, clients((10, 16)), num_rounds=1, **settings)
    again = FederatedTrainer(
        trainer={**first.trainer_args, "logger": False, "default_root_dir": str(tmp_path)}, seed=0, num_rounds=2,
        upload_transforms=[ClipNorm(0.01)], name="clipped",
    )  # fmt: skip
    assert again.fit(Linear(), clients((10, 16)), ckpt_path="last")["rounds_run"] == 2
    other = FederatedTrainer(
        trainer={**first.trainer_args, "logger": False, "default_root_dir": str(tmp_path)}, seed=0, num_rounds=2,
        upload_transforms=[ClipNorm(0.02)], name="clipped",
    )  # fmt: skip
    with pytest.raises(ValueError, match="max_norm"):
        other.fit(Linear(), clients((10, 16)), ckpt_path="last")
