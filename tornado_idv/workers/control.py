"""Messages between the supervisor and its processes: JSON objects with their length in front.

Pure: bytes in, messages out. The sockets belong to the two ends, `child` and `channel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any

import msgspec

MAX_SIZE = 4 * 1024 * 1024
"""Bytes of one message."""
_LENGTH = Struct("!I")

Message = dict[str, Any]


class ControlError(Exception):
    """The other end sent what is not a message; the connection cannot be used any more."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message; raises `ControlError` if it is larger than `MAX_SIZE`."""
    body = msgspec.json.encode(message)
    if len(body) > MAX_SIZE:
        raise ControlError(f"a message of {len(body)} bytes is too large")
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Splits what one end sends into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete with ``data``; raises `ControlError`."""
        buffer = self._buffer
        buffer += data
        messages = []
        while len(buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer)
            if length > MAX_SIZE:
                raise ControlError(f"a message of {length} bytes is too large")
            end = _LENGTH.size + length
            if len(buffer) < end:
                break
            messages.append(_decode(bytes(buffer[_LENGTH.size : end])))
            del buffer[:end]
        return messages


def _decode(body: bytes) -> Message:
    try:
        return msgspec.json.decode(body, type=Message)
    except msgspec.DecodeError:
        raise ControlError("a message is not a JSON object") from None
