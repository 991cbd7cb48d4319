"""What a site answers is read once; what cannot be read names the site's fault, and is no end of the run."""

import pytest
import torch

from fl_lightning.engine.messages import Message, Payload
from fl_lightning.flower.engine import _reply_in
from fl_lightning.flower.processes import frames

REPLY = Message("fit", "run", 3, 1, Payload({"w": torch.ones(2)}, {"num_samples": 5}))


def test_a_good_answer():
    reply, after = _reply_in(frames.pack({"error": None, "after": 7}, REPLY.encode()))
    assert (reply.kind, reply.round, reply.payload.values, after) == ("fit", 3, {"num_samples": 5}, 7)
    assert _reply_in(frames.pack({"error": None, "after": None}, REPLY.encode()))[1] is None


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b"", "A frame ends before its header"),
        (frames.pack({"error": "the disk is gone"}), "^the disk is gone$"),
        (frames.pack({"after": "7"}, REPLY.encode()), "`after` of its reply must be a step or null, but is '7'"),
        (frames.pack({"after": True}, REPLY.encode()), "`after` of its reply"),
        (frames.pack({"after": 7}), "these 0 bytes are no message"),
        (frames.pack({"after": 7}, REPLY.encode()[:-3]), "are no message"),
    ],
)
def test_what_cannot_be_read(frame, text):
    with pytest.raises(ValueError, match=text):
        _reply_in(frame)
