"""The ledger: exact bytes, one line a message, nothing crosses the border that it does not show."""

import json

import torch
from federations import Deep, Linear, clients, federate

from fl_lightning import FedAvg, LocalOnly
from fl_lightning.engine import InProcess
from fl_lightning.engine.ledger import Ledger, is_ledger
from fl_lightning.engine.messages import Message, Payload


class Spy(InProcess):
    """Sees every message on both sides of the border."""

    def start(self, spec):
        super().start(spec)
        self.seen = []

    def exchange(self, requests, timeout):
        for request in requests:
            self.seen.append(("down", request))
        for reply in super().exchange(requests, timeout):
            self.seen.append(("up", reply))
            yield reply


def lines(fed):
    return [json.loads(line) for line in (fed.run_dir / "ledger.jsonl").read_text().splitlines()]


def test_bytes_of_a_known_federation_by_hand(tmp_path):
    # Linear(3, 1): 3 + 1 float32 = 16 bytes. 2 clients, 1 round:
    # fit down       2 x (16 + len('{}')) = 36
    # fit up         2 x 16 + the JSON values, counted here as text
    # evaluate       val after the round, then val and test at the end: down 16 + values each, up values only
    fed = federate(tmp_path, data=clients((10, 16)), num_rounds=1)
    fit = [line for line in lines(fed) if line["kind"] == "fit"]
    assert [(f["direction"], f["client"]) for f in fit] == [("down", 0), ("down", 1), ("up", 0), ("up", 1)]
    assert [f["bytes"] for f in fit[:2]] == [18, 18]
    assert all(f["tensors"] == {"net.weight": ["float32", [1, 3]], "net.bias": ["float32", [1]]} for f in fit)
    for line in fit[2:]:
        assert line["values"] == ["metrics", "num_samples"] and line["bytes"] > 16
    asked = [line for line in lines(fed) if line["kind"] == "evaluate" and line["direction"] == "down"]
    # {"stages":["val"]} is 18 characters, {"stages":["val","test"]} 25
    assert [line["bytes"] for line in asked] == [34, 34, 41, 41]
    answered = [line for line in lines(fed) if line["kind"] == "evaluate" and line["direction"] == "up"]
    assert all(line["tensors"] == {} for line in answered)
    assert fed.results["bytes"]["down"] == 2 * 18 + 2 * 34 + 2 * 41


def test_the_file_adds_up_to_the_totals(tmp_path):
    fed = federate(tmp_path, num_rounds=3, clients_per_round=2)
    found = lines(fed)
    totals = fed.results["bytes"]
    for direction in ("up", "down"):
        assert sum(line["bytes"] for line in found if line["direction"] == direction) == totals[direction]
    for kind, size in totals["by_kind"].items():
        assert sum(line["bytes"] for line in found if line["kind"] == kind) == size
    assert sum(totals["by_kind"].values()) == totals["up"] + totals["down"]


def test_a_spy_sees_exactly_what_the_ledger_lists_and_nothing_private(tmp_path):
    spy = Spy()
    module = Deep()
    data = clients((10, 16, 12))
    fed = federate(tmp_path, module, data, engine=spy, num_rounds=2, carry_optimizer_state=True)
    listed = [(line["direction"], line["client"], line["round"], line["kind"], line["bytes"]) for line in lines(fed)]
    assert sorted(listed) == sorted((d, m.client, m.round, m.kind, m.nbytes) for d, m in spy.seen)

    shared = {name for name in module.state_dict() if not name.startswith("head.")}
    counters = {"net.1.num_batches_tracked"}
    private_rows = [row for c in data for row in torch.cat([c.train.tensors[0], c.held.tensors[0]])]
    for direction, message in spy.seen:
        names = set(message.payload.tensors)
        if message.kind == "fit":
            assert names == (shared if direction == "down" else shared - counters)
            allowed = set() if direction == "down" else {"num_samples", "metrics"}
        else:
            assert message.kind == "evaluate" and names == (shared if direction == "down" else set())
            allowed = {"stages"} if direction == "down" else {"val", "test"}
        assert set(message.payload.values) <= allowed
        for tensor in message.payload.tensors.values():
            if tensor.dim() == 2 and tensor.shape[1] == 3:  # as wide as a row of data
                assert not any(torch.equal(row, mine) for row in private_rows for mine in tensor)


