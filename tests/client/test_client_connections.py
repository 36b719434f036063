"""Connections of the client: their deadline, their reuse, and whole responses on them."""

import asyncio
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

from support.http.clients import (
    ALICE,
    ECHO,
    KINDS,
    NOT_FOUND,
    UNAVAILABLE,
    Kind,
    calling,
    error,
    found,
)
from support.http.scripted_server import (
    REQUEST_ID,
    Said,
    Then,
    full_listener,
    header,
    reset,
    serving,
)
from tornado_idv.client import AsyncClient, ClientError, Undetermined, Unexpected

both = pytest.mark.parametrize("kind", KINDS)

BODY = NOT_FOUND.partition(b"\r\n\r\n")[2]
LENGTH = f"Content-Length: {len(BODY)}"
JSON = "Content-Type: application/json"
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


def response(*fields: str, body: bytes = BODY) -> bytes:
    return "\r\n".join(["HTTP/1.1 404 Not Found", *fields, "", ""]).encode() + body


@both
@pytest.mark.parametrize(
    "sent",
    [
        Said(response(JSON, ECHO), "close"),
        response(JSON, ECHO, "Transfer-Encoding: chunked", body=CHUNKED),
        response(JSON, ECHO, LENGTH, "Transfer-Encoding: chunked", body=CHUNKED),
        response(JSON, ECHO, LENGTH, LENGTH),
        response(JSON, ECHO, f"Content-Length: +{len(BODY)}"),
        response(JSON, ECHO, f"Content-Length: {len(BODY) - 1}"),
        response("Content-Type: text/html", JSON, ECHO, LENGTH),
        response(ECHO, LENGTH),
        response("X-Request-ID: other", JSON, ECHO, LENGTH),
        error(401, "token_invalid_or_expired").replace(REQUEST_ID, b"other"),
        found(nickname="@alic\u212a"),
    ],
)
async def test_ambiguous_response_is_unexpected(kind: Kind, sent: bytes | Said) -> None:
    async with serving(sent) as server, calling(kind, server.address) as call:
        with pytest.raises(Unexpected):
            await call("find", "@alick" if b"alic\\u212a" in sent else "@alice")


@both
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"HTTP/1.1", b"\x85HTTP/1.1"),
        (b"HTTP/1.1", b"HTTP/1.1\x1c"),
        (b"HTTP/1.1", b"HTTP/2"),
        (b"HTTP/1.1 404", b"HTTP/1.1 0404"),
        (b"\r\nContent-Length", b"\r)\nContent-Length"),
        (b"\r\nContent-Length", b"\r\n folded\r\nContent-Length"),
        (b"\r\nContent-Length", b"\rContent-Length"),
        (b"\r\nContent-Length:", b"\r\nContent-Length :"),
    ],
)
async def test_malformed_head_is_no_response(kind: Kind, old: bytes, new: bytes) -> None:
    answer = Said(NOT_FOUND.replace(old, new, 1), "close")
    assert answer.sent != NOT_FOUND
    async with serving(answer) as server, calling(kind, server.address) as call:
        with pytest.raises(ClientError):
            await call("find", "@alice")


@both
async def test_last_response_of_a_connection_may_come_in_parts(kind: Kind) -> None:
    head, _, body = found().partition(b"\r\n\r\n")
    head += b"\r\nConnection: close\r\n\r\n"
    async with serving(head) as server, calling(kind, server.address) as call:
        lookup = asyncio.ensure_future(call("find", "@alice"))
        await server.asked()
        await asyncio.sleep(0.02)  # the client has read the head by then, or reads both at once
        server.writers[0].write(body)
        assert await lookup == ALICE


@both
@pytest.mark.parametrize("then", ["reset", "close"])
async def test_kept_connections_are_all_closed(kind: Kind, then: Then) -> None:
    """As after a restart behind a firewall: a second kept connection would fail as well."""
    async with serving(found()) as server, calling(kind, server.address) as call:
        server.gate.clear()
        lookups = [asyncio.ensure_future(call("find", "@alice")) for _ in range(3)]
        await server.asked(3)
        server.gate.set()
        await asyncio.gather(*lookups)
        server.say(Said(b"", then), found())
        assert len(server.connections) == 3
        assert await call("find", "@alice") == ALICE
        assert len(server.connections) == 4


