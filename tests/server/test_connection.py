"""Connections: callers who are slow, send ahead, do not read, or have left."""

from __future__ import annotations

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from fakes import LoopClock
from tornado.testing import bind_unused_port
from tornado.web import RequestHandler

from tornado_idv.server.exchange import Channel, Exchange, Peer
from tornado_idv.server.head import read_head
from tornado_idv.server.listener import HttpLimits, Listener
from tornado_idv.web.app import ExactRoutes
from tornado_idv.web.handler import JsonHandler

LARGE = b"x" * 4_000_000
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
LIMITS = HttpLimits(max_body=1000, idle_timeout=10.0, body_timeout=5.0)


class Stage:
    """What the handler does: it answers once it may."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.left = asyncio.Event()
        self.answer = b"{}"
        self.asked: list[bytes] = []


class Handler(JsonHandler):
    """Plays on the `Stage`."""

    allowed = ("GET", "POST")

    def initialize(self, stage: Stage) -> None:
        self.stage = stage

    async def get(self) -> None:
        await self.post()

    async def post(self) -> None:
        self.stage.asked.append(self.request.body)
        self.stage.begun.set()
        await self.stage.may_answer.wait()
        if self.request.path == "/parts":
            self.set_header("Content-Length", 2 * len(self.stage.answer))
            self.write(self.stage.answer)
            await self.flush()
            self.write(self.stage.answer)
            await self.flush()
        else:
            self.write(self.stage.answer)
        self.finish()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self.stage.left.set()


class Caller:
    """A caller, and the service at the other end."""

    def __init__(self, stage: Stage, listener: Listener, port: int) -> None:
        self.stage = stage
        self.listener = listener
        self.port = port
        self.clock = LoopClock()
        self.reader: StreamReader
        self.writer: StreamWriter

    async def connect(self, receive: int = 0) -> None:
        sock = socket.socket()
        if receive:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        sock.setblocking(False)  # noqa: FBT003
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=1024)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def status(self) -> int:
        """Reads one answer."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)
        length = int(head.rpartition(b"Content-Length: ")[2])
        await asyncio.wait_for(self.reader.readexactly(length), 5)
        return int(head.split()[1])

    async def rest(self) -> bytes:
        """All that still comes."""
        return await asyncio.wait_for(self.reader.read(-1), 5)

    async def forgotten(self) -> None:
        """Waits until the service has no connection left."""
        await asyncio.wait_for(self.listener._none_open.wait(), 5)


@asynccontextmanager
async def calling(limits: HttpLimits = LIMITS, **connected: Any) -> AsyncIterator[Caller]:
    stage = Stage()
    acts = Handler, {"stage": stage}
    app = ExactRoutes({"/": acts, "/parts": acts}, log_function=ignore)
    listener = Listener(app, limits)
    sock, port = bind_unused_port()
    await listener.listen([sock])
    caller = Caller(stage, listener, port)
    await caller.connect(**connected)
    try:
        yield caller
    finally:
        listener.close()
        caller.writer.close()
        await caller.forgotten()


def ignore(_: RequestHandler) -> None:
    """Nothing is logged here."""


