"""Host names of upstreams, and that one backend does not delay another."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from idv_upstream.request.template import Request
from idv_upstream.transport import client
from support.fakes.clock_and_backends import LoopClock
from support.http.http_server import until
from support.http.scripted_server import http, serving
from support.http.upstream_transport import POST, ask, failure_of, opened
from tornado_idv import Unavailable

GOOD = http(200, b"{}")


@pytest.mark.parametrize(
    "error",
    [socket.gaierror(socket.EAI_NONAME, "Name or service not known"), UnicodeError("too long")],
    ids=["unknown", "impossible"],
)
async def test_unknown_host_name_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def getaddrinfo(*_args: Any, **_named: Any) -> Any:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    async with opened("http://directory.invalid") as made:
        failure = await failure_of(made)
    assert isinstance(failure, Unavailable)
    assert failure.reason == "the host name cannot be resolved"


async def test_any_address_of_a_host_name_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first may refuse connections."""
    addresses = [("127.0.0.2", 0), ("127.0.0.1", 0)]

    def getaddrinfo(*_args: Any, **_named: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in addresses]

    async with serving(GOOD) as upstream:
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        async with opened(f"http://directory.invalid:{upstream.port}") as made:
            assert (await ask(made)).status == 200


def resolver_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "resolver"]


def late_answer(monkeypatch: pytest.MonkeyPatch, of: str = "") -> threading.Event:
    """A name server that answers for names with this prefix when the event is set."""
    released = threading.Event()

    def getaddrinfo(host: str, *_args: Any, **_named: Any) -> Any:
        if host.startswith(of):
            released.wait(10)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return released


async def test_address_resolved_too_late_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    released = late_answer(monkeypatch)
    complaints: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))
    async with opened("http://slow.invalid") as made:
        waiting = asyncio.ensure_future(ask(made))
        await until(resolver_threads)
        waiting.cancel()
        await asyncio.wait([waiting])
        (thread,) = resolver_threads()
        released.set()
        await asyncio.to_thread(thread.join)
        await asyncio.sleep(0)
    assert complaints == []


def test_address_that_is_resolved_after_the_loop_was_closed_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No thread ends with a traceback when the service stops."""
    released = late_answer(monkeypatch)
    complaints: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)

    async def leave() -> None:
        async with opened("http://slow.invalid") as made:
            waiting = asyncio.ensure_future(ask(made))
            await until(resolver_threads)
            waiting.cancel()

    asyncio.run(leave())
    (thread,) = resolver_threads()
    released.set()
    thread.join()
    assert complaints == []


async def test_name_that_is_still_being_resolved_takes_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many requests time out meanwhile; when it is resolved, its address is used."""
    monkeypatch.setattr(client, "CONNECT_TIMEOUT", 0.5)
    released = late_answer(monkeypatch)
    clock = LoopClock()
    async with serving(GOOD) as upstream, opened(f"http://slow.invalid:{upstream.port}") as made:
        for _ in range(3):
            waiting = asyncio.ensure_future(failure_of(made, POST))
            await until(resolver_threads)
            await asyncio.sleep(0)
            clock.forward(0.6)
            assert (await waiting).reason == "connection timed out"
        waiting = asyncio.ensure_future(ask(made, POST))
        await asyncio.sleep(0)
        (thread,) = resolver_threads()
        released.set()
        assert (await waiting).status == 200
        await asyncio.to_thread(thread.join)


async def test_hanging_name_server_does_not_delay_other_backends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many names of one backend wait for it; and its own lookups time out."""
    monkeypatch.setattr(client, "CONNECT_TIMEOUT", 3.0)
    async with serving(GOOD) as upstream:
        released = late_answer(monkeypatch, of="hanging")
        async with opened() as hanging, opened(f"http://other.invalid:{upstream.port}") as other:
            requests = [
                Request("GET", f"http://hanging-{n}/", {}, None, repeatable=False)
                for n in range(40)
            ]
            waiting = [asyncio.ensure_future(ask(hanging, request)) for request in requests]
            await asyncio.sleep(0)
            assert (await ask(other)).status == 200
            assert await asyncio.to_thread(lambda: True)
            assert not any(each.done() for each in waiting)
            assert all(thread.daemon for thread in resolver_threads())  # they end with the process
            LoopClock().forward(3.5)
            failures = await asyncio.gather(*waiting, return_exceptions=True)
            released.set()
    assert {str(each) for each in failures} == {"connection timed out"}
