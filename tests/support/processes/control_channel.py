"""The supervisor's end of a control connection, played by a test."""

import socket
from collections.abc import Callable
from typing import Any, Self

import msgspec

from tornado_idv.workers.channel import Message, State, encode


class ControlEnd:
    """Sends messages to a process at the end ``theirs``, and collects what it sends."""

    def __init__(self) -> None:
        self._socket, self.theirs = socket.socketpair()
        self._socket.settimeout(10)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.theirs.close()

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def send(self, op: str, **more: Any) -> None:
        self._socket.sendall(encode({"op": op, **more}))

    def wait_for(self, is_reached: Callable[[State], object]) -> State:
        """Return the first state that the process reports for which that is true."""
        while True:
            message = self.receive()
            assert message is not None, "the process has closed its end without that"
            if is_reached(state := msgspec.convert(message["state"], State)):
                return state

    def wait_until_serving(self) -> State:
        return self.wait_for(lambda state: state.keys is not None)

    def receive(self) -> Message | None:
        """Return the next message; ``None`` at the end."""
        line = self._file.readline()
        return msgspec.json.decode(line) if line else None

    def rest(self) -> list[Message]:
        """Return all messages until the process closes its end."""
        return list(iter(self.receive, None))
