"""Directories over backends that a test controls."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from support.fakes.clock_and_backends import FakeBackend, Source, Ticker, steady_cache
from tornado_idv.errors import Broken, LookupFailed, Unavailable
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.interfaces.hookspecs import hookimpl
from tornado_idv.lookup.cache import CacheLimits
from tornado_idv.lookup.directory import Directory
from tornado_idv.model import Answer, ByNickname, Query, User
from tornado_idv.registry import plugin_manager

ALICE = User("Free", "4000", "alice")
OTHER_ALICE = User("Pro", "4001", "alice")
QUERY = ByNickname("alice")
DOWN = Unavailable("down")
BROKEN = Broken("two users")


class OwnDispatch:
    """A plugin that answers by itself, behind no configured backend and no guard."""

    def __init__(self, answer: object = None) -> None:
        self.source = Source(answer)

    @hookimpl
    async def idv_identify(self, query: Query, deadline: float) -> Any:
        self.deadline = deadline
        return await self.source.ask(query)


def encode(user: User | None) -> bytes:
    return b"not found" if user is None else user.plan.encode()


def directory(
    *backends: AnyBackend,
    plugins: Sequence[object] = (),
    ticker: Ticker | None = None,
    **options: Any,
) -> Directory:
    """A directory of some backends, asked in this order."""
    manager = plugin_manager(entry_points=False, plugins=plugins)
    cache = steady_cache(CacheLimits(ttl=300, negative_ttl=30), ticker)
    options.setdefault("accepts", lambda user: True)
    return Directory(manager, backends, cache, encode, **options)


def chain(*answers: object, on_unavailable: str = "fail") -> list[FakeBackend]:
    return [
        FakeBackend(answer, name, on_unavailable=on_unavailable)
        for name, answer in zip("abcdefgh", answers, strict=False)
    ]


def counts(backends: Sequence[FakeBackend]) -> list[int]:
    return [backend.source.asked for backend in backends]


async def failure(asked: Directory, query: Query = QUERY) -> LookupFailed:
    with pytest.raises(LookupFailed) as caught:
        await asyncio.wait_for(asked.find(query), timeout=5)
    return caught.value


async def begin(asked: Directory, source: Source) -> asyncio.Task[Answer]:
    caller = asyncio.create_task(asked.find(QUERY))
    await asyncio.wait_for(source.begun.wait(), timeout=5)
    return caller


async def lifetime(ticker: Ticker, asked: Directory, *backends: FakeBackend) -> float:
    """For how many seconds an answer is remembered, to the second."""
    await asked.find(QUERY)
    count = sum(counts(backends))
    began = ticker.now
    while sum(counts(backends)) == count:
        ticker.now += 1
        await asked.find(QUERY)
    return ticker.now - began
