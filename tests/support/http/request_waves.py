"""A client that repeats one request at a high rate, on several connections at once.

Each request is alone in its segment: that is what the fast path responds to.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from support.processes.process import TIMEOUT
from support.processes.service import lookup_request

_MAX_RESPONSE = 4096


class Waves:
    """Waves of one request on each connection: when each began, and the statuses of it."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, Counter[int]]] = []
        self._stop = threading.Event()

    def statuses(self, *, since: float = 0.0) -> Counter[int]:
        """Count the responses in waves that began at this monotonic time or later, by status."""
        total: Counter[int] = Counter()
        for began, statuses in list(self.seen):
            if began >= since:
                total.update(statuses)
        return total

    def run(self, port: int, request: bytes, connections: int) -> None:
        """Send waves until stopped."""
        with ExitStack() as stack:
            address = "127.0.0.1", port
            socks = [
                stack.enter_context(socket.create_connection(address, TIMEOUT))
                for _ in range(connections)
            ]
            while not self._stop.is_set():
                began = time.monotonic()
                for sock in socks:
                    sock.sendall(request)
                responses = [sock.recv(_MAX_RESPONSE) for sock in socks]
                self.seen.append((began, Counter(int(each[9:12]) for each in responses)))

    def stop(self) -> None:
        self._stop.set()


@contextmanager
def sending_waves(port: int, token: str, connections: int = 32) -> Iterator[Waves]:
    """Repeat the lookup of a user with this token, in a thread, until the end of the block."""
    waves = Waves()
    thread = threading.Thread(
        target=waves.run, args=(port, lookup_request("@alice", token), connections), daemon=True
    )
    thread.start()
    try:
        yield waves
    finally:
        waves.stop()
        thread.join(TIMEOUT)
