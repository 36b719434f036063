"""One request that a client repeats while a test changes something.

Each request is alone in its segment: that is what the fast path responds to.
"""

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from support.processes.process import TIMEOUT, eventually
from support.processes.service import lookup_request

PATH = "/api/v1/identify/url"
BODY = json.dumps({"input": "@alice"}).encode()
_MAX_RESPONSE = 4096


@dataclass
class Load:
    """The statuses of the responses, by the time at which their requests were sent."""

    seen: list[tuple[float, Counter[int]]] = field(default_factory=list)

    def wait_for(self, status: int) -> None:
        """Wait for a response with this status from now on."""
        since = time.monotonic()
        eventually(lambda: status in self.statuses(since=since))

    def statuses(self, *, since: float = 0.0) -> Counter[int]:
        """Count the responses to what was sent at this monotonic time or later, by status."""
        total: Counter[int] = Counter()
        for sent, statuses in list(self.seen):
            if sent >= since:
                total.update(statuses)
        return total


@contextmanager
def repeating(
    port: int, token: str, connections: int = 1, *, pause: float = 0.01
) -> Iterator[Load]:
    """Repeat the lookup of a user with this token, on each connection, in a thread, within."""
    load, stop, request = Load(), threading.Event(), lookup_request("@alice", token)

    def send() -> None:
        with ExitStack() as stack:
            address = "127.0.0.1", port
            socks = [
                stack.enter_context(socket.create_connection(address, TIMEOUT))
                for _ in range(connections)
            ]
            while not stop.wait(pause):
                sent = time.monotonic()
                for sock in socks:
                    sock.sendall(request)
                responses = [sock.recv(_MAX_RESPONSE) for sock in socks]
                load.seen.append((sent, Counter(int(each[9:12]) for each in responses)))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield load
    finally:
        stop.set()
        thread.join(TIMEOUT)
