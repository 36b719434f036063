"""One request that a client repeats on one connection, while a test changes something."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from support.processes.process import eventually

PATH = "/api/v1/identify/url"
BODY = json.dumps({"input": "@alice"}).encode()
_PAUSE = 0.01


@dataclass
class Load:
    """The statuses of the responses, by the time at which each request was sent."""

    seen: list[tuple[float, int]] = field(default_factory=list)

    def wait_for(self, status: int) -> None:
        """Wait for a response with this status from now on."""
        since = time.monotonic()
        eventually(lambda: status in self.statuses(since=since))

    def statuses(self, *, since: float = 0.0) -> set[int]:
        return {status for sent, status in list(self.seen) if sent >= since}


@contextmanager
def repeating(port: int, token: str) -> Iterator[Load]:
    """Repeat a request with this token, in a thread, until the end of the block."""
    load, stop = Load(), threading.Event()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def send() -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            while not stop.wait(_PAUSE):
                sent = time.monotonic()
                connection.request("POST", PATH, BODY, headers)
                response = connection.getresponse()
                response.read()
                load.seen.append((sent, response.status))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield load
    finally:
        stop.set()
        thread.join(10)
