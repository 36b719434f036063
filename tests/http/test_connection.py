"""Connections: clients who are slow, send ahead, do not read, or have left."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from support.http.http_server import POST, connected_client, reject, until
from support.http.in_process import FakeSocket, Harness, ask_for
from tornado_idv.http.connection_table import HttpLimits, State
from tornado_idv.http.exchange import Exchange, Peer, ResponseSink
from tornado_idv.http.head import parse_head
from tornado_idv.http.serving import Serving

LARGE = b"x" * 1_000_000
LOOKUP = ask_for("alice")


@pytest.mark.parametrize(
    ("pieces", "seconds", "statuses"),
    [
        ([], 10.0, []),
        ([LOOKUP[:20]], 10.0, [408]),
        ([LOOKUP[:-1]], 5.0, [408]),
        ([LOOKUP], 75.0, [200]),
        ([LOOKUP, LOOKUP[:20]], 10.0, [200, 408]),
        ([LOOKUP + LOOKUP[:20]], 10.0, [200, 408]),
        ([*[LOOKUP] * 2, LOOKUP[:-1], LOOKUP[-1:], LOOKUP[:-1]], 5.0, [200, 200, 200, 408]),
        ([*[LOOKUP] * 2, LOOKUP[:-1], b"x", LOOKUP[:-1]], 5.0, [200, 200, 422, 408]),
    ],
)
def test_connection_times_out(
    make_harness: Callable[..., Harness], pieces: list[bytes], seconds: float, statuses: list[int]
) -> None:
    """The keep-alive timeout is the time between two requests, not that to complete the next."""
    limits = HttpLimits(idle_timeout=10.0, body_timeout=5.0, keep_alive_timeout=75.0)
    harness = make_harness(limits=limits)
    client = harness.ask(*pieces)
    harness.loop.forward(seconds - 0.5)
    assert not client.socket.closed
    harness.loop.forward(1.0)
    assert (client.statuses, client.socket.closed) == (statuses, True)
    harness.loop.forward(1.5)
    assert client.socket.lost


@pytest.mark.parametrize("path", [b"", b"/?" + b"&" * 1000], ids=["path", "query"])
def test_client_that_leaves_after_an_invalid_request_is_forgotten(
    make_harness: Callable[..., Harness], path: bytes
) -> None:
    """What it sends meanwhile is discarded, also if it was slow to read the response."""
    for order in (1, -1):
        client = make_harness().call()
        client.socket.reads, client.socket.high_water = False, 0
        client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path, LOOKUP)
        for act in [client.socket.end, client.socket.read_on][::order]:
            act()
            client.send(LOOKUP)
        assert (client.statuses, client.buffered, client.socket.lost) == ([400], 0, True)


def test_connection_that_is_being_accepted_gets_the_new_limits(
    make_harness: Callable[..., Harness],
) -> None:
    """Its protocol is made before its handshake, which may take longer than a reload."""
    harness = make_harness()
    connection = harness.server.connect()
    harness.server.replace(Serving(harness.app, reject, HttpLimits(max_body=1)))
    accepted = FakeSocket(harness.loop, connection, "127.0.0.1")
    harness.loop.call_soon(connection.connection_made, accepted)
    accepted.arrive(LOOKUP)
    harness.loop.settle()
    assert accepted.sent.startswith(b"HTTP/1.1 413 ")


async def test_streamed_response_has_time_between_its_parts() -> None:
    """Also after its client has been slow to read, which the idle timeout bounds."""
    async with connected_client(receive=1024) as client:
        client.control.answer = LARGE
        client.control.may_continue.clear()
        client.send(POST.replace(b"/", b"/parts", 1).replace(b"Host", b"Connection: close\r\nHost"))
        await until(lambda: any(each._blocked for each in client.connections))  # noqa: SLF001 - the network has delivered it
        begin = await asyncio.wait_for(client.reader.readexactly(len(LARGE)), 5)
        await until(lambda: not any(each._blocked for each in client.connections))  # noqa: SLF001 - the network has delivered it
        await client.clock.advance(30.0)
        client.control.may_continue.set()
        response = begin + await client.rest()
        assert response.count(b"HTTP/1.1 ") == 1
        assert response.endswith(LARGE + LARGE)


async def test_a_slow_reader_of_the_last_response_has_the_idle_timeout() -> None:
    """Not just the second that a client has to stop sending."""
    async with connected_client(receive=1024) as client:
        client.control.answer = LARGE
        client.send(POST.replace(b"Host: x", b"Host: x\r\nConnection: close"))
        begin = await asyncio.wait_for(client.reader.readexactly(1000), 5)
        for _ in range(8):
            await client.clock.advance(1.0)
        assert len(begin + await client.rest()) > len(LARGE)


async def test_headers_of_a_failed_response_are_not_sent_with_the_error() -> None:
    async with connected_client() as client:
        client.send(POST.replace(b"/", b"/fails", 1))
        client.writer.write_eof()
        response = await client.rest()
        assert response.startswith(b"HTTP/1.1 500 ")
        assert b"X-Partial" not in response
        assert b"partial" not in response


async def test_a_closed_server_is_released() -> None:
    """No timer of it is left on the loop."""
    async with connected_client() as client:
        released = weakref.ref(client.server.connections)
    del client
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert released() is None


async def test_half_closed_connection_is_answered_and_closed() -> None:
    async with connected_client() as client:
        client.control.may_answer.clear()
        client.send(POST)
        client.writer.write_eof()
        await asyncio.wait_for(client.control.begun.wait(), 5)
        (connection,) = client.connections
        await until(lambda: connection._eof)  # noqa: SLF001 - the network has delivered it
        client.control.may_answer.set()
        assert b"Connection: close\r\n" in await client.rest()
        await client.forgotten()


async def test_last_response_to_a_half_closed_pipeline_says_that_it_is_the_last() -> None:
    async with connected_client() as client:
        client.send(POST * 3)
        client.writer.write_eof()
        none, *responses = (await client.rest()).split(b"HTTP/1.1 200 ")
        assert none == b""
        assert [b"Connection: close\r\n" in each for each in responses] == [False, False, True]
        await client.forgotten()


async def test_connection_half_closed_within_a_request_is_closed() -> None:
    async with connected_client() as client:
        client.send(POST[:-1])
        client.writer.write_eof()
        assert await client.rest() == b""


async def test_client_that_sends_ahead_of_a_rejected_request_gets_its_response() -> None:
    """Reading goes on where it was paused; a reset would discard what the client has not read."""
    async with connected_client() as client:
        sock = client.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        client.writer.transport.set_write_buffer_limits(0)
        client.control.may_answer.clear()
        client.send(POST + b"NONSENSE\r\n\r\n" + LARGE)
        await until(lambda: any(not each._transport.is_reading() for each in client.connections))  # noqa: SLF001 - the network has delivered it
        client.control.may_answer.set()
        await asyncio.wait_for(client.writer.drain(), 5)
        response = await client.rest()
        assert response.count(b"HTTP/1.1 200 ") == response.count(b"HTTP/1.1 400 ") == 1


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\nHost: x\n\n", b"\n"])
async def test_lines_without_cr_are_rejected_before_they_end(sent: bytes) -> None:
    async with connected_client() as client:
        client.send(sent)
        assert (await client.rest()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.slow
async def test_drain_waits_for_started_requests() -> None:
    """Also for a request of which only a part is here; an idle client is left after a second."""
    async with connected_client() as client:
        client.send(POST[:-1])
        await until(lambda: any(each.state is not State.IDLE for each in client.connections))
        _, idle = await asyncio.open_connection("127.0.0.1", client.port)
        await until(lambda: len(client.connections) == 2)
        drained = asyncio.ensure_future(client.server.drain())
        await until(lambda: client.server.connections.draining)
        await client.clock.advance(1.5)  # a new client has a second to send its request
        await until(lambda: any(each.state is State.CLOSING for each in client.connections))
        idle.close()
        await until(lambda: len(client.connections) == 1)
        assert not drained.done()
        client.send(POST[-1:])
        assert b"Connection: close\r\n" in await client.rest()
        client.writer.close()
        await asyncio.wait_for(drained, 5)


async def test_drain_completes_only_the_current_request() -> None:
    """A connection that was accepted before has a second for its first request."""
    async with connected_client() as client:
        client.control.may_answer.clear()
        client.send(POST + POST)
        await asyncio.wait_for(client.control.begun.wait(), 5)
        drained = asyncio.ensure_future(client.server.drain())
        await until(lambda: client.is_draining)
        ours, theirs = socket.socketpair()
        ours.settimeout(5)
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(client.server.connect, theirs)
        client.clock.forward(1.5)
        assert await loop.run_in_executor(None, ours.recv, 1) == b""
        ours.close()
        client.control.may_answer.set()
        answers = await client.rest()
        assert answers.count(b"Connection: close\r\n") == answers.count(b"HTTP/1.1 200") == 1
        client.writer.close()
        await asyncio.wait_for(drained, 5)


async def test_a_disconnect_calls_the_close_callback_once() -> None:
    head = parse_head(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 0)
    exchange = Exchange(cast("ResponseSink", None), head, Peer("127.0.0.1", "http"))
    calls: list[str] = []
    exchange.on_disconnect()
    exchange.set_close_callback(lambda: calls.append("closed"))
    assert calls == []
    exchange.on_disconnect()
    exchange.on_disconnect()
    assert calls == ["closed"]


class Shared(socket.socket):
    """A listening socket that another process may accept from at any time."""

    blocking: list[bool]

    def dup(self) -> Shared:
        copy = super().dup()
        self.blocking.append(os.get_blocking(self.fileno()))  # that of all copies
        return copy


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
async def test_accepting_from_a_shared_socket_never_blocks(
    family: socket.AddressFamily, tmp_path: Path
) -> None:
    """Python's `dup` sets whether the socket blocks, for the other processes, too."""
    async with connected_client() as client:
        sock = Shared(family)
        sock.blocking = []
        sock.bind(("127.0.0.1", 0) if family == socket.AF_INET else str(tmp_path / "sock"))
        await client.server.listen([sock])
        assert sock.blocking
        assert not any(sock.blocking)
