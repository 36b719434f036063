"""Hostile clients: ``python -m benchmarks.wire.attackers ATTACK CLIENTS PORT RAMP_UP``.

Connections are opened one after the other within ``RAMP_UP`` seconds. This is the server's timeout
for such clients. When the server closes a connection, it is reopened. So connections open and close
at a steady rate. When all are open, the process prints ``ready``. On SIGTERM, or after two minutes,
it prints the number of open connections and the writes per second.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, cast

import uvloop

from benchmarks import dataset
from benchmarks.wire import traffic

_MAX_SECONDS = 120.0
_BYTE_INTERVAL = 1.0
_GUESS_INTERVAL = 0.05
_KEY_BYTES = 32
_BATCH = 100
_ADDRESS = "127.0.0.2"
"""Source address of attacks. Legitimate clients have another one."""


def _random_pause(seconds: float) -> float:
    """Return a random pause with this mean.

    With equal pauses, clients would stay synchronized after a common wait for the core.
    """
    return random.uniform(0, 2 * seconds)


def _request(key: str) -> bytes:
    made = traffic.make_traffic([traffic.body(f"@{dataset.nickname(0)}")], key=key)
    return made.head + made.bodies[0]


class Client(asyncio.Protocol):
    """Opens a connection and sends nothing. ``closed`` is set at the end of the connection."""

    sent: ClassVar[int] = 0
    """Writes of all clients. A write with several keys counts as several."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.start()

    def connection_lost(self, _: Exception | None) -> None:
        self.closed.set()

    def start(self) -> None:
        """Start the attack on this connection."""

    def send(self, data: bytes, count: int = 1) -> None:
        self.transport.write(data)
        Client.sent += count


class SlowClient(Client):
    """Sends a valid request at about one byte per second."""

    _valid_request = _request(traffic.KEY)

    def start(self) -> None:
        self._send(0)

    def _send(self, at: int) -> None:
        if not self.closed.is_set() and at < len(self._valid_request):
            self.send(self._valid_request[at : at + 1])
            self.loop.call_later(_random_pause(_BYTE_INTERVAL), self._send, at + 1)


class NonReadingClient(Client):
    """Sends valid requests as fast as possible, and never reads a response."""

    _requests = _request(traffic.KEY) * _BATCH
    _writable = True

    def start(self) -> None:
        self.loop.call_soon(self._start)  # later, because uvloop ignores a pause before reading

    def _start(self) -> None:
        self.transport.pause_reading()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._send()

    def _send(self) -> None:
        while self._writable:
            self.send(self._requests)


class KeyGuesser(Client):
    """Sends about twenty requests per second, each with a new invalid key.

    To save CPU time for legitimate clients on the same core, only the key is new in a request.
    """

    at_once: ClassVar[int] = 1
    """Requests in one write, twenty times per second."""

    _prefix, _suffix = _request("KEY").split(b"KEY")

    def start(self) -> None:
        self._pause()

    def _guess(self) -> None:
        if not self.closed.is_set():
            keys = [secrets.token_urlsafe(_KEY_BYTES).encode() for _ in range(self.at_once)]
            self.send(b"".join(self._prefix + key + self._suffix for key in keys), len(keys))
            self._pause()

    def _pause(self) -> None:
        self.loop.call_later(_random_pause(_GUESS_INTERVAL), self._guess)


class PipeliningKeyGuesser(KeyGuesser):
    """The same with ten requests in one write. This takes fewer system calls."""

    at_once = 10


@dataclass(frozen=True, slots=True)
class Attack:
    """A number of clients of one kind.

    With ``expires``, the server closes their connections after ``server.idle_timeout``. They are
    opened over this time, so the server does not close all together.
    """

    clients: int
    client: Callable[[], Client]
    expires: bool = True


ATTACKS: Mapping[str, Attack] = {
    "2,000 connections at one byte a second": Attack(2000, SlowClient),
    "1,000 idle connections": Attack(1000, Client),
    "50 clients that never read": Attack(50, NonReadingClient),
    "2,000 wrong keys a second": Attack(100, KeyGuesser, expires=False),
    "20,000 wrong keys a second": Attack(100, PipeliningKeyGuesser, expires=False),
}


class _Swarm:
    """All clients of an attack."""

    def __init__(
        self, client: Callable[[], Client], clients: int, port: int, ramp_up: float
    ) -> None:
        self.connected = 0
        self._complete_at = 0.0
        self._sent_before = 0
        self._client = client
        self._clients = clients
        self._port = port
        self._ramp_up = ramp_up

    async def run(self) -> None:
        """Keep all connections open until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._clients):
                group.create_task(self._run_client(self._ramp_up * number / self._clients))

    async def _run_client(self, pause: float) -> None:
        await asyncio.sleep(pause)
        loop = asyncio.get_running_loop()
        while True:
            _, client = await loop.create_connection(
                self._client, "127.0.0.1", self._port, local_addr=(_ADDRESS, 0)
            )
            self.connected += 1
            self._report()
            await client.closed.wait()
            self.connected -= 1

    def _report(self) -> None:
        if not self._complete_at and self.connected == self._clients:
            self._complete_at, self._sent_before = time.monotonic(), Client.sent
            print("ready", flush=True)

    @property
    def rate(self) -> float:
        """The writes per second since all clients are connected."""
        return (Client.sent - self._sent_before) / (time.monotonic() - self._complete_at)


async def _run(name: str, clients: int, port: int, ramp_up: float) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.call_later(_MAX_SECONDS, stop.set)
    swarm = _Swarm(ATTACKS[name].client, clients, port, ramp_up)
    task = asyncio.create_task(swarm.run())
    task.add_done_callback(lambda _: stop.set())
    await stop.wait()
    print(swarm.connected, swarm.rate, flush=True)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


if __name__ == "__main__":
    uvloop.run(_run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
