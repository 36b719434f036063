"""Transports to ask with."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fakes import LoopClock
from scripted import Said, Scripted, serving

from idv_upstream.credentials import NoCredential
from idv_upstream.request import Asking
from idv_upstream.tls import TlsOptions
from idv_upstream.transport import Reply, Transport
from tornado_idv import LookupFailed

GET = Asking("GET", "/people/alice?plan=1", {}, None, repeatable=True)
POST = Asking("POST", "/search", {"Content-Type": "application/json"}, b"{}", repeatable=False)

TIMEOUT = 5.0


def always(_status: int) -> bool:
    return True


class Pauses:
    """Counts the pauses and lets nobody wait."""

    def __init__(self) -> None:
        self.lengths: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.lengths.append(seconds)


def transport(*endpoints: str, **arguments: Any) -> Transport:
    given = {"auth": NoCredential(), "tls": TlsOptions(), "timeout": TIMEOUT, "pause": Pauses()}
    return Transport(endpoints=endpoints, name="crm", **{**given, **arguments})


@asynccontextmanager
async def opened(*endpoints: str, **arguments: Any) -> AsyncIterator[Transport]:
    made = transport(*endpoints, **arguments)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def asked(
    *answers: Said | bytes, **arguments: Any
) -> AsyncIterator[tuple[Scripted, Transport]]:
    """An upstream that gives these answers, and the transport that asks it."""
    async with serving(*answers) as upstream, opened(upstream.address, **arguments) as made:
        yield upstream, made


async def ask(
    made: Transport, asking: Asking = GET, wants_body: Callable[[int], bool] = always
) -> Reply:
    return await asyncio.wait_for(made.ask(asking, wants_body), 10)


async def failure_of(made: Transport, asking: Asking = GET) -> LookupFailed:
    with pytest.raises(LookupFailed) as caught:
        await ask(made, asking)
    return caught.value


async def failure_told(made: Transport, asking: Asking = GET) -> list[str]:
    """What a traceback tells of a failure, if it is one."""
    try:
        await ask(made, asking)
    except LookupFailed as failure:
        return [*traceback.format_exception(failure), repr(failure)]
    return []


async def given_up(
    upstream: Scripted, made: Transport, asking: Asking = GET, *, times: int = 1
) -> LookupFailed:
    """The failure of a request that has no whole answer when its time is over.

    That comes when the upstream has seen so many requests in all.
    """
    waiting = asyncio.ensure_future(failure_of(made, asking))
    await upstream.asked(times)
    await upstream.dripped()
    LoopClock().forward(TIMEOUT + 1)  # the library waits for the end of the second
    return await waiting