def test_local_only_moves_no_tensor_while_training(tmp_path):
    spy = Spy()
    fed = federate(tmp_path, engine=spy, strategy=LocalOnly())
    assert all(not m.payload.tensors for _, m in spy.seen)
    assert set(fed.results["bytes"]["by_kind"]) == {"fit", "evaluate"}


def test_an_error_is_a_message_too_and_its_text_is_counted():
    ledger = Ledger()
    ledger.record("up", Message("fit", "run", 0, 1, Payload(), error="KeyError: 'CCO'"))
    assert ledger.up == len("{}") + len("KeyError: 'CCO'")


def test_error_replies_are_listed(tmp_path):
    class Breaks(Linear):
        def training_step(self, batch, batch_idx):
            if len(batch[0]) == 16:
                raise KeyError("CCO")
            return super().training_step(batch, batch_idx)

    fed = federate(tmp_path, Breaks(), clients((10, 16)), num_rounds=1)
    errors = [line for line in lines(fed) if line["error"]]
    assert [(e["client"], e["direction"], e["error"]) for e in errors] == [(1, "up", "KeyError: 'CCO'")]


def test_going_on_cuts_what_came_after_and_never_fills_with_zeros(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger()
    ledger.open(path)
    ledger.record("up", Message("fit", "run", 0, 0))
    end = ledger.flush()
    ledger.record("up", Message("fit", "run", 1, 0))
    ledger.close()
    again = Ledger()
    again.open(path, resume_at=end)
    again.record("down", Message("fit", "run", 1, 0))
    again.close()
    assert [json.loads(x)["direction"] for x in path.read_text().splitlines()] == ["up", "down"]
    third = Ledger()
    third.open(path, resume_at=10_000)
    third.close()
    assert "\0" not in path.read_text()


def test_weighted_fedavg_sends_the_same(tmp_path):
    spy = Spy()
    federate(tmp_path, engine=spy, strategy=FedAvg(weighting="num_samples"), num_rounds=1)
    up = [m for d, m in spy.seen if d == "up" and m.kind == "fit"]
    assert [m.payload.values["num_samples"] for m in up] == [10, 16, 24, 8]


def test_going_on_where_the_file_is_gone_begins_a_new_one(tmp_path):
    ledger = Ledger()
    ledger.open(tmp_path / "ledger.jsonl", resume_at=100)
    ledger.record("up", Message("fit", "r", 0, 1, Payload({"w": torch.zeros(2)})))
    assert ledger.flush() == (tmp_path / "ledger.jsonl").stat().st_size > 0
    ledger.close()
    assert ledger.flush() == 0  # no file any more


def test_totals_by_hand_and_restored():
    ledger = Ledger()
    ledger.record("down", Message("fit", "r", 0, 1, Payload({"w": torch.zeros(2)})))  # 8 bytes and `{}`
    ledger.record("up", Message("fit", "r", 0, 1, Payload({"w": torch.zeros(3)})))
    ledger.record("up", Message("query", "r", 0, 1))
    assert ledger.totals() == {"up": 16, "down": 10, "by_kind": {"fit": 24, "query": 2}}
    other = Ledger()
    other.restore(ledger.totals())
    other.record("up", Message("fit", "r", 1, 1))
    assert other.totals() == {"up": 18, "down": 10, "by_kind": {"fit": 26, "query": 2}}
    assert ledger.totals()["by_kind"] == {"fit": 24, "query": 2}


def test_only_lines_of_a_ledger_make_a_ledger(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for text, ours in (("", True), ("cash: 3\n", False), ("[1]\n", False), ("3\n", False), ('{"kind": "fit"}\n', False)):
        path.write_text(text)
        assert is_ledger(path) is ours
    ledger = Ledger()
    ledger.open(path)
    ledger.record("up", Message("fit", "run", 0, 0))
    ledger.close()
    assert is_ledger(path) and not is_ledger(tmp_path) and not is_ledger(tmp_path / "none")


def test_a_new_run_begins_a_new_file_and_closing_closes_it(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text("of an earlier run\n")
    ledger = Ledger()
    ledger.open(path)
    ledger.record("up", Message("fit", "run", 0, 0))
    file = ledger._file
    ledger.close()
    ledger.close()  # once is enough
    assert file.closed and [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["fit"]


def test_a_line_needs_no_more_than_direction_client_kind_and_bytes(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"direction": "up", "client": 0, "kind": "fit", "bytes": 2}\n')
    assert is_ledger(path)
