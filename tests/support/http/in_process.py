"""The HTTP stack in this process: real connections and handlers, fake sockets and time."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pluggy
import pytest
from tornado.httputil import HTTPConnection, HTTPMessageDelegate, HTTPServerConnectionDelegate

from support.fakes.loops import SteppedLoop
from support.processes.service import CARDS_ONLY_KEY, EXPIRED_KEY, KEY
from tornado_idv.errors import LookupFailed, Unavailable
from tornado_idv.features.batch.handler import BatchHandler
from tornado_idv.features.verify.handler import VerifyHandler
from tornado_idv.http.connection import Connection
from tornado_idv.http.connection_table import HttpLimits
from tornado_idv.http.server import HttpServer
from tornado_idv.http.serving import Serving
from tornado_idv.http.trusted_proxies import TrustedProxies
from tornado_idv.identifiers import Identifiers, ProfileSite
from tornado_idv.interfaces.backend import Backend, BackendOptions
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.ring import KeyRing
from tornado_idv.keys.token import digest
from tornado_idv.limits import FailedAuthLimiter, KeyLimiter
from tornado_idv.log_format import json_lines
from tornado_idv.lookup.cache import AnswerCache, CacheLimits
from tornado_idv.lookup.circuit_breaker import CircuitBreaker
from tornado_idv.lookup.directory import Directory
from tornado_idv.model import ByCard, ByNickname, Query, User
from tornado_idv.registry import plugin_manager
from tornado_idv.units import parse_rate
from tornado_idv.web.access_log import AccessLog
from tornado_idv.web.app import API, OWN_ROUTES, Route, make_api, make_reject
from tornado_idv.web.fast_path.known_heads import KnownHeads
from tornado_idv.web.json_body import encode_user
from tornado_idv.web.lookups import ApiContext

HIGH_WATER = 16 * 1024
"""Bytes of responses that may be unsent before a connection is to pause."""
IDENTIFIERS = Identifiers((ProfileSite.parse("https://profiles.example"),))
ALICE = User(plan="Free", card_number="4000123412341234", nickname="alice")
_ANSWER = re.compile(
    rb"HTTP/1\.1 (\d{3}) [A-Za-z ]+\r\n((?:[A-Za-z-]+: [^\r\n]*\r\n)*)\r\n", re.ASCII
)
_LENGTH = re.compile(rb"Content-Length: (\d+)\r\n")
_VARIABLE_HEADERS = re.compile(rb"(?<=\r\n)(?:Date|X-Request-ID): [^\r\n]*")

_VARIABLE_LOG_FIELDS = re.compile(
    r'"(?:ms|request_id|timestamp)":[^,}]+|next probe in [0-9.]+ s'  # which has a random jitter
)

_ROUTES = (
    *OWN_ROUTES,
    Route(f"{API}/identify/batch", BatchHandler),
    Route(f"{API}/verify", VerifyHandler, is_prefix=True),
)


class Users(Backend[BackendOptions]):
    """A backend over a dictionary that counts its lookups."""

    def __init__(self, *users: User) -> None:
        super().__init__(BackendOptions(name="users", kind="users"))
        self.known: dict[Query, User] = {}
        self.asked = 0
        self.down = False
        self.failure: LookupFailed = Unavailable("down")
        self.put(*users)

    def put(self, *users: User) -> None:
        for user in users:
            self.known[ByNickname(user.nickname)] = self.known[ByCard(user.card_number)] = user
        self.notify_changed()

    def drop(self, user: User) -> None:
        """Removes a user, who may be gone already."""
        for query in (ByNickname(user.nickname), ByCard(user.card_number)):
            self.known.pop(query, None)
        self.notify_changed()

    async def find(self, query: Query) -> User | None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.down:
            raise self.failure.copy()
        return self.known.get(query)


class FakeSocket(asyncio.Transport):
    """A transport without a socket; it raises where asyncio or uvloop raise."""

    def __init__(self, loop: SteppedLoop, connection: Connection, ip: str) -> None:
        super().__init__({"peername": (ip, 50_000)})
        self.sent = bytearray()
        self.arrived = bytearray()
        self.reads = True
        self.misuse: list[str] = []
        self.lost = False
        self.most_waiting = 0
        self.high_water = 0
        self._loop = loop
        self._connection = connection
        self._reading = True
        self._ended = False
        self._eof = self._eof_sent = False
        self._closing = self._gone = False
        self._waiting = 0
        self._paused = False

    # What the client does.

    def arrive(self, data: bytes) -> None:
        """Bytes come in; the connection gets them when it reads."""
        self.arrived += data
        self._loop.call_soon(self._deliver)

    def end(self) -> None:
        self._eof = True
        self._loop.call_soon(self._deliver)

    def read_on(self) -> None:
        """The client reads all that waits."""
        self.reads, self._waiting = True, 0
        if self._closing:
            self._loop.call_soon(self._lose)
        elif self._paused:
            self._paused = False
            self._loop.call_soon(self._connection.resume_writing)

    def vanish(self) -> None:
        """The network is gone; the connection is notified soon."""
        self._gone = True
        self._loop.call_soon(self._lose)

    @property
    def closed(self) -> bool:
        """Whether the client sees the end of what is sent."""
        return self._ended or self._closing or self._gone

    # What the connection calls.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self.lost:
            self.misuse.append("written after the end")
            return
        if self._ended:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._gone:
            return
        self.sent += data
        if not self.reads:
            self._waiting += len(data)
            self.most_waiting = max(self.most_waiting, self._waiting)
            if self._waiting > self.high_water and not self._paused:
                self._paused = True
                self._connection.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high_water = high or 0

    def get_write_buffer_size(self) -> int:
        return self._waiting

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self.lost:
            raise RuntimeError("unable to perform operation; the handler is closed")
        self._ended = True

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self.is_closing() and not self._reading:
            self._reading = True
            self._loop.call_soon(self._deliver)

    def is_closing(self) -> bool:
        return self._closing or self._gone

    def close(self) -> None:
        if not self.is_closing():
            self._closing = True
            if not self._waiting:
                self._loop.call_soon(self._lose)

    def abort(self) -> None:
        self._gone = True
        self._loop.call_soon(self._lose)

    def _deliver(self) -> None:
        if self._closing or self._gone or not self._reading:
            return
        if self.arrived:
            data = bytes(self.arrived[: 256 * 1024])
            del self.arrived[: len(data)]
            self._connection.data_received(data)
            self._loop.call_soon(self._deliver)
        elif self._eof and not self._eof_sent:
            self._eof_sent = True
            if not self._connection.eof_received():
                self.close()

    def _lose(self) -> None:
        if not self.lost:
            self.lost = True
            self._connection.connection_lost(None)


class FakeClient:
    def __init__(self, harness: Harness, ip: str) -> None:
        self.loop = harness.loop
        self.connection = harness.server.connect()
        self.socket = FakeSocket(harness.loop, self.connection, ip)
        self.loop.call_soon(self.connection.connection_made, self.socket)
        self.loop.settle()

    def send(self, *pieces: bytes) -> FakeClient:
        """Send pieces, each of which is processed before the next."""
        for piece in pieces:
            self.socket.arrive(piece)
            self.loop.settle()
        return self

    @property
    def answers(self) -> list[tuple[int, bytes]]:
        """Status and body of each whole answer up to now."""
        return list(read_answers(bytes(self.socket.sent)))

    @property
    def buffered(self) -> int:
        """Bytes that were received ahead of the current request."""
        return len(self.connection._parser.buffer)  # noqa: SLF001 - the size of a table

    @property
    def statuses(self) -> list[int]:
        return [status for status, _ in self.answers]

    @property
    def steady(self) -> bytes:
        """All that was sent, without the fields that always differ."""
        return _VARIABLE_HEADERS.sub(b"", bytes(self.socket.sent))


def read_answers(sent: bytes) -> Iterator[tuple[int, bytes]]:
    """Parse responses; there must be nothing between or after them."""
    at = 0
    while at < len(sent):
        head = _ANSWER.match(sent, at)
        assert head, sent[at:]
        at = head.end()
        length = _LENGTH.search(head[2])
        size = int(length[1]) if length else 0
        assert len(sent) - at >= size
        yield int(head[1]), sent[at : at + size]
        at += size


class Counted(HTTPServerConnectionDelegate):
    def __init__(self, app: HTTPServerConnectionDelegate) -> None:
        self.asked = 0
        self._app = app

    def start_request(
        self, server_conn: object, request_conn: HTTPConnection
    ) -> HTTPMessageDelegate:
        self.asked += 1
        return self._app.start_request(server_conn, request_conn)


class Harness:
    """The application on a listener without sockets; closed by `harnesses`."""

    def __init__(
        self,
        loop: SteppedLoop,
        *,
        fast_path: bool = True,
        limits: HttpLimits | None = None,
        app: HTTPServerConnectionDelegate | None = None,
        plugins: Iterable[object] = (),
        proxies: Iterable[str] = (),
        requests: str = "",
        misses: str = "",
        failed_auth: str = "",
        seconds_per_request: float = 0.0,
    ) -> None:
        self.loop = loop
        self.users = Users(ALICE)
        self.cache = AnswerCache(CacheLimits(jitter=0.0), loop.time, lambda: 0.0)
        self.logged: list[str] = []
        self._limits = limits or HttpLimits()
        self._fast_path = fast_path
        self._seconds_per_request = seconds_per_request
        self._app = app
        self._proxies = TrustedProxies(proxies) if proxies else None
        *rates, failed = [parse_rate(it) if it else None for it in (requests, misses, failed_auth)]
        self._key_limiter = KeyLimiter(clock=loop.time)
        self._key_limiter.configure(*rates)
        self._failed_auth = FailedAuthLimiter(clock=loop.time)
        self._failed_auth.configure(failed)
        self._manager = plugin_manager(entry_points=False, plugins=plugins)
        loop.run_until_complete(self._build(self._manager))

    async def _build(self, manager: pluggy.PluginManager) -> None:
        encode = partial(encode_user, identifiers=IDENTIFIERS)
        self.directory = Directory(
            manager, [self.users], self.cache, encode, accepts=IDENTIFIERS.accepts
        )
        for guard in self.directory.guards:  # without jitter, as in the cache
            options = guard.backend.options.breaker
            guard.breaker = CircuitBreaker(options, self.loop.time, chance=lambda: 0.5)
        self.keys = KeyRing(issued_keys(), self.loop.time)
        log = AccessLog(self.logged.append, json_lines)
        limiter = self._key_limiter
        api = ApiContext(self.directory, IDENTIFIERS, self.keys, log, limiter, self._failed_auth)
        self.counters = api.counters
        self.fast_path = KnownHeads(api) if self._fast_path else None
        self.app = Counted(self._app or make_api(api, routes=_ROUTES, known_heads=self.fast_path))
        connect = self.fast_path.connect if self.fast_path else None
        self.serving = Serving(self.app, make_reject(log), self._limits, connect, self._proxies)
        self.server = HttpServer(self.serving, timer=self._busy_for)
        self._log = log

    def _busy_for(self) -> float:
        """Seconds spent on requests, of which the fast path takes none."""
        return self.app.asked * self._seconds_per_request

    def close(self) -> None:
        self.server.close()
        self.loop.settle()

    def access(self) -> list[str]:
        """The lines of the access log, without the fields that always differ."""
        self._log.flush()
        return _VARIABLE_LOG_FIELDS.sub("", "".join(self.logged)).splitlines()

    def call(self, ip: str = "127.0.0.1") -> FakeClient:
        return FakeClient(self, ip)

    def ask(self, *pieces: bytes) -> FakeClient:
        """A new connection on which these bytes are sent."""
        return self.call().send(*pieces)


def issued_keys() -> list[ApiKey]:
    now = SteppedLoop.now
    return [
        ApiKey("caller", digest(KEY)),
        ApiKey("expired", digest(EXPIRED_KEY), expires=now - 1),
        ApiKey("cards", digest(CARDS_ONLY_KEY), scopes=frozenset({"identify:card"})),
        ApiKey("short", digest(SHORT_LIVED_KEY), expires=now + 100),
        *(ApiKey("malformed", digest(token)) for token in MALFORMED_TOKENS),
    ]


SHORT_LIVED_KEY = "A" * 40
MALFORMED_TOKENS = ("C" * 39 + "!", "D" * 20 + "=" + "D" * 20, "E" * 600)
"""Tokens that no client may have, with digests that a configuration may."""


def ask_for(
    nickname: str, *fields: bytes, key: str = KEY, version: str = "1.1", pad: int = 0
) -> bytes:
    """A plain request for a user, with more header fields and blanks behind its body."""
    body = b'{"input": "@%s"}' % nickname.encode() + b" " * pad
    lines = [
        f"POST /api/v1/identify/url HTTP/{version}".encode(),
        b"Host: x",
        b"Authorization: Bearer " + key.encode(),
        b"Content-Length: %d" % len(body),
        *fields,
    ]
    return b"\r\n".join([*lines, b"", body])


@contextmanager
def harnesses() -> Iterator[Callable[..., Harness]]:
    """Yield a function that makes harnesses on one loop; fail at any unexpected error."""
    loop = SteppedLoop()
    unexpected: list[Any] = []
    loop.set_exception_handler(lambda _, context: unexpected.append(context))
    errors = logging.Handler(logging.ERROR)
    errors.emit = unexpected.append  # type: ignore[method-assign]
    # Those of this loop reach its handler; others are of tasks that another test left.
    errors.addFilter(lambda record: record.name != "asyncio")
    logging.getLogger().addHandler(errors)
    made: list[Harness] = []

    def make(**options: Any) -> Harness:
        made.append(Harness(loop, **options))
        return made[-1]

    try:
        yield make
    finally:
        for each in made:
            each.close()
        loop.settle()
        loop.close()
        logging.getLogger().removeHandler(errors)
    assert unexpected == []


@pytest.fixture
def make_harness() -> Iterator[Callable[..., Harness]]:
    """Yield a function that makes harnesses without sockets; they are closed after the test."""
    with harnesses() as make:
        yield make


def reachable(*roots: object) -> Iterator[object]:
    """Yield all objects that are reachable from these, except code and modules."""
    code = (type, types.ModuleType, types.FunctionType, types.FrameType, types.CodeType)
    seen: set[int] = set()
    waiting = [*roots]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen and not isinstance(each, code):
            seen.add(id(each))
            waiting += gc.get_referents(each)
            yield each