@both
async def test_kept_connection_was_reset(kind: Kind) -> None:
    async with serving(found()) as server, calling(kind, server.address) as call:
        await call("find", "@alice")
        reset(server.writers[0])
        assert await call("find", "@alice") == ALICE
        assert len(server.requests) == 2


@pytest.mark.parametrize("stray", [NOT_FOUND, b"\r\n"])
async def test_idle_connection_on_which_something_came_is_not_used(stray: bytes) -> None:
    async with serving(found()) as server, calling("synchronous", server.address) as call:
        await call("find", "@alice")
        server.writers[0].write(stray)
        await asyncio.sleep(0.02)
        assert await call("find", "@alice") == ALICE
        assert len(server.connections) == 2


async def test_close_during_a_call_leaves_no_session_open() -> None:
    async with serving(found()) as server, AsyncClient(server.address, "key") as client:
        await client.find("@alice")
        server.say(Said(b"", "reset"), found())
        server.gate.clear()
        lookup = asyncio.ensure_future(client.find("@alice"))
        await server.asked(2)
        await client.close()
        server.gate.set()
        with suppress(ClientError):
            await lookup
        assert client._session is None  # noqa: SLF001 - a closed client keeps none


@both
async def test_second_connection_is_not_replaced(kind: Kind) -> None:
    answers = found(), Said(b"", "reset"), Said(b"", "reset"), found()
    options = {"traceparent": lambda: "00-a-b-01"}
    async with serving(*answers) as server, calling(kind, server.address, **options) as call:
        await call("find", "@alice")
        with pytest.raises(Undetermined):
            await call("find", "@alice")
        assert [header(each, "traceparent") for each in server.requests] == ["00-a-b-01"] * 3


@pytest.mark.parametrize("idle", [1.0, 6.0])
async def test_connection_that_was_idle_for_long_is_not_used(idle: float) -> None:
    now = 0.0
    async with (
        serving(found()) as server,
        calling("synchronous", server.address, clock=lambda: now) as call,
    ):
        await call("find", "@alice")
        now += idle
        await call("find", "@alice")
        assert len(server.connections) == (1 if idle < 5 else 2)


async def test_forked_process_has_connections_of_its_own() -> None:
    """As in an application server that forks after its imports."""
    script = (
        "import os, sys; from tornado_idv.client import Client; client = Client(sys.argv[1], 'k');"
        "client.find('@alice'); child = os.fork(); user = client.find('@alice');"
        "child and sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]));"
        "sys.exit(user is None)"
    )
    async with serving(found()) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "ignore", "-c", script, server.address
        )
        assert await process.wait() == 0
        assert len(server.requests) == 3
        assert len(server.connections) == 2


@pytest.mark.slow
async def test_first_address_takes_a_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with full_listener() as silent:
        async with (
            serving(found()) as server,
            calling("synchronous", server.address, deadline=2.0) as call,
        ):
            kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
            both_ = [(*kind, silent), (*kind, ("127.0.0.1", server.port))]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both_)
            assert await call("find", "@alice") == ALICE


@both
async def test_proxy_that_replaces_the_request_id_is_named(kind: Kind) -> None:
    """Unless the id of our own is sent back."""
    replaced = NOT_FOUND.replace(REQUEST_ID, b"other")
    named = replaced.replace(b"\r\n", b"\r\nServer: envoy\r\nVia: 1.1 edge\r\n", 1)
    own = f"X-IDV-Request-ID: {REQUEST_ID.decode()}".encode()
    passed = replaced.replace(b"\r\n", b"\r\n%b\r\n" % own, 1)
    async with serving(named, replaced, passed) as server, calling(kind, server.address) as call:
        with pytest.raises(Unexpected, match=r"a proxy \(envoy, 1\.1 edge\) has changed"):
            await call("find", "@alice")
        with pytest.raises(Unexpected, match="or a proxy has changed"):
            await call("find", "@alice")
        assert await call("find", "@alice") is None


@pytest.mark.parametrize(("scheme", "port"), [("http", 80), ("https", 443)])
async def test_port_is_that_of_the_scheme_unless_the_url_has_one(
    monkeypatch: pytest.MonkeyPatch, scheme: str, port: int
) -> None:
    asked: list[object] = []

    def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        asked.append((host, port))
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    for authority in ("idv.example", "idv.example:8080", "[fd00::1]", "[fd00::1]:8080"):
        url = f"{scheme}://{authority}"
        async with calling("synchronous", url) as call:
            with pytest.raises(Undetermined):
                await call("find", "@alice")
    names = [("idv.example", port), ("idv.example", 8080)]
    assert asked == [*names, ("fd00::1", port), ("fd00::1", 8080)]


