"""Transports for tests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import pytest

from idv_upstream.request.template import Request
from idv_upstream.response.raw import Response
from idv_upstream.transport.credentials import NoCredential
from idv_upstream.transport.sender import Sender
from idv_upstream.transport.tls import TlsOptions
from support.fakes.clock_and_backends import LoopClock
from support.http.scripted_server import Said, Scripted, http, serving
from tornado_idv import LookupFailed, Unavailable

GET = Request("GET", "/people/alice?plan=1", {}, None, repeatable=True)
POST = Request("POST", "/search", {"Content-Type": "application/json"}, b"{}", repeatable=False)

GOOD = http(200, b"{}")
TIMEOUT = 30.0


def always(_status: int) -> bool:
    return True


@asynccontextmanager
async def opened(base_url: str = "", **arguments: Any) -> AsyncIterator[Sender]:
    given = {"auth": NoCredential(), "tls": TlsOptions(), "timeout": TIMEOUT, "pause": AsyncMock()}
    made = Sender(base_url=base_url, name="crm", **{**given, **arguments})
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def asked(*answers: Said | bytes, **arguments: Any) -> AsyncIterator[tuple[Scripted, Sender]]:
    async with serving(*answers) as upstream, opened(upstream.address, **arguments) as made:
        yield upstream, made


async def ask(
    made: Sender, request: Request = GET, wants_body: Callable[[int], bool] = always
) -> Response:
    """Send a request, and cancel it as the guard of a backend does."""
    try:
        async with asyncio.timeout(TIMEOUT):
            return await made.send(request, wants_body, on_new=False)
    except TimeoutError:
        raise Unavailable("cancelled by the guard") from None


async def failure_of(made: Sender, request: Request = GET) -> LookupFailed:
    with pytest.raises(LookupFailed) as caught:
        await ask(made, request)
    return caught.value


async def given_up(
    upstream: Scripted, made: Sender, request: Request = GET, *, times: int = 1
) -> LookupFailed:
    """The failure of a request that times out.

    Time passes when the upstream has received so many requests in all.
    """
    waiting = asyncio.ensure_future(failure_of(made, request))
    await upstream.asked(times)
    await upstream.dripped()
    LoopClock().forward(TIMEOUT + 1)  # the library waits for the end of the second
    return await waiting
