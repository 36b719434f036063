"""Who may use the admin listener, at which address, for how long, and how it rejects the others."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from urllib.parse import urljoin

import pytest

from idv_yaml.backend import YamlBackend
from support.fakes.clock_and_backends import LoopClock
from support.processes.admin import (
    ADMIN_KEY,
    OPEN_TO_ALL,
    WITH_ADMIN,
    AdminReply,
    admin_port,
    ask_admin,
)
from support.processes.ports import free_port
from support.processes.service import EXPIRED_KEY, KEY, Client, serving, serving_here
from tornado_idv.admin.listener import ROUTES as OF_CORE
from tornado_idv.admin.listener import admin_listening
from tornado_idv.config.address import Address
from tornado_idv.features.status.handlers import FILE_ROUTES
from tornado_idv.features.status.handlers import ROUTES as OF_STATUS
from tornado_idv.service.service import Service
from tornado_idv.service.sockets import bind

ROUTES = OF_CORE | OF_STATUS
GET = b"GET /health/ready HTTP/1.1\r\nHost: %s\r\n\r\n"
GETS = [path for path, handler in ROUTES.items() if "GET" in handler.allowed]
WITH_DATA = [path for path, handler in ROUTES.items() if handler.has_data]
WITHOUT_DATA = [*(path for path in ROUTES if path not in WITH_DATA), *FILE_ROUTES]
POSTS = [path for path, handler in ROUTES.items() if "POST" in handler.allowed]


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose admin listener is on every address."""
    with serving(OPEN_TO_ALL, tmp_path_factory.mktemp("open")) as running:
        yield running


def assert_error(reply: AdminReply, status: int, code: str) -> None:
    """Assert that a response is an error record, with the header fields of every response."""
    assert (reply.status, reply.json["status"], reply.json["code"]) == (status, "error", code)
    assert list(reply.json) == ["status", "code", "message"]
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.headers["Cache-Control"] == "no-store"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert "Server" not in reply.headers


@pytest.mark.parametrize("path", [*WITH_DATA, "/elsewhere", "/status/elsewhere.js"])
@pytest.mark.parametrize(
    ("key", "logged"),
    [
        (None, "key -: missing"),
        ("unknown-unknown", "key -: unknown"),
        (EXPIRED_KEY, "key expired: expired"),
        (KEY, "key caller: no scope admin"),
    ],
    ids=["no key", "unknown", "expired", "another scope"],
)
def test_every_request_needs_an_admin_key_off_loopback(
    open_service: Service, caplog: pytest.LogCaptureFixture, path: str, key: str | None, logged: str
) -> None:
    """One without it is logged, with the reason."""
    record = {"all": True} if path in POSTS else None
    fields = {"Authorization": f"Bearer {key}"} if key else {}
    reply = ask_admin(open_service, path, record, **fields)
    if key == KEY:
        assert_error(reply, 403, "insufficient_scope")
    else:
        assert_error(reply, 401, "token_invalid_or_expired")
    assert reply.headers["WWW-Authenticate"] == (None if key == KEY else "Bearer")
    assert [each.getMessage() for each in caplog.records if "admin: " in each.msg] == [
        f"admin: rejected a request of 127.0.0.1, {logged}"
    ]


def test_key_that_may_be_in_a_key_store_that_cannot_be_read_is_503(
    open_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_service.ring, "complete_until", -inf)
    reply = ask_admin(open_service, "/status.json", Authorization="Bearer unknown-unknown")
    assert_error(reply, 503, "backend_unavailable")


def test_page_and_liveness_need_no_key(open_service: Service) -> None:
    """A browser cannot send one: the page asks for it. A probe may have that before a rotation."""
    assert {"/status", "/health/live"} <= {*WITHOUT_DATA}
    for fields in ({}, {"Authorization": f"Bearer {EXPIRED_KEY}"}):
        replies = [ask_admin(open_service, path, **fields) for path in WITHOUT_DATA]
        assert {each.status for each in replies} == {200}
        assert b"caller" not in b"".join(each.body for each in replies)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8081", "[::1]:8081", "LOCALHOST"])
def test_no_key_is_needed_on_loopback(service: Service, host: str) -> None:
    replies = {path: ask_admin(service, path, Host=host).status for path in GETS}
    assert replies == dict.fromkeys(GETS, 200)


@pytest.mark.parametrize("host", ["attacker.example", "localhost.attacker.example", "127.0.0.1.x"])
def test_names_of_other_hosts_are_rejected_on_loopback(service: Service, host: str) -> None:
    """A web page whose name an attacker points to 127.0.0.1 reads nothing (DNS rebinding)."""
    for path in ("/status.json", "/status", "/", "/cache/purge"):
        record = {"all": True} if path in POSTS else None
        assert_error(ask_admin(service, path, record, Host=host), 421, "host_not_allowed")


@pytest.mark.parametrize("path", ["/", "/status"])
def test_page_names_its_files_from_the_root_too(service: Service, path: str) -> None:
    """By relative references, which also work under a path of a proxy."""
    page = ask_admin(service, path).body.decode()
    names = re.findall(r'(?:src|href)="(status[^"]*)"', page)
    assert len(names) == 4
    assert all(ask_admin(service, urljoin(path, each)).status == 200 for each in names)