@both
@pytest.mark.parametrize(
    "sent",
    [
        found() + NOT_FOUND.replace(REQUEST_ID, b"earlier"),
        found().replace(b"\r\n", b"\r\nConnection: close\r\n", 1),
    ],
    ids=["stray", "close"],
)
async def test_connection_with_more_than_a_response_is_closed(kind: Kind, sent: bytes) -> None:
    async with serving(sent, found()) as server, calling(kind, server.address) as call:
        for _ in range(3):
            assert await call("find", "@alice") == ALICE
        assert len(server.connections) == 2


@both
async def test_late_response_is_of_no_use_and_ends_its_connection(kind: Kind) -> None:
    """Otherwise each request would get the response to the one before."""
    late = NOT_FOUND.replace(REQUEST_ID, b"earlier")
    async with serving(late, found()) as server, calling(kind, server.address) as call:
        with pytest.raises(Unexpected, match="does not repeat the request id"):
            await call("find", "@alice")
        assert await call("find", "@alice") == ALICE
    assert len(server.connections) == 2


@both
async def test_full_backlog_ends_with_the_deadline(kind: Kind) -> None:
    with full_listener() as (host, port):
        async with calling(kind, f"http://{host}:{port}", deadline=0.2) as call:
            with pytest.raises(Undetermined, match="Timeout"):
                await call("find", "@alice")


async def test_interim_responses_are_bounded() -> None:
    flood = b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000
    async with serving(flood + NOT_FOUND) as server, calling("synchronous", server.address) as call:
        with pytest.raises(Unexpected):
            await call("find", "@alice")


@pytest.mark.parametrize("is_connected", [False, True])
async def test_time_that_is_over_before_a_step_is_a_timeout(*, is_connected: bool) -> None:
    """Before the connection, or before the TLS handshake."""
    times = iter([0.0] * (1 + is_connected))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        options = {"clock": lambda: next(times, 100.0), "deadline": 0.2}
        async with calling("synchronous", url, **options) as call:
            with pytest.raises(Undetermined, match="TimeoutError"):
                await call("find", "@alice")
        if is_connected:
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.recv(1) == b""


@both
async def test_pauses_follow_the_service_and_vary(kind: Kind) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    limited = error(429, "rate_limited", "Retry-After: 3")
    no_time = error(503, "overloaded")
    options = {"sleep": pauses.append if kind == "synchronous" else sleep, "chance": lambda: 1.0}
    answers = UNAVAILABLE, no_time, limited, found()
    async with serving(*answers) as server, calling(kind, server.address, **options) as call:
        assert await call("find", "@alice") == ALICE
    assert pauses == [1.25, 0.25, 3.75]
    ids = [header(each, "X-Request-ID") or "" for each in server.requests]
    assert ids == [f"{ids[0][:32]}-{number}" for number in (1, 2, 3, 4)]


async def test_client_of_another_event_loop_is_named() -> None:
    """As one that a module makes, and each test has a loop of its own."""
    async with serving(NOT_FOUND) as server, AsyncClient(server.address, "key") as client:
        assert await client.find("@alice") is None

        def find_in_another_loop() -> object:
            return asyncio.run(client.find("@alice"))

        with pytest.raises(Undetermined, match="another event loop"):
            await asyncio.to_thread(find_in_another_loop)
        assert await client.find("@alice") is None


async def test_date_is_that_of_the_last_response() -> None:
    date = "Sun, 29 Nov 2026 11:00:00 GMT"
    dated = error(404, "not_found", f"Date: {date}")
    async with (
        serving(dated, Said(then="close")) as server,
        AsyncClient(server.address, "k") as client,
    ):
        assert await client.find("@alice") is None
        with pytest.raises(Undetermined):
            await client.find("@alice")
        assert client.date == date


def test_import_of_the_client_is_light() -> None:
    script = (
        "import sys; from tornado_idv.client import Client;"
        "print([each for each in ('aiohttp', 'asyncio', 'click', 'msgspec', 'pluggy', 'pydantic',"
        " 'tornado', 'yaml', 'yarl') if each in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
