"""The server's view of one step: good replies in client order, each fault with its name, the ledger in between."""

from dataclasses import replace

import pytest
import torch

from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import NoReply, Payload
from fl_lightning.engine.replies import Expected, sample_count
from fl_lightning.errors import FederationError

ONE = {"w": torch.ones(2)}


class Scripted:
    """Answers with what is written down for each client: a payload, the text of an error, or nothing at all (``None``)."""

    threads, last_exception = 1, None

    def __init__(self, answers, order=None):
        self.answers, self.order, self.timeouts = answers, order, []

    def exchange(self, messages, timeout):
        self.timeouts.append(timeout)
        self.asked = {m.client: m for m in messages}
        for client in self.order or sorted(self.asked):
            message, answer = self.asked[client], self.answers[client]
            if answer is None:
                yield NoReply(message.kind, message.run, message.round, client, error="no reply within 3 s")
            elif isinstance(answer, str):
                yield replace(message, payload=Payload(), error=answer)
            else:
                yield replace(message, payload=answer)


def federation(answers, order=None, **options):
    return Federation(Scripted(answers, order), "run 7", tuple(answers), **options)


def call(made, kind="fit", round=4, **options):
    return made.call(kind, {client: Payload(ONE, {"to": client}) for client in made.clients}, round, **options)


def good(client):
    return Payload({"w": torch.full((2,), float(client))}, {"num_samples": client})


def test_replies_come_in_client_order_and_each_client_gets_its_own_request():
    made = federation({2: good(2), 0: good(0), 1: good(1)}, order=[1, 2, 0], timeout=9.5)
    replies = call(made)
    assert list(replies) == [0, 1, 2] and all(replies[c].values == {"num_samples": c} for c in replies)
    assert made.engine.timeouts == [9.5] and made.failures == []
    for client, message in made.engine.asked.items():
        assert (message.kind, message.run, message.round, message.client) == ("fit", "run 7", 4, client)
        assert message.payload.values == {"to": client}


def test_the_ledger_has_every_request_and_every_reply_that_came():
    made = federation({0: good(0), 1: "RuntimeError: x", 2: None})
    call(made)
    down, error = 8 + len('{"to":0}'), len("{}") + len("RuntimeError: x")
    assert made.ledger.totals() == {
        "down": 3 * down,
        "up": 8 + len('{"num_samples":0}') + error,  # of client 2 nothing came
        "by_kind": {"fit": 3 * down + 8 + len('{"num_samples":0}') + error},
    }


@pytest.mark.parametrize("required", [True, False])
def test_whoever_errs_is_silent_or_sends_nonsense_is_named_and_left_out(required):
    answers = {
        0: good(0), 1: "ValueError: no", 2: None, 3: Payload({"w": torch.tensor([1.0, torch.nan])}, {"num_samples": 1}),
        4: Payload(ONE, {"num_samples": -1}), 5: good(5),
    }  # fmt: skip
    made = federation(answers, min_clients=2)
    expected = Expected(values={"num_samples": sample_count})
    assert list(call(made, round=6, expected=expected, required=required)) == [0, 5]
    reasons = {f.pop("client"): f for f in made.failures}
    assert list(reasons) == [1, 2, 3, 4]
    assert all(f["round"] == 6 and f["kind"] == "fit" for f in reasons.values())
    texts = [f["reason"] for f in reasons.values()]
    assert texts[:3] == ["ValueError: no", "no reply within 3 s", "non-finite values in `w`"]
    assert "`num_samples` of its reply must be a whole number from 0" in texts[3]


def test_each_client_may_have_expectations_of_its_own():
    made = federation({0: good(0), 1: good(1), 2: good(2)})
    own = {0: Expected(layout={"w": torch.zeros(2)}), 1: Expected(layout={"w": torch.zeros(3)})}  # of client 2: none
    assert list(call(made, expected=own)) == [0, 2]
    assert [f["client"] for f in made.failures] == [1]


def test_what_must_be_alike_is_compared_among_the_good_replies():
    answers = {0: good(0), 1: good(1), 2: Payload({"w": torch.ones(3)}), 3: "ValueError: no"}
    made = federation(answers)
    expected = Expected(alike=lambda payload: {"the width": len(payload.tensors["w"])})
    assert list(call(made, expected=expected)) == [0, 1]
    assert {f["client"]: f["reason"] for f in made.failures} == {
        2: "the width is 3 in its reply and 2 in the others'", 3: "ValueError: no"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "min_clients", "required", "fails"),
    [(0, 3, True, False), (1, 3, True, True), (1, 2, True, False), (2, 2, True, True), (2, 2, False, False),
     (3, 1, True, True), (3, 1, False, False), (0, 9, True, False)],
)  # fmt: skip
def test_too_few_good_replies_fail_a_required_step(bad, min_clients, required, fails):
    """Of three asked; more than are asked are never needed."""
    made = federation({c: "ValueError: no" if c < bad else good(c) for c in range(3)}, min_clients=min_clients)
    if not fails:
        assert len(call(made, required=required)) == 3 - bad
        return
    text = rf"Round 5, step `fit`: {3 - bad} client\(s\) answered, {min(min_clients, 3)} needed \(`federation.min_clients`\)"
    with pytest.raises(FederationError, match=text):
        call(made, required=required)


def test_one_good_reply_is_enough_unless_more_are_asked_for():
    made = federation({0: good(0), 1: "ValueError: no"})
    assert list(call(made)) == [0] and (made.min_clients, made.timeout) == (1, None)


def test_the_error_lists_the_reasons_of_this_step_alone_and_its_cause():
    made = federation({0: "ValueError: first", 1: good(1)}, min_clients=2)
    made.engine.last_exception = cause = RuntimeError("the disk")
    made.reject(1, "fit", 3, "of another round")
    made.reject(1, "evaluate", 4, "of another step")
    made.reject(None, "test", 3, "the server's own")
    with pytest.raises(FederationError) as error:
        call(made)
    assert str(error.value).endswith("The last good model is kept.\n  client 0: ValueError: first")
    assert error.value.__cause__ is cause
    assert [f["client"] for f in made.failures] == [1, 1, None, 0]


def test_a_step_that_asks_nobody_is_none():
    made = federation({})
    assert call(made) == {} and made.failures == []
    with pytest.raises(FederationError, match=r"0 client\(s\) answered, 1 needed.*\n  \(none was asked\)"):
        made.fail("fit", 0, 0, 1, [])
