"""Interim responses (1xx), which aiohttp reads without a bound."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from aiohttp import connector

from idv_upstream.transport import client
from idv_upstream.transport.bounded import MAX_RESPONSE
from idv_upstream.transport.credentials import ClientCredentials
from support.http.http_server import until
from support.http.scripted_server import http, serving
from support.http.upstream_transport import ask, asked, failure_of
from tornado_idv import Broken

GOOD = http(200, b"{}")
TOO_LONG = "a response of more than 65536 bytes"


def interim(size: int, status: int = 103) -> bytes:
    """Interim responses of so many bytes in all."""
    shortest = b"HTTP/1.1 %d Canary\r\n\r\n" % status
    filled = shortest * (size // len(shortest) - 1)
    rest = size - len(filled) - len(shortest)
    return filled + shortest.replace(b"Canary", b"Canary" + b"y" * rest)


@pytest.mark.parametrize("status", [100, 102, 103, 199])
async def test_response_with_its_interim_ones_is_bounded_to_the_byte(status: int) -> None:
    longest = interim(MAX_RESPONSE - len(GOOD), status) + GOOD
    longer = interim(MAX_RESPONSE - len(GOOD) + 1, status) + GOOD
    async with asked(longest, longest, longer, GOOD) as (upstream, made):
        for _ in range(2):
            assert (await ask(made)).body == b"{}"
        assert len(upstream.connections) == 1
        failure = await failure_of(made)
        assert isinstance(failure, Broken)
        assert failure.reason == TOO_LONG
        assert (await ask(made)).body == b"{}"
    assert len(upstream.requests) == 4


async def test_byte_over_the_bound_may_come_later() -> None:
    async with asked(interim(MAX_RESPONSE)) as (upstream, made):
        waiting = asyncio.ensure_future(failure_of(made))
        await upstream.asked()
        (transport,) = (each.transport for each in upstream.writers)
        await until(lambda: not transport.get_write_buffer_size())
        for _ in range(100):
            await asyncio.sleep(0)
        transport.write(b"H")
        assert (await waiting).reason == TOO_LONG


async def test_response_beyond_the_bound_is_not_parsed() -> None:
    async with asked(interim(MAX_RESPONSE) + http(404)) as (_, made):
        with pytest.raises(Broken, match=TOO_LONG):
            await ask(made, wants_body=lambda _status: False)


def test_bound_is_as_documented() -> None:
    assert MAX_RESPONSE == 128 * 1024


async def test_idle_connection_with_interim_responses_without_end_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_KEEPALIVE_TIMEOUT", 60.0)
    async with asked(GOOD) as (upstream, made):
        await ask(made)
        upstream.writers[0].write(interim(MAX_RESPONSE + 1))
        (serving_it,) = upstream.connections
        assert serving_it is not None
        await asyncio.wait_for(serving_it, 5)
        assert (await ask(made)).body == b"{}"


async def test_token_server_is_bounded_too() -> None:
    async with serving(interim(MAX_RESPONSE) + GOOD) as issuer:
        auth = ClientCredentials.model_validate(
            {
                "kind": "oauth2",
                "token_url": issuer.address,
                "client_id": "us",
                "client_secret": "secret",
            }
        )
        async with asked(GOOD, auth=auth) as (_, made):
            assert (await failure_of(made)).reason == f"token server: {TOO_LONG}"


async def test_lookups_work_with_an_aiohttp_that_cannot_be_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its protocol is not public. `test_token_server_is_bounded_too` shows that ours can be."""
    changed = SimpleNamespace(partial=lambda protocol, **given: lambda: protocol(**given))
    monkeypatch.setattr(connector, "functools", changed)
    async with asked(GOOD) as (_, made):
        assert (await ask(made)).body == b"{}"
    (warning,) = set(caplog.messages)
    assert warning.endswith(": the size of interim responses (1xx) of upstreams is not limited")


async def test_framing_of_a_body_is_bounded() -> None:
    """An extension of a chunk may have any length."""
    head = http(200, b"", "Transfer-Encoding: chunked")
    async with asked(head + b"2;" + b"x" * MAX_RESPONSE + b"\r\n{}\r\n0\r\n\r\n") as (_, made):
        assert (await failure_of(made)).reason == TOO_LONG
