"""Messages between the supervisor and its processes: one JSON object on each line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tornado_idv.errors import ConfigError, Problem, StartError

Message = dict[str, Any]
_MAX_PROBLEMS = ConfigError.MAX_LINES + 1
"""So many that the text says that there are more."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message."""
    return msgspec.json.encode(message) + b"\n"  # JSON escapes line feeds


class Decoder:
    """Splits what one end sends into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete with ``data``."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [msgspec.json.decode(line, type=Message) for line in lines]


def encode_error(error: StartError) -> Message:
    """Return a `StartError` as a message has it."""
    return {
        "message": str(error),
        "problems": error.problems[:_MAX_PROBLEMS] if isinstance(error, ConfigError) else (),
    }


def decode_error(record: Message) -> StartError:
    """Return the error that `encode_error` described."""
    if record["problems"]:
        return ConfigError(*msgspec.convert(record["problems"], list[Problem]))
    return StartError(record["message"])