async def until(condition: Any) -> None:
    """Lets the loop turn until the condition holds."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.get_running_loop().run_in_executor(None, int)


async def test_a_request_byte_by_byte_is_one_request() -> None:
    async with calling() as caller:
        for byte in POST:
            caller.send(bytes([byte]))
            await caller.writer.drain()
        assert await caller.status() == 200
        assert caller.stage.asked == [b"hello"]


async def test_requests_sent_ahead_wait_their_turn() -> None:
    async with calling() as caller:
        caller.stage.may_answer.clear()
        caller.send(POST + POST.replace(b"hello", b"world"))
        await asyncio.wait_for(caller.stage.begun.wait(), 5)
        assert caller.stage.asked == [b"hello"]
        caller.stage.may_answer.set()
        assert [await caller.status(), await caller.status()] == [200, 200]
        assert caller.stage.asked == [b"hello", b"world"]


async def test_what_is_sent_ahead_is_bounded() -> None:
    """Reading stops meanwhile, and goes on after it."""
    async with calling() as caller:
        caller.stage.may_answer.clear()
        count = 100_000
        caller.send(POST * count)
        await asyncio.wait_for(caller.stage.begun.wait(), 5)
        (connection,) = caller.listener._connections
        await until(lambda: not connection._transport.is_reading())
        assert len(connection._buffer) <= 64 * 1024 + 256 * 1024
        caller.writer.transport.abort()


async def test_reading_goes_on_once_there_is_room() -> None:
    async with calling() as caller:
        caller.stage.may_answer.clear()
        caller.send(POST * 3000)
        await asyncio.wait_for(caller.stage.begun.wait(), 5)
        (connection,) = caller.listener._connections
        await until(lambda: not connection._transport.is_reading())
        caller.stage.may_answer.set()
        for _ in range(3000):
            assert await caller.status() == 200


@pytest.mark.parametrize(
    ("sent", "seconds", "told"),
    [
        (b"", 10.0, b""),
        (POST[:20], 10.0, b"HTTP/1.1 408"),
        (POST[:-1], 5.0, b"HTTP/1.1 408"),
    ],
    ids=["nothing", "half a head", "half a body"],
)
async def test_patience_has_an_end(sent: bytes, seconds: float, told: bytes) -> None:
    async with calling() as caller:
        caller.send(sent)
        await until(lambda: caller.listener._connections)
        (connection,) = caller.listener._connections
        await until(lambda: connection.idle is (sent == b""))
        await asyncio.sleep(0)  # it has its turn
        caller.clock.forward(seconds + 0.5)
        assert (await caller.rest())[:12] == told
        caller.clock.forward(1.5)
        await caller.forgotten()


async def test_one_who_does_not_read_is_left_in_the_end() -> None:
    async with calling(receive=1024) as caller:
        caller.stage.answer = LARGE
        caller.send(POST)
        await until(lambda: any(each._writable for each in caller.listener._connections))
        caller.clock.forward(10.5)
        await caller.forgotten()


async def test_one_who_reads_slowly_gets_everything() -> None:
    """The next request waits until the answer before it has left."""
    async with calling(receive=1024) as caller:
        caller.stage.answer = LARGE
        caller.send(POST)
        await until(lambda: any(each._writable for each in caller.listener._connections))
        caller.send(POST)
        assert [await caller.status(), await caller.status()] == [200, 200]


async def test_an_answer_in_parts_waits_for_its_reader() -> None:
    async with calling(receive=1024) as caller:
        caller.stage.answer = LARGE
        caller.send(POST.replace(b"/", b"/parts", 1) + POST)
        assert [await caller.status(), await caller.status()] == [200, 200]


async def test_the_last_answer_too_is_sent_whole() -> None:
    async with calling(receive=1024) as caller:
        caller.stage.answer = LARGE
        caller.send(POST.replace(b"Host: x", b"Host: x\r\nConnection: close"))
        await until(lambda: any(each._leaving for each in caller.listener._connections))
        assert len(await caller.rest()) > len(LARGE)


async def test_a_request_is_begun_once() -> None:
    """Whatever would have the next one begun while it is under way."""
    async with calling() as caller:
        caller.stage.may_answer.clear()
        caller.send(POST + POST)
        await asyncio.wait_for(caller.stage.begun.wait(), 5)
        (connection,) = caller.listener._connections
        connection.resume_writing()
        connection.advance()
        assert len(caller.stage.asked) == 1
        caller.stage.may_answer.set()
        assert [await caller.status(), await caller.status()] == [200, 200]


async def test_an_answer_to_one_who_has_left_goes_nowhere() -> None:
    async with calling() as caller:
        caller.stage.may_answer.clear()
        caller.send(POST)
        await asyncio.wait_for(caller.stage.begun.wait(), 5)
        caller.writer.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
        )
        caller.writer.transport.abort()
        await asyncio.wait_for(caller.stage.left.wait(), 5)
        caller.stage.may_answer.set()
        await caller.forgotten()


async def test_one_who_has_no_more_to_say_is_answered_and_left_at_once() -> None:
    async with calling() as caller:
        caller.stage.may_answer.clear()
        caller.send(POST)
        caller.writer.write_eof()
        await asyncio.wait_for(caller.stage.begun.wait(), 5)
        (connection,) = caller.listener._connections
        await until(lambda: connection._ended)
        caller.stage.may_answer.set()
        assert b"Connection: close\r\n" in await caller.rest()
        await caller.forgotten()


async def test_one_who_asked_ahead_and_has_no_more_to_say_gets_every_answer() -> None:
    async with calling() as caller:
        caller.send(POST * 3 + POST[:-1])
        caller.writer.write_eof()
        assert (await caller.rest()).count(b"HTTP/1.1 200") == 3
        await caller.forgotten()


async def test_one_who_ends_amid_a_request_is_left() -> None:
    async with calling() as caller:
        caller.send(POST[:-1])
        caller.writer.write_eof()
        assert await caller.rest() == b""


async def test_what_follows_a_refusal_is_dropped() -> None:
    async with calling() as caller:
        caller.send(b"NONSENSE\r\n\r\n")
        await until(lambda: any(each._leaving for each in caller.listener._connections))
        caller.send(POST)
        assert (await caller.rest()).count(b"HTTP/1.1") == 1
        assert caller.stage.asked == []


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\nHost: x\n\n", b"\n"])
async def test_lines_without_cr_are_refused_before_they_end(sent: bytes) -> None:
    async with calling() as caller:
        caller.send(sent)
        assert (await caller.rest()).startswith(b"HTTP/1.1 400 ")


async def test_a_drain_waits_for_what_was_begun() -> None:
    """Also for a request of which only a part is here; an idle caller is left at once."""
    async with calling() as caller:
        caller.send(POST[:-1])
        await until(lambda: any(not each.idle for each in caller.listener._connections))
        _, idle = await asyncio.open_connection("127.0.0.1", caller.port)
        await until(lambda: len(caller.listener._connections) == 2)
        drained = asyncio.ensure_future(caller.listener.drain())
        await until(lambda: any(each._leaving for each in caller.listener._connections))
        idle.close()
        await until(lambda: len(caller.listener._connections) == 1)
        assert not drained.done()
        caller.send(POST[-1:])
        assert b"Connection: close\r\n" in await caller.rest()
        caller.writer.close()
        await asyncio.wait_for(drained, 5)


async def test_a_drain_waits_for_an_answer_and_makes_it_the_last() -> None:
    async with calling() as caller:
        caller.stage.may_answer.clear()
        caller.send(POST + POST)
        await asyncio.wait_for(caller.stage.begun.wait(), 5)
        drained = asyncio.ensure_future(caller.listener.drain())
        await until(lambda: caller.listener.draining)
        caller.stage.may_answer.set()
        answers = await caller.rest()
        assert answers.count(b"Connection: close\r\n") == answers.count(b"HTTP/1.1 200") == 1
        caller.writer.close()
        await asyncio.wait_for(drained, 5)


async def test_one_who_leaves_before_anybody_listens_for_it_is_no_trouble() -> None:
    head = read_head(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 0)
    exchange = Exchange(cast("Channel", None), head, Peer("127.0.0.1", "http"))
    told: list[str] = []
    exchange.lost()
    exchange.set_close_callback(lambda: told.append("left"))
    assert told == []
    exchange.lost()
    exchange.lost()
    assert told == ["left"]
