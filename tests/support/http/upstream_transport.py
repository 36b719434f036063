"""Transports for tests."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from idv_upstream.request.template import Request
from idv_upstream.response.raw import Response
from idv_upstream.transport.credentials import Credential, NoCredential
from idv_upstream.transport.sender import Sender
from idv_upstream.transport.tls import TlsOptions
from support.fakes.clock_and_backends import LoopClock, Ticker
from support.http.scripted_server import Said, Scripted, header, serving
from tornado_idv import LookupFailed, Unavailable

GET = Request("GET", "/people/alice?plan=1", {}, None, repeatable=True)
POST = Request("POST", "/search", {"Content-Type": "application/json"}, b"{}", repeatable=False)

TIMEOUT = 30.0


def always(_status: int) -> bool:
    return True


class Pauses:
    """Records the pauses without waiting."""

    def __init__(self) -> None:
        self.lengths: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.lengths.append(seconds)


def transport(base_url: str = "", **arguments: Any) -> Sender:
    given = {"auth": NoCredential(), "tls": TlsOptions(), "timeout": TIMEOUT, "pause": Pauses()}
    return Sender(base_url=base_url, name="crm", **{**given, **arguments})


@asynccontextmanager
async def opened(base_url: str = "", **arguments: Any) -> AsyncIterator[Sender]:
    made = transport(base_url, **arguments)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def asked(*answers: Said | bytes, **arguments: Any) -> AsyncIterator[tuple[Scripted, Sender]]:
    """An upstream that sends these responses, and a transport for it."""
    async with serving(*answers) as upstream, opened(upstream.address, **arguments) as made:
        yield upstream, made


async def ask(
    made: Sender, request: Request = GET, wants_body: Callable[[int], bool] = always
) -> Response:
    """Send a request, and cancel it as the guard of a backend does."""
    try:
        async with asyncio.timeout(TIMEOUT):
            return await made.send(request, wants_body)
    except TimeoutError:
        raise Unavailable("cancelled by the guard") from None


async def failure_of(made: Sender, request: Request = GET) -> LookupFailed:
    with pytest.raises(LookupFailed) as caught:
        await ask(made, request)
    return caught.value


async def traceback_of(made: Sender, request: Request = GET) -> list[str]:
    """The traceback of a failure, if there is one."""
    try:
        await ask(made, request)
    except LookupFailed as failure:
        return [*traceback.format_exception(failure), repr(failure)]
    return []


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


class Issued:
    """An upstream, its token server, and a transport that uses both."""

    def __init__(self, directory: Scripted, issuer: Scripted, made: Sender, timer: Ticker) -> None:
        self.directory, self.issuer, self.made, self.timer = directory, issuer, made, timer

    def shown(self, name: str = "Authorization") -> list[str | None]:
        """The values of a header in the requests to the upstream."""
        return [header(request, name) for request in self.directory.requests]


@asynccontextmanager
async def behind_issuer(
    auth: Callable[[str], Credential], *tokens: Said | bytes, answers: Sequence[Said | bytes]
) -> AsyncIterator[Issued]:
    """Serve these responses of both; ``auth`` takes the address of the token server."""
    timer = Ticker()
    async with (
        serving(*answers) as directory,
        serving(*tokens) as issuer,
        opened(directory.address, auth=auth(issuer.address), timer=timer) as made,
    ):
        yield Issued(directory, issuer, made, timer)