def test_audit_log_names_the_key_and_the_client(
    open_service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tornado_idv.audit"):
        fields = {"Authorization": f"Bearer {ADMIN_KEY}", "Host": "idv.example:8081"}
        for path in ("/cache/purge", "/reload"):
            assert ask_admin(open_service, path, {"all": True}, **fields).status == 200
            reply = ask_admin(open_service, path, {}, **fields, **{"Content-Type": "text/plain"})
            assert_error(reply, 415, "unsupported_media_type")
    lines = [vars(each) for each in caplog.records if each.name == "tornado_idv.audit"]
    assert [(each["client"], each["key"]) for each in lines] == [("127.0.0.1", "operator")] * 2


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_post_needs_the_media_type_of_json(service: Service, media_type: str) -> None:
    """A form of a web page cannot send it."""
    for path in POSTS:
        reply = ask_admin(service, path, {"all": True}, **{"Content-Type": media_type})
        assert_error(reply, 415, "unsupported_media_type")
    fields = {"Content-Type": "Application/JSON ; charset=utf-8"}
    assert ask_admin(service, "/cache/purge", {"all": True}, **fields).status == 200


@pytest.mark.parametrize(
    ("path", "method", "allowed"),
    [
        ("/metrics", "DELETE", "GET, HEAD"),
        ("/cache/purge", "GET", "POST"),
        ("/cache/purge", "OPTIONS", "POST"),
    ],
)
def test_wrong_method_is_rejected_and_no_origin_is_allowed(
    service: Service, path: str, method: str, allowed: str
) -> None:
    """Neither for a preflight request nor for another."""
    reply = ask_admin(service, path, method=method, Origin="https://attacker.example")
    assert_error(reply, 405, "method_not_allowed")
    assert reply.headers["Allow"] == allowed
    reply = ask_admin(service, "/status.json", Origin="https://attacker.example")
    assert not [name for name in reply.headers if name.lower().startswith("access-control-")]


def test_other_paths_have_no_route(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    """And are not logged, since anything may be in them."""
    with caplog.at_level(logging.INFO):
        for _ in range(2):  # the first one has ended when the second is answered
            assert_error(ask_admin(service, "/elsewhere?canary"), 404, "no_such_route")
    assert "canary" not in caplog.text


def test_head_has_the_fields_of_get_without_the_body(service: Service) -> None:
    reply = ask_admin(service, "/health/live", method="HEAD")
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["Content-Length"] == str(len(ask_admin(service, "/health/live").body))


def test_request_beyond_the_limits_ends_the_connection(service: Service) -> None:
    sent = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 16385\r\n\r\n"
    (reply,) = Client(admin_port(service)).until_closed(sent)
    assert (reply.status, reply.code) == (413, "body_too_large")


def test_public_listener_has_no_admin_endpoints(service: Service) -> None:
    for path in ROUTES:
        assert Client(service.port).send("GET", path, {"Host": "x"}).code == "no_such_route"


@asynccontextmanager
async def listening_on(
    service: Service, addresses: Sequence[str], host: str
) -> AsyncIterator[list[int]]:
    """An admin listener of a service on these addresses, and its ports."""
    sockets = [sock for each in addresses for sock in bind("admin", Address(each))]
    async with admin_listening(sockets, host, service):
        yield [Address.of(each).port for each in sockets]


async def status(port: int, host: bytes = b"localhost") -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET % host)
    line = await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    return int(line.split()[1])


async def test_connection_is_not_refused_before_the_public_listener_responds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe of the admin listener begins while the backends are opened, and is answered."""
    port = free_port()
    probes = []

    async def open_backend(backend: YamlBackend) -> None:
        probes.append(await asyncio.open_connection("127.0.0.1", port))
        await opened(backend)

    opened = YamlBackend.open
    monkeypatch.setattr(YamlBackend, "open", open_backend)
    config = WITH_ADMIN.replace("admin: {port: 0}", f"admin: {{port: {port}}}")
    async with serving_here(config, tmp_path):
        ((reader, writer),) = probes
        writer.write(GET % b"localhost")
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["127.0.0.1", "127.0.0.1"], 200),
        (["127.0.0.1", "0.0.0.0"], 401),
        (["0.0.0.0", "127.0.0.1"], 401),
        (["0.0.0.0"], 401),
    ],
    ids=["loopback", "other last", "other first", "other"],
)
async def test_key_is_needed_unless_every_address_is_on_loopback(
    tmp_path: Path, addresses: list[str], expected: int
) -> None:
    """As where the name of a host has an address on loopback beside its own."""
    async with (
        serving_here(WITH_ADMIN, tmp_path) as service,
        listening_on(service, addresses, "name") as ports,
    ):
        assert [await status(port) for port in ports] == [expected] * len(ports)


async def test_configured_host_is_a_name_in_any_case(tmp_path: Path) -> None:
    async with (
        serving_here(WITH_ADMIN, tmp_path) as service,
        listening_on(service, ["127.0.0.1"], "Admin.Internal") as (port,),
    ):
        for host in (b"Admin.Internal", b"admin.internal", b"ADMIN.INTERNAL:8081"):
            assert await status(port, host) == 200
        assert await status(port, b"admin.external") == 421


async def seconds_until_closed(reader: asyncio.StreamReader, clock: LoopClock) -> int:
    for second in range(100):
        await clock.advance(1.0)
        for _ in range(20):  # the close arrives
            await asyncio.sleep(0)
        if reader.at_eof():
            return second
    raise AssertionError


async def test_connection_is_closed_without_a_first_or_a_further_request(tmp_path: Path) -> None:
    """The first has to come within seconds; scrapers may keep their connections open."""
    async with serving_here(WITH_ADMIN, tmp_path) as service:
        clock, port = LoopClock(), admin_port(service)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(64)]
        assert await status(port) == 200  # an idle connection gave way
        for _, writer in idle:
            writer.close()
        reader, silent = await asyncio.open_connection("127.0.0.1", port)
        assert 4 <= await seconds_until_closed(reader, clock) <= 8
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET % b"localhost")
        await asyncio.wait_for(reader.readuntil(b'"degraded":[]}'), 5)
        assert 70 <= await seconds_until_closed(reader, clock) <= 80
        silent.close()
        writer.close()
