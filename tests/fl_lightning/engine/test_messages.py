"""Messages: exact round trips, nothing shared, nothing but dense tensors and JSON."""

import json
import math
import struct
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.engine.messages import Message, Payload, check_payload, non_finite

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
SHAPES = ((), (0,), (3, 0, 2), (1,), (5,), (2, 3), (2, 1, 4))


@st.composite
def tensors(draw):
    shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES))
    raw = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    if dtype.is_floating_point:
        tensor = (raw.to(torch.float64) * 1e-3 - 0.1).to(dtype)
    else:
        tensor = raw % 2 == 0 if dtype == torch.bool else raw.to(dtype)
    how = draw(st.sampled_from(("plain", "transposed", "strided", "expanded")))
    if how == "transposed" and tensor.dim() == 2:
        return tensor.T
    if how == "strided" and tensor.dim() > 0 and tensor.numel():
        return tensor.repeat_interleave(2, dim=0)[::2]
    if how == "expanded":
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    return tensor


def message(tensors=None, values=None, **other):
    return Message("fit", "run", 3, 1, Payload(tensors or {}, values or {}), **other)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.text(min_size=1, max_size=8).filter(lambda n: n != "__metadata__"), tensors(), max_size=4),
    st.dictionaries(
        st.text(max_size=5),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=9)
        | st.lists(st.integers(), max_size=3),
        max_size=4,
    ),
)
def test_encode_and_decode_give_back_every_bit(entries, values):
    sent = message(entries, values, error=None)
    got = Message.decode(sent.encode())
    assert (got.kind, got.run, got.round, got.client, got.error) == ("fit", "run", 3, 1, None)
    assert dict(got.payload.values) == values
    assert list(got.payload.tensors) == list(entries)
    for name, tensor in entries.items():
        received = got.payload.tensors[name]
        assert received.dtype == tensor.dtype and received.shape == tensor.shape
        assert torch.equal(received, tensor)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), tensors(), max_size=3))
def test_clone_equals_the_original_and_shares_nothing(entries):
    values = {"list": [1, 2]}
    sent = message(entries, values)
    copy = sent.cloned()
    for name, tensor in entries.items():
        mine = copy.payload.tensors[name]
        assert mine.shape == tensor.shape and torch.equal(mine, tensor) and mine.is_contiguous()
        if tensor.numel():
            assert mine.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    copy.payload.values["list"].append(3)
    assert values == {"list": [1, 2]}


def test_nan_and_infinities_in_tensors_survive_the_trip():
    special = torch.tensor([float("nan"), float("inf"), -0.0])
    got = Message.decode(message({"x": special}).encode()).payload.tensors["x"]
    assert torch.equal(got.view(torch.int32), special.view(torch.int32))


def test_clone_of_a_live_parameter_is_detached():
    parameter = torch.nn.Parameter(torch.ones(2))
    copy = message({"w": parameter}).cloned().payload.tensors["w"]
    with torch.no_grad():
        parameter.add_(1)
    assert not copy.requires_grad and copy.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "bad",
    [torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr(), [1.0], 3, None],
    ids=["coo", "csr", "list", "int", "none"],
)
@pytest.mark.parametrize("way", ["cloned", "encode"])
def test_anything_but_a_dense_tensor_is_refused_by_name(bad, way):
    with pytest.raises(ValueError, match="dense tensors only; entry `layer.weight`"):
        getattr(message({"layer.weight": bad}), way)()


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("way", ["cloned", "encode"])
def test_nan_in_values_is_refused(number, way):
    with pytest.raises(ValueError):
        getattr(message(values={"loss": number}), way)()


def test_objects_in_values_are_refused():
    with pytest.raises(TypeError):
        message(values={"x": object()}).encode()


def test_nbytes_counts_tensors_and_json_values():
    # 6 float32 + 1 int64 = 32 bytes; {"n":10} is 8 characters.
    sent = message({"a": torch.zeros(2, 3), "b": torch.tensor(1)}, {"n": 10})
    assert sent.nbytes == 32 + 8
    assert json.loads('{"n":10}') == sent.payload.values


def test_non_finite_names_the_entry():
    good = {"a": torch.ones(2), "n": torch.tensor(2**62), "empty": torch.zeros(0)}
    assert non_finite(good) is None
    assert non_finite({**good, "b": torch.tensor([1.0, float("-inf")])}) == "b"
    assert non_finite({**good, "c": torch.tensor(float("nan"), dtype=torch.bfloat16)}) == "c"


# ---- bytes that are no message ---------------------------------------------------------------------------------------

SENT = Message("fit", "run", 0, 1, Payload({"w": torch.ones(3, 2)}, {"num_samples": 4, "metrics": {}}))


def with_header(change):
    data = SENT.encode()
    (length,) = struct.unpack_from("<Q", data)
    head = change(data[8 : 8 + length].decode()).encode()
    return struct.pack("<Q", len(head)) + head + data[8 + length :]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"abc",
        SENT.encode()[:40],
        SENT.encode()[:-9],
        struct.pack("<Q", 2**60) + b"{}",
        with_header(lambda head: head.replace('"num_samples":4', '"num_samples":NaN')),
        with_header(lambda head: head.replace('"num_samples":4', '"num_samples":1e999')),
        with_header(lambda head: head.replace('"num_samples":4', '"num_samples":-Infinity')),
        with_header(lambda head: head.replace('["w"]', '["v"]')),
        with_header(lambda head: json.dumps({**json.loads(head), "values": [1]})),
        with_header(lambda head: json.dumps({**json.loads(head), "more": 1})),
        with_header(lambda head: "[1]"),
        with_header(lambda head: "{}"),
    ],
)
def test_what_is_no_message_is_told_as_one_error(data):
    with pytest.raises(ValueError, match=f"these {len(data)} bytes are no message"):
        Message.decode(data)


def test_the_unchanged_message_is_one():
    assert Message.decode(with_header(str)).payload.values == SENT.payload.values


@pytest.mark.parametrize("answer", [None, {"w": 1}, Payload([1]), Payload({}, [1])])
def test_a_step_that_answers_with_something_else_is_told(answer):
    with pytest.raises(ValueError, match="A step answers with a Payload of named tensors and named values, not with"):
        check_payload(answer)


def test_an_error_is_counted_and_large_finite_numbers_are_finite():
    assert replace(message(), error="nö").nbytes == 2 + 3  # `{}`, and two letters of three bytes
    assert non_finite({"a": torch.full((4,), 3e38)}) is None  # its sum is infinite
    assert non_finite({"a": torch.tensor([1.0 + 0j, complex("inf")])}) == "a"


@pytest.mark.parametrize("payload", [Payload({"w": torch.eye(2).to_sparse()}), Payload({"w": 1.0})])
def test_a_step_cannot_answer_with_anything_but_dense_tensors(payload):
    with pytest.raises(ValueError, match="A message holds dense tensors only; entry `w` is"):
        check_payload(payload)


def test_whole_numbers_are_always_finite():
    assert non_finite({"a": torch.tensor([2**31], dtype=torch.uint32), "b": torch.tensor([True])}) is None
