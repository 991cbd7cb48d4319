"""Clients in the server's process: rebuilt or not, their memories are saved, linked and loaded."""

import pytest
import torch
from federations import CPU, Linear, Table

from fl_lightning.engine import InProcess
from fl_lightning.engine.client import ClientHalf, LocalSettings, protocol_step
from fl_lightning.engine.messages import Message, Payload
from fl_lightning.engine.transport import ClientSpec, client_file


class Keeping(ClientHalf):
    """Steps that remember, tell and fail."""

    @protocol_step
    def keep(self, client, request):
        client.store.values["n"] = request.values["n"]
        return Payload(dict(request.tensors), {"half": id(self), "module": id(client.module)})

    @protocol_step
    def tell(self, client, request):
        return Payload(values=dict(client.store.values))

    @protocol_step
    def fail(self, client, request):
        raise RuntimeError(f"client {client.id}")


@pytest.fixture
def engine(request):
    return started()


def started(**options):
    made = InProcess(**options)
    data = [Table(8, seed=1) for _ in range(3)]
    made.start(ClientSpec(Linear(), Keeping(), data, LocalSettings("r", 0, 2, CPU)))
    return made


def ask(engine, kind, clients=(0, 1, 2), tensors=None, **values):
    requests = [Message(kind, "r", 4, c, Payload(tensors or {}, values)) for c in clients]
    return {reply.client: reply for reply in engine.exchange(requests, None)}


def told(engine):
    return {c: r.payload.values.get("n") for c, r in ask(engine, "tell").items()}


def test_memories_are_saved_linked_and_loaded(engine, tmp_path):
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
    for client in (0, 1):
        ask(engine, "keep", [client], n=client + 5)
    engine.save(tmp_path / "a", None)
    assert [client_file(tmp_path / "a", c).is_file() for c in range(3)] == [True, True, False]  # the third has none
    ask(engine, "keep", [1], n=0)
    engine.save(tmp_path / "b", tmp_path / "a")
    assert [client_file(tmp_path / "a", c).samefile(client_file(tmp_path / "b", c)) for c in (0, 1)] == [True, False]
    engine.load(tmp_path / "a")
    assert told(engine) == {0: 5, 1: 6, 2: None}
    engine.save(tmp_path / "c", tmp_path / "b")  # what was loaded is not what was saved last: no link
    assert not client_file(tmp_path / "b", 0).samefile(client_file(tmp_path / "c", 0))
    (tmp_path / "d").mkdir()
    client_file(tmp_path / "c", 0).unlink()
    engine.save(tmp_path / "d", tmp_path / "c")  # the file to link to is gone
    again = started()
    again.load(tmp_path / "d")
    assert told(again) == {0: 5, 1: 6, 2: None}


@pytest.mark.parametrize("rebuild", [False, True])
def test_halves_and_modules_are_rebuilt_before_each_request_or_never(rebuild):
    engine = started(rebuild_clients=rebuild)
    workers = {id(engine._worker): engine._worker}
    for n in range(3):
        replies = ask(engine, "keep", [0], n=n)
        workers[id(engine._worker)] = engine._worker
        assert replies[0].error is None
    assert len(workers) == (4 if rebuild else 1) and told(engine) == {0: 2, 1: None, 2: None}
    assert engine._saved.worker is engine._worker


def test_messages_are_copies_on_both_ways(engine):
    sent = torch.ones(2)
    reply = ask(engine, "keep", [0], {"x": sent}, n=1)[0].payload.tensors["x"]
    reply.zero_()
    assert sent.tolist() == [1.0, 1.0]


def test_the_last_exception_is_kept_for_whoever_asks(engine):
    assert engine.last_exception is None
    replies = ask(engine, "fail", [2])
    assert replies[2].error == "RuntimeError: client 2" and str(engine.last_exception) == "client 2"


def test_defaults():
    made = InProcess()
    assert made.threads == 1 and made.rebuild_clients is False and InProcess(threads=3).threads == 3


def test_at_least_one_thread():
    with pytest.raises(ValueError, match="`federation.engine.init_args.threads` must be at least 1, got 0"):
        InProcess(threads=0)


@pytest.mark.parametrize("rebuild", [False, True])
def test_a_good_answer_after_an_error_does_not_hide_its_cause(rebuild):
    engine = started(rebuild_clients=rebuild)
    ask(engine, "fail", [0])
    ask(engine, "tell", [1])
    assert str(engine.last_exception) == "client 0"


def test_without_a_previous_checkpoint_everything_is_written(engine, tmp_path):
    ask(engine, "keep", [0], n=1)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        engine.save(tmp_path / folder, None)
    assert not client_file(tmp_path / "a", 0).samefile(client_file(tmp_path / "b", 0))
