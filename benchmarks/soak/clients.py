"""Clients that send requests at a given rate, and count the responses."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from typing import cast

from benchmarks import dataset
from benchmarks.wire import traffic

_CONNECTIONS = 32
_TICK = 0.005
_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)\r\n")
_HEAD_END = b"\r\n\r\n"


class Client(asyncio.Protocol):
    """One connection. It sends single requests, and counts responses by status."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._buffer = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._clients.idle(self)

    def request(self, data: bytes) -> None:
        """Send one request. Wait until this client is idle before the next one."""
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head_end = self._buffer.find(_HEAD_END)
        if head_end < 0:
            return
        length = _LENGTH.search(self._buffer)
        assert length is not None
        if len(self._buffer) == head_end + len(_HEAD_END) + int(length[1]):
            self._clients.results[self._buffer[9:12].decode()] += 1
            self._buffer = b""
            self._clients.idle(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._clients.results["connection lost"] += not self._clients.stopped


class Clients:
    """Requests for one user after the other, so few are in the cache.

    ``results`` counts responses by status, and lost connections. ``rate`` is in requests per
    second.
    """

    def __init__(self, users: int) -> None:
        self.results: Counter[str] = Counter()
        self.stopped = False
        self._idle: list[Client] = []
        self._numbers = itertools.cycle(range(users))
        self._due = 0.0
        self._rate = 0.0
        self._sent_at = 0.0

    @asynccontextmanager
    async def connected(self, port: int) -> AsyncIterator[None]:
        """Connect, and send requests while the context is open."""
        loop = asyncio.get_running_loop()
        opened = [
            await loop.create_connection(lambda: Client(self), "127.0.0.1", port)
            for _ in range(_CONNECTIONS)
        ]
        sender = asyncio.create_task(self._send())
        try:
            yield
        finally:
            sender.cancel()
            self.stopped = True
            for transport, _ in opened:
                transport.close()

    def pace(self, rate: float) -> None:
        """Change the rate, in requests per second. At infinity, send at full speed."""
        self._rate, self._due = rate, 0.0
        self._sent_at = asyncio.get_running_loop().time()
        while rate == inf and self._idle:
            self._request(self._idle.pop())

    def idle(self, client: Client) -> None:
        """Register a client as idle, after its response."""
        if self._rate == inf:
            self._request(client)
        else:
            self._idle.append(client)

    async def _send(self) -> None:
        """Send all due requests. Without an idle client, a request is sent later, not dropped."""
        while True:
            await asyncio.sleep(_TICK)
            if self._rate == inf:
                continue
            now = asyncio.get_running_loop().time()
            self._due += (now - self._sent_at) * self._rate
            self._sent_at = now
            while self._due >= 1 and self._idle:
                self._request(self._idle.pop())
                self._due -= 1

    def _request(self, client: Client) -> None:
        body = traffic.body(f"@{dataset.nickname(next(self._numbers))}")
        client.request(traffic.make_traffic([body]).head + body)
