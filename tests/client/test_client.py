"""The client: a user, ``None`` for one that does not exist, and an error for everything else."""

import asyncio
import os
import ssl
from dataclasses import replace

import pytest
import trustme

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
from support.http.scripted_server import Said, header, http, serving
from support.processes.ports import free_port
from support.processes.service import EXPIRED_KEY, KEY
from tornado_idv.client import (
    ClientError,
    InvalidFormat,
    InvalidKey,
    MissingScope,
    NotFound,
    RateLimited,
    Undetermined,
    Unexpected,
)
from tornado_idv.service.service import Service as RunningService

NOT_FOUND_BODY = NOT_FOUND.partition(b"\r\n\r\n")[2]
pytestmark = pytest.mark.parametrize("kind", KINDS)


async def test_user_is_found_by_nickname_url_and_card(service: RunningService, kind: Kind) -> None:
    async with calling(kind, service.url, KEY) as call:
        assert await call("find", "@alice") == ALICE
        assert await call("find", "https://profiles.example/m/alice/") == ALICE
        assert await call("find_card", ALICE.card_number) == ALICE
        assert await call("get", "@alice") == await call("get_card", ALICE.card_number) == ALICE
        assert ALICE.card_number not in repr(ALICE)


async def test_no_user_is_none_or_an_error(service: RunningService, kind: Kind) -> None:
    async with calling(kind, service.url, KEY) as call:
        assert await call("find", "@nobody") is None
        assert await call("find_card", "1") is None
        for method, text in (("get", "@nobody"), ("get_card", "1")):
            with pytest.raises(NotFound) as caught:
                await call(method, text)
            assert caught.value.request_id in str(caught.value)


async def test_errors_of_the_service(service: RunningService, kind: Kind) -> None:
    async with calling(kind, service.url, EXPIRED_KEY) as call:
        with pytest.raises(InvalidKey):
            await call("find", "@alice")
    async with calling(kind, service.url, KEY) as call:
        with pytest.raises(InvalidFormat) as caught:
            await call("find", "alice")
        assert caught.value.reason == "nickname_without_at"
        assert "valid format: nickname_without_at" in str(caught.value)
        assert "alice" not in str(caught.value)
    async with calling(kind, f"{service.url}/elsewhere", KEY) as call:
        with pytest.raises(Unexpected, match="check its URL"):
            await call("find", "@alice")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (error(401, "token_invalid_or_expired"), InvalidKey),
        (error(401, "key_suspended", "X-Error-Reason: a"), InvalidKey),  # codes may be added
        (error(403, "insufficient_scope"), MissingScope),
        (error(422, "invalid_format", "X-Error-Reason: not_json"), InvalidFormat),
        (error(422, "invalid_format", "X-Error-Reason: not @alice"), InvalidFormat),
        (error(429, "rate_limited", "Retry-After: 60"), RateLimited),
        (UNAVAILABLE.replace(b"Retry-After: 1", b"Retry-After: 60"), Undetermined),
        (error(408, "late"), Undetermined),
        (error(500, "internal"), Undetermined),
        (error(404, "no_such_route"), Unexpected),
        (http(404, b'{"status":"ok","code":"not_found"}', ECHO), Unexpected),
        (http(404, b'["status","error","code","not_found"]', ECHO), Unexpected),
        (http(404, b'{"code":"a","status":"error","code":"not_found"}', ECHO), Unexpected),
        (http(404, NOT_FOUND_BODY, ECHO, kind="text/html"), Unexpected),
        (http(404, NOT_FOUND_BODY), Unexpected),
        (http(404, NOT_FOUND_BODY, ECHO, "X-IDV-Request-ID: of-another"), Unexpected),
        (NOT_FOUND.replace(b"HTTP/1.1 404", b"HTTP/1.1 200"), Unexpected),
        (http(404, NOT_FOUND_BODY, ECHO, "Content-Encoding: gzip"), Unexpected),
        (error(401, "not_found"), Unexpected),
        (http(204), Unexpected),
        (http(307, b"", "Location: /x"), Unexpected),
        (found(nickname="@bob"), Unexpected),
        (found(plan=7), Unexpected),
        (found(status="error"), Unexpected),
        (found().replace(b"200", b"410", 1), Unexpected),
        (found(profile_url="x" * 70_000), Unexpected),
        (Said(NOT_FOUND[:-1], "close"), Unexpected),
        (Said(NOT_FOUND[:40], "close"), ClientError),
        (Said(error(429, "rate_limited", "Retry-After: 60")[:-1], "reset"), RateLimited),
        (Said(b"", "close"), Undetermined),
        (Said(b"", "reset"), Undetermined),
        (Said(b"garbage\r\n\r\n", "close"), Unexpected),
        (NOT_FOUND.replace(b"\r\n", b"\r\nX: %b\r\n" % (b"x" * 100_000), 1), Unexpected),
    ],
)
async def test_response_becomes_its_error(
    kind: Kind, response: bytes | Said, expected: type[ClientError]
) -> None:
    async with serving(response) as server, calling(kind, server.address) as call:
        with pytest.raises(expected) as caught:
            await call("find", "@alice")
    (request,) = server.requests  # it is not sent again
    assert caught.value.request_id == header(request, "X-Request-ID")
    assert caught.value.request_id == header(request, "X-IDV-Request-ID")
    assert "alice" not in str(caught.value)


