"""The framing of messages between the supervisor and its processes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_idv.errors import ConfigError, Problem, StartError
from tornado_idv.workers.channel import Decoder, decode_error, encode, encode_error

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


@pytest.mark.parametrize("data", [b"null\n", b"{\n", b"\n", b"\xff\n"])
def test_anything_else_is_an_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        Decoder().feed(data)


@pytest.mark.parametrize(
    "error",
    [
        StartError("cannot open members.db"),
        ConfigError(Problem("users.yaml", 3, 1, "users", "wrong"), Problem("x", 1, 2, "", "bad")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_keeps_its_type_text_and_data(error: StartError) -> None:
    (record,) = Decoder().feed(encode(encode_error(error)))
    received = decode_error(record)
    assert (type(received), str(received)) == (type(error), str(error))
    assert vars(received) == vars(error)
