"""The framing of messages between the supervisor and its processes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_idv.workers.control import MAX_SIZE, ControlError, Decoder, encode

MESSAGES = st.lists(
    st.dictionaries(st.text(max_size=8), st.integers(-5, 5) | st.text(max_size=8), max_size=4),
    max_size=5,
)


@given(MESSAGES, st.integers(1, 9))
def test_messages_arrive_whole_however_they_are_split(
    messages: list[dict[str, int | str]], size: int
) -> None:
    decoder, data = Decoder(), b"".join(map(encode, messages))
    received = [
        message
        for at in range(0, len(data), size)
        for message in decoder.feed(data[at : at + size])
    ]
    assert received == messages


def test_too_large_a_message_is_not_sent() -> None:
    with pytest.raises(ControlError, match="too large"):
        encode({"text": "x" * MAX_SIZE})


def test_message_of_the_largest_size_is_received() -> None:
    message = {"text": "x" * (MAX_SIZE - len('{"text":""}'))}
    assert Decoder().feed(encode(message)) == [message]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack("!I", MAX_SIZE + 1), "too large"),
        (struct.pack("!I", 4) + b"null", "not a JSON object"),
        (struct.pack("!I", 1) + b"{", "not a JSON object"),
        (struct.pack("!I", 0), "not a JSON object"),
    ],
    ids=["too large", "no object", "no JSON", "empty"],
)
def test_what_is_not_a_message_is_an_error(data: bytes, reason: str) -> None:
    with pytest.raises(ControlError, match=reason):
        Decoder().feed(data)