async def test_members_may_be_added(kind: Kind) -> None:
    sent = found(since="2026", nickname="@alicE").replace(b"/json", b"/json; charset=utf-8")
    async with serving(sent) as server, calling(kind, server.address) as call:
        assert await call("find", "@Alice") == replace(ALICE, nickname="@alicE")  # case may fold


@pytest.mark.parametrize(
    "answer",
    [
        Said(b"", "drip"),
        Said(NOT_FOUND.replace(b"Content-Length: ", b"Content-Length: 9"), "drip"),
        Said(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, "keep"),
        Said(b"", "keep"),
    ],
    ids=["slow head", "slow body", "interim responses", "silence"],
)
async def test_deadline_ends_every_response(kind: Kind, answer: Said) -> None:
    async with serving(answer) as server, calling(kind, server.address, deadline=0.2) as call:
        with pytest.raises(ClientError):
            await call("find", "@alice")


async def test_service_that_cannot_be_reached(kind: Kind) -> None:
    for host in (f"127.0.0.1:{free_port()}", "nowhere.invalid", f"{'a' * 64}.invalid"):
        async with calling(kind, f"http://{host}") as call:
            with pytest.raises(Undetermined, match="no response"):
                await call("find", "@alice")


async def test_traceparent_is_sent_with_each_attempt(kind: Kind) -> None:
    values = iter(["00-a-b-01", None, "not\r\nvalid"])
    async with (
        serving(found()) as server,
        calling(kind, server.address, traceparent=lambda: next(values)) as call,
    ):
        for _ in range(3):
            await call("find", "@alice")
    assert [header(each, "traceparent") for each in server.requests] == ["00-a-b-01", None, None]


def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts of a server and of its client."""
    authority = trustme.CA()
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_context)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return server_context, context


async def test_tls_and_base_path(kind: Kind) -> None:
    server_context, context = tls_contexts()
    async with serving(found(), tls=server_context) as server:
        url = f"HTTPS://127.0.0.1:{server.port}/b%61se/"
        async with calling(kind, url, ssl_context=context) as call:
            assert await call("find", "@alice") == ALICE
            assert await call("find_card", ALICE.card_number) == ALICE
        assert len(server.connections) == 1
        async with calling(kind, url) as call:
            with pytest.raises(Undetermined, match="Cert"):
                await call("find", "@alice")
    assert server.targets == ["/b%61se/api/v1/identify/url", "/b%61se/api/v1/identify/card"]
    assert header(server.requests[0], "Host") == f"127.0.0.1:{server.port}"
    assert header(server.requests[0], "Accept-Encoding") == "identity"


async def test_head_of_an_error_is_enough_if_tls_fails_in_its_body(kind: Kind) -> None:
    server_context, context = tls_contexts()
    cut = error(429, "rate_limited", "Retry-After: 60")[:-1]
    async with (
        serving(cut, tls=server_context) as server,
        calling(kind, server.address, ssl_context=context) as call,
    ):
        calls = asyncio.create_task(call("find", "@alice"))
        await server.asked()
        os.write(server.writers[0].get_extra_info("socket").fileno(), b"not a record of TLS")
        with pytest.raises(RateLimited) as caught:
            await calls
    assert (caught.value.retry_after, caught.value.status) == (60, 429)


@pytest.mark.parametrize(
    ("url", "key", "message"),
    [
        ("idv.example", "k", "url must be like"),
        ("https://user:secret@idv.example", "k", "url must be like"),
        ("https://idv.example?secret", "k", "url must be like"),
        ("https://idv.example:65536", "k", "url must be like"),
        ("https://idv.example", "a\nb", "key must be one token"),
    ],
)
async def test_wrong_arguments_are_refused(kind: Kind, url: str, key: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        async with calling(kind, url, key):
            pass
    assert "secret" not in str(caught.value)
