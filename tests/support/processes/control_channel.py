"""The supervisor's end of a control connection, played by a test."""

from __future__ import annotations

import socket
from typing import Any, Self

from tornado_idv.workers.channel import Decoder, Message, encode


class ControlEnd:
    """Sends messages to a process at the end ``theirs``, and collects what it sends."""

    def __init__(self) -> None:
        self._socket, self.theirs = socket.socketpair()
        self._socket.settimeout(10)
        self._decoder = Decoder()
        self._unread: list[Message] = []
        self._ids = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.theirs.close()

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def close(self) -> None:
        self._socket.close()

    def send(self, op: str, **more: Any) -> None:
        self._socket.sendall(encode({"op": op, **more}))

    def do(self, command: str, **args: Any) -> Message:
        """Send a command, and return its reply."""
        self._ids += 1
        self.send("do", id=self._ids, command=command, args=args)
        reply = self.wait_for("reply")
        assert reply["id"] == self._ids
        return reply

    def wait_for(self, op: str) -> Message:
        """Return the next message with this operation; those before it are dropped."""
        while True:
            message = self.receive()
            assert message is not None, f"the process has closed its end without {op}"
            if message["op"] == op:
                return message

    def receive(self) -> Message | None:
        """Return the next message; ``None`` at the end."""
        while not self._unread:
            data = self._socket.recv(65536)
            if not data:
                return None
            self._unread += self._decoder.feed(data)
        return self._unread.pop(0)

    def rest(self) -> list[Message]:
        """Return all messages until the process closes its end."""
        return list(iter(self.receive, None))
