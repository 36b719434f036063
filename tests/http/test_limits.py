"""The connection limit, the response to connections over it, and the table of connections."""

import asyncio
import resource
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from typing import Any
from unittest.mock import Mock

import pytest
import uvloop
from tornado.testing import bind_unused_port
from tornado.web import Application

from support.fakes.loops import SteppedLoop
from support.http.http_server import LIMITS, POST, connected_client, reject, until
from support.http.in_process import Harness, ask_for
from tornado_idv.http.connection_table import ConnectionTable, HttpLimits, State
from tornado_idv.http.server import HttpServer
from tornado_idv.http.serving import Serving


@pytest.mark.parametrize(
    ("descriptors", "wanted", "given"),
    [
        (1024, 4000, 832),
        (100_000, 4000, 4000),
        (100, 4000, 1),
        (resource.RLIM_INFINITY, 4000, 4000),
    ],
    ids=["few", "plenty", "hardly any", "no limit"],
)
def test_connections_are_bounded_by_descriptors(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, wanted: int, given: int
) -> None:
    """192 are kept for files, backends, logs, and the connections of the admin listener."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    limits = HttpLimits(max_body=1, max_connections=wanted).within_descriptors()
    assert limits == HttpLimits(max_body=1, max_connections=given)


REPLACING = replace(LIMITS, max_connections=2, replace_idle=True, warning="limit of %d")
LOOKUP = ask_for("alice")


@pytest.fixture
def harness(make_harness: Callable[..., Harness]) -> Harness:
    return make_harness(limits=REPLACING)


@pytest.mark.parametrize(
    "sent", [b"", LOOKUP[:20], LOOKUP[:-1], LOOKUP], ids=["-", "head", "body", "1"]
)
def test_a_new_connection_replaces_the_oldest_without_a_request(
    harness: Harness, sent: bytes
) -> None:
    """It may have sent nothing, a part of a request, or have had a response."""
    idle, kept, new = harness.ask(sent), harness.ask(LOOKUP), harness.ask(LOOKUP)
    assert idle.socket.lost
    assert kept.send(LOOKUP).statuses == [200, 200]
    assert new.statuses == [200]


def test_a_new_connection_replaces_one_that_waits_for_its_client_to_close(harness: Harness) -> None:
    """As all those do that were idle for too long at the same time."""
    waiting = [harness.ask(b"none\r\n\r\n") for _ in range(3)]
    assert [each.statuses for each in waiting] == [[400]] * 3
    assert harness.ask(LOOKUP).statuses == [200]


async def test_connections_with_requests_are_not_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """A further client gets 503, and its connection is closed without delay."""
    async with connected_client(REPLACING) as client:
        client.clock.stop()
        client.control.may_answer.clear()
        client.send(POST)
        _, other = await asyncio.open_connection("127.0.0.1", client.port)
        other.write(POST)
        await until(lambda: len(client.control.asked) == 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 503 ")
        await until(lambda: len(client.connections) == 2)
        client.control.may_answer.set()
        assert await client.status() == 200
        other.close()
        writer.close()
    assert [record.getMessage() for record in caplog.records] == ["limit of 2"]


def test_several_connections_are_accepted_per_iteration() -> None:
    """On uvloop, where one socket gives one; each is answered 503 as it is accepted."""

    async def iterations(clients: list[socket.socket]) -> int:
        server = HttpServer(Serving(Application(), reject, HttpLimits(max_connections=0)))
        sock, port = bind_unused_port()
        await server.listen([sock])
        for client in clients:
            client.connect(("127.0.0.1", port))
        counted = 0
        while not all(has_response(client) for client in clients):
            await asyncio.sleep(0)
            counted += 1
        server.close()
        return counted

    with ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(64)]
        assert uvloop.run(iterations(clients)) < 32


def has_response(client: socket.socket) -> bool:
    try:
        return bool(client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False


def timed() -> Mock:
    """Return a connection without a request, past its deadline."""
    return Mock(deadline=0.0, state=State.IDLE)


def test_error_of_one_connection_does_not_end_the_timeouts_of_others() -> None:
    loop = SteppedLoop()
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    table = ConnectionTable(loop, HttpLimits())
    bad, good, late = timed(), timed(), timed()
    bad.on_timeout.side_effect = RuntimeError
    # As by a request that arrives during the sweep.
    good.on_timeout.side_effect = lambda: setattr(late, "deadline", inf)
    for each in (bad, good, late):
        table.register(each)
    loop.forward(1.0)
    table.close()
    loop.close()
    assert len(errors) >= 2
    assert (good.on_timeout.call_count >= 2, late.on_timeout.called) == (True, False)


def test_connections_that_replace_others_are_no_more_than_the_limit() -> None:
    """Those that were replaced count for nothing, before and after they have closed."""
    loop = SteppedLoop()
    table = ConnectionTable(loop, HttpLimits(max_connections=2, replace_idle=True))
    connections = [timed() for _ in range(7)]
    for each in connections[:4]:
        assert table.register(each)
    for each in connections[:2]:
        table.unregister(each)
    for each in connections[4:]:
        assert table.register(each)
    assert [each.abort.called for each in connections] == [True] * 5 + [False] * 2
    table.close()
    loop.close()
