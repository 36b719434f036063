"""Callers that do harm: ``python -m benchmarks.wire.attackers KIND CALLERS PORT LIFE``.

It opens its connections one after the other over ``LIFE`` seconds, which is how long the server
lets such callers be, and opens anew what the server closes: by then as many come and go at any
moment as at any other. It says ``ready``, and when it is told to end, or after some minutes,
how many it holds, and how often a second it has sent something since.
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

from benchmarks import people
from benchmarks.wire import traffic

_LONGEST = 120.0
_BETWEEN_BYTES = 1.0
_BETWEEN_GUESSES = 0.05
_KEY_BYTES = 32
_AHEAD = 100


def _about(seconds: float) -> float:
    """A pause of random length: callers who had to wait for the core at once are in step for ever
    after if all their pauses are the same."""
    return random.uniform(0, 2 * seconds)


def _request(key: str) -> bytes:
    made = traffic.asking([traffic.body(f"@{people.nickname(0)}")], key=key)
    return made.head + made.bodies[0]


class Caller(asyncio.Protocol):
    """Holds a connection and does nothing with it; ``gone`` is set once it is closed."""

    sent: ClassVar[int] = 0
    """How often any of them has sent something."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.gone = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.begin()

    def connection_lost(self, _: Exception | None) -> None:
        self.gone.set()

    def begin(self) -> None:
        """Does the first harm."""

    def send(self, data: bytes) -> None:
        self.transport.write(data)
        Caller.sent += 1


class SlowCaller(Caller):
    """Sends a byte of a good request each second or so."""

    _every_byte = _request(traffic.KEY)

    def begin(self) -> None:
        self._send(0)

    def _send(self, at: int) -> None:
        if not self.gone.is_set() and at < len(self._every_byte):
            self.send(self._every_byte[at : at + 1])
            self.loop.call_later(_about(_BETWEEN_BYTES), self._send, at + 1)


class BlindCaller(Caller):
    """Sends good requests as fast as they are taken, and never reads an answer."""

    _many = _request(traffic.KEY) * _AHEAD
    _more = True

    def begin(self) -> None:
        self.loop.call_soon(self._begin)  # uvloop forgets a pause that comes before it reads

    def _begin(self) -> None:
        self.transport.pause_reading()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._more = False

    def resume_writing(self) -> None:
        self._more = True
        self._send()

    def _send(self) -> None:
        while self._more:
            self.send(self._many)


class Guesser(Caller):
    """Asks twenty times a second or so, each time with another key that nobody issued.

    What a guess takes of the core that it shares with the good callers is theirs to wait for,
    so it is little: the request is made beforehand, but for the key.
    """

    _before, _behind = _request("KEY").split(b"KEY")

    def begin(self) -> None:
        self._pause()

    def _guess(self) -> None:
        if not self.gone.is_set():
            self.send(self._before + secrets.token_urlsafe(_KEY_BYTES).encode() + self._behind)
            self._pause()

    def _pause(self) -> None:
        self.loop.call_later(_about(_BETWEEN_GUESSES), self._guess)


@dataclass(frozen=True, slots=True)
class Attack:
    """So many callers of one kind."""

    callers: int
    caller: Callable[[], Caller]


ATTACKS: Mapping[str, Attack] = {
    "a byte a second on 2,000 connections": Attack(2000, SlowCaller),
    "1,000 idle connections": Attack(1000, Caller),
    "50 callers that never read": Attack(50, BlindCaller),
    "2,000 wrong keys a second": Attack(100, Guesser),
}


class _Crowd:
    """All callers of an attack."""

    def __init__(self, caller: Callable[[], Caller], callers: int, port: int, life: float) -> None:
        self.held = 0
        self._whole_at = 0.0
        self._sent_before = 0
        self._caller = caller
        self._callers = callers
        self._port = port
        self._life = life

    async def keep_up(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._callers):
                group.create_task(self._keep_one(self._life * number / self._callers))

    async def _keep_one(self, pause: float) -> None:
        await asyncio.sleep(pause)
        loop = asyncio.get_running_loop()
        while True:
            _, caller = await loop.create_connection(self._caller, "127.0.0.1", self._port)
            self.held += 1
            self._tell()
            await caller.gone.wait()
            self.held -= 1

    def _tell(self) -> None:
        if not self._whole_at and self.held == self._callers:
            self._whole_at, self._sent_before = time.monotonic(), Caller.sent
            print("ready", flush=True)

    @property
    def rate(self) -> float:
        """How often a second they sent something since they were all there."""
        return (Caller.sent - self._sent_before) / (time.monotonic() - self._whole_at)


async def _run(kind: str, callers: int, port: int, life: float) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.call_later(_LONGEST, stop.set)
    crowd = _Crowd(ATTACKS[kind].caller, callers, port, life)
    harm = asyncio.create_task(crowd.keep_up())
    harm.add_done_callback(lambda _: stop.set())
    await stop.wait()
    print(crowd.held, crowd.rate, flush=True)
    harm.cancel()
    with suppress(asyncio.CancelledError):
        await harm


if __name__ == "__main__":
    uvloop.run(_run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
